"""Predictions beside published measurements: how far the cost model may be off.

What was fitted are a few constants per chip, not per run: ``matmul_efficiency``, ``overlap`` and
``inline_overlap`` in configs/clusters/chips. Standard library only.
"""

import dataclasses
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

from partitioning.planner.answers import Policy, aligned
from partitioning.planner.cost_model.published_runs import FOLDER, PublishedRun, read_runs
from partitioning.planner.cost_model.step_time import predict

GIB = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One run: predicted and measured.

    Attributes:
      run: what was measured.
      seconds: predicted duration of a step.
      mfu_full: predicted, with the whole attention square.
      memory: predicted bytes as the framework would report them.
    """

    run: PublishedRun
    seconds: float
    mfu_full: float
    memory: float

    @property
    def error(self) -> float | None:
        """Predicted over measured duration, minus one."""
        return None if self.run.seconds is None else self.seconds / self.run.seconds - 1

    @property
    def memory_error(self) -> float | None:
        """The same of memory."""
        return None if self.run.memory is None else self.memory / self.run.memory - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """All runs; a Report.

    Attributes:
      groups: title -> rows.
    """

    groups: dict[str, tuple[Row, ...]]

    @property
    def exit_code(self) -> int:
        """Always 0: errors are what is asked for."""
        return 0

    def show(self, policy: Policy) -> str:
        """Returns the tables with their summaries."""
        del policy
        lines: list[str] = []
        for title, rows in self.groups.items():
            lines += [title, "", *_table(rows), "", *summary(rows), ""]
        return "\n".join(lines).rstrip()

    def as_dict(self, policy: Policy) -> dict[str, Any]:
        """Returns the rows for ``--json``."""
        del policy
        return {
            title: [
                {
                    "id": row.run.name,
                    "chip": row.run.cluster.name,
                    "devices": row.run.plan.devices,
                    "predicted_s": row.seconds,
                    "measured_s": row.run.seconds,
                    "error": row.error,
                    "predicted_memory": row.memory,
                    "measured_memory": row.run.memory,
                    "memory_error": row.memory_error,
                    "expected_to_fit": row.run.expected_to_fit,
                    "ran": row.run.fits,
                    "eight_bits": row.run.narrow,
                    "source": row.run.source,
                }
                for row in rows
            ]
            for title, rows in self.groups.items()
        }


def calibrate(files: Sequence[str] = ()) -> Calibration:
    """Predicts published runs; of the files given, or those that come with the planner.

    Raises:
      ValueError: a file is not as published_runs.py describes them.
    """
    if files:
        return Calibration(groups={name: _rows(pathlib.Path(name)) for name in files})
    return Calibration(
        groups={
            "Fitted: these runs set the constants of their chips": _rows(FOLDER / "fitted.csv"),
            "Held out: these did not": _rows(FOLDER / "held_out.csv"),
        }
    )


def summary(rows: Sequence[Row]) -> list[str]:
    """Returns the distribution of errors, eight-bit runs apart: these only rank."""
    wide = [row for row in rows if not row.run.narrow]
    groups: dict[str, list[float | None]] = {
        "step time, JAX": [row.error for row in wide if row.run.is_jax],
        "step time, PyTorch": [row.error for row in wide if not row.run.is_jax],
        "step time, eight bits": [row.error for row in rows if row.run.narrow],
        "memory": [row.memory_error for row in wide],
    }
    found = []
    for name, errors in groups.items():
        known = [error for error in errors if error is not None]
        if known:
            sizes = [abs(error) for error in known]
            found.append(
                f"{name}: {len(known)} runs, median error {statistics.median(sizes):.1%}, mean "
                f"{statistics.fmean(known):+.1%}, largest {max(known, key=abs):+.1%}"
            )
    return found


def _rows(path: pathlib.Path) -> tuple[Row, ...]:
    found = []
    for run in read_runs(path):
        prediction = predict(run.plan, cluster=run.cluster)
        found.append(
            Row(
                run=run,
                seconds=prediction.seconds,
                mfu_full=prediction.mfu_full,
                memory=run.expected_memory,
            )
        )
    return tuple(found)


def _table(rows: Sequence[Row]) -> list[str]:
    head = ("id", "model", "chips", "mesh", "step s", "published", "error", "GiB", "published")
    return aligned([head, *map(_cells, rows)], left=(1, 3))


def _cells(row: Row) -> tuple[str, ...]:
    run = row.run
    mesh = " x ".join(f"{axis}{size}" for axis, size in run.plan.sizes.items() if size > 1)
    bits = " 8 bits" if run.narrow else ""
    return (
        run.name,
        f"{run.model}{bits}",
        f"{run.plan.devices} {run.cluster.name}",
        mesh,
        f"{row.seconds:.3f}",
        "" if run.seconds is None else f"{run.seconds:.3f}",
        "" if row.error is None else f"{row.error:+.1%}",
        f"{row.memory / GIB:.1f}" if run.states_memory else "",
        _published_memory(row),
    )


def _published_memory(row: Row) -> str:
    run = row.run
    if row.memory_error is not None and run.memory is not None:
        return f"{run.memory / GIB:.1f} ({row.memory_error:+.1%})"
    if not run.states_memory:
        return ""
    said = "fits" if run.expected_to_fit else "OOM"
    return f"{'fits' if run.fits else 'OOM'} (predicted: {said})"
