"""The certificate as a page: what was compared, and how far it was off.

Shape of a row: a Case or Control, and the worst relative error of its loss, gradients, parameters.
"""

import dataclasses
import os
import pathlib
from collections.abc import Sequence

from trainer.certificate.controls import SEEN_ABOVE, Control
from trainer.certificate.one_step import TOLERANCE, Case
from trainer.config_parser import REPOSITORY

PAGE = REPOSITORY / "docs" / "equivalence.md"
HEAD = f"""\
# Every layout computes the same step

One training step on eight virtual devices (sixteen for the last layout) against the same step on
one device, in one piece, nothing recomputed or scanned: a decoder of a few layers with 8 query and
2 key/value heads, 32 rows of 16 tokens, z-loss on. Shown is the worst error of a leaf, relative to
its largest value: of the loss and its metrics, of the gradients (every leaf), of the parameters
after an SGD update. A row fails above {TOLERANCE["float64"]:g} in float64 and above
{TOLERANCE["float32"]:g} in float32. Rows in bfloat16 have float32 parameters and bfloat16
activations and are compared with a step in float64; they fail above {TOLERANCE["bfloat16"]:g}.
Between their layouts the errors must be alike: what is off is bfloat16, not the layout.

Written by `python -m trainer.certify`; the last digits differ between processors. What drops tokens
by a capacity depends on the layout and has an oracle of its own (`tests/models/test_experts.py`).

"""
CONTROLS_HEAD = f"""
## Faults that must be seen

The same comparison with a program that was broken on purpose. A row fails unless the worst error
is above {SEEN_ABOVE:g}. Some faults leave the loss right: only the gradients give them away.

"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison.

    Attributes:
      of: what was compared.
      errors: of loss, gradients and parameters.
    """

    of: Case | Control
    errors: tuple[float, float, float]

    @property
    def worst(self) -> float:
        """The largest of the three; NaN counts as the largest."""
        return max(self.errors, key=lambda error: float("inf") if error != error else error)

    @property
    def passed(self) -> bool:
        """Whether a layout is right, or a fault was seen."""
        if isinstance(self.of, Control):
            return not self.worst <= SEEN_ABOVE
        return self.worst <= TOLERANCE[self.of.precision]

    @property
    def cells(self) -> tuple[str, ...]:
        """What names the row."""
        if isinstance(self.of, Control):
            return (self.of.name, self.of.case.name)
        return (self.of.precision, self.of.name, self.of.rules, self.of.batch)

    def as_text(self) -> str:
        """Returns a line of the page."""
        return "| " + " | ".join([*self.cells, *(f"{error:.1e}" for error in self.errors)]) + " |"

    def as_json(self) -> dict[str, object]:
        """Returns what ``--json`` prints of it."""
        numbers = dict(zip(("loss", "gradients", "parameters"), self.errors, strict=True))
        kind = "control" if isinstance(self.of, Control) else "layout"
        named = {"kind": kind, "name": ", ".join(self.cells)}
        return {**named, **numbers, "worst": self.worst, "passed": self.passed}


def table(names: Sequence[str], rows: Sequence[Row]) -> str:
    """Returns a Markdown table."""
    titles = [*names, "loss", "gradients", "parameters"]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    return "\n".join([*lines, *(row.as_text() for row in rows)]) + "\n"


def check_writable(path: pathlib.Path) -> None:
    """Raises ValueError if a file cannot be written there; asked before its rows are run."""
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"The page goes to {path}, which cannot be written.")


def page(rows: Sequence[Row]) -> str:
    """Returns the page."""
    layouts = [row for row in rows if isinstance(row.of, Case)]
    controls = [row for row in rows if isinstance(row.of, Control)]
    return (
        HEAD
        + table(("dtype", "layout", "rule set", "batch"), layouts)
        + CONTROLS_HEAD
        + table(("fault", "in the step of"), controls)
    )
