"""The one error that everything about configuration raises, and where it points.

Imports the standard library only. A `ConfigError` carries every problem that was found, each with
its place and the names that come nearest to what was written.
"""

import dataclasses
import difflib
from collections.abc import Iterable, Sequence


@dataclasses.dataclass(frozen=True)
class Location:
    """A line of a configuration file, or an argument of the command line.

    Attributes:
      file: path as it is shown to the user; "command line" for arguments.
      line: line number from 1; 0 for arguments.
    """

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


COMMAND_LINE = Location("command line")


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a configuration.

    Attributes:
      message: what was given, what is allowed and what to do.
      location: where it was written; None where nothing was written at all.
      nearest: existing names that resemble a misspelt one.
    """

    message: str
    location: Location | None = None
    nearest: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = f"{self.location}: " if self.location else ""
        meant = f" Did you mean {' or '.join(self.nearest)}?" if self.nearest else ""
        return f"{place}{self.message}{meant}"


class ConfigError(ValueError):
    """A configuration that cannot be used; holds all problems that were found.

    Attributes:
      problems: the problems, in the order in which they were found.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return str(self.problems[0])
        lines = [f"{len(self.problems)} problems in the configuration:"]
        return "\n".join(lines + [f"  {problem}" for problem in self.problems])


def nearest(name: str, *, among: Iterable[str]) -> tuple[str, ...]:
    """Returns at most two of the names that resemble ``name``, the nearest first."""
    names = sorted(set(among))
    folded: dict[str, str] = {candidate.lower(): candidate for candidate in names}
    found = difflib.get_close_matches(name.lower(), folded, n=2, cutoff=0.6)
    return tuple(folded[match] for match in found)
