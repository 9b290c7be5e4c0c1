"""The input benchmark runs and prints one object that scripts can read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_benchmark_prints_one_json_object() -> None:
    flags = ["--json", "--seconds=0.01", "--rounds=1", "--tokens=400000", "--sequence_length=64"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.input", *flags],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    result = json.loads(done.stdout)
    speeds = result["reading_tokens_per_cpu_second"]
    assert {"memmap slices (floor)", "plain Grain", "lockstep rows, packed"} <= speeds.keys()
    assert all(speed["low"] > 0 for speed in speeds.values())
    assert len(result["preparing"]) == 4
    assert all(row["tokens_per_second"] > 0 for row in result["preparing"].values())
    assert result["start"]["at_10_million_s"] > 0
