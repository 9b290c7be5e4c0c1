"""Pipeline schedules as tables: which stage does what at which tick (no jax).

A model of ``chunks * stages`` equal pieces is laid around the stages like a ring: piece
``c * stages + s`` is chunk ``c`` of stage ``s``. At every tick each stage may run one piece forward
and one backward, each of some microbatch; what it computed reaches its neighbour at the next tick,
and is used there at once. ``Schedule.check`` proves this of a table, so that the program that runs
it needs no further buffers than those counted here.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator

import numpy as np

from partitioning.mesh_config import ScheduleName

IDLE = -1
_MOST_MICROBATCHES = 2**20


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """A table. Entries are ``microbatch * chunks + chunk``, or IDLE.

    Attributes:
      stages: S, pipeline stages.
      chunks: V, pieces on each stage.
      microbatches: M.
      forward: [ticks, S] what each stage runs forward.
      backward: [ticks, S] what it runs backward, after its forward; all IDLE where jax
        differentiates the forward table.
    """

    stages: int
    chunks: int
    microbatches: int
    forward: np.ndarray
    backward: np.ndarray

    @property
    def ticks(self) -> int:
        """Length of the table."""
        return int(self.forward.shape[0])

    @property
    def has_backward(self) -> bool:
        """Whether the table holds backward passes."""
        return bool((self.backward != IDLE).any())

    def chunk_of(self, table: np.ndarray) -> np.ndarray:
        """Returns the chunk of each entry, 0 where idle."""
        return np.maximum(table, 0) % self.chunks

    def keeps(self, table: np.ndarray) -> np.ndarray:
        """Returns [ticks, S] bool, whether the entry's input is kept for its backward pass."""
        first = (self.chunk_of(table) == 0) & (np.arange(self.stages) == 0)
        return (table != IDLE) & ~first

    def duration(self, *, backward: float = 2.0) -> float:
        """Returns the time of all ticks, in forward passes: each lasts as its busiest stage.

        A forward-only table runs a second time, backwards, when jax differentiates it.
        """
        if not self.has_backward:
            return self.ticks * (1.0 + backward)
        each = (self.forward != IDLE) + backward * (self.backward != IDLE)
        return float(each.max(axis=1).sum())

    def bubble(self, *, backward: float = 2.0) -> float:
        """Returns the idle share of a stage's time, between 0 and 1.

        Args:
          backward: time of a backward pass in forward passes.
        """
        work = self.chunks * self.microbatches * (1.0 + backward)
        return 1.0 - work / self.duration(backward=backward)

    @functools.cached_property
    def stash(self) -> "Stash":
        """Where inputs of forward passes wait for their backward pass."""
        return _allocate(self)

    def live(self) -> np.ndarray:
        """Returns [ticks, S], inputs that each stage holds while the tick runs.

        Those of the first piece are read from the batch again. Without a backward table all that
        came so far are held, since jax keeps them.
        """
        started = np.cumsum(self.keeps(self.forward), axis=0)
        ended = np.cumsum(self.keeps(self.backward), axis=0)
        return started - np.concatenate([np.zeros_like(ended[:1]), ended[:-1]])

    def check(self) -> None:
        """Raises AssertionError unless every piece runs once and finds its input in time."""
        forward = self._when(self.forward)
        assert (forward[:, 1:] == forward[:, :-1] + 1).all(), "an input waits or comes too late"
        if self.has_backward:
            backward = self._when(self.backward)
            assert (backward[:, :-1] == backward[:, 1:] + 1).all(), "a gradient waits or is late"
            assert (backward[:, -1] >= forward[:, -1]).all(), "a gradient comes before its loss"

    def _when(self, table: np.ndarray) -> np.ndarray:
        """Returns [M, pieces], the tick of every piece of every microbatch."""
        ticks = np.full((self.microbatches, self.chunks * self.stages), IDLE)
        for (tick, stage), item in np.ndenumerate(table):
            if item != IDLE:
                microbatch, chunk = divmod(int(item), self.chunks)
                place = (microbatch, chunk * self.stages + stage)
                assert ticks[place] == IDLE, f"{place} runs twice"
                ticks[place] = tick
        assert (ticks != IDLE).all(), "a piece never runs"
        return ticks


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Stash:
    """Slots for inputs of forward passes; entries of no use are 0.

    Attributes:
      slots: how many one stage needs.
      write: [ticks, S] slot for the input of the forward entry.
      read: [ticks, S] slot with the input of the backward entry.
    """

    slots: int
    write: np.ndarray
    read: np.ndarray


def build_schedule(name: ScheduleName, *, stages: int, chunks: int, microbatches: int) -> Schedule:
    """Returns the table of a schedule.

    Raises:
      ValueError: the microbatches cannot fill the stages.
    """
    check_microbatches(stages=stages, chunks=chunks, microbatches=microbatches)
    return _BUILDERS[name](stages, chunks, microbatches)


