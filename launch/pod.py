"""``python lockstep.pyz``: what a container of a run on Kubernetes runs.

Each pod starts agents when it is told to; the first pod also runs the run's supervisor, so that a
crash or a hang is answered inside pods that stay, and JobSet is only needed for other hosts. All
pods end with the same code, on which JobSet's rules act. Standard library only.
"""

import os
import pathlib
import socket
import sys
import time
import zipfile
from collections.abc import Sequence

from launch import agent
from launch.exit_codes import ExitCode
from launch.journal import Journal
from launch.pod_gang import PodsGang
from launch.pod_host import PodHost, PodPlace, job_folder
from launch.pod_link import PORT
from launch.pod_output import Output
from launch.records import ContractError
from launch.recovery import History
from launch.run_status import RunStatus
from launch.spec import Job
from launch.supervisor import Supervisor

_BACKLOG = 4096


def main(argv: Sequence[str]) -> int:
    """Runs a role: a pod, or for its own use ``supervisor`` and ``agent``."""
    if argv[:1] == ["agent"]:
        return agent.main(argv[1:])
    job = Job.of_folder(job_folder())
    place = PodPlace.read(os.environ, job=job)
    if argv[:1] == ["supervisor"]:
        return supervise(job, place=place)
    output = Output(sys.stdout.buffer)
    return PodHost(job, place, program=program(), port=port(), output=output).run()


def supervise(job: Job, *, place: PodPlace) -> int:
    """Runs the supervisor of all pods, then has them end; returns their exit code."""
    folder = pathlib.Path(job.job_dir)
    folder.mkdir(parents=True, exist_ok=True)
    if not is_kept(job):
        reserve_numbers(folder, now=time.time())
    note_incarnation(Journal(folder), place=place)
    with socket.create_server(("", port()), backlog=_BACKLOG) as listener:
        gang = PodsGang(job, listener=listener, incarnation=place.incarnation)
        code = Supervisor(job, gang, interrupted=lambda: False).run()
        code, text = verdict(job, gang=gang, code=code)
        gang.finish(code, text=text)
    return code


def note_incarnation(journal: Journal, *, place: PodPlace) -> None:
    """Writes down that new pods go on, and what that changes.

    A new set is one that a person has asked for: a run that was held or stopped goes on. A host
    that was lost and is given again has come back, and is trusted again; one whose device is broken
    is not.
    """
    entries = journal.entries()
    history = History.of(entries)
    pods = [entry.details["incarnation"] for entry in entries if entry.event == "pods"]
    if pods and pods[-1] == place.incarnation:
        return  # the supervisor itself is new, the pods are not
    journal.append("pods", attempt=history.attempt, incarnation=place.incarnation)
    another_set = bool(pods) and pods[-1].split("/")[0] != place.incarnation.split("/")[0]
    if another_set and history.final not in (None, ExitCode.DONE):
        journal.append("resumed", attempt=history.attempt, by="a new JobSet")
    lost = {each.reason.host for each in history.incidents if each.reason.cause == "HostLost"}
    if back := sorted(lost & set(history.excluded)):
        journal.append("readmitted", attempt=history.attempt, hosts=back)


def verdict(job: Job, *, gang: PodsGang, code: int) -> tuple[int, str]:
    """Returns with which code all pods end, and why, for people.

    The supervisor ends with PREEMPTED whenever it leaves its hosts. Here that means three things:
    other hosts are needed (the gang knows the code), the set is suspended, or a person has stopped
    the run, which JobSet must not start again.
    """
    status = RunStatus.read(job.job_dir)
    last = status.reasons[-1] if status and status.reasons else None
    said = f"{last.cause} on {last.host or 'no host'}: {last.message}" if last else ""
    if gang.code is not None:
        return int(gang.code), "; ".join(filter(None, (gang.why, said)))
    if code == ExitCode.PREEMPTED:
        return int(ExitCode.HOLD), "stopped by a person; resume goes on"
    return code, said if code else "the run is complete"


def is_kept(job: Job) -> bool:
    """Whether the job's folder outlives its pods."""
    return not pathlib.PurePath(job.job_dir).is_relative_to(_state_dir())


def reserve_numbers(folder: pathlib.Path, *, now: float) -> None:
    """Where nothing outlives the pods, has attempts be numbered by the clock.

    The number must grow over everything: restarts of the set, suspensions, new sets. Kubernetes
    counts only the first of these (a set that Kueue has suspended and started again has the same
    labels), so the seconds since 1970 do. An attempt takes longer than a second, so that the
    numbers that follow it are never those of a later pod.
    """
    (folder / "attempts" / str(int(now))).mkdir(parents=True, exist_ok=True)


def program() -> list[str]:
    """Returns the command that runs this module: the file it came in, or the module itself."""
    bundle = pathlib.Path(__file__).parents[1]
    if bundle.is_file() and zipfile.is_zipfile(bundle):
        return [sys.executable, str(bundle)]
    return [sys.executable, "-m", "launch.pod"]


def port() -> int:
    """Returns where the supervisor listens."""
    return int(os.environ.get("LOCKSTEP_PORT", PORT))


def _state_dir() -> str:
    return os.environ.get("LOCKSTEP_STATE", "/lockstep/state")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ContractError as wrong:
        print(f"This pod cannot be used: {wrong}", file=sys.stderr)  # noqa: T201
        sys.exit(int(ExitCode.CONFIGURATION))
