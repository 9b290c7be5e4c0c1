"""A checkpoint that transformers wrote computes here what it computes there."""

import dataclasses
import functools
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.attention import Tokens
from models.context import Context
from models.decoder_config import DecoderConfig
from models.huggingface import config_file
from models.huggingface.architectures import Architecture
from tests.models.huggingface import reference_cases, weights

CLOSE = 1e-5
CASES = tuple(reference_cases.CASES)
ROWS = ((0,), (1,), (2, 3))
"""Texts in each row: one alone, one before padding, two packed."""


def read(folder: pathlib.Path, name: str) -> tuple[Architecture, DecoderConfig]:
    content = json.loads((folder / name / "model" / "config.json").read_text())
    architecture, config = config_file.read(content, where=name)
    return architecture, dataclasses.replace(config, dtype="float32")


def batch(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, Tokens, list[tuple[int, slice]]]:
    """Returns tokens, where they stand, and each text's row and columns."""
    inputs, positions, segments = (np.zeros((len(ROWS), 24), np.int32) for _ in range(3))
    places: dict[int, tuple[int, slice]] = {}
    for row, texts in enumerate(ROWS):
        start = 0
        for segment, text in enumerate(texts, start=1):
            tokens = arrays[f"tokens_{text}"]
            at = slice(start, start + len(tokens))
            inputs[row, at], positions[row, at] = tokens, np.arange(len(tokens))
            segments[row, at], start = segment, at.stop
            places[text] = (row, at)
    where = Tokens(positions=jnp.asarray(positions), segments=jnp.asarray(segments))
    return inputs, where, [places[text] for text in sorted(places)]


@functools.cache
def computed(folder: pathlib.Path, name: str) -> tuple[dict[str, Any], list[Any], dict[str, Any]]:
    """Returns their arrays, our logits of each text, and our gradients by path."""
    architecture, config = read(folder, name)
    arrays = dict(np.load(folder / name / "reference.npz"))
    parameters = weights.load(folder / name / "model", architecture, config)
    logits, gradients = run(config, parameters, arrays)
    return arrays, logits, gradients


def run(config: DecoderConfig, parameters: weights.Parameters, arrays: dict[str, np.ndarray]):
    """Returns our logits of each text and the gradients of the mean loss over all of them."""
    inputs, where, places = batch(arrays)
    graph, abstract = weights.structure(config)

    def loss(state: Any) -> tuple[jax.Array, jax.Array]:
        model = nnx.merge(graph, state)
        hidden, _, _ = model(jnp.asarray(inputs), where, ctx=Context())
        logits = model.logits(hidden, Context())
        losses = [
            -jax.nn.log_softmax(logits[row, at])[jnp.arange(at.stop - at.start - 1), targets[1:]]
            for (row, at) in places
            for targets in [inputs[row, at]]
        ]
        return jnp.concatenate(losses).mean(), logits

    state = weights.state(abstract, parameters)
    (_, logits), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(state)
    return [np.asarray(logits)[row, at] for row, at in places], weights.paths(gradients)


def apart(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Returns the largest difference at a position, as a share of the largest logit there."""
    return float((abs(ours - theirs).max(-1) / abs(theirs).max(-1)).max())


@pytest.mark.parametrize("name", CASES)
def test_logits_of_every_position_are_theirs_alone_padded_and_packed(name, reference) -> None:
    arrays, logits, _ = computed(reference, name)
    for text, ours in enumerate(logits):
        assert apart(ours, arrays[f"logits_{text}"]) < CLOSE
        assert apart(ours, arrays["padded"][text, : len(ours)]) < CLOSE


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_the_loss_are_theirs(name, reference) -> None:
    _, _, ours = computed(reference, name)
    theirs = weights.load(reference / name / "gradients", *read(reference, name))
    assert ours.keys() == theirs.keys()
    for path, gradient in theirs.items():
        assert abs(ours[path] - gradient).max() < 10 * CLOSE * abs(gradient).max(), path


@pytest.mark.parametrize("name", CASES)
def test_the_config_that_we_write_is_the_same_model_to_transformers(name, reference) -> None:
    arrays = np.load(reference / name / "reference.npz")
    assert np.array_equal(arrays["padded"], arrays["written"])
