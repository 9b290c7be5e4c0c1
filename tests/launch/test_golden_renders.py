"""What every example job is on every engine, so that an accident shows up in review.

``UPDATE_GOLDEN=1 python -m pytest tests/launch/test_golden_renders.py`` rewrites them. An engine
that cannot run an example has its refusals there instead.
"""

import importlib.util
import os
import pathlib
import shlex
import sys

import pytest
import yaml

from launch import jobs, snapshot, spec_reader
from launch.engines.engine import ENGINES, engine_named
from launch.jobs import Options
from launch.run_index import RunIndex
from launch.snapshot import Snapshot
from launch.spec_problems import SpecError

REPOSITORY = pathlib.Path(__file__).parents[2]
GOLDEN = pathlib.Path(__file__).parent / "golden"
EXAMPLES = sorted((REPOSITORY / "configs" / "jobs").glob("*.yaml"))
BUILT = sorted(
    name for name, place in ENGINES.items() if importlib.util.find_spec(place.split(":")[0])
)
HOME = pathlib.Path("/home/ada")
_LONGEST = 1000
"""Longer lines are programs in base64, which have tests of their own."""


@pytest.fixture
def ada(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is the same everywhere."""
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    monkeypatch.setattr(
        snapshot,
        "describe",
        lambda folder: Snapshot(folder=folder, files=("a",), digest="0" * 64, untracked=()),
    )


def rendered(example: pathlib.Path, engine_name: str) -> str:
    """What is submitted, or why nothing is."""
    try:
        spec = spec_reader.load(example, engine=engine_name).spec
    except SpecError as error:
        said = [str(problem).replace(f"{REPOSITORY}/", "") for problem in error.problems]
        return "".join(f"refused: {line}\n" for line in said)
    engine = engine_named(engine_name)
    if refused := engine.refusals(spec):
        return "".join(f"refused: {line}\n" for line in refused)
    index = RunIndex(HOME / ".lockstep")
    options = Options(engine=engine_name, index=index, run_id=example.stem.replace("_", "-"),
                      folder=HOME / "lockstep")  # fmt: skip
    job = jobs.resolve(spec, options=options).jobs[0]
    made = engine.render(job)
    files = {"job.json": jobs.job_text(job), **made.files}
    parts = [f"# ---- {name}\n{text.rstrip()}\n" for name, text in files.items()]
    text = "".join([*parts, f"# ---- {shlex.join(made.command)}\n"])
    text = text.replace(str(REPOSITORY), "/opt/lockstep")
    kept = (line if len(line) < _LONGEST else f"{line[:20]}..." for line in text.splitlines())
    return "\n".join(kept) + "\n"


@pytest.mark.usefixtures("ada")
@pytest.mark.parametrize("engine", BUILT)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_renders_to_what_is_committed(
    example: pathlib.Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_LOCAL_DEVICES", "8")
    text = rendered(example, engine)
    golden = GOLDEN / engine / f"{example.stem}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text(), f"{example.name} changed; if meant, UPDATE_GOLDEN=1"


def test_every_golden_file_has_its_example() -> None:
    there = {path.stem for path in EXAMPLES}
    assert {path.stem for path in GOLDEN.glob("*/*.txt")} <= there
    assert len(there) == 7


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_says_what_it_is_and_how_it_is_submitted(example: pathlib.Path) -> None:
    head = example.read_text().split("\nversion:")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    assert f"python -m launch.main submit configs/jobs/{example.name}" in " ".join(head.split())


def test_the_pytorch_example_is_python(tmp_path: pathlib.Path) -> None:
    command = yaml.safe_load((REPOSITORY / "configs/jobs/pytorch.yaml").read_text())["workload"]
    compile(command["command"][2], "pytorch.yaml", "exec")
