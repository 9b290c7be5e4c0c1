"""Pretended machines on one bridge, whose power and links a test can cut.

Each has its own network, host name, mounts and process numbers; they share the file system. No
address of theirs is reachable from outside, and nothing outside is reachable from them.
"""

import contextlib
import dataclasses
import os
import pathlib
import select
import signal
import subprocess
import sys
from collections.abc import Sequence

INIT = pathlib.Path(__file__).with_name("machine_init.py")
NETWORK = "10.77.0"
LIMIT_S = 60.0

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Not the caller's PATH: a lab's own commands may stand first there, and call nsenter again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """One machine.

    Attributes:
      name: host name.
      number: last part of its address.
      folder: where its pid file is.
    """

    name: str
    number: int
    folder: pathlib.Path

    @property
    def address(self) -> str:
        """IPv4 address on the bridge."""
        return f"{NETWORK}.{self.number}"

    @property
    def hardware_address(self) -> str:
        """The same after each start, or its peers look for the old one for half a minute."""
        return f"02:00:00:00:00:{self.number:02x}"

    @property
    def pid(self) -> int | None:
        """Its first process, by this machine's numbers; None while it is off."""
        with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
            pid = int(self._pid_file.read_text())
            command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            # The number may be somebody else's by now.
            if str(INIT).encode() in command and self.name.encode() in command:
                return pid
        return None

    @property
    def _pid_file(self) -> pathlib.Path:
        return self.folder / f"{self.name}.pid"

    def power_on(
        self, *, hosts_file: pathlib.Path, lifeline: bool, open_paths: Sequence[pathlib.Path]
    ) -> subprocess.Popen[str] | None:
        """Starts the machine unless it is on; with a lifeline, it lives as long as the result."""
        if self.pid is not None:
            return None
        command = [sys.executable, str(INIT), self.name, str(hosts_file), str(int(lifeline))]
        process = subprocess.Popen(
            [*command, *map(str, open_paths)],
            text=True,
            stdin=subprocess.PIPE if lifeline else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        pid, ready = process.stdout.readline(), process.stdout.readline()
        process.wait(timeout=LIMIT_S)
        if not pid or ready != "ready\n":
            raise RuntimeError(f"Machine {self.name} did not start; its message is above.")
        self._pid_file.write_text(pid)
        return process

    def power_off(self) -> None:
        """Ends every process of the machine at once, without a word to any."""
        pid = self.pid
        if pid is None:
            return
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            if not select.select([descriptor], [], [], LIMIT_S)[0]:
                raise RuntimeError(f"Machine {self.name} (pid {pid}) did not end.")
        finally:
            os.close(descriptor)
        self._pid_file.unlink()

    def prefix(self) -> list[str]:
        """Returns what, before a command, makes it run on the machine."""
        if self.pid is None:
            raise RuntimeError(f"Machine {self.name} is off.")
        return ["nsenter", f"--target={self.pid}", "--net", "--uts", "--mount", "--pid", "--"]

    def run(
        self, command: Sequence[str], *, check: bool = True, timeout_s: float = LIMIT_S
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command on the machine as root."""
        done = subprocess.run(
            [*self.prefix(), "env", f"PATH={SYSTEM_PATH}", *command],
            text=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
        )
        if check and done.returncode:
            raise RuntimeError(
                f"{self.name}: {' '.join(command)} ended with {done.returncode}: "
                f"{done.stderr.strip() or done.stdout.strip()}"
            )
        return done


def build_bridge(hub: Machine) -> None:
    """Makes ``hub`` the machine that holds the bridge; does nothing where it holds it already."""
    if hub.run(["ip", "link", "show", "br0"], check=False).returncode == 0:
        return
    hub.run(["ip", "link", "add", "br0", "type", "bridge"])
    hub.run(["ip", "address", "add", f"{hub.address}/24", "dev", "br0"])
    hub.run(["ip", "link", "set", "br0", "address", hub.hardware_address, "up"])


def plug_in(machine: Machine, *, hub: Machine) -> None:
    """Joins a machine to the bridge; does nothing where it is joined already."""
    port = f"v-{machine.name}"
    if machine.run(["ip", "link", "show", "eth0"], check=False).returncode == 0:
        return
    # That of a machine that lost its power may not have gone yet.
    hub.run(["ip", "link", "delete", port], check=False)
    # Process numbers are this machine's here, so only the hub's network is entered.
    create = ["ip", "link", "add", port, "type", "veth", "peer", "eth0", "netns", str(machine.pid)]
    subprocess.run(
        ["nsenter", f"--target={hub.pid}", "--net", "--", *create], check=True, timeout=LIMIT_S
    )
    hub.run(["ip", "link", "set", port, "master", "br0", "up"])
    machine.run(["ip", "address", "add", f"{machine.address}/24", "dev", "eth0"])
    machine.run(["ip", "link", "set", "eth0", "address", machine.hardware_address, "up"])


def set_link(machine: Machine, *, hub: Machine, up: bool) -> None:
    """Cuts or mends a machine's link; its processes go on."""
    hub.run(["ip", "link", "set", f"v-{machine.name}", "up" if up else "down"])
