"""What one pipeline stage does at each tick of a schedule.

Idle slots, and what only the first or last piece does, are branches; all devices of one stage take
the same one. A branch holds no collective that spans stages, and no ``ppermute`` at all, since some
backends make every device of the program take part in it; there the work is computed and discarded
instead.

Shape suffixes: M microbatches, S stages, V chunks, L repeats of the whole model.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from partitioning.mesh_config import Idle
from partitioning.schedules import IDLE, Schedule

Tree = Any
STAGE = "stage"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chain:
    """A model cut into pieces. Parameters come as pairs (trained, held).

    ``sums`` are trees of equal structure in all three; their first leaf is the loss.

    Attributes:
      enter: (shared, part) -> (x, sums), before the first piece.
      repeat: (stacked, held, x, part, number of the piece) -> (x, sums), one piece; ``held`` is
        that of ``shared``.
      leave: (shared, x, part) -> sums, after the last piece.
      place: constrains where ``x`` lives on the automatic axes.
      place_stacked: the same for gradients of trained stacked parameters, [L / S, ...].
      place_shared: the same for gradients of trained shared parameters.
      settle: constrains these, [replicas, ...], once stages have added them up.
    """

    enter: Callable[..., tuple[jax.Array, Tree]]
    repeat: Callable[..., tuple[jax.Array, Tree]]
    leave: Callable[..., Tree]
    place: Callable[[jax.Array], jax.Array]
    place_stacked: Callable[[Tree], Tree]
    place_shared: Callable[[Tree], Tree]
    settle: Callable[[Tree], Tree] = lambda tree: tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a pipeline runs on.

    Attributes:
      stacked: (trained, held) parameters of the repeats, each [L, ...] in ``layer_order``, L split
        over stages.
      shared: (trained, held), what ``enter`` and ``leave`` read; the same on every stage.
      parts: arrays [M, rows, ...], the microbatches.
    """

    stacked: tuple[Tree, Tree]
    shared: tuple[Tree, Tree]
    parts: Tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Slot:
    """An entry of a table on this stage: scalars, and the microbatch.

    ``is_first`` and ``is_last`` say whether it is the first or last piece, and not idle.
    """

    busy: jax.Array
    chunk: jax.Array
    piece: jax.Array
    is_first: jax.Array
    is_last: jax.Array
    part: Tree


