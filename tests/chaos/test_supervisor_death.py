"""A supervisor may die by any line of its journal: the next one brings the run to the same end."""

import signal
import subprocess
import sys

import pytest

from tests.chaos.harness import PATIENCE_S, REPOSITORY

LINES = 13
"""More than a run with one fault writes."""


@pytest.mark.parametrize("when", ["before", "after", "torn"])
@pytest.mark.parametrize("number", range(1, LINES + 1))
def test_killed_at_any_line_of_the_journal(chaos, number, when):
    run = chaos(faults=["kill@7:1"], steps=12)
    run.folder.joinpath("job.json").write_text(run.job.to_json())
    dying = subprocess.run(
        [sys.executable, "-m", "tests.chaos.dying_supervisor", run.folder, str(number), when],
        cwd=REPOSITORY,
        env=run.environ(),
        timeout=PATIENCE_S,
        check=False,
        capture_output=True,
    )
    written = len(run.journal())
    assert dying.returncode in (0, -signal.SIGKILL), dying.stderr.decode()
    if dying.returncode == 0:
        assert written < number
    assert run.run() == 0, run.story()
    run.check_end()
    for reason in run.reasons():
        assert reason.cause in ("SIGKILL", "SupervisorLost", "done", "SIGTERM"), run.story()
    planned = [entry.attempt for entry in run.events("attempt_planned")]
    ended = [entry.attempt for entry in run.events("attempt_ended")]
    assert planned == ended, "an attempt has no end, or two"
