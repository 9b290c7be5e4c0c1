"""How a process of a run ended: from an exception to an exit code, a record and a reason.

Imports no jax. An exception class may carry its own code as ``exit_code``; jax's errors are told
apart by their text, because the runtime raises one class for all of them. The reason of an attempt
is its first cause, never one of the failures that follow from it.
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterator

from launch.contract import ContractError, ExitCode, RankExit, Reason, reason_of
from trainer.checkpoints.root import FULL, Root
from trainer.config_errors import ConfigError
from trainer.coordination import PeersMissingError

_RUNTIME_ERRORS = frozenset({"JaxRuntimeError", "XlaRuntimeError"})
_STATUS = re.compile(
    r"(CANCELLED|UNKNOWN|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED|FAILED_PRECONDITION|ABORTED|INTERNAL"
    r"|UNAVAILABLE|DATA_LOSS): "
)
_MEMORY = ("RESOURCE_EXHAUSTED",)
_PEER = (
    "Gloo",
    "NCCL",
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Socket closed",
    "coordination service",
    "Coordination service",
    "coordination agent",
    "CoordinationService",
    "heartbeat timeout",
    "failed to connect to all addresses",
)


class UserError(ValueError):
    """Something that the user has to change; ``exit_code`` says of which kind."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.CONFIGURATION) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextlib.contextmanager
def user_error(code: ExitCode) -> Iterator[None]:
    """Turns a ValueError of the code inside into a UserError with ``code``."""
    try:
        yield
    except UserError:
        raise
    except ValueError as error:
        raise UserError(str(error), code) from error


class PreemptedError(Exception):
    """The run was asked to stop, and has saved; raised by the loop in every process."""

    exit_code = ExitCode.PREEMPTED


class NumericsError(RuntimeError):
    """The numbers are no longer finite, or diverge."""

    exit_code = ExitCode.NUMERICS


class PeerLostError(RuntimeError):
    """Another process, a host or the network failed."""

    exit_code = ExitCode.INFRASTRUCTURE


@dataclasses.dataclass(frozen=True)
class Classified:
    """What an exception means for the run.

    Attributes:
      code: exit code.
      cascade: it follows from the failure of another process.
    """

    code: int
    cascade: bool = False


def classify(error: BaseException) -> Classified:
    """Returns the exit code of an exception, looking through what it was raised from."""
    if isinstance(error, KeyboardInterrupt):
        return Classified(ExitCode.INTERRUPTED)
    if isinstance(error, SystemExit):
        return Classified(_system_exit(error))
    for cause in _chain(error):
        if isinstance(cause, (ConfigError, ContractError)):
            return Classified(ExitCode.CONFIGURATION)
        if isinstance(cause, (PeersMissingError, PeerLostError)):
            return Classified(ExitCode.INFRASTRUCTURE, cascade=True)
        if isinstance(cause, OSError) and cause.errno in FULL:
            return Classified(ExitCode.HOLD)
        code = getattr(cause, "exit_code", None)
        if isinstance(code, int):
            return Classified(code)
        if _is_from_runtime(cause):
            text = str(cause)
            if any(sign in text for sign in _MEMORY):
                return Classified(ExitCode.OUT_OF_MEMORY)
            if any(sign in text for sign in _PEER):
                return Classified(ExitCode.INFRASTRUCTURE, cascade=True)
    return Classified(ExitCode.EXCEPTION)


def first_line(error: BaseException) -> str:
    """Returns what an exception says, in one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def write_ending(root: Root, ending: RankExit) -> Reason:
    """Writes a process's record, then the attempt's reason by all records that there are.

    Several processes may do so at once: each looks again after it wrote, so that the last one to
    write has seen every record.
    """
    folder = f"attempts/{ending.attempt}/"
    root.write(f"{folder}ranks/{ending.rank}.json", ending.to_json().encode())
    while True:
        names = root.children(f"{folder}ranks/")
        reason = reason_of(list(_endings(root, folder, names)))
        root.write(f"{folder}reason.json", reason.to_json().encode())
        if root.children(f"{folder}ranks/") == names:
            return reason


def _endings(root: Root, folder: str, names: tuple[str, ...]) -> Iterator[RankExit]:
    for name in names:
        key = f"{folder}ranks/{name}"
        data = root.read(key)
        if data is not None:
            yield RankExit.from_json(data.decode(), source=key)


def _chain(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__


def _is_from_runtime(error: BaseException) -> bool:
    """Whether jax's runtime raised it; a failed asynchronous value surfaces as a ValueError."""
    return type(error).__name__ in _RUNTIME_ERRORS or bool(_STATUS.match(str(error)))


def _system_exit(error: SystemExit) -> int:
    if error.code is None:
        return ExitCode.DONE
    return error.code if isinstance(error.code, int) else ExitCode.EXCEPTION
