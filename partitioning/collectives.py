"""What a compiled program moves between devices, by kind and mesh axes.

Counts every collective of the program's text with the loops around it, on whatever compiler wrote
it. Payload is the size of the whole: of the gathered array (all-gather), of the array before it is
scattered (reduce-scatter), of the array itself (all others). Wire is what one device sends in a
ring: payload x (g-1)/g, twice that for an all-reduce, and the payload for a permutation. Between
TPU slices the compiler leaves a pair of send and receive; it counts as the collective that it
stands for, over the axes that cross slices.

Imports no jax.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Iterable, Mapping

import numpy as np

from partitioning import hlo
from partitioning.device_groups import axes_of, groups, pairs
from partitioning.hlo_walk import Place, walk
from partitioning.transfers import wire_bytes

KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
SEND = "send"
_SEND_PAIRS = re.compile(r"_xla_send_recv_source_target_pairs=(\"[^\"]*\")")
_SLICE_TRANSFER = re.compile(r'_xla_megascale_transfer_type="(\w+)"')


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Collective:
    """One collective instruction.

    Attributes:
      kind: one of KINDS, or ``send`` for a transfer that stands for none of them.
      name: of the instruction.
      dtypes: of what moves.
      shapes: of the results.
      members: [groups, g] devices that exchange, or [pairs, 2] of a permutation; None where the
        text does not say (transfers between slices).
      axes: mesh axes that the members differ in; empty if no mesh was given.
      group: devices that exchange with each other (g).
      payload: bytes, see the module.
      runs: how often it runs; 1 for each branch of a conditional.
      loops: trip counts of the loops around it, outermost first; None where the text is silent.
      conditional: name of the innermost ``conditional`` around it, or None.
      share: of the runs that take the branches around it, as the caller of ``collectives`` says.
      source: ``op_name`` of the instruction, where in the traced function it comes from.
    """

    kind: str
    name: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    members: np.ndarray | None = dataclasses.field(repr=False)
    axes: tuple[str, ...]
    group: int
    payload: float
    loops: tuple[int | None, ...]
    conditional: str | None
    source: str
    share: float = 1.0

    @property
    def runs(self) -> int:
        """Runs per call of the program if branches are taken; a loop of unknown length is one."""
        return math.prod(trips or 1 for trips in self.loops)

    @property
    def moved(self) -> float:
        """Payload bytes per call of the program."""
        return self.payload * self.runs * self.share

    @property
    def wire(self) -> float:
        """Bytes that one device sends each time, in a ring."""
        return wire_bytes(self.kind, payload=self.payload, group=self.group)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traffic:
    """All collectives of one kind over the same axes.

    Attributes:
      kind: of the collectives.
      axes: mesh axes that they span.
      instructions: in the text.
      count: runs per call of the program.
      payload: bytes per device and call.
      wire: bytes that one device sends per call.
      conditional: how many of the instructions stand in a branch, and may not run; ``count`` is
        as if they did.
      unknown_loops: how many stand in a loop of unknown length, and may run more often.
    """

    kind: str
    axes: tuple[str, ...]
    instructions: int
    count: int
    payload: float
    wire: float
    conditional: int
    unknown_loops: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshShape:
    """How the devices of a program are numbered.

    Attributes:
      sizes: devices on each mesh axis, outermost first.
      outer: axis -> the part of it that crosses slices (MeshConfig.outer). Programs for several
        slices number the devices of each slice on their own.
    """

    sizes: Mapping[str, int]
    outer: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def devices(self) -> int:
        """All devices."""
        return math.prod(self.sizes.values())

    @property
    def slices(self) -> int:
        """Slices that the devices are in."""
        return math.prod(self.outer.values())

    @property
    def slice_axes(self) -> tuple[str, ...]:
        """Axes that cross slices."""
        return tuple(axis for axis in self.sizes if self.outer.get(axis, 1) > 1)

    def axes(self, members: np.ndarray) -> tuple[str, ...]:
        """Returns the axes along which devices of one row of ``members`` differ."""
        within = self.slices > 1 and members.size and members.max() < self.devices // self.slices
        if not within:
            return axes_of(members, sizes=self.sizes)
        inner = {axis: size // self.outer.get(axis, 1) for axis, size in self.sizes.items()}
        return axes_of(members, sizes=inner)


def collectives(
    text: str, *, mesh: MeshShape | None = None, taken: tuple[float, ...] = ()
) -> tuple[Collective, ...]:
    """Returns every collective of a compiled program, in the order of the text's calls.

    Args:
      text: what ``compiled.as_text()`` returns.
      mesh: numbers the devices; None leaves ``axes`` empty.
      taken: how much of the time branches within loops are taken, by the depth of their nesting;
        what is not said is always.

    Raises:
      ValueError: the text is not a compiled program's, or has device groups of unknown form.
    """
    module = hlo.parse(text)
    found: list[tuple[Collective, object]] = []
    for computation, instruction, place in walk(module, taken=taken):
        collective = _collective(module, computation, instruction, place=place, mesh=mesh)
        if collective is not None:
            found.append((collective, _channel(instruction, collective, place)))
    return _once_per_channel(found)


def branch_collectives(text: str, *, mesh: MeshShape | None = None) -> tuple[Collective, ...]:
    """Returns the collectives that run only if a ``conditional`` takes their branch.

    Where devices that exchange can take different branches, the program hangs: no ``members`` of
    these may span them, and there may be no permutation between them.
    """
    return tuple(c for c in collectives(text, mesh=mesh) if c.conditional is not None)


def traffic(found: Iterable[Collective]) -> tuple[Traffic, ...]:
    """Sums collectives by kind and axes, most bytes on the wire first."""
    rows: dict[tuple[str, tuple[str, ...]], list[Collective]] = collections.defaultdict(list)
    for collective in found:
        rows[collective.kind, collective.axes].append(collective)
    table = [
        Traffic(
            kind=kind,
            axes=axes,
            instructions=len(row),
            count=sum(c.runs for c in row),
            payload=sum(c.moved for c in row),
            wire=sum(c.runs * c.share * c.wire for c in row),
            conditional=sum(c.conditional is not None for c in row),
            unknown_loops=sum(None in c.loops for c in row),
        )
        for (kind, axes), row in rows.items()
    ]
    return tuple(sorted(table, key=lambda row: (-row.wire, row.kind, row.axes)))


def instruction_counts(text: str) -> dict[str, int]:
    """Returns kind -> number of instructions, each counted once however often it runs."""
    counted = collections.Counter(c.kind for c in collectives(text))
    return dict(sorted(counted.items()))


def _collective(
    module: hlo.Module,
    computation: str,
    instruction: hlo.Instruction,
    *,
    place: Place,
    mesh: MeshShape | None,
) -> Collective | None:
    kind = instruction.opcode.removesuffix("-start")
    if instruction.opcode == SEND:
        kind = SEND
    elif kind not in KINDS:
        return None
    results = hlo.arrays(_result(instruction))
    size = sum(array.bytes for array in results)
    members, group = _members(instruction, kind=kind, devices=mesh.devices if mesh else None)
    axes = mesh.axes(members) if mesh is not None and members is not None else ()
    if kind == "reduce-scatter":
        size *= group
    elif kind == "all-reduce" and _is_scattered(module, computation, instruction, place=place):
        kind = "reduce-scatter"
    elif kind == SEND and members is not None:
        kind = "collective-permute"
    elif kind == SEND and mesh is not None:
        axes, group = mesh.slice_axes, mesh.slices
    if kind == SEND and (transfer := _SLICE_TRANSFER.search(instruction.attributes)):
        kind = transfer[1].lower().replace("_", "-")
    name = re.search(r'op_name="((?:[^"\\]|\\.)*)"', instruction.attributes)
    return Collective(
        kind=kind,
        name=instruction.name,
        dtypes=tuple(sorted({array.dtype for array in results})),
        shapes=tuple(array.shape for array in results),
        members=members,
        axes=axes,
        group=group,
        payload=size,
        loops=place.loops,
        conditional=place.conditional,
        source=name[1] if name else "",
        share=place.share,
    )


def _result(instruction: hlo.Instruction) -> str:
    """Returns the type of what a collective produces, out of a ``-start``'s bookkeeping."""
    parts = hlo.elements(instruction.type)
    if instruction.opcode == SEND:
        return parts[0]  # (what is sent, context, token)
    if not instruction.opcode.endswith("-start") or len(parts) < 2:
        return instruction.type
    if instruction.opcode == "all-reduce-start" and not parts[0].startswith("("):
        return instruction.type  # results only
    return parts[1]  # (operands, results, context ...)


