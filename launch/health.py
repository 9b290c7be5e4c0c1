"""Whether a host's devices are well: the kernel's log, nvidia-smi, the disk. Standard library only.

Says what it can read and nothing of what it cannot: a host without NVIDIA devices, or where the
kernel's log is closed to users, is not sick for that.
"""

import contextlib
import dataclasses
import os
import re
import shutil
import subprocess
import time

XIDS = {
    48: "double-bit ECC error",
    64: "ECC row could not be retired",
    74: "NVLink error",
    79: "device has fallen off the bus",
    95: "uncontained ECC error",
    119: "GSP does not answer",
    120: "GSP error",
    140: "unrecovered ECC error",
}
"""Xid -> meaning, of those after which a device cannot be used until a person or a reset acts
(NVIDIA, "XID Errors"). Others, such as 13, 31, 43, 45 or 94, are the program's or pass."""

_XID = re.compile(r"NVRM: Xid \((?P<device>[^)]*)\): (?P<number>\d+)")
_QUERY = (
    "index,ecc.errors.uncorrected.volatile.total,"
    "clocks_throttle_reasons.hw_thermal_slowdown,temperature.gpu"
)
_SMI_EVERY_S = 30.0
_SMI_LIMIT_S = 20.0
_DISK_EVERY_S = 10.0
_DISK_FREE_BYTES = 256 * 2**20


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something wrong with a host.

    Attributes:
      message: for people.
      drain: whether nothing should run there until somebody has looked.
    """

    message: str
    drain: bool


class Health:
    """Checks of one host; `check` never waits and says each thing once."""

    def __init__(self, *, folder: str, host: str, gpus: bool) -> None:
        """Begins to listen.

        Args:
          folder: a folder whose disk must not be full.
          host: name of this host.
          gpus: whether the run uses them; a host without a driver is well enough for others.
        """
        self._folder = folder
        self._log = _KernelLog(host)
        self._smi = _Smi() if gpus and shutil.which("nvidia-smi") else None
        self._disk_at = 0.0
        self._said: set[str] = set()

    def check(self) -> list[Finding]:
        """Returns what has come up since the last call."""
        found = [*self._log.findings(), *(self._smi.findings() if self._smi else []), *self._disk()]
        new = {each.message: each for each in found if each.message not in self._said}
        self._said |= set(new)
        return list(new.values())

    def _disk(self) -> list[Finding]:
        now = time.monotonic()
        if now - self._disk_at < _DISK_EVERY_S:
            return []
        self._disk_at = now
        try:
            free = shutil.disk_usage(self._folder).free
        except OSError as error:
            return [Finding(f"{self._folder} cannot be looked at: {error}", drain=False)]
        if free >= _DISK_FREE_BYTES:
            return []
        return [Finding(f"the disk of {self._folder} is nearly full", drain=False)]


class _KernelLog:
    """Xid messages of the NVIDIA driver."""

    def __init__(self, host: str) -> None:
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):  # closed to users on many sites
            self._descriptor = os.open(kernel_log(host), os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._descriptor, 0, os.SEEK_END)  # what was before is over

    def findings(self) -> list[Finding]:
        found = []
        for line in self._lines():
            for match in _XID.finditer(line):
                number = int(match["number"])
                if number in XIDS:
                    message = f"Xid {number} on {match['device']}: {XIDS[number]}"
                    found.append(Finding(message, drain=True))
        return found

    def _lines(self) -> list[str]:
        lines: list[str] = []
        while self._descriptor is not None:
            try:
                data = os.read(self._descriptor, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # /dev/kmsg: messages were overwritten before they were read
            if not data:
                break
            lines += data.decode(errors="replace").splitlines()
        return lines


class _Smi:
    """nvidia-smi in the background: where a device is gone it can hang, which is a finding."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._started = -_SMI_EVERY_S

    def findings(self) -> list[Finding]:
        now = time.monotonic()
        if self._process is None:
            if now - self._started >= _SMI_EVERY_S:
                self._started = now
                self._process = subprocess.Popen(
                    ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            return []
        if self._process.poll() is None:
            if now - self._started < _SMI_LIMIT_S:
                return []
            self._process.kill()
            self._process = None
            return [Finding(f"nvidia-smi does not answer within {_SMI_LIMIT_S:.0f} s", drain=True)]
        text, code = self._process.communicate()[0], self._process.returncode
        self._process = None
        if code:
            return [Finding(f"nvidia-smi fails ({code}): {text.strip()[:200]}", drain=True)]
        return [found for line in text.splitlines() if line.strip() for found in _device(line)]


def _device(line: str) -> list[Finding]:
    """Findings of one line of nvidia-smi's answer."""
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != _QUERY.count(",") + 1 or not parts[0].isdecimal():
        return [Finding(f"nvidia-smi says: {line.strip()[:200]}", drain=False)]
    index, ecc, thermal, temperature = parts
    found = []
    if ecc.isdecimal() and int(ecc) > 0:
        found.append(Finding(f"device {index} has {ecc} uncorrected ECC errors", drain=True))
    if thermal == "Active":
        message = f"device {index} is slowed down by heat ({temperature} degrees)"
        found.append(Finding(message, drain=False))
    return found


def kernel_log(host: str) -> str:
    """Returns where the kernel's log of a host can be read.

    LOCKSTEP_KERNEL_LOG names another file than /dev/kmsg, with {host} for the host's name.
    """
    return os.environ.get("LOCKSTEP_KERNEL_LOG", "/dev/kmsg").replace("{host}", host)
