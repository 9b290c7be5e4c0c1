"""The compiled step: loss, gradients, accumulation, clipping, guard and update.

Pure: (state, batch) -> (state, metrics). All sums over tokens are kept as (sum, weight), so that
the gradient does not depend on how the batch is cut into microbatches.

Shape suffixes: B global batch rows, M microbatches, T length.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from models.context import Context
from models.layers import wide
from partitioning.mesh import automatic_part
from partitioning.replicas import replica_axes, summed_over_replicas
from trainer.paths import merge_frozen, split_frozen
from trainer.pipeline import pipelined_gradients, pipelined_sums
from trainer.program import Program
from trainer.state import (
    HOST,
    Group,
    TrainState,
    abstract_state,
    gradient_layout,
    optimizer_in,
    shardings,
    whole,
)
from trainer.task import Batch, Metrics, Sums


def build_train_step(program: Program) -> jax.stages.Wrapped:
    """Returns the jitted train step, (state, batch) -> (state, metrics); the state is donated.

    Metrics: ``loss`` (mean per weight), ``weight``, ``grad_norm`` (before clipping),
    ``param_norm`` (after the update, of the group that is trained), ``learning_rate``,
    ``nonfinite`` (consecutive skipped steps) and ``sums``, the task's own metrics summed over the
    batch.
    """
    abstract = abstract_state(program)
    layout = shardings(abstract)
    like = abstract.groups[program.trained]
    gradients_at = gradient_layout(program, split_frozen(like.parameters, like.frozen)[0])

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Any]]:
        # Before the branch below: inside it each leaf would need room for both of its copies.
        group = optimizer_in("device", state.groups[program.trained], like)
        model = whole(state, program)

        parts = cut_microbatches(batch, program.train.microbatches)
        if program.stages > 1:
            found, gradients = pipelined_gradients(program, model, parts, step=state.step)
        else:
            trainable, frozen = split_frozen(model.parameters, model.frozen)
            held = (frozen, model.variables, state.step)
            found, gradients = _accumulate(program, (trainable, held), parts, layout=gradients_at)
        total, weight, sums = found
        scale = 1.0 / jnp.maximum(weight, 1e-9)
        norm = optax.tree.norm(jax.tree.map(wide, gradients)) * scale
        clip = program.train.clip_norm
        factor = scale if clip is None else scale * jnp.minimum(1.0, clip / (norm + 1e-12))
        rate = program.schedule(state.step)
        finite = jnp.isfinite(norm) & jnp.isfinite(total)

        def update(group: Group) -> Group:
            scaled = jax.tree.map(lambda g: g * factor.astype(g.dtype), gradients)
            return _apply(program, group, scaled, rate=rate)

        # A branch, not a choice leaf by leaf: choosing reads the old moments after the new ones
        # were written in their place, which makes XLA copy the whole optimizer state. Every
        # process takes the same branch, because the norm is a sum over all of them.
        new = (
            jax.lax.cond(finite, update, lambda group: group, group)
            if program.train.skip_nonfinite
            else update(group)
        )
        new = optimizer_in(HOST, new, like)
        nonfinite = jnp.where(finite, 0, state.nonfinite + 1)
        metrics = {
            "loss": total * scale,
            "weight": weight,
            "grad_norm": norm,
            "param_norm": optax.tree.norm(new.parameters),
            "learning_rate": jnp.asarray(rate, jnp.float32),
            "nonfinite": nonfinite,
            "sums": sums,
        }
        groups = {**state.groups, program.trained: new}
        return TrainState(step=state.step + 1, nonfinite=nonfinite, groups=groups), metrics

    return jax.jit(train_step, donate_argnums=0, out_shardings=(layout, None))


def build_eval_step(program: Program) -> jax.stages.Wrapped:
    """Returns the jitted evaluation step: sums over the batch, with the averaged parameters.

    Metrics: ``loss`` (sum), ``weight`` and the task's own sums.
    """

    def eval_step(state: TrainState, batch: Batch) -> Metrics:
        group = whole(state, program, scored=True)
        if program.stages > 1:
            parts = cut_microbatches(batch, program.train.microbatches)
            total, weight, metrics = pipelined_sums(program, group, parts)
        else:
            model = nnx.merge(program.graph, group.parameters, group.variables)
            ctx = Context(shard=program.shard)
            total, weight, metrics = program.task.loss(model, batch, ctx=ctx)
        return {"loss": total, "weight": weight, **metrics}

    return jax.jit(eval_step)


def cut_microbatches(batch: Batch, microbatches: int) -> tuple[Batch, jax.Array]:
    """Returns the batch as [M, B / M, ...], and the global numbers of the rows [M, B / M]."""
    rows = next(iter(batch.values())).shape[0]

    def cut(x: jax.Array) -> jax.Array:
        # Row r goes to microbatch r % M, so that each device's rows stay on it.
        return x.reshape(rows // microbatches, microbatches, *x.shape[1:]).swapaxes(0, 1)

    return jax.tree.map(cut, dict(batch)), cut(jnp.arange(rows, dtype=jnp.int32))


def _accumulate(
    program: Program, model: tuple[Any, Any], parts: tuple[Batch, jax.Array], *, layout: Any
) -> tuple[Sums, Any]:
    """Sums losses, metrics and gradients over microbatches.

    Args:
      program: fixed parts.
      model: trainable parameters, and (frozen ones, variables, step).
      parts: batch and row numbers, [M, rows, ...].
      layout: where gradients live, or None.
    """
    microbatches = parts[1].shape[0]
    replicas = replica_axes(program.mesh) if microbatches > 1 else ()
    gradient = jax.grad(functools.partial(_loss, program, replicas=replicas), has_aux=True)

    def placed(gradients: Any) -> Any:
        if layout is None:
            return gradients
        return jax.lax.with_sharding_constraint(gradients, jax.tree.map(automatic_part, layout))

    def one(model: tuple[Any, Any], part: tuple[Batch, jax.Array]) -> tuple[Any, Sums]:
        gradients, sums = gradient(*model, *part)
        return placed(gradients), sums

    if microbatches == 1:
        gradients, sums = one(model, jax.tree.map(lambda x: x[0], parts))
        return sums, gradients

    def every(model: tuple[Any, Any], parts: tuple[Batch, jax.Array]) -> tuple[Any, Sums]:
        def widened(part: tuple[Batch, jax.Array]) -> tuple[Any, Sums]:
            # Sums of many small numbers need more digits than bfloat16 parameters have.
            return jax.tree.map(wide, one(model, part))

        def add(total: Any, part: tuple[Batch, jax.Array]) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, widened(part)), None

        shapes = jax.eval_shape(widened, jax.tree.map(lambda x: x[0], parts))
        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return jax.lax.scan(add, (placed(zero[0]), zero[1]), parts)[0]

    gradients, sums = summed_over_replicas(every, mesh=program.mesh)(model, parts)
    return sums, gradients


def _loss(
    program: Program,
    trainable: Any,
    held: tuple[Any, Any, jax.Array],
    part: Batch,
    rows: jax.Array,
    *,
    replicas: tuple[str, ...],
) -> tuple[jax.Array, Sums]:
    frozen, variables, step = held
    model = nnx.merge(program.graph, merge_frozen(trainable, frozen), variables)
    ctx = Context(
        shard=program.shard, dropout_key=program.dropout_key(step), rows=rows, replicas=replicas
    )
    sums = program.task.loss(model, part, ctx=ctx)
    return sums[0], sums


def _apply(
    program: Program,
    group: Group,
    gradients: Any,
    *,
    rate: jax.Array | float,
) -> Group:
    trainable, frozen = split_frozen(group.parameters, group.frozen)
    updates, optimizer = program.optimizer.update(gradients, group.optimizer, trainable)
    # The rate comes from the run's own step, not from a counter inside the optimizer, so that a
    # skipped step or a restore cannot move the schedule.
    moved = jax.tree.map(lambda p, u: (p - rate * u).astype(p.dtype), trainable, updates)
    parameters = merge_frozen(moved, frozen)
    average = group.average
    if average is not None:
        decay = program.train.ema_decay
        assert decay is not None
        average = jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, average, parameters)
    return Group(
        parameters=parameters,
        variables=group.variables,
        optimizer=optimizer,
        average=average,
        frozen=group.frozen,
    )
