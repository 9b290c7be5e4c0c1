"""``launch.main plan`` is a door to the planner."""

import json
import subprocess
import sys

from launch import arguments


def test_plan_is_the_planner_with_its_own_help_and_exit_code() -> None:
    def plan(*argv: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "launch.main", "plan", *argv]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    done = plan("parameters", "--gin_file=configs/models/llama3_8b.gin", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sections"]["total"]["all"]["value"] == 8_030_261_248
    assert "python -m partitioning.planner" in plan("--help").stdout
    assert plan("nonsense").returncode == 64
    assert "plan ..." in arguments.DESCRIPTION
