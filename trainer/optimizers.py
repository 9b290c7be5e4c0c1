"""Optimizers and schedules: optax transformations from the dataclasses in optimizer_config.

Everything here is a pure function of gradients, parameters and the step, so that it can be tested
apart from the model. Decay masks and learning-rate groups go by parameter path.
"""

import functools
import math
import re
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax

from trainer.optimizer_config import (
    SGD,
    Adafactor,
    AdamW,
    Lion,
    Muon,
    OptimizerConfig,
    ScheduleConfig,
)
from trainer.paths import leaves, path_of

Axes = tuple[str, ...]
Schedule = Callable[[jax.Array | int], jax.Array]


def build_schedule(config: ScheduleConfig, *, steps: int) -> Schedule:
    """Returns step -> learning rate, for steps counted from 0.

    Args:
      config: shape of the schedule.
      steps: length of the run, where ``config.decay_steps`` is None.

    Raises:
      ValueError: warm-up and cool-down do not fit into the decay.
    """
    end = steps if config.decay_steps is None else config.decay_steps
    warmup, cooldown = config.warmup_steps, config.cooldown_steps
    if warmup + cooldown > end:
        raise ValueError(
            f"ScheduleConfig: warmup_steps={warmup} + cooldown_steps={cooldown} exceed the "
            f"{end} steps of the schedule; shorten them or set ScheduleConfig.decay_steps."
        )
    low = config.peak * config.final_ratio
    after: dict[str, Callable[[], Schedule]] = {
        "constant": lambda: optax.constant_schedule(config.peak),
        "linear": lambda: optax.linear_schedule(config.peak, low, max(end - warmup, 1)),
        "cosine": lambda: optax.cosine_decay_schedule(
            config.peak, max(end - warmup, 1), config.final_ratio
        ),
        "wsd": lambda: optax.linear_schedule(
            config.peak, low, max(cooldown, 1), transition_begin=end - warmup - cooldown
        ),
        "rsqrt": lambda: _rsqrt(config.peak, warmup=warmup),
    }
    decay = after[config.name]()
    if warmup == 0:
        return decay
    # Step 0 already moves: the warm-up reaches the peak at its last step.
    rise = optax.linear_schedule(config.peak / warmup, config.peak, max(warmup - 1, 1))
    return optax.join_schedules([rise, decay], [warmup])


def build_optimizer(config: OptimizerConfig, *, axes: Any) -> optax.GradientTransformation:
    """Returns the optimizer: what to subtract per unit of learning rate, weight decay included.

    Args:
      config: which optimizer.
      axes: tree like the trainable parameters, with each one's logical axes (Muon asks which
        dimensions are inputs).

    Raises:
      TypeError: an optimizer that has no transformation here.
      ValueError: a group's pattern matches no parameter.
    """
    paths = list(leaves(axes, is_leaf=_is_axes))
    for pattern, _, _ in config.groups:
        if not any(re.search(pattern, path) for path in paths):
            raise ValueError(
                f"{type(config).__name__}.groups: {pattern!r} matches no trainable parameter; "
                f"paths look like {paths[0]!r}."
            )
    parts = [
        direction(config, axes),
        _decay(config),
        *([_group_rates(config)] if config.groups else []),
    ]
    return _with_moments_in(config.moment_dtype, optax.chain(*parts), paths=paths)


def _with_moments_in(
    dtype: str, optimizer: optax.GradientTransformation, *, paths: list[str]
) -> optax.GradientTransformation:
    """Keeps the state in ``dtype`` between steps and computes in 32 bits or more.

    Left alone, moments have the dtype of their parameters, and in 16 bits the second one stalls.
    """
    of_parameters = tuple(f"/{path}" for path in paths)

    def keep(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        # Only what belongs to a parameter: Muon's state also holds its coefficients.
        return leaf.astype(dtype) if f"/{path_of(path)}".endswith(of_parameters) else leaf

    def kept(state: Any) -> Any:
        return jax.tree_util.tree_map_with_path(keep, state) if dtype == "bfloat16" else state

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, state, params = (_cast(tree, _at_least_32) for tree in (updates, state, params))
        updates, state = optimizer.update(updates, state, params)
        return updates, kept(state)

    return optax.GradientTransformation(
        lambda params: kept(optimizer.init(_cast(params, _at_least_32))), update
    )


def _at_least_32(leaf: jax.Array) -> Any:
    return jnp.promote_types(leaf.dtype, jnp.float32)


def _cast(tree: Any, to: Callable[[jax.Array], Any]) -> Any:
    return jax.tree.map(
        lambda x: x.astype(to(x)) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree
    )


@functools.singledispatch
def direction(config: OptimizerConfig, axes: Any) -> optax.GradientTransformation:
    """Returns gradients -> direction; ``@direction.register`` adds another optimizer.

    Args:
      config: which optimizer; its class decides.
      axes: see ``build_optimizer``.

    Raises:
      TypeError: no transformation is registered for the class.
    """
    raise TypeError(
        f"No optimizer for {type(config).__name__}; write one and decorate its builder with "
        "@trainer.optimizers.direction.register."
    )


@direction.register
def _(config: AdamW, axes: Any) -> optax.GradientTransformation:
    return optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.eps)


