"""Accounting for the laboratory: slurmdbd over a database of its own, two accounts, five QOS."""

import dataclasses
import pathlib
import shutil
import time

from tests.slurm import settings
from tests.slurm.machines import Machine

ACCOUNTS = {"research": 80, "infra": 20}
"""Account -> its share."""

USERS = ("root", "nobody")
LIMIT_S = 60.0


@dataclasses.dataclass(frozen=True)
class Accounting:
    """slurmdbd and its database, on the controller.

    Attributes:
      folder: the lab's.
      machine: the lab's controller.
    """

    folder: pathlib.Path
    machine: Machine

    def up(self) -> None:
        """Starts what is not running."""
        if self._answers(["sacctmgr", "-n", "list", "cluster"]):
            return
        self._start_database()
        self._start_slurmdbd()
        if "lab" not in self._slurm(["sacctmgr", "-n", "-P", "list", "cluster", "format=cluster"]):
            self._fill()

    def _start_database(self) -> None:
        data = self.folder / "database"
        log = self.folder / "log/mariadb.log"
        if not (data / "mysql").exists():
            data.mkdir(exist_ok=True)
            shutil.chown(data, "mysql", "mysql")
            self.machine.run(
                [
                    "mariadb-install-db",
                    "--no-defaults",
                    "--user=mysql",
                    f"--datadir={data}",
                    "--skip-test-db",
                    "--auth-root-authentication-method=socket",
                ]
            )
        server = [
            "mariadbd",
            "--no-defaults",
            "--user=mysql",
            f"--datadir={data}",
            f"--socket={data}/socket",
            f"--pid-file={data}/pid",
            "--skip-networking",
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=32M",
            "--innodb-flush-log-at-trx-commit=2",
        ]
        background = 'log=$1; shift; "$@" >>"$log" 2>&1 </dev/null &'
        self.machine.run(["sh", "-c", background, "sh", str(log), *server])
        statement = "create database if not exists slurm_lab"
        self._wait(["mariadb", "--no-defaults", f"--socket={data}/socket", "-e", statement])

    def _start_slurmdbd(self) -> None:
        configuration = self.folder / "etc/slurmdbd.conf"
        configuration.touch(mode=0o600)
        configuration.write_text(settings.slurmdbd_conf(self.folder))
        self._slurm(["env", f"MYSQL_UNIX_PORT={self.folder}/database/socket", "slurmdbd"])
        self._wait(["sacctmgr", "-n", "list", "cluster"])

    def _fill(self) -> None:
        """One QOS per priority of the job spec, each preempting those below it."""
        self._manage("add", "cluster", "lab")
        for name, share in ACCOUNTS.items():
            self._manage("add", "account", name, f"fairshare={share}")
        names: list[str] = []
        for value, name in enumerate(("preemptible", "low", "normal", "high", "critical"), start=1):
            existing = self._slurm(["sacctmgr", "-n", "-P", "list", "qos", "format=name"]).split()
            if name not in existing:
                self._manage("add", "qos", name)
            changes = [f"priority={value * 100}", "preemptmode=requeue"]
            self._manage("modify", "qos", name, "set", *changes)
            if names:
                self._manage("modify", "qos", name, "set", f"preempt={','.join(names)}")
            names.append(name)
        for user in USERS:
            for account in ACCOUNTS:
                self._manage("add", "user", user, f"account={account}", f"qos={','.join(names)}")

    def _manage(self, *words: str) -> None:
        self._slurm(["sacctmgr", "-i", *words])

    def _slurm(self, command: list[str]) -> str:
        variable = f"SLURM_CONF={self.folder}/etc/slurm.conf"
        return self.machine.run(["env", variable, *command]).stdout

    def _answers(self, command: list[str]) -> bool:
        variable = f"SLURM_CONF={self.folder}/etc/slurm.conf"
        return self.machine.run(["env", variable, *command], check=False).returncode == 0

    def _wait(self, command: list[str]) -> None:
        end = time.monotonic() + LIMIT_S
        while not self._answers(command):
            if time.monotonic() > end:
                raise TimeoutError(f"Waited {LIMIT_S:g} s for {' '.join(command)}.")
            time.sleep(0.1)
