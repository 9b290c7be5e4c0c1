"""Decoders and inputs for the tests of models/, with every parameter away from its start."""

from typing import Any

import jax
import numpy as np
from flax import nnx

from models.attention import Tokens
from models.context import Context
from models.decoder import Decoder
from models.decoder_config import DecoderConfig


def build(config: DecoderConfig, *, seed: int = 0) -> Decoder:
    """Returns a decoder whose norms and biases are random too: ones and zeros hide mistakes."""
    graph, state = nnx.split(jax.jit(lambda: Decoder(config, key=jax.random.key(seed)))())
    random = np.random.default_rng(seed)
    for path, parameter in nnx.to_flat_state(state):
        if path[-1] in ("scale", "bias"):
            noise = 0.3 * random.standard_normal(parameter.shape)
            parameter.set_value(parameter[...] + noise.astype(config.param_dtype))
    return nnx.merge(graph, state)


def parameters(model: Decoder) -> dict[str, np.ndarray]:
    """Returns path -> array."""
    flat = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return {"/".join(map(str, path)): np.asarray(leaf[...]) for path, leaf in flat}


def forward(model: Decoder, inputs, positions, segments, **rest: Any) -> np.ndarray:
    """Returns logits [B, T, V]."""
    tokens = Tokens(positions=positions, segments=segments)

    def run(state: Any) -> jax.Array:
        merged = nnx.merge(graph, state)
        hidden, _, _ = merged(inputs, tokens, ctx=Context(**rest))
        return merged.logits(hidden, Context())

    graph, state = nnx.split(model)
    return np.asarray(jax.jit(run)(state))
