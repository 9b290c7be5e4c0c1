"""What ``status`` shows of a run."""

import dataclasses
import pathlib

import pytest

from launch import jobs, run_view, spec_reader
from launch.engines.engine import EngineState, Standing
from launch.exit_codes import RetryClass
from launch.jobs import Options
from launch.orders import RankState
from launch.records import JournalEntry, Phase, Reason
from launch.run_index import RunIndex
from launch.run_status import RunState, RunStatus
from launch.run_view import RunView
from launch.spec import Job
from tests.launch.job_files import write


@pytest.fixture
def job(here: pathlib.Path) -> Job:
    options = Options(engine="toy", index=RunIndex(here), run_id="tiny-1")
    return jobs.resolve(spec_reader.load(write(here)).spec, options=options).jobs[0]


def rank(number: int, *, step: int | None = 5, idle_s: float = 0.0) -> RankState:
    return RankState(
        rank=number, host="a", phase=Phase.STEP, step=step, saved_step=None, loss=None,
        idle_s=idle_s,
    )  # fmt: skip


def status(state: RunState = RunState.RUNNING, **changes: object) -> RunStatus:
    given = {"attempt": 2, "time": 100.0, "pid": 7, "supervisor_host": "a", **changes}
    return RunStatus(run_id="tiny-1", state=state, **given)  # type: ignore[arg-type]


def view(job: Job, *, engine: EngineState, wrote: RunStatus | None = None) -> RunView:
    return RunView(job=job, status=wrote, standing=Standing(state=engine), now=160.0)


@pytest.mark.parametrize(
    ("engine", "wrote", "shown", "is_final"),
    [
        (EngineState.QUEUED, None, "queued", False),
        (EngineState.RUNNING, None, "running", False),
        (EngineState.RUNNING, RunState.RECOVERING, "recovering", False),
        (EngineState.UNKNOWN, RunState.RUNNING, "running", False),
        (EngineState.QUEUED, RunState.RUNNING, "queued", False),
        (EngineState.ENDED, RunState.RUNNING, "ended", True),
        (EngineState.HELD, RunState.RUNNING, "held", True),
        (EngineState.ENDED, RunState.FAILED, "failed", True),
        (EngineState.UNKNOWN, RunState.DONE, "done", True),
    ],
)
def test_the_state_is_the_supervisors_while_the_engine_does_not_contradict(
    job: Job, engine: EngineState, wrote: RunState | None, shown: str, is_final: bool
) -> None:
    seen = view(job, engine=engine, wrote=status(wrote) if wrote else None)
    assert (seen.state, seen.is_final) == (shown, is_final)


def test_all_that_a_person_needs_is_shown(job: Job) -> None:
    reason = Reason(
        attempt=1, code=124, retry=RetryClass.HANG, rank=3, host="b", cause="Hang",
        message="no step for 60 s", action="", time=0.0,
    )  # fmt: skip
    wrote = status(
        phase=Phase.STEP, step=12, saved_step=10, loss=2.5, hosts=("a", "b"), spares=("c",),
        excluded=("d",), ranks=(rank(0), rank(1, step=None)), reasons=(reason,),
        next_action="trains on",
    )  # fmt: skip
    seen = view(job, engine=EngineState.RUNNING, wrote=wrote)
    details = {"timeline": {"detect_s": 0.4, "total_s": 9.5}, "step": 10}
    back = JournalEntry(time=0.0, event="recovered", attempt=2, details=details)
    text = dataclasses.replace(seen, recovered=back).show()
    for part in (
        "tiny-1, running",
        "1 x 1 cpu, normal",
        "attempt 2, step 12, loss 2.5, saved step 10",
        "a, b; spare: c; avoided: d",
        "0 on a: step 5, progress 0 s ago",
        "1 on a: step, progress",
        "ended with 124, rank 3 on b: Hang, no step for 60 s",
        "is back at step 10 after 9.5 s: detect 0.4",
        "trains on",
        "60 s ago by process 7 on a (its supervisor may be gone)",
    ):
        assert part in text, part


def test_of_many_processes_those_that_lag_behind_are_shown() -> None:
    ranks = [rank(n) for n in range(100)]
    ranks[40], ranks[70], ranks[71] = rank(40, step=None), rank(70, step=3), rank(71, idle_s=50)
    lines = run_view.rank_lines(ranks)
    assert [line.split()[0] for line in lines[:3]] == ["40", "70", "71"]
    assert len(lines) == 9
    assert "92 more" in lines[-1]
