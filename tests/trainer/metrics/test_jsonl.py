"""metrics.jsonl holds every step once, bit for bit, whatever killed the writer."""

import math
import os
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.metrics.jsonl import JsonlWriter, decode, encode, read_rows
from trainer.metrics.writer import Kind, Row


def bits(value):
    return struct.pack("<d", value)


@given(st.floats(), st.floats(width=32), st.integers())
def test_numbers_read_back_bit_for_bit(double, single, integer):
    row = decode(encode(Row(3, Kind.TRAIN, {"a": double, "b": single, "n": integer})))
    for value, expected in ((row.values["a"], double), (row.values["b"], single)):
        assert bits(value) == bits(expected) or (math.isnan(value) and math.isnan(expected))
    assert row.values["n"] == integer
    assert type(row.values["n"]) is int


def test_values_that_are_not_finite_are_strings_in_plain_json():
    line = encode(Row(1, Kind.EVAL, {"a": math.nan, "b": math.inf, "c": -math.inf}))
    assert line == ('{"step": 1, "kind": "eval", "a": "NaN", "b": "Infinity", "c": "-Infinity"}')


def test_a_metric_cannot_hide_the_step():
    with pytest.raises(ValueError, match="cannot be called 'step'"):
        encode(Row(1, Kind.TRAIN, {"step": 2.0}))


@pytest.fixture
def files(tmp_path):
    return tmp_path / "metrics.jsonl", tmp_path / "attempts/2/superseded_metrics.jsonl"


def opened(files, *, restored_step=0):
    return JsonlWriter(files[0], restored_step=restored_step, superseded=files[1])


def train(step, loss=0.5):
    return Row(step, Kind.TRAIN, {"loss": loss})


def steps(path):
    return [(row.step, row.kind.value) for row in read_rows(path)]


def test_rows_beyond_the_restored_step_move_aside(files):
    writer = opened(files)
    for step in range(1, 8):
        writer.write(train(step))
    writer.write(Row(7, Kind.EVAL, {"loss": 1.0}))
    writer.close()
    writer = opened(files, restored_step=5)
    for step in (6, 7):
        writer.write(train(step, loss=0.25))
    writer.close()
    assert steps(files[0]) == [(step, "train") for step in range(1, 8)]
    assert [row.values["loss"] for row in read_rows(files[0])][-2:] == [0.25, 0.25]
    assert steps(files[1]) == [(6, "train"), (7, "train"), (7, "eval")]


@given(kept=st.integers(0, 12), written=st.integers(0, 12), torn=st.integers(0, 30))
def test_after_a_restart_every_step_is_there_once(tmp_path_factory, kept, written, torn):
    folder = tmp_path_factory.mktemp("m")
    files = folder / "metrics.jsonl", folder / "superseded"
    writer = opened(files)
    for step in range(1, written + 1):
        writer.write(train(step))
    writer.close()
    with files[0].open("a") as file:
        file.write(encode(train(written + 1))[:torn])
    restored = min(kept, written)
    writer = opened(files, restored_step=restored)
    for step in range(restored + 1, 15):
        writer.write(train(step))
    writer.close()
    assert steps(files[0]) == [(step, "train") for step in range(1, 15)]
    moved = steps(files[1]) if files[1].exists() else []
    assert moved == [(step, "train") for step in range(restored + 1, written + 1)]


def test_a_torn_last_line_is_passed_over_and_a_damaged_one_is_named(files, caplog):
    writer = opened(files)
    writer.write(train(1))
    writer.close()
    with files[0].open("a") as file:
        file.write('{"step": 2, "ki')
    assert steps(files[0]) == [(1, "train")]
    with files[0].open("a") as file:
        file.write("\n")
        file.write(encode(train(3)) + "\n")
    assert steps(files[0]) == [(1, "train"), (3, "train")]
    assert "metrics.jsonl:2 is passed over" in caplog.text


@pytest.mark.parametrize("damage", [b"garbage\n", b"\xff\xfe\x00\n", b"\n", b"[]\n"])
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_run_goes_on_behind_damaged_rows_and_loses_no_other(files, damage, place):
    lines = [f"{encode(train(step))}\n".encode() for step in (1, 2, 3)]
    files[0].write_bytes(b"".join([*lines[:place], damage, *lines[place:]]))
    writer = opened(files, restored_step=3)
    writer.write(train(4))
    writer.close()
    assert steps(files[0]) == [(step, "train") for step in (1, 2, 3, 4)]
    assert not files[1].exists() or files[1].read_bytes() == damage


def test_a_step_is_written_once_and_in_order(files):
    writer = opened(files)
    writer.write(train(2))
    with pytest.raises(ValueError, match="train row of step 2 after one of step 2"):
        writer.write(train(2))
    with pytest.raises(ValueError, match="eval row of step 1 after one of step 2"):
        writer.write(Row(1, Kind.EVAL, {}))
    writer.write(Row(2, Kind.EVAL, {}))
    writer.close()
    writer.close()


def test_rows_of_a_process_that_dies_are_there(files):
    program = (
        "import os, pathlib, sys\n"
        "from trainer.metrics.jsonl import JsonlWriter\n"
        "from trainer.metrics.writer import Kind, Row\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "writer = JsonlWriter(path, restored_step=0, superseded=path)\n"
        "for step in (1, 2, 3): writer.write(Row(step, Kind.TRAIN, {'loss': 0.5}))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(files[0])], check=False)
    assert steps(files[0]) == [(1, "train"), (2, "train"), (3, "train")]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_an_error(files):
    writer = opened(files)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, writer._file)
    os.close(full)
    with pytest.raises(OSError, match="No space left"):
        writer.write(train(1))
