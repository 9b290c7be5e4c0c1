"""Installs what the laboratory needs, from Debian, where it is missing."""

import fcntl
import os
import pathlib
import shutil
import subprocess

PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
}
ACCOUNTING = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server"}
PLUGINS = ["slurm-wlm-basic-plugins"]
ACCOUNTING_PLUGINS = ["slurm-wlm-mysql-plugin"]
LOCK = pathlib.Path("/tmp/lockstep-slurm-packages.lock")
SYSTEM_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


class CannotRun(RuntimeError):
    """The laboratory cannot run here; says what is missing and what to do."""


def missing(*, accounting: bool) -> list[str]:
    """Returns the packages whose programs are not there."""
    wanted = PROGRAMS | (ACCOUNTING if accounting else {})
    names = {
        package
        for program, package in wanted.items()
        if shutil.which(program, path=SYSTEM_PATH) is None
    }
    if names and not names <= {"iproute2", "util-linux"}:
        names |= {*PLUGINS, *(ACCOUNTING_PLUGINS if accounting else [])}
    return sorted(names)


def require(*, accounting: bool) -> None:
    """Installs missing packages.

    Raises:
      CannotRun: not root, no apt, or apt fails.
    """
    if os.geteuid() != 0:
        raise CannotRun(
            "The Slurm laboratory makes network namespaces and starts Slurm's daemons: run it as "
            "root (in a container, with CAP_SYS_ADMIN and CAP_NET_ADMIN)."
        )
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if names := missing(accounting=accounting):
            _install(names)


def _install(names: list[str]) -> None:
    if shutil.which("apt-get") is None:
        raise CannotRun(f"Install {', '.join(names)} (names of Debian 12); there is no apt here.")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *names]
    for command in (["apt-get", "update", "-qq"], install):
        done = subprocess.run(
            command,
            env=environment,
            text=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=900,
        )
        if done.returncode:
            raise CannotRun(f"{' '.join(command)} failed: {done.stderr.strip()[-800:]}")
