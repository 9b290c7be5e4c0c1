"""Commands of Slurm that fail: programs of a few lines stand in for them."""

import os
import pathlib
from collections.abc import Callable

import pytest

from launch.engines import slurm_commands as commands
from launch.engines.engine import EngineError

Program = Callable[[str, str], pathlib.Path]


@pytest.fixture
def program(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Puts a shell program first in PATH; it can count its calls in $CALLS."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(commands, "_FIRST_PAUSE_S", 0.01)
    calls = tmp_path / "calls"

    def write(name: str, body: str) -> pathlib.Path:
        path = tmp_path / name
        count = f'echo >>"{calls}"; CALLS=$(wc -l <"{calls}"); '
        path.write_text(f"#!/bin/sh\n{count}\n{body}\n")
        path.chmod(0o755)
        return calls

    return write


def count(calls: pathlib.Path) -> int:
    return len(calls.read_text().splitlines())


def test_what_reads_is_asked_again_whatever_the_failure(program: Program) -> None:
    calls = program("squeue", '[ "$CALLS" -gt 2 ] || exit 255; echo fine')
    assert commands.run(["squeue"], patience_s=10, always_again=True) == "fine\n"
    assert count(calls) == 3


def test_a_controller_that_is_away_is_waited_for(program: Program) -> None:
    away = "echo 'sbatch: error: Unable to contact slurm controller' >&2; exit 1"
    program("sbatch", f'[ "$CALLS" -gt 1 ] || {{ {away}; }}; echo 7')
    assert commands.run(["sbatch"], patience_s=10) == "7\n"


def test_what_came_through_after_all_is_not_done_twice(program: Program) -> None:
    calls = program("sbatch", "echo 'Socket timed out on send/recv operation' >&2; exit 1")
    assert commands.run(["sbatch"], patience_s=10, between=lambda: "41") == "41"
    assert count(calls) == 1


def test_patience_ends(program: Program) -> None:
    program("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(commands.Unreached, match="Unable to contact"):
        commands.run(["squeue"], patience_s=0.05)


@pytest.mark.parametrize("again", [False, True])
def test_an_unknown_job_is_an_answer(program: Program, again: bool) -> None:
    calls = program("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; false")
    with pytest.raises(commands.Refused, match="Invalid job id"):
        commands.run(["scontrol"], patience_s=10, always_again=again)
    assert count(calls) == 1


def test_a_refusal_is_not_asked_again_and_keeps_slurms_words(program: Program) -> None:
    calls = program("sbatch", "echo 'sbatch: error: Invalid qos specification' >&2; exit 1")
    with pytest.raises(commands.Refused, match="Invalid qos specification"):
        commands.run(["sbatch"], patience_s=10)
    assert count(calls) == 1


def test_a_silent_command_is_given_up(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    program("squeue", "exec sleep 60")
    monkeypatch.setattr(commands, "ATTEMPT_S", 0.1)
    with pytest.raises(commands.Unreached, match="said nothing"):
        commands.run(["squeue"], patience_s=0)


def test_a_missing_command_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EngineError, match="--engine"):
        commands.run(["sbatch"], patience_s=0)


def test_variables_that_stand_for_arguments_are_kept_from_commands() -> None:
    given = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_CLUSTERS": "east",
        "SLURM_JOB_ID": "4",
        "SBATCH_PARTITION": "debug",
        "SQUEUE_FORMAT": "%A",
        "SCONTROL_FEDERATION": "1",
    }
    assert commands.environment(given) == {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_CLUSTERS": "east",
        "LC_ALL": "C",
    }