class Stage:
    """One stage of one pipeline, inside the ``shard_map`` that runs it."""

    def __init__(self, chain: Chain, schedule: Schedule, inputs: Inputs, *, idle: Idle):
        self.chain, self.schedule, self.parts = chain, schedule, inputs.parts
        self.stacked, self.shared = inputs.stacked, inputs.shared
        self.stage = jax.lax.axis_index(STAGE)
        part = jax.tree.map(lambda x: x[0], inputs.parts)
        piece = jax.eval_shape(self._select, inputs.stacked, 0)
        x, sums = jax.eval_shape(chain.enter, inputs.shared, part)
        self.nothing, self.no_sums = jax.tree.map(_zeros, x), jax.tree.map(_zeros, sums)
        may_branch = functools.partial(_may_branch, idle)
        self.enters = may_branch(chain.enter, inputs.shared, part)
        self.repeats = may_branch(chain.repeat, piece, inputs.shared[1], x, part, 0)
        self.leaves = may_branch(chain.leave, inputs.shared, x, part)

    def forward(self, stacked: tuple[Tree, Tree], shared: tuple[Tree, Tree]) -> Tree:
        """Runs the forward table; returns what this stage contributes to the sums."""

        def visit(stacked: Any, shared: Any, x: jax.Array, row: jax.Array) -> tuple[Any, Tree]:
            slot = self._slot(row)

            def work() -> tuple[jax.Array, Tree]:
                x0, entered = self._entered(shared, x, slot)
                piece = self._select(stacked, slot.chunk)
                y, repeated = self.chain.repeat(piece, shared[1], x0, slot.part, slot.piece)
                left = _branch(
                    slot.is_last,
                    lambda: self.chain.leave(shared, y, slot.part),
                    lambda: self.no_sums,
                    inside=self.leaves,
                )
                return y, _add(entered, repeated, left)

            return _branch(slot.busy, work, lambda: (x, self.no_sums), inside=self._all)

        # Around the choice of the piece: saved, it would be a copy of the weights for every tick.
        visit = jax.checkpoint(visit, prevent_cse=False)

        def tick(carry: tuple[jax.Array, Tree], row: jax.Array) -> tuple[Any, None]:
            x, sums = carry
            y, more = visit(stacked, shared, x, row)
            return (self._send(y, by=1), _add(sums, more)), None

        start = (self.chain.place(self.nothing), self.no_sums)
        return jax.lax.scan(tick, start, jnp.asarray(self.schedule.forward))[0][1]

    def differentiated(self) -> tuple[Tree, Tree, Tree]:
        """Lets jax differentiate the forward table."""
        trained = (self.stacked[0], self.shared[0])

        def loss(wide: tuple[Tree, Tree]) -> tuple[jax.Array, Tree]:
            # Gradients add up over the ticks in the dtype of what they belong to.
            narrow = jax.tree.map(lambda w, t: w.astype(t.dtype), wide, trained)
            sums = self.forward((narrow[0], self.stacked[1]), (narrow[1], self.shared[1]))
            return jax.tree.leaves(sums)[0], sums

        (of_stacked, of_shared), sums = jax.grad(loss, has_aux=True)(_wide(trained))
        return sums, self.chain.place_stacked(of_stacked), self.chain.place_shared(of_shared)

    def interleaved(self) -> tuple[Tree, Tree, Tree]:
        """Runs both tables."""
        stash = self.schedule.stash
        of_stacked, of_shared = jax.tree.map(
            jnp.zeros_like, _wide((self.stacked[0], self.shared[0]))
        )
        totals = (
            self.no_sums,
            self.chain.place_stacked(of_stacked),
            self.chain.place_shared(of_shared),
        )
        empty = self.chain.place(self.nothing)
        kept = jax.vmap(self.chain.place)(jnp.stack([self.nothing] * stash.slots))

        def tick(carry: Any, row: Any) -> tuple[Any, None]:
            x, gradient, kept, totals = carry
            forward, backward, write, read = row
            slot = self._slot(forward)
            kept = _put(kept, x, write[self.stage], where=slot.busy & ~slot.is_first)
            y = self._run(slot, x)
            x = jax.lax.dynamic_index_in_dim(kept, read[self.stage], keepdims=False)
            gradient, totals = self._back(self._slot(backward), x, gradient, totals)
            return (self._send(y, by=1), self._send(gradient, by=-1), kept, totals), None

        tables = (self.schedule.forward, self.schedule.backward, stash.write, stash.read)
        start = (empty, empty, kept, totals)
        return jax.lax.scan(tick, start, tuple(jnp.asarray(t) for t in tables))[0][-1]

    def _run(self, slot: _Slot, x: jax.Array) -> jax.Array:
        """One forward pass. The last piece has none: its backward pass computes it anyway."""

        def work() -> jax.Array:
            x0, _ = self._entered(self.shared, x, slot)
            piece = self._select(self.stacked, slot.chunk)
            return self.chain.repeat(piece, self.shared[1], x0, slot.part, slot.piece)[0]

        inside = self.enters and self.repeats
        return _branch(slot.busy & ~slot.is_last, work, lambda: x, inside=inside)

    def _back(
        self, slot: _Slot, x: jax.Array, received: jax.Array, totals: tuple[Tree, Tree, Tree]
    ) -> tuple[jax.Array, tuple[Tree, Tree, Tree]]:
        """One backward pass: the gradient of its input ``x``, and totals with what it adds."""
        shared, held = self.shared

        def work() -> tuple[jax.Array, tuple[Tree, Tree, Tree]]:
            sums, of_stacked, of_shared = totals
            piece, piece_held = self._select(self.stacked, slot.chunk)
            x0, _ = self._entered(self.shared, x, slot)

            def repeat(piece: Tree, x: jax.Array) -> tuple[jax.Array, Tree]:
                return self.chain.repeat((piece, piece_held), held, x, slot.part, slot.piece)

            (y, repeated), pull = jax.vjp(repeat, piece, x0)

            def last() -> tuple[jax.Array, Tree, Tree]:
                left, pull = jax.vjp(
                    lambda shared, y: self.chain.leave((shared, held), y, slot.part), shared, y
                )
                of_part, gradient = pull(_of_loss(left))
                return gradient, left, self._add_shared(of_shared, of_part)

            gradient, left, of_shared = _branch(
                slot.is_last,
                last,
                lambda: (received, self.no_sums, totals[2]),
                inside=self.leaves,
            )
            of_piece, gradient = pull((gradient, _of_loss(repeated)))

            def first() -> tuple[Tree, Tree]:
                (_, entered), pull = jax.vjp(
                    lambda shared: self.chain.enter((shared, held), slot.part), shared
                )
                (of_part,) = pull((gradient, _of_loss(entered)))
                return entered, self._add_shared(of_shared, of_part)

            entered, of_shared = _branch(
                slot.is_first, first, lambda: (self.no_sums, of_shared), inside=self.enters
            )
            of_stacked = self._add_piece(of_stacked, of_piece, slot.chunk)
            return gradient, (_add(sums, entered, repeated, left), of_stacked, of_shared)

        return _branch(slot.busy, work, lambda: (received, totals), inside=self._all)

    @property
    def _all(self) -> bool:
        return self.enters and self.repeats and self.leaves

    def _slot(self, row: jax.Array) -> _Slot:
        """Reads this stage's entry of a table's row [S]."""
        stages, chunks = self.schedule.stages, self.schedule.chunks
        entry = row[self.stage]
        busy = entry != IDLE
        microbatch, chunk = jnp.divmod(jnp.maximum(entry, 0), chunks)
        piece = chunk * stages + self.stage
        return _Slot(
            busy=busy,
            chunk=chunk,
            piece=piece,
            is_first=busy & (piece == 0),
            is_last=busy & (piece == stages * chunks - 1),
            part=jax.tree.map(
                lambda x: jax.lax.dynamic_index_in_dim(x, microbatch, keepdims=False), self.parts
            ),
        )

    def _entered(self, shared: Any, x: jax.Array, slot: _Slot) -> tuple[jax.Array, Tree]:
        """What the piece reads: its neighbour's output, or on the first piece the microbatch."""
        return _branch(
            slot.is_first,
            lambda: self.chain.enter(shared, slot.part),
            lambda: (x, self.no_sums),
            inside=self.enters,
        )

    def _select(self, stacked: Tree, chunk: jax.Array | int) -> Tree:
        """[L / S, ...] -> the piece's [L / S / V, ...]."""
        if self.schedule.chunks == 1:
            return stacked
        return jax.tree.map(
            lambda x: jax.lax.dynamic_index_in_dim(self._by_chunk(x), chunk, keepdims=False),
            stacked,
        )

    def _by_chunk(self, x: jax.Array) -> jax.Array:
        return x.reshape(self.schedule.chunks, -1, *x.shape[1:])

    def _add_piece(self, total: Tree, piece: Tree, chunk: jax.Array) -> Tree:
        def add(total: jax.Array, piece: jax.Array) -> jax.Array:
            by_chunk = self._by_chunk(total)
            return by_chunk.at[chunk].add(piece.astype(total.dtype)).reshape(total.shape)

        if self.schedule.chunks == 1:
            return self.chain.place_stacked(_add(total, _wide(piece)))
        return self.chain.place_stacked(jax.tree.map(add, total, piece))

    def _add_shared(self, total: Tree, part: Tree) -> Tree:
        return self.chain.place_shared(_add(total, _wide(part)))

    def _send(self, x: jax.Array, *, by: int) -> jax.Array:
        stages = self.schedule.stages
        ring = [(stage, (stage + by) % stages) for stage in range(stages)]
        return jax.lax.ppermute(x, STAGE, ring)


