"""Says what a compiler meant that refused a step, and what to change.

Error texts are those of jax 0.12 with its CUDA and TPU compilers.
"""

import dataclasses
import re

_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)(?:i?B)?"
_NEEDED = (
    # Arguments are part of it, although it speaks of temporaries.
    re.compile(rf"required for HLO temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm", re.IGNORECASE),
)
_LARGEST = re.compile(
    rf"\d+\. Size: {_SIZE}\s*\n(?:\s*Operator: [^\n]*op_name=\"([^\"]*)\"[^\n]*\n)?"
    r"\s*Shape: (\S+)"
)
_FEW = 5
_LONGEST = 300


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """What a compiler says that found no room.

    Attributes:
      needed: bytes of one device; None where it does not say.
      available: bytes that the step may use; None where it does not say.
      largest: the largest arrays, as "2.00 GiB f32[...] in op".
    """

    needed: float | None
    available: float | None
    largest: tuple[str, ...] = ()


def out_of_memory(error: BaseException) -> OutOfMemory | None:
    """Returns what an error says of memory, or None if it is about something else."""
    text = str(error)
    if "RESOURCE_EXHAUSTED" not in text:
        return None
    found = tuple(
        f"{_bytes(size, unit) / 2**30:.2f} GiB {shape}{f' in {op}' if op else ''}"
        for size, unit, op, shape in _LARGEST.findall(text)[:_FEW]
    )
    for match in filter(None, (pattern.search(text) for pattern in _NEEDED)):
        needed, available = _bytes(match[1], match[2]), _bytes(match[3], match[4])
        return OutOfMemory(needed=needed, available=available, largest=found)
    return OutOfMemory(needed=None, available=None, largest=found)


def explain(error: BaseException, *, chip: str) -> str:
    """Returns one line: what is wrong, and which flag changes it."""
    text = _first_line(error)
    if isinstance(error, NotImplementedError) and _from_cudnn(error):
        return (
            f"cuDNN has no attention for this on {chip}: {text} Set DecoderConfig.attention = 'xla'"
            ", which holds all scores, or change DecoderConfig.head_dim or "
            "DataConfig.sequence_length."
        )
    if isinstance(error, ValueError):
        return text
    return (
        f"the compiler for {chip} refuses the step ({type(error).__name__}): {text} Neither memory "
        "nor the configuration's checks explain it: try another MeshConfig, or "
        "DecoderConfig.attention = 'xla', and report it with this line."
    )


def _from_cudnn(error: BaseException) -> bool:
    at = error.__traceback__
    while at is not None:
        if "cudnn" in at.tb_frame.f_code.co_filename:
            return True
        at = at.tb_next
    return False


def _first_line(error: BaseException) -> str:
    """Returns the line that says most: of a Python error inside of the compiler, its last word."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"\w*(Error|Exception): ", line)]
    text = (raised or lines or [type(error).__name__])[0]
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return text if text.endswith((".", "...")) else f"{text}."


def _bytes(number: str, unit: str) -> float:
    return float(number) * _UNITS[unit.upper()]