@direction.register
def _(config: Lion, axes: Any) -> optax.GradientTransformation:
    return optax.scale_by_lion(b1=config.b1, b2=config.b2)


@direction.register
def _(config: SGD, axes: Any) -> optax.GradientTransformation:
    return optax.trace(decay=config.momentum) if config.momentum else optax.identity()


@direction.register
def _(config: Adafactor, axes: Any) -> optax.GradientTransformation:
    return optax.chain(
        optax.scale_by_factored_rms(
            decay_rate=config.decay_rate, min_dim_size_to_factor=config.min_dim_to_factor
        ),
        optax.clip_by_block_rms(config.clip_threshold),
    )


@direction.register
def _(config: Muon, axes: Any) -> optax.GradientTransformation:
    def dimensions(updates: Any) -> Any:
        # The partition below hides the other group's leaves behind MaskedNode.
        return jax.tree.map(
            lambda named, u: u if isinstance(u, optax.MaskedNode) else matrix_dimensions(named),
            axes,
            updates,
            is_leaf=_is_axes,
        )

    orthogonal = optax.contrib.scale_by_muon(
        ns_steps=config.steps, beta=config.momentum, weight_dimension_numbers=dimensions
    )
    return optax.partition(
        {
            "muon": optax.chain(orthogonal, _match_adam(axes)),
            "adam": optax.scale_by_adam(b1=config.b1, b2=config.b2),
        },
        jax.tree.map(_muon_or_adam, axes, is_leaf=_is_axes),
    )


def matrix_dimensions(named: Axes) -> optax.contrib.MuonDimensionNumbers | None:
    """Returns a matrix's input and output dimensions, or None for what Muon leaves to Adam.

    Projections out of the residual stream start with ``embed``, projections into it end with it;
    embedding and head (``vocab``), norms and biases are no matrices in Muon's sense.
    """
    stacked = tuple(i for i, axis in enumerate(named) if axis not in ("layers", "experts"))
    if "vocab" in named or "embed" not in named or len(stacked) < 2:
        return None
    embed = (named.index("embed"),)
    others = tuple(i for i in stacked if i not in embed)
    inputs, outputs = (others, embed) if named[-1] == "embed" else (embed, others)
    return optax.contrib.MuonDimensionNumbers(reduction_axis=inputs, output_axis=outputs)


def _muon_or_adam(named: Axes) -> str:
    return "adam" if matrix_dimensions(named) is None else "muon"


def _match_adam(axes: Any) -> optax.GradientTransformation:
    """Scales to the root mean square of an Adam update (Liu et al., 2025, section 2.2)."""

    def scale(named: Axes, u: Any) -> Any:
        if isinstance(u, optax.MaskedNode):
            return u
        dims = matrix_dimensions(named)
        assert dims is not None
        sides = [
            math.prod(u.shape[i] for i in cast(tuple[int, ...], side))
            for side in (dims.reduction_axis, dims.output_axis)
        ]
        return u * (0.2 * math.sqrt(max(sides)))

    return optax.stateless(lambda updates, _: jax.tree.map(scale, axes, updates, is_leaf=_is_axes))


def _is_axes(node: Any) -> bool:
    return isinstance(node, tuple)


def factors(config: OptimizerConfig, parameters: Any) -> tuple[Any, Any]:
    """Returns two trees shaped like ``parameters``: learning-rate and weight-decay factors."""

    def group(path: str) -> tuple[float, float]:
        excluded = any(re.search(pattern, path) for pattern in config.decay_exclude)
        for pattern, rate, decay in config.groups:
            if re.search(pattern, path):
                return rate, (0.0 if excluded else decay)
        return 1.0, (0.0 if excluded else 1.0)

    both = jax.tree_util.tree_map_with_path(lambda path, _: group(path_of(path)), parameters)
    pick = functools.partial(jax.tree.map, is_leaf=_is_axes)
    return pick(lambda pair: pair[0], both), pick(lambda pair: pair[1], both)


def _decay(config: OptimizerConfig) -> optax.GradientTransformation:
    if not config.weight_decay:
        return optax.identity()

    def update(updates: Any, params: Any) -> Any:
        _, decay = factors(config, params)
        return jax.tree.map(
            lambda u, p, d: u + config.weight_decay * d * p.astype(u.dtype) if d else u,
            updates,
            params,
            decay,
        )

    return optax.stateless(update)


def _group_rates(config: OptimizerConfig) -> optax.GradientTransformation:
    def update(updates: Any, params: Any) -> Any:
        rate, _ = factors(config, params)
        return jax.tree.map(lambda u, r: u if r == 1.0 else u * r, updates, rate)

    return optax.stateless(update)


def _rsqrt(peak: float, *, warmup: int) -> Schedule:
    start = max(warmup, 1)
    return lambda step: peak * jnp.sqrt(start / (step + start))
