"""Which process a number means: process ids are used again, start times are not.

Part of the contract: imports the standard library only; import it through launch.contract.
"""

import os
import pathlib
import socket


def started(pid: int) -> int | None:
    """Returns a process's start in clock ticks since boot; None where it does not run."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def kernel() -> str:
    """Returns boot and process namespace; inside of one, process ids mean something."""
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id")
    try:
        return f"{boot.read_text().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"unknown/{socket.gethostname()}"
