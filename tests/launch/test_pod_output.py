"""What a container shows is what its processes wrote, line by line, and why it ended."""

import dataclasses
import io
import pathlib

import pytest

from launch.orders import RankState
from launch.pod_output import Output, last_status
from launch.run_status import RunState, RunStatus


@pytest.fixture
def shown() -> io.BytesIO:
    return io.BytesIO()


@pytest.fixture
def output(shown: io.BytesIO, tmp_path: pathlib.Path) -> Output:
    return Output(shown, last_word=tmp_path / "termination-log")


def test_lines_come_whole_and_once(
    output: Output, shown: io.BytesIO, tmp_path: pathlib.Path
) -> None:
    log = tmp_path / "rank0.log"
    output.follow({0: log})
    output.tick()
    log.write_bytes(b"one\ntw")
    output.tick()
    assert shown.getvalue() == b"one\n"
    with log.open("ab") as file:
        file.write(b"o\nthree")
    output.tick()
    output.tick()
    assert shown.getvalue() == b"one\ntwo\n"
    output.show_rest()
    assert shown.getvalue() == b"one\ntwo\nthree"


def test_processes_of_one_host_are_told_apart(
    output: Output, shown: io.BytesIO, tmp_path: pathlib.Path
) -> None:
    logs = {rank: tmp_path / f"rank{rank}.log" for rank in (4, 5)}
    for rank, log in logs.items():
        log.write_text(f"of {rank}\nmore\n")
    output.follow(logs)
    output.tick()
    lines = shown.getvalue().decode().splitlines()
    assert lines == ["[rank 4] of 4", "[rank 4] more", "[rank 5] of 5", "[rank 5] more"]


def test_the_next_attempt_begins_after_the_rest_of_the_last(
    output: Output, shown: io.BytesIO, tmp_path: pathlib.Path
) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("last words without an end")
    output.follow({0: first})
    second.write_text("next\n")
    output.follow({0: second})
    output.tick()
    assert shown.getvalue() == b"last words without an endnext\n"


def test_more_than_fits_at_once_comes_all_the_same(
    output: Output, shown: io.BytesIO, tmp_path: pathlib.Path
) -> None:
    log = tmp_path / "rank0.log"
    text = b"x" * (3 << 20) + b"\nend"
    log.write_bytes(text)
    output.follow({0: log})
    output.tick()
    output.show_rest()
    assert shown.getvalue() == text


def test_why_it_ended_is_where_the_kubelet_reads_it(
    output: Output, shown: io.BytesIO, tmp_path: pathlib.Path
) -> None:
    output.say("")
    assert not (tmp_path / "termination-log").exists()
    output.say("HostLost on node-7: silent" + "." * 5000)
    assert shown.getvalue().startswith(b"lockstep: HostLost on node-7")
    assert len((tmp_path / "termination-log").read_text()) < 4096


STATUS = RunStatus(
    run_id="a", state=RunState.RUNNING, attempt=3, time=5.0, pid=7, supervisor_host="p", step=12
)


def test_the_newest_status_is_found_among_other_lines(output: Output, shown: io.BytesIO) -> None:
    output.show_status(STATUS)
    newer = dataclasses.replace(STATUS, step=13)
    output.show_status(newer)
    shown.write(b'rank 0 says\nlockstep-status: {"version": 1, "run_')
    assert last_status(shown.getvalue().decode()) == newer
    assert last_status("lockstep: no status here") is None


def test_a_status_is_short_whatever_the_number_of_processes(
    output: Output, shown: io.BytesIO
) -> None:
    state = RankState(rank=0, host="n", phase=None, step=1, saved_step=None, loss=None, idle_s=0.0)
    output.show_status(dataclasses.replace(STATUS, ranks=(state,) * 4096))
    assert len(shown.getvalue()) < 2000


def test_a_place_that_cannot_be_written_changes_nothing(shown: io.BytesIO) -> None:
    Output(shown, last_word=pathlib.Path("/proc/none")).say("done")
    assert shown.getvalue() == b"lockstep: done\n"
