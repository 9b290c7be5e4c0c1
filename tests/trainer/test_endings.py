"""Exceptions become the right exit codes, and the first cause becomes the reason."""

import errno
import subprocess
import sys

import pytest

from launch.contract import ContractError, ExitCode, RankExit, Reason
from trainer import endings
from trainer.checkpoints.root import LocalRoot
from trainer.checkpoints.session import DiskFullError, NoWholeStepError
from trainer.config_errors import ConfigError, Problem
from trainer.coordination import PeersMissingError
from trainer.endings import (
    Classified,
    NumericsError,
    PeerLostError,
    PreemptedError,
    UserError,
    classify,
    user_error,
)


class JaxRuntimeError(RuntimeError):
    """Stands for jax's class of the same name."""


class BrokenDataset(ValueError):
    """An error of another package that carries its own code."""

    exit_code = ExitCode.DATA


def chained(outer, inner):
    outer.__cause__ = inner
    return outer


GLOO = "UNKNOWN: Gloo all-reduce failed: [pair.cc:538] Read error: Connection reset by peer"


@pytest.mark.parametrize(
    ("error", "code", "cascade"),
    [
        (ConfigError([Problem("x")]), 64, False),
        (ContractError("x"), 64, False),
        (BrokenDataset("x"), 65, False),
        (PreemptedError("x"), 75, False),
        (UserError("x"), 64, False),
        (UserError("x", ExitCode.INFRASTRUCTURE), 85, False),
        (OSError(errno.ENOSPC, "No space left on device"), 86, False),
        (DiskFullError("RESOURCE_EXHAUSTED: No space left on device"), 86, False),
        (NoWholeStepError("x"), 86, False),
        (NumericsError("x"), 97, False),
        (PeerLostError("x"), 85, True),
        (PeersMissingError("x"), 85, True),
        (JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes"), 71, False),
        (JaxRuntimeError("Gloo all-reduce failed: Connection closed by peer"), 85, True),
        (JaxRuntimeError("INTERNAL: NCCL operation failed: remote process exited"), 85, True),
        (JaxRuntimeError("UNAVAILABLE: failed to connect to all addresses"), 85, True),
        (JaxRuntimeError("INTERNAL: something of the compiler"), 70, False),
        (ValueError(GLOO), 85, True),
        (ValueError("Gloo is a word in a user's error"), 70, False),
        (RuntimeError("RESOURCE_EXHAUSTED: x"), 71, False),
        (RuntimeError("boom"), 70, False),
        (MemoryError(), 70, False),
        (KeyboardInterrupt(), 130, False),
        (SystemExit(), 0, False),
        (SystemExit(3), 3, False),
        (SystemExit("text"), 70, False),
        (chained(RuntimeError("the save failed"), ValueError(GLOO)), 85, True),
        (chained(RuntimeError("bad batch"), BrokenDataset("x")), 65, False),
    ],
)
def test_an_exception_has_its_exit_code(error, code, cascade):
    assert classify(error) == Classified(code, cascade)


def test_a_value_error_becomes_the_users_once():
    with (
        pytest.raises(UserError, match=r"^inner$") as caught,
        user_error(ExitCode.DATA),
        user_error(ExitCode.CONFIGURATION),
    ):
        raise ValueError("inner")
    assert caught.value.exit_code == ExitCode.CONFIGURATION
    with pytest.raises(KeyError), user_error(ExitCode.DATA):
        raise KeyError("no ValueError")


def test_a_real_out_of_memory_error_of_jax_is_recognised():
    program = (
        "import jax.numpy as jnp\n"
        "from trainer.endings import classify\n"
        "try:\n"
        "    jnp.zeros((1 << 52,), jnp.float32).block_until_ready()\n"
        "except Exception as error:\n"
        "    print(classify(error).code, type(error).__name__, str(error)[:80])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.startswith("71 "), done.stdout + done.stderr


def record(rank, *, time, code, cascade=False):
    return RankExit(
        attempt=3,
        rank=rank,
        host="h",
        pid=1,
        code=code,
        cause="c",
        message=f"from {rank}",
        time=time,
        cascade=cascade,
    )


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_the_reason_does_not_depend_on_who_writes_last(tmp_path, order):
    files = LocalRoot(tmp_path)
    records = [
        record(0, time=1.0, code=85, cascade=True),
        record(1, time=2.0, code=97),
        record(2, time=3.0, code=70),
    ]
    for rank in order:
        endings.write_ending(files, records[rank])
    reason = Reason.from_json(files.read("attempts/3/reason.json").decode(), source="x")
    assert (reason.rank, reason.code) == (1, 97)


def test_a_writer_that_was_overtaken_looks_again(tmp_path):
    class Overtaken(LocalRoot):
        """Another process's record appears between this one's look and its writing."""

        def write(self, key, data):
            if key.endswith("reason.json") and not self.read("attempts/3/ranks/1.json"):
                super().write(
                    "attempts/3/ranks/1.json", record(1, time=0.5, code=97).to_json().encode()
                )
            super().write(key, data)

    reason = endings.write_ending(Overtaken(tmp_path), record(0, time=1.0, code=70))
    assert reason.rank == 1


def test_a_failure_counts_before_a_rank_that_finished(tmp_path):
    files = LocalRoot(tmp_path)
    endings.write_ending(files, record(0, time=1.0, code=0))
    assert endings.write_ending(files, record(1, time=2.0, code=70)).code == 70


def test_the_first_line_of_an_empty_error_is_its_class():
    assert endings.first_line(MemoryError()) == "MemoryError"
    assert endings.first_line(ValueError("a\nb")) == "a"
