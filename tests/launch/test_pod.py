"""Pods make a run of themselves: one supervisor, one attempt number, one exit code for all."""

import os
import pathlib
import signal
import socket
import stat
import sys
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest

from launch import pod
from launch.control import Control, Want
from launch.engines import bundle
from launch.exit_codes import ExitCode, RetryClass
from launch.journal import Journal
from launch.pod_host import PodPlace
from launch.pod_link import LinkError, connect
from launch.records import ContractError
from launch.spec import Budgets, Recovery, Resources, Runtime, Secret, Topology, Watchdog
from tests.launch import kubernetes_jobs as jobs
from tests.launch import pods
from tests.launch.pods import Pods

SHOW = "import json, os; print(json.dumps(dict(os.environ)), flush=True)"
FIRST = "attempt = int(os.environ['LAUNCH_ATTEMPT']); rank = int(os.environ['RANK'])"
WAIT = """
import os, pathlib, signal, sys, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["LAUNCH_ATTEMPT"])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
pathlib.Path(f"up.{attempt}.{rank}").touch()
"""


@pytest.fixture
def started(tmp_path: pathlib.Path) -> Iterator[Any]:
    found: list[Pods] = []

    def start(program: str, **changes: Any) -> Pods:
        run = Pods(pods.job(tmp_path, program, **changes), tmp_path)
        found.append(run)
        run.start()
        return run

    yield start
    for run in found:
        run.end()


def test_every_process_learns_its_place_and_all_pods_end_alike(started: Any) -> None:
    run = started(SHOW, hosts=4, topology=Topology(slices=2))
    assert run.codes() == [0, 0, 0, 0]
    seen = [pods.described(run.output(index))[0] for index in range(4)]
    assert [each["RANK"] for each in seen] == ["0", "1", "2", "3"]
    assert [each["LAUNCH_PROCESS_ID"] for each in seen] == ["0", "1", "2", "3"]
    assert [each["LAUNCH_SLICE_ID"] for each in seen] == ["0", "0", "1", "1"]
    assert {each["LAUNCH_NUM_SLICES"] for each in seen} == {"2"}
    assert {each["WORLD_SIZE"] for each in seen} == {"4"}
    assert {each["LAUNCH_ATTEMPT"] for each in seen} == {"1"}
    assert [each["LAUNCH_HOST_ID"] for each in seen] == [f"node-{i}" for i in range(4)]
    (coordinator,) = {each["LAUNCH_COORDINATOR"] for each in seen}
    assert coordinator.startswith("127.0.0.1:")
    assert {each["MASTER_PORT"] for each in seen} == {coordinator.rpartition(":")[2]}


def test_a_crash_is_answered_in_pods_that_stay_at_another_port(started: Any) -> None:
    run = started(f"import os\n{FIRST}\n{SHOW}\nos._exit(7 if attempt == 1 and rank == 1 else 0)")
    assert run.codes() == [0, 0]
    seen = pods.described(run.output(0)) + pods.described(run.output(1))
    assert {each["LAUNCH_ATTEMPT"] for each in seen} == {"1", "2"}
    assert len({each["LAUNCH_COORDINATOR"] for each in seen}) == 2
    (first, second) = run.events("attempt_ended")
    assert (first["reason"]["host"], first["reason"]["rank"]) == ("node-1", 1)
    assert second["reason"]["code"] == 0


def test_a_users_error_ends_all_pods_with_its_code_and_is_not_tried_again(started: Any) -> None:
    run = started(
        "import os, sys, time; sys.exit(64) if os.environ['RANK'] == '1' else time.sleep(60)"
    )
    assert run.codes() == [64, 64]
    assert len(run.events("attempt_planned")) == 1


def test_exceptions_are_bounded_by_their_own_budget(started: Any) -> None:
    recovery = Recovery(budgets=Budgets(exception=1), backoff_s=0.0)  # type: ignore[arg-type]
    run = started("raise SystemExit(1)", hosts=1, recovery=recovery)
    assert run.codes() == [ExitCode.HOLD]
    assert len(run.events("attempt_planned")) == 2


