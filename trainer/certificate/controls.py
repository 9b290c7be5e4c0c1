"""Negative controls: programs broken on purpose, which the comparison must tell from right ones.

Each breaks what people have really broken; a comparison of losses alone would miss some of them.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from models import context
from partitioning import attention_pair, schedules
from partitioning.activations import Activations
from partitioning.mesh_config import MeshConfig, PipelineConfig, ScheduleName
from partitioning.schedules import Schedule
from trainer.certificate.cases import EXPERTS_MODEL as EXPERTS
from trainer.certificate.one_step import Case
from trainer.language_model import LanguageModelTask
from trainer.task import Sums

SEEN_ABOVE = 1e-4
"""Relative error of the worst leaf that a control must exceed; rounding stays below 1e-12."""

_STAGES = Case(
    name="stage 2, 2 chunks",
    rules="pp",
    mesh=MeshConfig(stage=2),
    microbatches=4,
    pipeline=PipelineConfig(chunks=2),
    model=(("layers", 4),),
)
_ONE = Case(name="one device", mesh=MeshConfig(), microbatches=2, batch="padded")
_DROPOUT = (("dropout", 0.3),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Control:
    """A fault.

    Attributes:
      name: what is wrong.
      case: the step that it is put into.
      fault: puts it there for as long as it is entered.
    """

    name: str
    case: Case
    fault: Callable[[], contextlib.AbstractContextManager[Any]]


def _swapped_stages() -> Any:
    right = schedules.layer_order

    def swapped(*, stages: int, **sizes: int) -> np.ndarray:
        return right(stages=stages, **sizes).reshape(stages, -1)[::-1].reshape(-1)

    return mock.patch("trainer.program.layer_order", swapped)


def _short_stash() -> Any:
    right = schedules.build_schedule

    def short(name: ScheduleName, **sizes: int) -> Schedule:
        schedule = right(name, **sizes)
        stash, slots = schedule.stash, schedule.stash.slots - 1
        vars(schedule)["stash"] = dataclasses.replace(
            stash, slots=slots, write=stash.write % slots, read=stash.read % slots
        )
        return schedule

    return mock.patch("trainer.pipeline.build_schedule", short)


def _shifted_mask() -> Any:
    right = attention_pair.absorb

    def shifted(softmax: Any, q: Any, at: Any, k: Any, v: Any, keys: Any, *, rules: Any) -> Any:
        later = dataclasses.replace(keys, positions=keys.positions + 1)
        return right(softmax, q, at, k, v, later, rules=rules)

    return mock.patch("partitioning.ring.absorb", shifted)


def _mean_of_means() -> Any:
    right = LanguageModelTask.loss

    def mean(self: LanguageModelTask, *arguments: Any, **rest: Any) -> Sums:
        total, weight, metrics = right(self, *arguments, **rest)
        return total / weight, jnp.ones_like(weight), metrics

    return mock.patch.object(LanguageModelTask, "loss", mean)


def _missing_mask() -> Any:
    def everything(queries: Any, keys: Any, **_: Any) -> jax.Array:
        return queries.positions[:, :, None] >= keys.positions[:, None, :]

    return mock.patch("models.attention.attention_mask", everything)


def _dropout_by_local_row() -> Any:
    def local(x: jax.Array, *, ctx: context.Context, **rest: Any) -> jax.Array:
        rows = jnp.arange(x.shape[0])
        return context.dropout(x, ctx=dataclasses.replace(ctx, rows=rows), **rest)

    return mock.patch("models.stack.dropout", local)


def _dropout_by_place() -> Any:
    return mock.patch.object(Activations, "columns", lambda self, length: jnp.arange(length))


def _dropped_tokens() -> Any:
    return mock.patch("models.experts.sent_rows", return_value=1)


CONTROLS = (
    Control(name="two stages swapped", case=_STAGES, fault=_swapped_stages),
    Control(name="a stash one slot short", case=_STAGES, fault=_short_stash),
    Control(
        name="keys of the ring one position later",
        case=Case(
            name="context 4, ring",
            rules="cp",
            mesh=MeshConfig(context=4),
            execution=(("context_attention", "ring"),),
        ),
        fault=_shifted_mask,
    ),
    Control(name="a mean of the microbatches' means", case=_ONE, fault=_mean_of_means),
    Control(name="no mask between documents", case=_ONE, fault=_missing_mask),
    Control(
        name="dropout by the row within a microbatch",
        case=dataclasses.replace(_ONE, model=_DROPOUT),
        fault=_dropout_by_local_row,
    ),
    Control(
        name="dropout by the place on the devices",
        case=Case(name="context 2", rules="cp", mesh=MeshConfig(context=2), model=_DROPOUT),
        fault=_dropout_by_place,
    ),
    Control(
        name="tokens lost in the exchange",
        case=Case(
            name="expert 4",
            rules="ep",
            mesh=MeshConfig(expert=4),
            model=EXPERTS,
        ),
        fault=_dropped_tokens,
    ),
)
