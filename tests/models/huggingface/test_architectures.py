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
from models.huggingface.source import open_source
from tests.models.huggingface import reference_cases, weights

CLOSE = 1e-5
CASES = tuple(reference_cases.CASES)
ROWS = ((0,), (1,), (2, 3))
"""Texts in each row: one alone, one before padding, two packed."""


def described(folder: pathlib.Path, name: str) -> DecoderConfig:
    return dataclasses.replace(open_source(folder / name / "model").config, dtype="float32")


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
def theirs(folder: pathlib.Path, name: str) -> dict[str, np.ndarray]:
    """Returns the arrays of reference_models.py."""
    return dict(np.load(folder / name / "reference.npz"))


@functools.cache
def ours(folder: pathlib.Path, name: str) -> tuple[list[np.ndarray], weights.Parameters]:
    """Returns our logits of each text, and gradients of the mean loss over all of them."""
    config = described(folder, name)
    inputs, where, places = batch(theirs(folder, name))
    forward, state = program(config, weights.load(folder / name / "model", config))

    def loss(state: Any) -> tuple[jax.Array, jax.Array]:
        logits = forward(state, inputs, where)
        losses = [
            -jax.nn.log_softmax(logits[row, at])[jnp.arange(len(tokens) - 1), tokens[1:]]
            for row, at in places
            for tokens in [inputs[row, at]]
        ]
        return jnp.concatenate(losses).mean(), logits

    (_, logits), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(state)
    return [np.asarray(logits[row, at]) for row, at in places], weights.paths(gradients)


def program(config: DecoderConfig, parameters: weights.Parameters):
    """Returns a function from state, inputs and where they stand to logits, and the state."""
    graph, abstract = weights.structure(config)

    def forward(state: Any, inputs: np.ndarray, where: Tokens) -> jax.Array:
        model = nnx.merge(graph, state)
        hidden, _, _ = model(jnp.asarray(inputs), where, ctx=Context())
        return model.logits(hidden, Context())

    return forward, weights.state(abstract, parameters)


def apart(found: np.ndarray, expected: np.ndarray) -> float:
    """Returns the largest difference at a position, as a share of the largest logit there."""
    return float((abs(found - expected).max(-1) / abs(expected).max(-1)).max())


@pytest.mark.parametrize("name", CASES)
def test_logits_of_every_position_are_theirs_alone_padded_and_packed(name, reference) -> None:
    arrays = theirs(reference, name)
    for text, logits in enumerate(ours(reference, name)[0]):
        assert apart(logits, arrays[f"logits_{text}"]) < CLOSE
        assert apart(logits, arrays["padded"][text, : len(logits)]) < CLOSE


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_the_loss_are_theirs(name, reference) -> None:
    found = ours(reference, name)[1]
    expected = weights.load(reference / name / "gradients", described(reference, name))
    assert found.keys() == expected.keys()
    for path, gradient in expected.items():
        assert abs(found[path] - gradient).max() < 10 * CLOSE * abs(gradient).max(), path


@pytest.mark.parametrize("name", CASES)
def test_the_config_that_we_write_is_the_same_model_to_transformers(name, reference) -> None:
    arrays = theirs(reference, name)
    assert np.array_equal(arrays["padded"], arrays["written"])


@pytest.mark.parametrize("name", CASES)
def test_what_we_export_comes_back_bit_equal_through_transformers(name, reference) -> None:
    folder = reference / name
    assert json.loads((folder / "loading.json").read_text()) == {}
    config = described(reference, name)
    assert (folder / "exported" / "model.safetensors.index.json").exists()
    exported, again = (weights.load(folder / kind, config) for kind in ("exported", "again"))
    assert exported.keys() == again.keys()
    for path, values in exported.items():
        assert values.std() > 0
        np.testing.assert_array_equal(values, again[path])
    saved = open_source(folder / "again").stored
    assert {stored.dtype for stored in saved.tensors.values()} == {"BF16"}


@pytest.mark.parametrize("name", CASES)
def test_both_forms_of_its_config_are_read_alike(name, reference) -> None:
    _, older = config_file.read(reference_cases.config_json(name), where=name)
    assert open_source(reference / name / "model").config == older


def logits_of(config: DecoderConfig, folder: pathlib.Path, name: str) -> list[np.ndarray]:
    """Returns the logits of each text, by a decoder that may differ from the folder's."""
    parameters = weights.load(folder / name / "model", described(folder, name))
    inputs, where, places = batch(theirs(folder, name))
    forward, state = program(config, parameters)
    logits = np.asarray(jax.jit(forward)(state, inputs, where))
    return [logits[row, at] for row, at in places]


@pytest.mark.parametrize("name", ["gemma 3", "qwen3 moe"])
def test_scanned_blocks_compute_the_same(name, reference) -> None:
    config = dataclasses.replace(described(reference, name), scan_layers=True)
    assert config.scanned
    for text, logits in enumerate(logits_of(config, reference, name)):
        assert apart(logits, theirs(reference, name)[f"logits_{text}"]) < CLOSE


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("llama 3.1", {"rope_scaling": None}),
        ("llama 3.1", {"rope_base": 150.0}),
        ("llama 3.1", {"norm_eps": 1e-2}),
        ("mistral, window", {"window": 6}),
        ("gemma 2", {"attention_scale": None}),
        ("gemma 2", {"attention_soft_cap": 4.0}),
        ("gemma 2", {"logits_soft_cap": 6.0}),
        ("gemma 2", {"suffix": ("global",)}),
        ("gemma 3", {"rope_scaling": None}),
        ("gemma 3", {"local_rope_base": None}),
        ("gemma 3", {"local_rope_base": 15.0}),
        ("qwen3 moe, tied", {"renormalize": True}),
    ],
    ids=str,
)
def test_control_what_is_peculiar_to_a_model_shows_in_its_logits(name, change, reference) -> None:
    config = described(reference, name)
    if config.experts is not None:
        change = {"experts": dataclasses.replace(config.experts, **change)}
    found = logits_of(dataclasses.replace(config, **change), reference, name)
    expected = [theirs(reference, name)[f"logits_{text}"] for text in range(len(found))]
    assert max(apart(*pair) for pair in zip(found, expected, strict=True)) > 100 * CLOSE
