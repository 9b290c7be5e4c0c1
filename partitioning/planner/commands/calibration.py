"""``calibration``: predicted beside published."""

from typing import Any

from partitioning.planner.command import Given, add
from partitioning.planner.cost_model.calibration import Calibration, calibrate


def register(commands: Any) -> None:
    """Adds the command."""
    one = add(
        commands,
        "calibration",
        "Step time and memory of published runs, predicted beside measured, and how far off: those "
        "that set the constants of the chips, and those that did not.",
        ["calibration", "calibration --rows=my_runs.csv"],
        run=_calibration,
    )
    one.add_argument(
        "--rows",
        action="append",
        default=[],
        help="File of runs of your own, with the columns that published_runs.py describes.",
    )


def _calibration(given: Given) -> Calibration:
    return calibrate(given.rows)
