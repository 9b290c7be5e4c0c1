"""Their weights in our models, for the tests of models/huggingface."""

import pathlib
from collections.abc import Mapping

import jax
import numpy as np
from flax import nnx

from models.decoder import Decoder
from models.decoder_config import DecoderConfig
from models.huggingface import loading
from models.huggingface.source import open_source
from partitioning.mesh import build_mesh
from partitioning.mesh_config import MeshConfig
from trainer.importing import abstract_parameters

Parameters = dict[str, np.ndarray]


def load(folder: pathlib.Path, config: DecoderConfig) -> Parameters:
    """Returns path -> array of the tensors in a folder."""
    source = open_source(folder)
    mesh = build_mesh(MeshConfig(), devices=jax.devices()[:1])
    abstract = abstract_parameters(config, mesh=mesh)
    loaded = loading.load(source.stored, source.tensors(config), abstract)
    return {path: np.asarray(value) for path, value in loaded.items()}


def structure(config: DecoderConfig) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns a decoder without values."""
    return nnx.split(nnx.eval_shape(lambda: Decoder(config, key=jax.random.key(0))))


def state(abstract: nnx.State, parameters: Mapping[str, np.ndarray]) -> nnx.State:
    """Returns the state of a decoder with these values."""
    return nnx.from_flat_state(
        [
            (path, leaf.replace(parameters["/".join(map(str, path))]))
            for path, leaf in nnx.to_flat_state(abstract)
        ]
    )


def paths(tree: nnx.State) -> Parameters:
    """Returns path -> array."""
    return {"/".join(map(str, p)): np.asarray(leaf[...]) for p, leaf in nnx.to_flat_state(tree)}
