"""A real Slurm of four nodes on one machine: a controller, four slurmd, munge; accounting if asked.

Each node is a pretended machine (machines.py) with its own address and host name, so that its
power or its link can be cut. Two labs in two folders know nothing of one another. Everything that
a lab writes is in its folder; ``down`` leaves nothing behind. Needs root, and Debian's packages,
which it installs.
"""

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from tests.slurm import packages, settings
from tests.slurm.accounting import Accounting
from tests.slurm.machines import SYSTEM_PATH, Machine, build_bridge, plug_in, set_link

REPOSITORY = pathlib.Path(__file__).parents[2]
ORDINARY_USER = 65534
"""Whoever submits jobs in tests: nobody, who can read the checkout and write to `Lab.shared`."""

USERS = ("root", "nobody")
"""Whoever may have jobs."""

COMMANDS = ("sbatch", "scontrol", "squeue", "scancel", "sinfo", "srun", "sacct", "sacctmgr")
LIMIT_S = 60.0

USABLE = {"idle", "planned", "allocated"}
"""States of a node that needs no mending."""


def wait_until[T](
    look: Callable[[], T], *, what: str, limit_s: float = LIMIT_S, every_s: float = 0.05
) -> T:
    """Returns the first true value of ``look``.

    Raises:
      TimeoutError: none came within the limit; names ``what`` and the last value.
    """
    end = time.monotonic() + limit_s
    while not (value := look()):
        if time.monotonic() > end:
            raise TimeoutError(f"Waited {limit_s:g} s for {what}; last seen: {value!r}.")
        time.sleep(every_s)
    return value


