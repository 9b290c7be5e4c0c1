"""What launcher and trainer know of one another: environment, exit codes, files.

Imports the standard library only and starts in milliseconds; anyone may import it. Everything that
crosses the border between the two has its name, its type and its version here (exit codes,
findings and files in modules beside it). Names of variables, exit codes and fields are a public
interface: they are added to, not changed.
"""

import dataclasses
import re
import typing
from collections.abc import Mapping
from typing import Any, Self

from launch.exit_codes import Ending, ExitCode, RetryClass, ending
from launch.findings import Finding, Verdict
from launch.process_identity import kernel, started
from launch.records import (
    STACKS_SIGNAL,
    ContractError,
    JournalEntry,
    Phase,
    Progress,
    RankExit,
    Reason,
    RunRecord,
    Schema,
    exit_path,
    progress_path,
    reason_of,
    replace_file,
    stacks_path,
)

__all__ = [
    "STACKS_SIGNAL",
    "VARIABLES",
    "ContractError",
    "Ending",
    "Environment",
    "ExitCode",
    "Finding",
    "JournalEntry",
    "Phase",
    "Progress",
    "RankExit",
    "Reason",
    "RetryClass",
    "RunRecord",
    "Schema",
    "Verdict",
    "ending",
    "exit_path",
    "kernel",
    "progress_path",
    "reason_of",
    "replace_file",
    "stacks_path",
    "started",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Environment:
    """One process's place in its run, from ``LAUNCH_*``.

    Attributes:
      run_id: name of the run, the same for all attempts.
      attempt: number of this attempt, growing; a fencing token.
      coordinator: host:port of process 0's coordination service.
      num_processes: processes of the run.
      process_id: rank of this process.
      state_dir: folder of this host, outliving the process, for progress files.
      local_devices: devices that this process may use; empty takes all.
      host_id: name of the host for people and for exclusion; empty where unknown.
      failure_domain: rack or block that fails as one; empty where unknown.
      slice_id: which slice or rack of the mesh's outer part this process is in.
      num_slices: how many of those there are.
      grace_s: seconds between SIGTERM and SIGKILL; None where unknown.
    """

    run_id: str
    attempt: int
    coordinator: str
    num_processes: int
    process_id: int
    state_dir: str
    local_devices: tuple[int, ...] = ()
    host_id: str = ""
    failure_domain: str = ""
    slice_id: int = 0
    num_slices: int = 1
    grace_s: float | None = None

    def __post_init__(self) -> None:
        if self.attempt < 0:
            raise ContractError(f"LAUNCH_ATTEMPT={self.attempt} is negative.")
        if not 0 <= self.process_id < self.num_processes:
            raise ContractError(
                f"LAUNCH_PROCESS_ID={self.process_id} is not below "
                f"LAUNCH_NUM_PROCESSES={self.num_processes}."
            )
        if not 0 <= self.slice_id < self.num_slices:
            raise ContractError(
                f"LAUNCH_SLICE_ID={self.slice_id} is not below LAUNCH_NUM_SLICES={self.num_slices}."
            )
        if not re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^:\s]+):\d{1,5}", self.coordinator):
            raise ContractError(f"LAUNCH_COORDINATOR={self.coordinator!r} is not host:port.")

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self | None:
        """Returns the environment; None where no ``LAUNCH_*`` variable of it is set.

        Raises:
          ContractError: only some of the required variables are set, or one has a wrong value.
        """
        given = {
            name: environ[variable] for name, variable in VARIABLES.items() if variable in environ
        }
        if not given:
            return None
        required = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]
        if missing := [VARIABLES[name] for name in required if not given.get(name)]:
            raise ContractError(
                f"{', '.join(VARIABLES[name] for name in given)} is set, but "
                f"{', '.join(missing)} is not. Set all of them, or none for a run of one process."
            )
        values = {name: _from_variable(name, text) for name, text in given.items()}
        return cls(**values)

    def variables(self) -> dict[str, str]:
        """Returns ``LAUNCH_*`` variables that `read` turns into this environment."""
        values = dataclasses.asdict(self)
        texts = {}
        for name, variable in VARIABLES.items():
            value = values[name]
            if name == "local_devices":
                texts[variable] = ",".join(str(device) for device in value)
            elif value is not None:
                texts[variable] = str(value)
        return texts

    def foreign_variables(self, *, local_rank: int = 0, local_size: int = 1) -> dict[str, str]:
        """Returns the variables that programs which are not Lockstep's expect, like torchrun's.

        Args:
          local_rank: number of this process on its host.
          local_size: processes on its host.
        """
        host, _, port = self.coordinator.rpartition(":")
        return {
            "MASTER_ADDR": host.strip("[]"),
            "MASTER_PORT": port,
            "RANK": str(self.process_id),
            "WORLD_SIZE": str(self.num_processes),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(local_size),
        }


VARIABLES: Mapping[str, str] = {
    field.name: f"LAUNCH_{field.name.upper()}" for field in dataclasses.fields(Environment)
}
"""Field of `Environment` -> environment variable."""


def _from_variable(name: str, text: str) -> Any:
    kind = typing.get_type_hints(Environment)[name]
    try:
        if kind is int:
            return int(text)
        if name == "local_devices":
            return tuple(int(part) for part in text.split(",") if part.strip())
        if name == "grace_s":
            return float(text) if text else None
    except ValueError:
        raise ContractError(f"{VARIABLES[name]}={text!r} is not a number.") from None
    return text
