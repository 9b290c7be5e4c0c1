"""How a process of a run may end, and which retry budget each end counts against.

Part of the contract: imports the standard library only; import it through launch.contract.
"""

import dataclasses
import enum
import errno
from collections.abc import Mapping


class ExitCode(enum.IntEnum):
    """How a process of a run ended; 128 + n is death by signal n and has no member."""

    DONE = 0
    CONFIGURATION = 64
    DATA = 65
    ENGINE_UNREACHABLE = 69
    EXCEPTION = 70
    OUT_OF_MEMORY = 71
    PREEMPTED = 75
    INFRASTRUCTURE = 85
    HOLD = 86
    NO_PROGRESS = 93
    NUMERICS = 97
    CORRUPTION = 98
    HANG = 124
    INTERRUPTED = 130


class RetryClass(enum.StrEnum):
    """Which budget an end counts against; every class has its own, so that none eats another's."""

    DONE = "done"
    USER = "user"
    EXCEPTION = "exception"
    MEMORY = "memory"
    PREEMPTION = "preemption"
    INFRASTRUCTURE = "infrastructure"
    HOLD = "hold"
    NO_PROGRESS = "no_progress"
    NUMERICS = "numerics"
    CORRUPTION = "corruption"
    HANG = "hang"
    SIGNAL = "signal"


@dataclasses.dataclass(frozen=True)
class Ending:
    """What an exit code means.

    Attributes:
      retry: the budget it counts against.
      meaning: for people.
      action: what happens next by itself.
    """

    retry: RetryClass
    meaning: str
    action: str


_PASSES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE)
"""What a host may lack for a while only."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

_ENDINGS: Mapping[int, Ending] = {
    ExitCode.DONE: Ending(RetryClass.DONE, "the run is complete", "nothing"),
    ExitCode.CONFIGURATION: Ending(
        RetryClass.USER, "the configuration cannot be used", "never retried; correct it"
    ),
    ExitCode.DATA: Ending(
        RetryClass.USER, "the data is missing or not what was recorded", "never retried; correct it"
    ),
    ExitCode.ENGINE_UNREACHABLE: Ending(
        RetryClass.USER,
        "the engine cannot be reached (commands of launch)",
        "run the command again",
    ),
    ExitCode.EXCEPTION: Ending(
        RetryClass.EXCEPTION,
        "an exception without a class of its own",
        "retried three times; twice at the same step is held for a person",
    ),
    ExitCode.OUT_OF_MEMORY: Ending(
        RetryClass.MEMORY, "out of device memory", "never retried unchanged; make the step smaller"
    ),
    ExitCode.PREEMPTED: Ending(
        RetryClass.PREEMPTION, "stopped on request; resumable", "resumed from saved_step"
    ),
    ExitCode.INFRASTRUCTURE: Ending(
        RetryClass.INFRASTRUCTURE, "a peer, a host or the network failed", "retried"
    ),
    ExitCode.HOLD: Ending(RetryClass.HOLD, "needs a person", "held"),
    ExitCode.NO_PROGRESS: Ending(
        RetryClass.NO_PROGRESS, "attempts end without a new saved step", "held"
    ),
    ExitCode.NUMERICS: Ending(
        RetryClass.NUMERICS, "the numbers are no longer finite or diverge", "rolled back"
    ),
    ExitCode.CORRUPTION: Ending(
        RetryClass.CORRUPTION, "silent corruption is suspected", "the host is tested and excluded"
    ),
    ExitCode.HANG: Ending(
        RetryClass.HANG, "no progress within the deadline (written by the agent only)", "retried"
    ),
    ExitCode.INTERRUPTED: Ending(RetryClass.USER, "interrupted from the keyboard", "nothing"),
}


def of_system(error: Exception, *, otherwise: ExitCode = ExitCode.HOLD) -> ExitCode:
    """Returns the code of what the operating system refused: for want of memory, room, a file."""
    number = error.errno if isinstance(error, OSError) else None
    if number in _PASSES:
        return ExitCode.INFRASTRUCTURE
    return ExitCode.HOLD if number in _FULL else otherwise


def ending(code: int) -> Ending:
    """Returns what an exit code means; every code has a meaning."""
    if code in _ENDINGS:
        return _ENDINGS[code]
    if 128 < code < 160:
        return Ending(RetryClass.SIGNAL, f"killed by signal {code - 128}", "retried")
    return Ending(
        RetryClass.EXCEPTION, f"an exit code {code} that is not Lockstep's", "retried three times"
    )
