"""Where a run stands in its data. Imports NumPy only.

Promise 1: this record, with the dataset, the data spec and the seed, decides the rows of every
step. It is saved in each checkpoint and is the same for every process.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

_LIMIT = 2**63 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class PositionEntry:
    """From a step on, which global rows each step reads.

    Attributes:
      from_step: first step that this entry speaks of.
      first_example: global row index of the first row of ``from_step``.
      global_batch: rows per step.
      weights: weights of the mixture's datasets; one for a single dataset.
      skipped: rows between the end of the previous entry and ``first_example``, never read.
    """

    from_step: int
    first_example: int
    global_batch: int
    weights: tuple[float, ...] = (1.0,)
    skipped: int = 0

    def __post_init__(self) -> None:
        least = {"from_step": 0, "first_example": 0, "global_batch": 1, "skipped": 0}
        for name, bound in least.items():
            value = getattr(self, name)
            if type(value) is not int or not bound <= value <= _LIMIT:
                raise ValueError(
                    f"Position record: {name}={value!r} is not an integer in [{bound}, 2**63)."
                )
        if not self.weights or any(not math.isfinite(w) or w < 0 for w in self.weights):
            raise ValueError(
                f"Position record: weights={self.weights!r} are not finite numbers of at least 0."
            )
        if sum(self.weights) <= 0:
            raise ValueError(f"Position record: weights={self.weights!r} have no positive sum.")

    def first_example_at(self, step: int) -> int:
        """Returns the global row index of the first row of ``step``."""
        return self.first_example + (step - self.from_step) * self.global_batch


@dataclasses.dataclass(frozen=True)
class PositionRecord:
    """Entries in order of ``from_step``; one, unless batch size changed or rows were skipped.

    Attributes:
      entries: each goes on where the one before it ended, plus its ``skipped`` rows.
    """

    entries: tuple[PositionEntry, ...]

    def __post_init__(self) -> None:
        if not self.entries or self.entries[0].from_step != 0:
            raise ValueError("A position record starts with an entry whose from_step is 0.")
        first = self.entries[0]
        if first.first_example != first.skipped:
            raise ValueError(
                f"Position record: the first entry starts at example {first.first_example} but "
                f"says that {first.skipped} were skipped."
            )
        for before, entry in itertools.pairwise(self.entries):
            if entry.from_step <= before.from_step:
                raise ValueError(
                    f"Position record: entry from step {entry.from_step} follows the one from "
                    f"step {before.from_step}; steps must rise."
                )
            expected = before.first_example_at(entry.from_step) + entry.skipped
            if entry.first_example != expected:
                raise ValueError(
                    f"Position record: the entry from step {entry.from_step} starts at example "
                    f"{entry.first_example}, but the entries before it and its skipped="
                    f"{entry.skipped} give {expected}. Rows would be lost or repeated."
                )

    @classmethod
    def start(cls, *, global_batch: int) -> "PositionRecord":
        """Returns the record of a run that begins at its first row."""
        return cls((PositionEntry(from_step=0, first_example=0, global_batch=global_batch),))

    def entry(self, step: int) -> PositionEntry:
        """Returns the entry that ``step`` belongs to."""
        if step < 0:
            raise ValueError(f"Step {step} is negative.")
        return next(e for e in reversed(self.entries) if e.from_step <= step)

    def examples(self, step: int) -> np.ndarray:
        """Returns the global row indices of ``step``: int64 [global_batch]."""
        entry = self.entry(step)
        first = entry.first_example_at(step)
        if first + entry.global_batch > _LIMIT:
            raise ValueError(f"Step {step} lies beyond the last 64-bit row index.")
        return np.arange(first, first + entry.global_batch, dtype=np.int64)

    def change_batch(self, *, at_step: int, global_batch: int) -> "PositionRecord":
        """Returns a record that reads ``global_batch`` rows per step from ``at_step`` on."""
        return self._continued(at_step=at_step, global_batch=global_batch, skipped=0)

    def skip(self, *, at_step: int, rows: int) -> "PositionRecord":
        """Returns a record that leaves out the next ``rows`` rows before ``at_step``."""
        batch = self.entry(at_step).global_batch
        return self._continued(at_step=at_step, global_batch=batch, skipped=rows)

    def _continued(self, *, at_step: int, global_batch: int, skipped: int) -> "PositionRecord":
        if at_step < self.entries[-1].from_step:
            raise ValueError(
                f"The position record already changes at step {self.entries[-1].from_step}; what "
                f"comes before it, such as step {at_step}, stays as it is."
            )
        last = self.entries[-1]
        kept = self.entries if at_step > last.from_step else self.entries[:-1]
        before = last.skipped if at_step == last.from_step else 0
        entry = PositionEntry(
            from_step=at_step,
            first_example=last.first_example_at(at_step) + skipped,
            global_batch=global_batch,
            weights=last.weights,
            skipped=before + skipped,
        )
        return PositionRecord((*kept, entry))

    def to_json(self) -> list[dict[str, Any]]:
        """Returns what `from_json` reads back."""
        return [{**dataclasses.asdict(e), "weights": list(e.weights)} for e in self.entries]

    @classmethod
    def from_json(cls, value: object) -> "PositionRecord":
        """Returns the record that `to_json` gave.

        Raises:
          ValueError: an entry is malformed, or the entries do not follow on each other.
        """
        if not isinstance(value, list):
            raise ValueError(f"A position record is a list of entries, given {json.dumps(value)}.")
        return cls(tuple(_entry(item) for item in value))


def _entry(item: object) -> PositionEntry:
    names = [field.name for field in dataclasses.fields(PositionEntry)]
    if not isinstance(item, Mapping) or sorted(item) != sorted(names):
        raise ValueError(f"A position entry has the keys {names}, given {json.dumps(item)}.")
    weights = item["weights"]
    if not isinstance(weights, list) or not all(type(w) in (int, float) for w in weights):
        raise ValueError(f"Position record: weights={weights!r} is not a list of numbers.")
    return PositionEntry(**{**item, "weights": tuple(float(w) for w in weights)})
