"""The other writers, and how rows reach them."""

import io
import subprocess
import sys

import pytest

from trainer.metrics.console import ConsoleWriter, duration
from trainer.metrics.tensorboard import TensorBoardWriter
from trainer.metrics.writer import Kind, MetricWriter, Row, Several, Thinned


class Kept(MetricWriter):
    """Keeps rows."""

    def __init__(self, *, fails=False):
        self.rows, self.closed, self.fails = [], False, fails

    def write(self, row):
        self.rows.append(row)

    def flush(self):
        pass

    def close(self):
        self.closed = True
        if self.fails:
            raise OSError("disk full")


def train(step, **values):
    return Row(step, Kind.TRAIN, values)


def test_logged_steps_are_multiples_also_after_a_restart_at_an_odd_step():
    kept = Kept()
    writer = Thinned(kept, every=5, last=22)
    for step in range(14, 23):
        writer.write(train(step))
    writer.write(Row(13, Kind.EVAL, {}))
    assert [row.step for row in kept.rows] == [15, 20, 22, 13]
    writer.close()
    assert kept.closed
    with pytest.raises(ValueError, match="every=0"):
        Thinned(kept, every=0, last=1)


def test_one_failing_writer_does_not_keep_the_others_open():
    first, second = Kept(fails=True), Kept()
    writer = Several([first, second])
    writer.write(train(1))
    assert first.rows == second.rows == [train(1)]
    with pytest.raises(OSError, match="disk full"):
        writer.close()
    assert second.closed
    with pytest.raises(ExceptionGroup):
        Several([Kept(fails=True), Kept(fails=True)]).close()


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self):
        return True


def ticking():
    now = [0.0]

    def clock():
        now[0] += 10.0
        return now[0]

    return clock


ROWS = [
    train(10, loss=2.5, tokens_per_second=12345.0, mfu=0.415),
    train(20, loss=2.25, tokens_per_second=2.5e6, tflops_per_second=1.5),
    Row(20, Kind.EVAL, {"loss": 3.0}),
    train(30, loss=2.0),
]


def test_without_a_terminal_every_row_is_a_plain_line():
    stream = io.StringIO()
    writer = ConsoleWriter(stream, steps=30, clock=ticking())
    for row in ROWS:
        writer.write(row)
    writer.close()
    assert stream.getvalue().splitlines() == [
        "step 10/30  loss 2.5000  12.3k tokens/s  MFU 41.5%  ETA -",
        "step 20/30  loss 2.2500  2.5M tokens/s  1.5 TFLOP/s  ETA 0:00:10",
        "eval 20  loss 3",
        "step 30/30  loss 2.0000  ETA 0:00:00",
    ]


def test_on_a_terminal_one_line_lives_and_evaluations_stay():
    stream = Terminal()
    writer = ConsoleWriter(stream, steps=40, clock=ticking())
    for row in ROWS:
        writer.write(row)
    assert stream.getvalue().count("\n") == 1
    assert "eval 20  loss 3\n" in stream.getvalue()
    writer.close()
    assert stream.getvalue().endswith("\n")


def test_durations_are_readable():
    assert [duration(s) for s in (0.4, 61, 3600 * 25 + 1)] == ["0:00:00", "0:01:01", "1d 1:00:01"]
    assert duration(float("inf")) == "-"


def test_tensorboard_files_hold_what_was_written_also_after_a_short_run(tmp_path):
    writer = TensorBoardWriter(tmp_path, restored_step=0)
    writer.write(train(1, loss=0.5))
    writer.write(Row(1, Kind.EVAL, {"loss": 0.25}))
    writer.close()
    writer.close()
    data = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"train/loss" in data
    assert b"eval/loss" in data


def test_a_restarted_tensorboard_drops_what_came_after_the_restored_step(tmp_path):
    from tensorboardX.proto import event_pb2

    writer = TensorBoardWriter(tmp_path, restored_step=7)
    writer.write(train(8, loss=0.5))
    writer.close()
    (path,) = tmp_path.iterdir()
    data, starts = path.read_bytes(), []
    while data:  # length (8), its crc (4), event, its crc (4)
        size = int.from_bytes(data[:8], "little")
        event = event_pb2.Event.FromString(data[12 : 12 + size])
        if event.HasField("session_log"):
            starts.append(event.step)
        data = data[16 + size :]
    assert starts == [8]


def test_no_writer_needs_tensorflow_or_torch():
    program = (
        "import sys, trainer.metrics.tensorboard as t, trainer.metrics.console, pathlib, tempfile\n"
        "t.TensorBoardWriter(pathlib.Path(tempfile.mkdtemp()), restored_step=0).close()\n"
        "print([m for m in ('tensorflow', 'torch', 'jax') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
