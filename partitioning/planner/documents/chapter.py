"""The cases that the documents calculate with, and what of their wording errata and answers share.

The documents: a design task for a training platform, an overview of one, and chapter 10, "Training
Systems at Scale", of "AI/ML Infrastructure from Silicon to Scale" (V. Vinjam), which has nearly all
of the numbers. Its running case is a 70B decoder on 512 H100.
"""

import dataclasses

from partitioning.planner.answers import Quantity, Section
from partitioning.planner.calculators.communication import StepTimes
from partitioning.planner.calculators.mfu import Machine
from partitioning.planner.calculators.reliability import ONE_PERCENT, Saving, mtbf
from partitioning.planner.calculators.state import Layout

PARAMETERS, LAYERS, WIDTH, LENGTH = 70e9, 80, 8192, 4096
KEYS = 1024
"""Width of all keys: 8 heads of 128."""

LAYOUT = Layout(tensor=8, stage=4, data=16)
ROWS, ACCUMULATION = 2, 8
MACHINE = Machine(parameters=PARAMETERS, devices=512)
SMALLER = Machine(parameters=30e9, devices=256)
TIMES = StepTimes(forward=0.45, backward=1.1, communication=1.05, optimizer=0.08)
TRACE = StepTimes(forward=0.45, backward=0.9, communication=0.48, optimizer=0.08)
PRICE = 2.0
WRITE = 90.0
"""Seconds of a whole checkpoint's write."""

STEP = 2.0
"""Seconds."""

FAST = 700e3
"""Tokens/s of a well tuned run."""

WHOLE_HOURS = (119, 208)
"""Of 300B tokens at that and at 400,000 tokens/s, as the chapter rounds them."""


def saving(devices: int = 512, *, save: float = 5.0, recovery: float = 600.0) -> Saving:
    """Returns a job that fails as often as the chapter says."""
    between = mtbf(devices, rate=ONE_PERCENT)
    return Saving(save=save, mtbf=between, recovery=recovery)


def figure(
    name: str,
    value: float,
    unit: str = "",
    formula: str = "",
    *,
    book: float | None = None,
    book_formula: str = "",
) -> Quantity:
    """Returns a quantity; as positional as the row of a table, since most are."""
    return Quantity(
        name=name, value=value, unit=unit, formula=formula, book=book, book_formula=book_formula
    )


def erratum(number: int, says: str, *text: str, figures: tuple[Quantity, ...] = ()) -> Section:
    """Returns what the documents say, why it is wrong and what is right."""
    own = tuple(
        dataclasses.replace(q, note="") if q.note.startswith(f"E{number}:") else q for q in figures
    )
    return Section(name=f"E{number}", title=f"E{number}. {says}", text=text, quantities=own)


def answered(name: str, topic: str, *text: str, figures: tuple[Quantity, ...] = ()) -> Section:
    """Returns the answer to a review question."""
    return Section(name=name, title=f"{name}. {topic}", text=text, quantities=figures)
