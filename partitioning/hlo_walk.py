"""Walks a compiled program along its calls: what runs, inside which loops and branches (no jax)."""

import dataclasses
import math
from collections.abc import Iterator

from partitioning import hlo

_RUNS_INSIDE = ("fusion", "call", "async-start", "custom-call")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where in the program a computation runs.

    Attributes:
      loops: trip counts of the loops around it, outermost first; None where the text is silent.
      conditional: name of the innermost ``conditional`` around it, or None.
      depth: how many branches within loops are around it.
      taken: how much of the time such branches are taken, by their depth; what is not said is
        always.
      fusion: name of the innermost fusion around it, or None.
    """

    loops: tuple[int | None, ...] = ()
    conditional: str | None = None
    depth: int = 0
    taken: tuple[float, ...] = ()
    fusion: str | None = None

    @property
    def runs(self) -> int:
        """Runs per call of the program, all branches taken; an unknown loop counts once."""
        return math.prod(trips or 1 for trips in self.loops)

    @property
    def share(self) -> float:
        """Of ``runs``, those in which all branches around it are taken."""
        known = self.taken[: self.depth]
        return known[-1] if known else 1.0


def walk(
    module: hlo.Module, *, taken: tuple[float, ...] = ()
) -> Iterator[tuple[str, hlo.Instruction, Place]]:
    """Yields (computation, instruction, place) of everything that runs, in the order of calls."""
    yield from _walk(module, module.entry, Place(taken=taken))


def _walk(
    module: hlo.Module, computation: str, place: Place
) -> Iterator[tuple[str, hlo.Instruction, Place]]:
    for instruction in module.computations[computation]:
        yield computation, instruction, place
        for inner, where in _inner(module, computation, instruction, place=place):
            if inner in module.computations:
                yield from _walk(module, inner, where)


def _inner(
    module: hlo.Module, computation: str, instruction: hlo.Instruction, *, place: Place
) -> list[tuple[str, Place]]:
    """Returns the computations that an instruction runs, and where they then stand."""
    if instruction.opcode == "while":
        trips = hlo.trip_count(module, computation, instruction)
        inside = dataclasses.replace(place, loops=(*place.loops, trips))
        return [(name, inside) for name in hlo.loop(instruction)]
    if instruction.opcode == "conditional":
        depth = place.depth + bool(place.loops)
        inside = dataclasses.replace(place, conditional=instruction.name, depth=depth)
        return [(name, inside) for name in hlo.branches(instruction)]
    if instruction.opcode not in _RUNS_INSIDE:
        return []  # the reduction of an all-reduce, the comparison of a sort
    if instruction.opcode == "fusion":
        place = dataclasses.replace(place, fusion=instruction.name)
    return [(name, place) for name in hlo.called(instruction)]