def check_microbatches(*, stages: int, chunks: int, microbatches: int) -> None:
    """Raises ValueError if the microbatches cannot fill the stages."""
    if min(stages, chunks, microbatches) < 1:
        raise ValueError(
            f"A pipeline of {stages} stages, {chunks} chunks and {microbatches} microbatches: "
            "each must be positive."
        )
    if microbatches > _MOST_MICROBATCHES:
        raise ValueError(
            f"TrainConfig.microbatches={microbatches}: a schedule has at most {_MOST_MICROBATCHES}."
        )
    near = max(1, round(microbatches / stages)) * stages
    if microbatches < stages:
        raise ValueError(
            f"TrainConfig.microbatches={microbatches} are fewer than MeshConfig.stage={stages}, so "
            f"that stages would never all work; take at least {stages}, better {4 * stages}."
        )
    if chunks > 1 and microbatches % stages:
        raise ValueError(
            f"TrainConfig.microbatches={microbatches} is not a multiple of "
            f"MeshConfig.stage={stages}, which PipelineConfig.chunks={chunks} needs: microbatches "
            f"go round in groups of one per stage. Take {near}, or chunks=1."
        )


def layer_order(*, repeats: int, stages: int, chunks: int) -> np.ndarray:
    """Returns [repeats] int: the number of the repeat that stands at each place on the devices.

    Stage after stage, and on each stage chunk after chunk: place ``(s * V + c) * n + i`` holds
    repeat ``(c * S + s) * n + i``, where a piece has ``n`` repeats. Checkpoints hold repeats in
    their own order.
    """
    pieces = np.arange(repeats).reshape(chunks, stages, -1)
    return pieces.swapaxes(0, 1).reshape(-1)


def _one_forward(stages: int, chunks: int, microbatches: int) -> Schedule:
    items, ticks = chunks * microbatches, chunks * microbatches + stages - 1
    forward = np.full((ticks, stages), IDLE, np.int32)
    for tick, stage, number in _diagonal(ticks, stages, items):
        forward[tick, stage] = _item(number, stages, chunks)
    return Schedule(
        stages=stages,
        chunks=chunks,
        microbatches=microbatches,
        forward=forward,
        backward=np.full_like(forward, IDLE),
    )


def _one_forward_one_backward(stages: int, chunks: int, microbatches: int) -> Schedule:
    """1F1B (Narayanan et al., 2021, sections 2.2.1 and 2.2.2), ticks in lockstep.

    The first gradient is there once the first microbatch has passed all pieces; from then on every
    stage runs one piece backward in the order of the forward passes, chunks reversed.
    """
    items, first = chunks * microbatches, chunks * stages - 1
    ticks = items + first + stages - 1
    forward = np.full((ticks, stages), IDLE, np.int32)
    backward = np.full((ticks, stages), IDLE, np.int32)
    for tick, stage, number in _diagonal(ticks, stages, items):
        forward[tick, stage] = _item(number, stages, chunks)
    for tick, place, number in _diagonal(ticks - first, stages, items):
        microbatch, chunk = divmod(_item(number, stages, chunks), chunks)
        entry = microbatch * chunks + chunks - 1 - chunk
        backward[tick + first, stages - 1 - place] = entry
    return Schedule(
        stages=stages,
        chunks=chunks,
        microbatches=microbatches,
        forward=forward,
        backward=backward,
    )


_BUILDERS: dict[ScheduleName, Callable[[int, int, int], Schedule]] = {
    "circular": _one_forward,
    "1f1b": _one_forward_one_backward,
}


def _diagonal(ticks: int, stages: int, items: int) -> Iterator[tuple[int, int, int]]:
    """Yields (tick, stage, number of the item) where item k reaches stage s at tick k + s."""
    for tick in range(ticks):
        for stage in range(stages):
            if 0 <= tick - stage < items:
                yield tick, stage, tick - stage


def _item(number: int, stages: int, chunks: int) -> int:
    """Returns the table's entry of the ``number``-th item of stage 0.

    Microbatches go in groups of one per stage; a group passes all chunks before the next starts.
    """
    group, rest = divmod(number, stages * chunks)
    chunk, member = divmod(rest, stages)
    return (group * stages + member) * chunks + chunk


def _allocate(schedule: Schedule) -> Stash:
    """Gives each input the lowest free slot of its stage, from its forward to its backward."""
    write, read = np.zeros_like(schedule.forward), np.zeros_like(schedule.backward)
    writes, reads = schedule.keeps(schedule.forward), schedule.keeps(schedule.backward)
    slots = 1
    for stage in range(schedule.stages):
        held: dict[int, int] = {}
        for tick in range(schedule.ticks):
            if writes[tick, stage]:
                item = int(schedule.forward[tick, stage])
                free = next(s for s in range(len(held) + 1) if s not in held.values())
                held[item] = write[tick, stage] = free
                slots = max(slots, free + 1)
            if reads[tick, stage]:
                read[tick, stage] = held.pop(int(schedule.backward[tick, stage]))
    return Stash(slots=slots, write=write, read=read)