def test_a_pod_that_is_told_to_stop_has_all_save_and_the_set_restarted_for_free(
    started: Any, tmp_path: pathlib.Path
) -> None:
    run = started(WAIT + "time.sleep(60)")
    run.wait_for(lambda: len(list(tmp_path.glob("up.*"))) == 2)
    run.processes[1].send_signal(signal.SIGTERM)
    assert run.codes() == [ExitCode.PREEMPTED] * 2
    (ended,) = run.events("attempt_ended")
    assert ended["displaced"]
    run.start(restart=1)
    run.wait_for(lambda: (tmp_path / "up.2.0").exists())


def test_all_pods_told_to_stop_at_once_end_the_same_way(
    started: Any, tmp_path: pathlib.Path
) -> None:
    run = started(WAIT + "time.sleep(60)", hosts=3)
    run.wait_for(lambda: len(list(tmp_path.glob("up.*"))) == 3)
    for process in run.processes:
        process.send_signal(signal.SIGTERM)
    assert run.codes() == [ExitCode.PREEMPTED] * 3


@pytest.mark.parametrize("index", [0, 1])
def test_when_a_pod_dies_the_others_end_for_new_ones(
    started: Any, tmp_path: pathlib.Path, index: int
) -> None:
    watchdog = Watchdog(lost_after_s=2.0, beat_s=0.5)  # type: ignore[arg-type]
    run = started(WAIT + "time.sleep(60)", recovery=Recovery(watchdog=watchdog))
    run.wait_for(lambda: len(list(tmp_path.glob("up.*"))) == 2)
    pods.kill_container(run.processes[index])
    codes = run.codes()
    assert codes[index] == -signal.SIGKILL
    assert codes[1 - index] == ExitCode.INFRASTRUCTURE


def test_a_supervisor_that_dies_is_started_again_and_goes_on(
    started: Any, tmp_path: pathlib.Path
) -> None:
    run = started(WAIT + "attempt == 1 and time.sleep(60)")
    run.wait_for(lambda: len(list(tmp_path.glob("up.1.*"))) == 2)
    os.kill(pods.child_of(run.processes[0].pid, role="supervisor"), signal.SIGKILL)
    assert run.codes() == [0, 0]
    assert [each["attempt"] for each in run.events("attempt_planned")] == [1, 2]
    assert run.events("pods") == [{"incarnation": "set-1/0", "attempt": 0}]


def test_a_run_that_a_person_stops_is_held_not_restarted_by_the_set(
    started: Any, tmp_path: pathlib.Path
) -> None:
    run = started(WAIT + "time.sleep(60) if attempt == 1 else None")
    run.wait_for(lambda: len(list(tmp_path.glob("up.1.*"))) == 2)
    Control(want=Want.DRAIN, by="ada", time=0.0).write(run.job.job_dir)
    assert run.codes() == [ExitCode.HOLD] * 2
    Control(want=Want.GO_ON, by="ada", time=1.0).write(run.job.job_dir)
    run.start(restart=1)
    assert run.codes() == [ExitCode.HOLD] * 2, "the same set is not what a person asked for"
    run.start(uid="set-2")
    assert run.codes() == [0, 0]
    assert [each["attempt"] for each in run.events("attempt_planned")] == [1, 2]


def test_pods_that_never_come_are_waited_for_only_so_long(
    started: Any, tmp_path: pathlib.Path
) -> None:
    runtime = Runtime(start_s=1.0, grace_s=1.0)  # type: ignore[arg-type]
    run = Pods(pods.job(tmp_path, SHOW, runtime=runtime), tmp_path)
    run.processes = [run._start(0, uid="set-1", restart=0)]
    try:
        assert run.codes() == [ExitCode.INFRASTRUCTURE]
    finally:
        run.end()
    assert "1 of 2 pods have started" in run.output(0)


def test_a_spare_takes_the_place_of_a_host_that_fails_again(
    started: Any, tmp_path: pathlib.Path
) -> None:
    program = WAIT + "sys.exit(85 if os.environ['LAUNCH_HOST_ID'] == 'node-1' else 0)"
    recovery = Recovery(spares=1, exclude_after=2, backoff_s=0.0)  # type: ignore[arg-type]
    run = started(program, recovery=recovery)
    assert run.codes() == [0, 0, 0]
    hosts = [each["hosts"] for each in run.events("attempt_planned")]
    assert hosts == [["node-0", "node-1"], ["node-0", "node-1"], ["node-0", "node-2"]]