def _members(
    instruction: hlo.Instruction, *, kind: str, devices: int | None
) -> tuple[np.ndarray | None, int]:
    """Returns who exchanges, and how many exchange with each other."""
    attributes = instruction.attributes
    if kind == SEND and (among := _SEND_PAIRS.search(attributes)):
        attributes = f"source_target_pairs={among[1]}"
    if kind in ("collective-permute", SEND):
        return pairs(attributes), 2
    members = groups(attributes, devices=devices) if _has_groups(attributes, devices) else None
    return members, 1 if members is None else members.shape[1]


def _has_groups(attributes: str, devices: int | None) -> bool:
    """Without a mesh, "all devices" has no number; everything else is said in the text."""
    return devices is not None or "replica_groups={}" not in attributes


def _is_scattered(
    module: hlo.Module, computation: str, instruction: hlo.Instruction, *, place: Place
) -> bool:
    """Whether each device keeps only its slice of an all-reduce (TPU's form of reduce-scatter)."""
    if place.fusion is None:
        return False
    return any(
        other.opcode == "dynamic-slice" and instruction.name in other.operands
        for other in module.computations[computation]
    )


def _channel(instruction: hlo.Instruction, collective: Collective, place: Place) -> object:
    """Returns what parts of one collective share.

    TPU spreads a collective over several fusions (start, steps, done); each repeats it with the
    same channel.
    """
    channel = instruction.number("channel_id")
    if place.fusion is None or channel is None:
        return object()
    return (collective.kind, channel, collective.payload)


def _once_per_channel(found: list[tuple[Collective, object]]) -> tuple[Collective, ...]:
    kept: dict[object, Collective] = {}
    for collective, key in found:
        if key not in kept or collective.runs < kept[key].runs:
            kept[key] = collective
    return tuple(kept.values())
