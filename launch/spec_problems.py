"""What can be wrong with a job file, and where. Imports the standard library only."""

import dataclasses
import difflib
import enum
from collections.abc import Iterable, Sequence


class Severity(enum.StrEnum):
    """Whether a job cannot be submitted, or only might not do what was meant."""

    ERROR = "error"
    WARNING = "warning"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong with a job file.

    Attributes:
      message: what was given, what is allowed, what to do.
      path: key, such as resources.hosts or secrets[0].ref; empty for the file as a whole.
      also: further keys that it is about.
      file: the job file as it was named.
      line: line of the key, from 1; 0 where nothing was written.
      nearest: keys or values that resemble a misspelt one.
      severity: whether it keeps the job from being submitted.
    """

    message: str
    path: str = ""
    also: tuple[str, ...] = ()
    file: str = ""
    line: int = 0
    nearest: tuple[str, ...] = ()
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file and self.line else self.file
        parts = [part for part in (place, self.path) if part]
        meant = f" Did you mean {' or '.join(self.nearest)}?" if self.nearest else ""
        return ": ".join([*parts, f"{self.message}{meant}"])


class SpecError(ValueError):
    """A job file that cannot be used; holds everything that is wrong with it.

    Attributes:
      problems: in the order of the file.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


def nearest(name: str, *, among: Iterable[str]) -> tuple[str, ...]:
    """Returns at most two of the names that resemble ``name``, the nearest first."""
    folded = {candidate.lower().replace("-", "_"): candidate for candidate in sorted(set(among))}
    wanted = name.lower().replace("-", "_")
    found = difflib.get_close_matches(wanted, folded, n=2, cutoff=0.6)
    return tuple(folded[match] for match in found)


def within(path: str, *, above: str) -> bool:
    """Whether a key is another one or lies below it."""
    return path == above or path.startswith((f"{above}.", f"{above}["))