def test_processes_whose_parents_have_died_are_collected(
    started: Any, tmp_path: pathlib.Path
) -> None:
    program = WAIT + (
        "import subprocess\n"
        "subprocess.run(['sh', '-c', 'setsid sleep 0.1 & echo $! >orphan; mv orphan pid'])\n"
        "while not os.path.exists('go'): time.sleep(0.02)\n"
    )
    run = started(program, hosts=1)
    run.wait_for((tmp_path / "pid").exists)
    orphan = (tmp_path / "pid").read_text().strip()
    run.wait_for(lambda: not os.path.exists(f"/proc/{orphan}"))
    assert run.processes[0].poll() is None
    (tmp_path / "go").touch()
    assert run.codes() == [0]


def test_a_pod_of_another_set_is_not_taken_in(started: Any, tmp_path: pathlib.Path) -> None:
    program = WAIT + "while not os.path.exists('go'): time.sleep(0.02)"
    runtime = Runtime(start_s=3.0)  # type: ignore[arg-type]
    run = started(program, runtime=runtime)
    run.wait_for(lambda: len(list(tmp_path.glob("up.*"))) == 2)
    stray = run._start(1, uid="set-0", restart=7)
    assert stray.wait(pods.PATIENCE_S) == ExitCode.INFRASTRUCTURE
    assert "not of its set" in run.output(1)
    (tmp_path / "go").touch()
    assert run.codes() == [0, 0]


def test_a_hang_is_named_and_answered_in_pods_that_stay(
    started: Any, tmp_path: pathlib.Path
) -> None:
    watchdog = Watchdog(step_min_s=0.5, step_max_s=1.0)  # type: ignore[arg-type]
    program = WAIT + (
        "import json\n"
        "if attempt == 1:\n"
        "    path = pathlib.Path(os.environ['LAUNCH_STATE_DIR']) / f'rank{rank}.json'\n"
        "    for step in range(1, 4 if rank else 200):\n"
        "        text = json.dumps(dict(version=1, attempt=attempt, phase='step', step=step,\n"
        "            monotonic_ns=time.monotonic_ns()))\n"
        "        part = path.with_suffix('.part'); part.write_text(text); part.replace(path)\n"
        "        time.sleep(0.1)\n"
        "    time.sleep(60)\n"
    )
    run = started(program, recovery=Recovery(watchdog=watchdog))
    assert run.codes() == [0, 0]
    (first, _) = run.events("attempt_ended")
    assert first["reason"]["code"] == ExitCode.HANG
    assert first["reason"]["host"] == "node-1"


def test_the_bundle_is_one_file_that_python_alone_runs(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "lockstep.pyz"
    path.write_bytes(bundle.content())
    program = (sys.executable, "-I", str(path))  # -I: nothing but the standard library and the file
    run = Pods(pods.job(tmp_path, SHOW), tmp_path, program=program)
    run.start()
    try:
        assert run.codes() == [0, 0]
    finally:
        run.end()
    assert pods.described(run.output(1))[0]["RANK"] == "1"


def test_the_bundle_has_the_same_bytes_every_time() -> None:
    first = bundle.content()
    bundle.content.cache_clear()
    assert bundle.content() == first


def test_the_bundle_tells_an_old_python_what_to_do(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.pyz"
    path.write_bytes(bundle.content())
    with zipfile.ZipFile(path) as archive:
        source = archive.read("__main__.py").decode()
    said: list[str] = []

    class Old:
        version_info = (3, 10, 4)

        class stderr:
            write = said.append

        @staticmethod
        def exit(code: int) -> None:
            raise SystemExit(code)

    real = sys.modules["sys"]
    sys.modules["sys"] = Old  # type: ignore[assignment]
    try:
        with pytest.raises(SystemExit) as ended:
            exec(compile(source, "__main__.py", "exec"), {})
    finally:
        sys.modules["sys"] = real
    assert ended.value.code == 64
    assert "needs Python 3.12" in said[0]
    assert "3.10" in said[0]


def place(**changes: str) -> dict[str, str]:
    return {
        "LOCKSTEP_SLICE": "1",
        "JOB_COMPLETION_INDEX": "3",
        "LOCKSTEP_COORDINATOR_HOST": "a-1-host-0-0.a-1",
        "LOCKSTEP_NODE": "n7",
        "LOCKSTEP_SET_UID": "u",
        "LOCKSTEP_RESTART": "2",
    } | changes


EIGHT = jobs.job(
    jobs.spec(resources=Resources(accelerator="cpu", hosts=8), topology=Topology(slices=2))
)


def test_a_place_is_read_from_labels_and_indices() -> None:
    found = PodPlace.read(place(), job=EIGHT)
    assert (found.index, found.node, found.incarnation) == (7, "n7", "u/2")
    assert (found.address, found.first) == ("a-1-host-1-3.a-1", "a-1-host-0-0.a-1")
    first = PodPlace.read(place(LOCKSTEP_SLICE="0", JOB_COMPLETION_INDEX="0"), job=EIGHT)
    assert first.address == first.first


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"JOB_COMPLETION_INDEX": "4"}, "none of this run's pods"),
        ({"LOCKSTEP_SLICE": "x"}, "number"),
    ],
)
def test_a_place_that_cannot_be_is_refused(changes: dict[str, str], words: str) -> None:
    with pytest.raises(ContractError, match=words):
        PodPlace.read(place(**changes), job=EIGHT)


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(ContractError, match="LOCKSTEP_NODE"):
        PodPlace.read({k: v for k, v in place().items() if k != "LOCKSTEP_NODE"}, job=EIGHT)


