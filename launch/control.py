"""What a person asks of a run: a file that its supervisor looks at with every beat.

Files only, so that it works wherever the folder of the job can be written. Standard library only.
"""

import dataclasses
import enum
import getpass
import os
import pathlib
from typing import Self

from launch.records import ContractError, Schema, replace_file

FILE = "control.json"


class Want(enum.StrEnum):
    """DRAIN saves and stops, for `resume`; CANCEL ends for good; GO_ON takes either back."""

    DRAIN = "drain"
    CANCEL = "cancel"
    GO_ON = "go_on"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Control(Schema):
    """``<job_dir>/control.json``.

    Attributes:
      want: what is asked for.
      by: who asked.
      time: seconds since 1970.
    """

    want: Want
    by: str
    time: float

    @classmethod
    def read(cls, job_dir: str) -> Self | None:
        """Returns what was asked last; None where nothing was, or nothing that can be read."""
        try:
            return cls.read_file(pathlib.Path(job_dir) / FILE)
        except ContractError:
            return None  # a torn wish must not end a run

    def write(self, job_dir: str) -> None:
        """Asks; replaces what was asked before."""
        replace_file(pathlib.Path(job_dir) / FILE, text=self.to_json())


def user_name() -> str:
    """Returns who runs this process: a name, or a number where it has none (in containers)."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