def _branch(
    predicate: jax.Array,
    yes: Callable[[], Any],
    no: Callable[[], Any],
    *,
    inside: bool,
) -> Any:
    """Runs one of two functions, or, where ``yes`` may not stand in a branch, chooses results."""
    if inside:
        return jax.lax.cond(predicate, yes, no)
    return jax.tree.map(lambda y, n: jnp.where(predicate, y, n), yes(), no())


def _may_branch(idle: Idle, function: Callable[..., Any], *arguments: Any) -> bool:
    return idle == "auto" and not _permutes(jax.make_jaxpr(function)(*arguments).jaxpr)


def _permutes(jaxpr: core.Jaxpr) -> bool:
    return any(equation.primitive.name == "ppermute" for equation in jaxpr.eqns) or any(
        _permutes(inner) for inner in core.subjaxprs(jaxpr)
    )


def _put(kept: jax.Array, x: jax.Array, slot: jax.Array, *, where: jax.Array) -> jax.Array:
    # The value is chosen, not the array: so that it is written in place.
    old = jax.lax.dynamic_index_in_dim(kept, slot, keepdims=False)
    return jax.lax.dynamic_update_index_in_dim(kept, jnp.where(where, x, old), slot, axis=0)


def _of_loss(sums: Tree) -> Tree:
    """The gradient of the loss, which is the first leaf, with respect to all sums."""
    leaves, structure = jax.tree.flatten(sums)
    seeds = [jnp.ones_like(leaf) if i == 0 else _no_gradient(leaf) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, seeds)


def _no_gradient(leaf: jax.Array) -> Any:
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return jnp.zeros_like(leaf)
    return np.zeros(leaf.shape, jax.dtypes.float0)


def _zeros(leaf: jax.ShapeDtypeStruct) -> jax.Array:
    return jnp.zeros(leaf.shape, leaf.dtype)


def _wide(tree: Tree) -> Tree:
    return jax.tree.map(lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)), tree)


def _add(*trees: Tree) -> Tree:
    return jax.tree.map(lambda *leaves: functools.reduce(jnp.add, leaves), *trees)
