"""What the checks before a submission found, as lines for people and as one JSON object.

Findings are part of the contract: the trainer's own check prints them as JSON.
"""

import dataclasses
import enum
import json

from launch.exit_codes import ExitCode


class Verdict(enum.StrEnum):
    """What a finding means; INFO is neither good nor bad."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """What was found out about one matter.

    Attributes:
      about: spec, engine, code, configuration, mesh, batch, data, checkpoint, secrets, ...
      verdict: what it means.
      message: for people; with file and line where it is about the job file.
    """

    about: str
    verdict: Verdict
    message: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """All findings about a job file.

    Attributes:
      job: the job file as it was named.
      engine: engine that it was checked for.
      findings: in the order in which they were looked at.
      seconds: check -> how long it took.
    """

    job: str
    engine: str
    findings: tuple[Finding, ...]
    seconds: dict[str, float]

    @property
    def errors(self) -> int:
        """How many findings keep the job from being submitted."""
        return sum(finding.verdict is Verdict.ERROR for finding in self.findings)

    @property
    def exit_code(self) -> ExitCode:
        """What the command leaves with."""
        return ExitCode.CONFIGURATION if self.errors else ExitCode.DONE

    def show(self) -> str:
        """Returns the report for people."""
        width = max((len(finding.about) for finding in self.findings), default=0)
        lines = [f"{f.verdict:7}  {f.about:{width}}  {f.message}" for f in self.findings]
        return "\n".join([*lines, self._sum()])

    def as_json(self) -> str:
        """Returns the report as one JSON object."""
        plain = {
            "version": 1,
            "ok": not self.errors,
            "exit_code": int(self.exit_code),
            **dataclasses.asdict(self),
        }
        return json.dumps(plain, indent=1)

    def _sum(self) -> str:
        took = f"{sum(self.seconds.values()):.1f} s"
        if self.errors:
            noun = "error" if self.errors == 1 else "errors"
            return f"{self.job}: {self.errors} {noun} ({took}). Nothing was submitted."
        return f"{self.job}: ready for {self.engine} ({took})."


def ok(about: str, message: str) -> Finding:
    """Returns that something is as it should be."""
    return Finding(about=about, verdict=Verdict.OK, message=message)


def info(about: str, message: str) -> Finding:
    """Returns something worth knowing."""
    return Finding(about=about, verdict=Verdict.INFO, message=message)


def warning(about: str, message: str) -> Finding:
    """Returns that something may not do what was meant."""
    return Finding(about=about, verdict=Verdict.WARNING, message=message)


def error(about: str, message: str) -> Finding:
    """Returns that something cannot work."""
    return Finding(about=about, verdict=Verdict.ERROR, message=message)
