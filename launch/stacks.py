"""What a process is doing that says nothing: its stacks, before it is killed.

A process that catches `STACKS_SIGNAL` (the trainer does, through faulthandler, which works while
the interpreter is stuck in C) writes them to a file; of any other, Linux tells what each thread
waits in. Standard library only.
"""

import contextlib
import os
import pathlib
import re

from launch.records import STACKS_SIGNAL

_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line \d+ in (?P<name>.*)$')
_WAITING = re.compile(
    r"/jax/|/jaxlib/|/torch/distributed/|:(all_reduce|all_gather|reduce_scatter|all_to_all|"
    r"broadcast|barrier|block_until_ready)$"
)


def request(pid: int) -> bool:
    """Asks a process for its stacks; False where it would not understand, and was left alone."""
    if not _catches(pid, STACKS_SIGNAL):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, STACKS_SIGNAL)
        return True
    return False


def describe(pid: int) -> str:
    """Returns what the kernel says of a process: state, and what each thread waits in."""
    lines = [f"State: {state(pid)}"]
    tasks = pathlib.Path(f"/proc/{pid}/task")
    with contextlib.suppress(OSError):
        for task in sorted(tasks.iterdir(), key=lambda path: int(path.name)):
            name = (task / "comm").read_text().strip()
            lines.append(f"Thread {task.name} ({name}) waits in {_wchan(task)}")
    return "\n".join(lines)


def state(pid: int) -> str:
    """Returns a process's state in the kernel's words, such as ``T (stopped)``; ``gone``."""
    return _status(pid).get("State", "gone")


def main_thread(text: str) -> list[str]:
    """Returns functions of the main thread, innermost first, as ``file:function``.

    faulthandler writes one block per thread, the main thread last.
    """
    block = re.split(r"\n\s*\n", text.strip())[-1]
    frames = (_FRAME.match(line) for line in block.splitlines())
    return [f"{frame['file']}:{frame['name']}" for frame in frames if frame]


def waits_for_others(frames: list[str]) -> bool:
    """Whether a main thread is inside a collective library: it waits for another process."""
    return any(_WAITING.search(frame) for frame in frames)


def _catches(pid: int, number: int) -> bool:
    mask = int(_status(pid).get("SigCgt", "0"), 16)
    return bool(mask >> (number - 1) & 1)


def _status(pid: int) -> dict[str, str]:
    try:
        text = pathlib.Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {key: value.strip() for key, _, value in pairs}


def _wchan(task: pathlib.Path) -> str:
    try:
        return (task / "wchan").read_text().strip() or "user code"
    except OSError:
        return "an unknown place"