def test_a_name_that_does_not_resolve_at_first_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    pauses: list[float] = []
    real = socket.create_connection

    def create(address: tuple[str, int], timeout: float) -> socket.socket:
        asked.append(address[0])
        if len(asked) <= 5:
            raise socket.gaierror(-2, "Name or service not known")
        return real(("127.0.0.1", address[1]), timeout)

    monkeypatch.setattr(socket, "create_connection", create)
    monkeypatch.setattr("time.sleep", pauses.append)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connect("a-host-0-0.a", port=port, within_s=60.0, wanted=lambda: True).close()
    assert asked == ["a-host-0-0.a"] * 6
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2]


def test_a_first_pod_that_is_not_there_in_time_is_told_by_its_name() -> None:
    with pytest.raises(LinkError, match="run's first pod"):
        connect("127.0.0.1", port=1, within_s=0.0, wanted=lambda: True)


def test_numbers_by_the_clock_are_above_all_that_went_before(tmp_path: pathlib.Path) -> None:
    pod.reserve_numbers(tmp_path, now=1000.7)
    pod.reserve_numbers(tmp_path, now=2000.2)
    assert sorted(path.name for path in (tmp_path / "attempts").iterdir()) == ["1000", "2000"]


def reason(cause: str, host: str) -> dict[str, Any]:
    return {
        "version": 1,
        "attempt": 1,
        "code": 85,
        "retry": RetryClass.INFRASTRUCTURE,
        "rank": None,
        "host": host,
        "cause": cause,
        "message": "",
        "action": "",
        "time": 5.0,
    }


def test_a_lost_node_that_is_given_again_is_trusted_and_a_broken_one_is_not(
    tmp_path: pathlib.Path,
) -> None:
    journal = Journal(tmp_path)
    for cause, host in (("HostLost", "n1"), ("Unhealthy", "n2")):
        journal.append("attempt_planned", attempt=1, hosts=[host])
        journal.append("attempt_ended", attempt=1, reason=reason(cause, host), banned=[host])
        journal.append("decided", attempt=1, exclude=[host], action="requeue")
    pod.note_incarnation(journal, place=PodPlace.read(place(), job=EIGHT))
    (entry,) = (e for e in journal.entries() if e.event == "readmitted")
    assert entry.details["hosts"] == ["n1"]
    assert list(pod.History.of(journal.entries()).excluded) == ["n2"]


def test_secrets_of_the_set_are_kept_out_of_what_the_agent_says(
    started: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text("hunter2hunter2")
    path.chmod(stat.S_IRUSR)
    monkeypatch.setenv("TOKEN_FILE", str(path))
    program = "import os, sys; print(open(os.environ['TOKEN_FILE']).read()); sys.exit(65)"
    run = started(program, hosts=1, secrets=(Secret(name="TOKEN", ref="k8s:s/k"),))
    assert run.codes() == [65]
    (ended,) = run.events("attempt_ended")
    assert "hunter2" not in str(ended)
    assert "[secret]" in ended["reason"]["message"]
