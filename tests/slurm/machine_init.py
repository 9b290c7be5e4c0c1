"""The first process of a pretended machine: its own network, host name, mounts and processes.

``python machine_init.py NAME HOSTS_FILE LIFELINE PATH...`` prints the id of the new machine's first
process and the word ``ready``. Killing that process ends everything that runs on the machine, as
cutting its power would. With LIFELINE ``1`` it ends when its standard input is closed, too. The
machine's /tmp and /dev/shm are its own. Each PATH can be read by every user of it, even below those
or below a directory that is closed on the real one (a checkout or a Python below /root). Standard
library only; needs root.
"""

import contextlib
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable

NAMESPACES = os.CLONE_NEWNET | os.CLONE_NEWUTS | os.CLONE_NEWNS | os.CLONE_NEWPID
STAGING = pathlib.Path("/mnt")
OWN = (pathlib.Path("/tmp"), pathlib.Path("/dev/shm"))


def main(name: str, hosts_file: str, lifeline: str, *paths: str) -> None:
    """Becomes the machine; the caller's process ends as soon as the machine exists."""
    os.unshare(NAMESPACES)
    if child := os.fork():
        print(child, flush=True)
        os._exit(0)
    os.setsid()
    socket.sethostname(name)
    _do("mount", "--make-rprivate", "/")
    _do("mount", "-t", "proc", "proc", "/proc")
    _do("mount", "--bind", hosts_file, "/etc/hosts")
    _cover([pathlib.Path(path).resolve() for path in paths])
    _do("ip", "link", "set", "lo", "up")
    print("ready", flush=True)
    for stream in (1, 2):  # whoever reads them must not wait for the machine
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    _reap(watch_input=lifeline == "1")


def _do(*command: str) -> None:
    subprocess.run(command, check=True, timeout=20, stdin=subprocess.DEVNULL)


def _hiding(path: pathlib.Path) -> pathlib.Path | None:
    """Returns the outermost directory above ``path`` that is to be covered."""
    for ancestor in reversed(path.parents):
        if ancestor in OWN or not ancestor.stat().st_mode & 0o001:
            return ancestor
    return None


def _cover(paths: Iterable[pathlib.Path]) -> None:
    """Covers closed directories and `OWN` by new ones, which hold nothing but ``paths``."""
    hidden = {path: ancestor for path in paths if (ancestor := _hiding(path)) is not None}
    _do("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(STAGING))
    for number, path in enumerate(hidden):
        (STAGING / str(number)).mkdir()
        _do("mount", "--bind", str(path), str(STAGING / str(number)))
    for ancestor in {*hidden.values(), *OWN}:
        mode = "mode=1777" if ancestor in OWN else "mode=755"
        _do("mount", "-t", "tmpfs", "-o", mode, "tmpfs", str(ancestor))
    for number, path in enumerate(hidden):
        path.mkdir(parents=True, exist_ok=True)
        _do("mount", "--bind", str(STAGING / str(number)), str(path))


def _reap(*, watch_input: bool) -> None:
    """Collects the machine's orphans until the lifeline is cut."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    watched = [woken, 0] if watch_input else [woken]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if 0 in ready and not os.read(0, 4096):
            return
        if woken in ready:
            os.read(woken, 4096)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    main(*sys.argv[1:])