@dataclasses.dataclass
class Lab:
    """One laboratory.

    Attributes:
      folder: everything of it; short, for it holds sockets.
      accounting: with slurmdbd and a database: accounts, QOS, sacct.
      lifeline: everything ends with the process that started it.
    """

    folder: pathlib.Path
    accounting: bool = False
    lifeline: bool = False

    def __post_init__(self) -> None:
        run = self.folder / "run"
        self.controller = Machine(name="ctl", number=254, folder=run)
        self.nodes = tuple(Machine(name=f"n{i}", number=i, folder=run) for i in range(1, 5))
        self._lifelines: dict[str, subprocess.Popen[str]] = {}
        self._cut: set[str] = set()

    @property
    def conf(self) -> pathlib.Path:
        """Slurm's configuration file."""
        return self.folder / "etc/slurm.conf"

    @property
    def shared(self) -> pathlib.Path:
        """A directory that every user of every node can write to."""
        return self.folder / "shared"

    @property
    def bin(self) -> pathlib.Path:
        """Slurm's commands as root on the controller; put it first in PATH."""
        return self.folder / "bin"

    @property
    def user_bin(self) -> pathlib.Path:
        """Slurm's commands as the ordinary user on the controller."""
        return self.folder / "user-bin"

    # Life and death.

    def up(self) -> None:
        """Starts whatever is not running, and returns when every node is idle or allocated."""
        packages.require(accounting=self.accounting)
        for name in ("etc", "run", "log", "state", "dev", "bin", "user-bin", "shared", "munge"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        if self.folder.stat().st_uid != os.geteuid():
            raise packages.CannotRun(f"{self.folder} belongs to another user; name another folder.")
        self.folder.chmod(0o755)
        self.shared.chmod(0o1777)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._configure()
            self._power_on(self.controller)
            build_bridge(self.controller)
            self._start_munge()
            self._write_commands()
            if self.accounting:
                Accounting(self.folder, self.controller).up()
            self.start_controller()
            for node in self.nodes:
                self.power_on(node.name)
            self.wait_for_nodes()

    def down(self) -> None:
        """Ends everything and removes the folder."""
        for machine in (*self.nodes, self.controller):
            machine.power_off()
        for process in self._lifelines.values():
            with process:
                pass
        shutil.rmtree(self.folder, ignore_errors=True)

    def is_up(self) -> bool:
        """Whether every machine is on and the controller answers."""
        if any(machine.pid is None for machine in (self.controller, *self.nodes)):
            return False
        return self.run(["scontrol", "ping"], check=False).returncode == 0

    def reset(self) -> None:
        """Undoes what a test did: jobs, cut links, dead nodes, a dead controller."""
        self.start_controller()
        for node in self.nodes:
            if node.name in self._cut or node.pid is None:
                self.power_cycle(node.name)
        self._cut.clear()
        # What waits first, or it starts when what runs has ended.
        for flags in (["--state=PENDING"], []):
            for user in USERS:
                self.run(["scancel", *flags, f"--user={user}"], check=False)
        try:
            wait_until(self._is_empty, what="an empty queue", limit_s=15)
        except TimeoutError:
            # What waits there for a connection that is gone would wait for minutes.
            for node in self.nodes:
                self.power_cycle(node.name)
            wait_until(self._is_empty, what="an empty queue")
        self.wait_for_nodes()

    def _is_empty(self) -> bool:
        return not self.run(["squeue", "-h"]).stdout.strip()

    def wait_for_nodes(self) -> None:
        """Returns when every node is idle or busy; resumes what is drained or down."""
        wait_until(self._all_usable, what="four usable nodes", every_s=0.1)

    def node_states(self) -> dict[str, str]:
        """Returns each node's state as Slurm has it, such as ``idle``, ``down*``, ``drained``."""
        text = self.run(["sinfo", "-h", "-N", "-p", "low", "-o", "%N %T"]).stdout
        return dict(line.split() for line in text.splitlines())

    def _all_usable(self) -> bool:
        states = self.node_states()
        if len(states) == len(self.nodes) and set(states.values()) <= USABLE:
            return True
        # A node that does not answer yet (*) comes back by itself.
        for name, state in states.items():
            if state.startswith(("drain", "down", "inval")) and not state.endswith("*"):
                self.run(["scontrol", "update", f"nodename={name}", "state=resume"], check=False)
        return False

    # Commands.

    def environment(self) -> list[str]:
        """Returns what, before a command, sets the variables of the lab's Slurm."""
        return ["env", f"SLURM_CONF={self.conf}"]

    def run(
        self,
        command: Sequence[str],
        *,
        on: Machine | None = None,
        as_user: bool = False,
        check: bool = True,
        timeout_s: float = LIMIT_S,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command on the controller or a node, as root or as the ordinary user."""
        machine = on or self.controller
        who = _as_ordinary_user() if as_user else []
        return machine.run([*self.environment(), *who, *command], check=check, timeout_s=timeout_s)

    # What tests do to it.

    def node(self, name: str) -> Machine:
        """Returns a node by its name."""
        return next(node for node in self.nodes if node.name == name)

    def cut(self, name: str) -> None:
        """Cuts a node's link; its processes go on."""
        self._cut.add(name)
        set_link(self.node(name), hub=self.controller, up=False)

    def mend(self, name: str) -> None:
        """Joins a node's link again."""
        set_link(self.node(name), hub=self.controller, up=True)

    def power_off(self, name: str) -> None:
        """Ends every process of a node at once."""
        self.node(name).power_off()

    def power_on(self, name: str) -> None:
        """Starts a node and its slurmd, whatever of them is not running."""
        node = self.node(name)
        self._power_on(node)
        plug_in(node, hub=self.controller)
        if not self._runs(node, f"slurmd-{name}"):
            (self.folder / "spool" / name).mkdir(parents=True, exist_ok=True)
            self.run(["slurmd"], on=node)

    def power_cycle(self, name: str) -> None:
        """Powers a node off and on; Slurm gives up at once what ran or ended there.

        Left to itself it asks a node that was dead for a job's end once a minute.
        """
        self.power_off(name)
        update = ["scontrol", "update", f"nodename={name}"]
        self.run([*update, "state=down", "reason=power"], check=False)
        self.power_on(name)
        self.run([*update, "state=resume"], check=False)

    def wait_until_saved(self) -> None:
        """Returns when slurmctld has saved what it knows of jobs; it does so every few seconds."""
        saved, now = self.folder / "state/job_state", time.time()
        wait_until(lambda: saved.exists() and saved.stat().st_mtime > now, what="a saved state")

    def kill_controller(self) -> None:
        """Kills slurmctld without a word; what it had not saved is lost."""
        pid = (self.folder / "run/slurmctld.pid").read_text().strip()
        self.controller.run(["kill", "-KILL", pid])
        wait_until(lambda: not self._runs(self.controller, "slurmctld"), what="slurmctld's end")

    def start_controller(self) -> None:
        """Starts slurmctld unless it runs, and returns when it answers."""
        if not self._runs(self.controller, "slurmctld"):
            self.run(["slurmctld"])
        wait_until(
            lambda: "is UP" in self.run(["scontrol", "ping"], check=False).stdout,
            what="an answer of slurmctld",
        )

    # Parts.

    def _configure(self) -> None:
        texts = {
            "etc/slurm.conf": settings.slurm_conf(
                self.folder,
                controller=self.controller,
                nodes=self.nodes,
                accounting=self.accounting,
            ),
            "etc/gres.conf": settings.gres_conf(self.folder, self.nodes),
            "etc/topology.conf": settings.topology_conf(self.nodes),
            "etc/cgroup.conf": "CgroupPlugin=cgroup/v1\n",
            "etc/hosts": settings.hosts([self.controller, *self.nodes]),
        }
        for number in range(settings.GPUS):
            (self.folder / "dev" / f"gpu{number}").touch()
        for name, text in texts.items():
            (self.folder / name).write_text(text)

    def _power_on(self, machine: Machine) -> None:
        process = machine.power_on(
            hosts_file=self.folder / "etc/hosts",
            lifeline=self.lifeline,
            open_paths=[
                self.folder,
                *(REPOSITORY, pathlib.Path(sys.prefix), pathlib.Path(sys.base_prefix)),
            ],
        )
        if process is not None:
            if previous := self._lifelines.pop(machine.name, None):
                with previous:
                    pass
            self._lifelines[machine.name] = process

    def _runs(self, machine: Machine, daemon: str) -> bool:
        """Whether the daemon whose pid file is ``run/<daemon>.pid`` runs on a machine."""
        with contextlib.suppress(FileNotFoundError):
            pid = (self.folder / "run" / f"{daemon}.pid").read_text().strip()
            name = daemon.partition("-")[0]
            found = machine.run(["cat", f"/proc/{pid}/comm"], check=False)
            return bool(pid) and found.stdout.strip() == name
        return False

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        if self._runs(self.controller, "munged"):
            return
        key = folder / "key"
        if not key.exists():
            key.touch(mode=0o400)
            key.write_bytes(os.urandom(128))
        self.controller.run(
            [
                "munged",
                "--force",
                f"--socket={folder}/socket",
                f"--key-file={key}",
                f"--pid-file={self.folder}/run/munged.pid",
                f"--log-file={folder}/log",
                f"--seed-file={folder}/seed",
            ]
        )

    def _write_commands(self) -> None:
        for folder, who in ((self.bin, []), (self.user_bin, _as_ordinary_user())):
            for name in COMMANDS:
                command = [*self.controller.prefix(), "env"]
                after = [f"SLURM_CONF={self.conf}", *who, _program(name)]
                # Jobs inherit PATH, and on a node these commands lead nowhere.
                clean = f"$(printf %s \"$PATH\" | sed 's|{self.folder}/[a-z-]*:||g')"
                text = (
                    f'#!/bin/sh\nexec {shlex.join(command)} --chdir="$PWD" PATH="{clean}" '
                    f'{shlex.join(after)} "$@"\n'
                )
                path = folder / name
                if not path.exists() or path.read_text() != text:
                    path.write_text(text)
                    path.chmod(0o755)


def _program(name: str) -> str:
    """Returns the path of a command of Slurm, whatever the caller's PATH puts before it."""
    return shutil.which(name, path=SYSTEM_PATH) or name


def _as_ordinary_user() -> list[str]:
    return [
        "setpriv",
        f"--reuid={ORDINARY_USER}",
        f"--regid={ORDINARY_USER}",
        "--clear-groups",
        "--",
    ]


@contextlib.contextmanager
def running(folder: pathlib.Path, *, accounting: bool = False) -> Iterator[Lab]:
    """Yields a lab that ends with this process, or before."""
    lab = Lab(folder, accounting=accounting, lifeline=True)
    try:
        lab.up()
        yield lab
    finally:
        lab.down()
