"""Their weights in our models, and back, for the tests of models/huggingface."""

import pathlib
from collections.abc import Mapping

import jax
import numpy as np
import safetensors.numpy
from flax import nnx

from models.decoder import Decoder
from models.decoder_config import DecoderConfig
from models.huggingface.architectures import Architecture

Parameters = dict[str, np.ndarray]


def structure(config: DecoderConfig) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns a decoder without values."""
    return nnx.split(nnx.eval_shape(lambda: Decoder(config, key=jax.random.key(0))))


def state(abstract: nnx.State, parameters: Mapping[str, np.ndarray]) -> nnx.State:
    """Returns the state of a decoder with these values."""
    filled = nnx.to_flat_state(abstract)
    return nnx.from_flat_state(
        [(path, leaf.replace(parameters["/".join(map(str, path))])) for path, leaf in filled]
    )


def paths(tree: nnx.State) -> Parameters:
    """Returns path -> array."""
    return {"/".join(map(str, p)): np.asarray(leaf[...]) for p, leaf in nnx.to_flat_state(tree)}


def load(folder: pathlib.Path, architecture: Architecture, config: DecoderConfig) -> Parameters:
    """Returns path -> array of the weights in a folder; every tensor must have its place."""
    files = safetensors.numpy.load_file(folder / "model.safetensors")
    _, abstract = structure(config)
    filled = {
        "/".join(map(str, path)): np.full(leaf.shape, np.nan, "float32")
        for path, leaf in nnx.to_flat_state(abstract)
    }
    for tensor in architecture.tensors(config):
        filled[tensor.path][tensor.at] = tensor.layout.to_ours(
            files.pop(tensor.name), shape=tensor.shape
        )
    assert not files
    assert not any(np.isnan(value).any() for value in filled.values())
    return filled
