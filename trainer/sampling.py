"""Continues a text, one token at a time, with cached keys and values.

Shape suffixes: B batch, S cache slots, V vocab.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from models.attention import Decoding, Tokens
from models.context import Context
from models.decoder import Decoder
from trainer.program import Program
from trainer.state import TrainState, whole


def sample(
    program: Program,
    state: TrainState,
    *,
    prompt: np.ndarray,
    count: int,
    seed: int = 0,
    temperature: float = 0.8,
) -> np.ndarray:
    """Returns ``count`` tokens that follow ``prompt``.

    Args:
      program: the run's fixed parts; its task's model is a Decoder.
      state: parameters; the average is taken where there is one.
      prompt: [n] int32 token ids, at least one.
      count: tokens to draw.
      seed: of the draws; the same seed gives the same tokens.
      temperature: divides the logits; 0 takes the most likely token.
    """
    if count < 1:
        return np.zeros((0,), np.int32)
    draw = jax.jit(
        functools.partial(_draw, program, count=count, temperature=temperature),
        out_shardings=NamedSharding(program.mesh, PartitionSpec()),
    )
    inputs = jnp.asarray(prompt, jnp.int32)[None]
    return np.asarray(jax.device_get(draw(state, inputs, jax.random.key(seed))))


def _draw(
    program: Program,
    state: TrainState,
    inputs: jax.Array,
    key: jax.Array,
    *,
    count: int,
    temperature: float,
) -> jax.Array:
    group = whole(state, program, scored=True)
    model = nnx.merge(program.graph, group.parameters, group.variables)
    assert isinstance(model, Decoder)
    # Unconstrained: one row of one token divides over no mesh; the compiler follows the parameters.
    ctx = Context()
    length = inputs.shape[1]
    slots = length + count
    places = jnp.arange(slots, dtype=jnp.int32)[None]

    def at(start: jax.Array | int, size: int) -> Tokens:
        positions = jax.lax.dynamic_slice_in_dim(places, start, size, axis=1)
        return Tokens(positions=positions, segments=jnp.ones_like(positions))

    every = at(0, slots)

    def forward(tokens: jax.Array, start: jax.Array | int, caches: Any) -> tuple[jax.Array, Any]:
        hidden, caches, _ = model(
            tokens,
            at(start, tokens.shape[1]),
            ctx=ctx,
            decoding=Decoding(caches=caches, index=start, tokens=every),
        )
        return model.logits(hidden[:, -1:], ctx)[0, 0], caches

    def choose(logits: jax.Array, number: jax.Array | int) -> jax.Array:
        if temperature == 0.0:
            return jnp.argmax(logits).astype(jnp.int32)
        drawn = jax.random.categorical(jax.random.fold_in(key, number), logits / temperature)
        return drawn.astype(jnp.int32)

    logits, caches = forward(inputs, 0, model.empty_caches(1, slots))

    def step(carry: tuple[jax.Array, Any], number: jax.Array) -> tuple[Any, jax.Array]:
        token, caches = carry
        logits, caches = forward(token[None, None], length + number, caches)
        return (choose(logits, number + 1), caches), token

    _, tokens = jax.lax.scan(step, (choose(logits, 0), caches), jnp.arange(count))
    return tokens
