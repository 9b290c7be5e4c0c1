"""Whatever a process leaves behind, its agent says how it ended, and where that was."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from launch import process_identity, ranks
from launch.contract import Environment, RankExit, exit_path, progress_path
from launch.orders import Place
from launch.ranks import RankProcess
from launch.spec import Checkpoint, JobSpec, Owner, Resources, Workload
from launch.watchdog import Limits

PATIENCE_S = 30.0
Made = Callable[[str], RankProcess]


@pytest.fixture
def started(tmp_path: pathlib.Path) -> Made:
    """Starts a line of shell as rank 0; ``tok-4711`` is a secret."""

    def start(line: str) -> RankProcess:
        spec = JobSpec(
            name="ranks",
            owner=Owner(team="tests"),
            workload=Workload(command=("sh",)),
            resources=Resources(accelerator="cpu"),
            checkpoint=Checkpoint(root=str(tmp_path)),
        )
        environment = Environment(
            run_id="run",
            attempt=3,
            coordinator="127.0.0.1:1",
            num_processes=1,
            process_id=0,
            state_dir=str(tmp_path),
        )
        rank = RankProcess(
            Place(rank=0, host="here"),
            environment=environment,
            limits=Limits.of(spec),
            log=tmp_path / "log",
            hide=lambda text: text.replace("tok-4711", "[secret]"),
        )
        rank.start(["sh", "-c", line], cwd="/", variables={"PATH": "/usr/bin:/bin"})
        return rank

    return start


def ended(rank: RankProcess) -> RankExit:
    """Looks after a process until it has ended; what is said of it can always be sent."""
    until = time.monotonic() + PATIENCE_S
    while (told := rank.poll()) is None:
        assert time.monotonic() < until
        rank.overdue()
        json.dumps(dataclasses.asdict(rank.state()), allow_nan=False)
        time.sleep(0.005)
    told.to_json()
    return told


@pytest.mark.parametrize("code", range(256))
def test_any_exit_code_is_told(started: Made, code: int) -> None:
    assert ended(started(f"exit {code}")).code == code


@pytest.fixture
def under_nohup() -> Iterator[None]:
    """This process ignores what it does under nohup and a shell's &."""
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    "number", [n for n in range(1, 65) if n not in (17, 18, 19, 20, 21, 22, 23, 28, 32, 33)]
)
def test_death_by_any_signal_is_told(under_nohup: None, started: Made, number: int) -> None:
    assert ended(started(f"kill -{number} $$; sleep 60")).code == 128 + number


STEP = '{"version": 1, "attempt": 3, "phase": "step", "step": 4, "monotonic_ns": %s, "loss": %s}'


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b"null",
        (STEP % ("9" * 5000, "1")).encode(),
        (STEP % ("9" * 400, "1")).encode(),
        b'{"version": 1, "attempt": 3, "phase": {}, "step": 1, "monotonic_ns": 1}',
    ],
)
def test_progress_that_is_none_does_no_harm(
    started: Made, tmp_path: pathlib.Path, content: bytes
) -> None:
    path = progress_path(str(tmp_path), rank=0)
    rank = started(f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done")
    path.write_bytes(content)
    rank.overdue()
    assert rank.state().step is None
    (tmp_path / "go").touch()
    assert ended(rank).code == 0


@pytest.mark.parametrize("loss", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_loss_that_is_no_number_is_left_out(
    started: Made, tmp_path: pathlib.Path, loss: str
) -> None:
    rank = started(f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done")
    progress_path(str(tmp_path), rank=0).write_text(STEP % (1, loss))
    rank.overdue()
    assert (rank.state().step, rank.state().loss) == (4, None)
    (tmp_path / "go").touch()
    ended(rank)


def last_words(process: RankProcess, tmp_path: pathlib.Path, **fields: object) -> RankExit:
    """Has a process leave its own record of its end, and end."""
    told = {"version": 1, "attempt": 3, "rank": 0, "host": "here", "pid": process.pid, "code": 7}
    told |= {"cause": "Mine", "message": "by me", "time": time.time(), **fields}
    exit_path(str(tmp_path), rank=0).write_text(json.dumps(told))
    (tmp_path / "go").touch()
    return ended(process)


@pytest.mark.parametrize(
    "fields",
    [
        {"rank": 5, "host": "elsewhere", "attempt": 99},
        {"time": 0},
        {"time": 1e300},
        {"message": "failed with tok-4711", "traceback": "tok-4711", "cause": "tok-4711"},
        {"message": "x" * 10_000_000, "traceback": "y" * 10_000_000},
    ],
)
def test_what_a_process_says_of_its_end_is_put_in_its_place(
    started: Made, tmp_path: pathlib.Path, fields: dict[str, object]
) -> None:
    before = time.time()
    told = last_words(
        started(f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; exit 7"), tmp_path, **fields
    )
    assert (told.attempt, told.rank, told.host, told.code) == (3, 0, "here", 7)
    assert before <= told.time <= time.time()
    assert "tok-4711" not in told.to_json()
    assert len(told.to_json()) < 50_000


@pytest.mark.parametrize("fields", [{"time": float("nan")}, {"code": 8}, {"pid": 1}])
def test_a_record_of_another_end_is_not_believed(
    started: Made, tmp_path: pathlib.Path, fields: dict[str, object]
) -> None:
    told = last_words(
        started(f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; exit 7"), tmp_path, **fields
    )
    assert (told.code, told.cause) == (7, "ExitCode")


def test_half_a_secret_at_the_edge_of_the_log_is_not_told(started: Made) -> None:
    lines = "printf 'Error: tok-4711\\n'; head -c 32760 /dev/zero | tr '\\0' ' '; exit 7"
    assert "4711" not in ended(started(lines)).message


def test_what_a_rank_had_started_ends_with_the_next_look_at_its_group(
    started: Made, tmp_path: pathlib.Path
) -> None:
    rank = started(f"sleep 600 & echo $! > {tmp_path}/child; exec sleep 600")
    until_written(tmp_path / "child")
    child = int((tmp_path / "child").read_text())
    pids = tmp_path / "pids"
    ranks.write_pids(pids, [rank.pid])
    os.kill(rank.pid, signal.SIGKILL)
    os.waitpid(rank.pid, 0)
    assert ranks.living(pids) == []
    other = subprocess.Popen(["sleep", "600"], process_group=0)
    try:
        pids.write_text(f"{pids.read_text()}{other.pid} 1\n")
        ranks.end_leftovers(pids)
        until(lambda: process_identity.started(child) is None)
        assert other.poll() is None, "its number was used again, by somebody else"
    finally:
        other.kill()
        other.wait()


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def until_written(path: pathlib.Path) -> None:
    until(lambda: path.exists() and path.read_text().endswith("\n"))
