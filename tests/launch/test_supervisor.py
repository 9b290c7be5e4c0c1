"""A supervisor goes on where the journal ends; whole runs are in tests/chaos."""

import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from launch.engines.engine import AgentProcess, LeftAllocation
from launch.exit_codes import ExitCode, ending
from launch.journal import Journal
from launch.orders import Host, Orders
from launch.records import Reason
from launch.spec import Checkpoint, Job, JobSpec, Owner, Recovery, Resources, Seconds, Workload
from launch.supervisor import Supervisor


class Started(Exception):
    """An attempt was about to start; holds its hosts."""


class OneAllocation:
    """A gang that is given back as a batch job is: the next one has a supervisor of its own."""

    elsewhere = True

    def __init__(self, names: str) -> None:
        self._hosts = [Host(name=name, address="127.0.0.1") for name in names]

    def waiting(self) -> None:
        return None

    def hosts(self) -> Sequence[Host]:
        return self._hosts

    def notice(self) -> None:
        return None

    def start(self, orders: Orders) -> Sequence[AgentProcess]:
        raise Started("".join(host.name for host in orders.hosts))

    def reachable(self, host: Host) -> bool:
        return host in self._hosts

    def end(self, *, timeout_s: float) -> None:
        del timeout_s

    def requeue(self, *, exclude: Sequence[str], reason: str) -> None:
        raise LeftAllocation(f"{exclude} {reason}")

    def address(self, host: Host, *, attempt: int) -> str:
        return f"{host.address}:{20000 + attempt}"


@pytest.fixture
def job(tmp_path: pathlib.Path) -> Job:
    """Three hosts, of which two are enough."""
    spec = JobSpec(
        name="tiny",
        owner=Owner(team="tests"),
        workload=Workload(command=("true",)),
        resources=Resources(accelerator="cpu", hosts=3, min_hosts=2),
        checkpoint=Checkpoint(root=str(tmp_path)),
        recovery=Recovery(exclude_s=Seconds(1e9)),
    )
    return Job(run_id="tiny-1", spec=spec, engine="slurm", job_dir=str(tmp_path),
               code_dir=str(tmp_path), python=sys.executable)  # fmt: skip


def supervised(job: Job, hosts: str) -> int:
    return Supervisor(job, OneAllocation(hosts), interrupted=lambda: False).run()


def ended(job: Job, attempt: int, *, hosts: str, lost: str = "", code: int = 85) -> None:
    """Writes down an attempt that lost a host, or ended with another code."""
    reason = Reason(attempt=attempt, code=code, retry=ending(code).retry, rank=None, host=lost,
                    cause="X", message="so it was", action="", time=1.0)  # fmt: skip
    note(job, "attempt_planned", attempt, hosts=list(hosts), spares=[])
    banned = [lost] if lost else []
    note(job, "attempt_ended", attempt, reason=dataclasses.asdict(reason), banned=banned)


def note(job: Job, event: str, attempt: int, **details: Any) -> None:
    Journal(job.job_dir).append(event, attempt=attempt, **details)


def test_a_successor_that_gives_the_allocation_back_leaves_as_its_predecessor_would(job):
    ended(job, 1, hosts="abc", lost="c")
    assert supervised(job, "abc") == ExitCode.PREEMPTED
    assert [entry.event for entry in Journal(job.job_dir).entries()][-1] == "decided"


def test_a_smaller_run_stays_small_under_a_new_supervisor(job):
    ended(job, 1, hosts="abc", lost="c")
    note(job, "decided", 1, action="shrink", exclude=["c"])
    with pytest.raises(Started, match=r"^ab$"):
        supervised(job, "abcd")


def test_a_new_allocation_is_used_whole(job):
    ended(job, 1, hosts="abc", lost="c")
    note(job, "decided", 1, action="shrink", exclude=["c"])
    ended(job, 2, hosts="ab", lost="b")
    note(job, "decided", 2, action="requeue", exclude=["b"])
    with pytest.raises(Started, match=r"^def$"):
        supervised(job, "def")


@pytest.mark.parametrize(
    ("code", "action", "event"), [(64, "fail", "failed"), (86, "hold", "held"), (0, "done", "done")]
)
def test_a_run_that_was_decided_to_end_is_not_tried_again(job, code, action, event):
    ended(job, 1, hosts="abc", code=code)
    note(job, "decided", 1, action=action, exclude=[])
    assert supervised(job, "abc") == code
    assert Journal(job.job_dir).entries()[-1].event == event
