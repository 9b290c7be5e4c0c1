"""Models in: a Hugging Face folder becomes parameters on a mesh, or a checkpoint of ours.

What an imported folder holds::

    checkpoints/0.a1/   the parameters, as every run saves them: TrainConfig.init_from = FOLDER
    model.gin           bindings of DecoderConfig, to be included in a run's gin file
    config.json, tokenizer.json, ...    copies: what the model is, and how text becomes tokens

It appears whole or not at all.
"""

import dataclasses
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any, cast

import jax
from jax.sharding import Mesh, NamedSharding

from input_pipeline.cache import check_new, make_new
from input_pipeline.tokenizer_folder import FILES
from models.decoder_config import DecoderConfig
from models.huggingface import config_file, loading
from models.huggingface.loading import OnProgress
from models.huggingface.source import CONFIG, MODEL, Source, open_source
from partitioning.mesh import axis_sizes, build_mesh
from partitioning.mesh_config import MeshConfig, RulesConfig
from partitioning.planner import decoder_parameters
from partitioning.rules import resolve
from trainer.checkpoints.root import open_root
from trainer.checkpoints.store import CheckpointStore
from trainer.paths import nest
from trainer.run_config import CheckpointConfig


def import_folder(
    folder: pathlib.Path,
    out: pathlib.Path,
    *,
    param_dtype: str = "float32",
    ignore: Sequence[str] = (),
    progress: OnProgress = lambda done, of: None,
) -> Source:
    """Writes a Hugging Face folder's model as a checkpoint that ``TrainConfig.init_from`` takes.

    Args:
      folder: where config.json and the safetensors are.
      out: folder to make.
      param_dtype: type in which parameters are kept.
      ignore: see ``open_source``.
      progress: is told bytes read and bytes in all.

    Raises:
      ValueError: ``out`` exists, or the folder cannot be used.
    """
    check_new(out)
    source = open_source(folder, ignore=ignore)
    decoder = dataclasses.replace(source.config, param_dtype=cast(Any, param_dtype))

    def make(partial: pathlib.Path) -> None:
        abstract = abstract_parameters(decoder, mesh=_mesh(decoder))
        tensors = source.tensors(decoder)
        _save(partial, nest(loading.load(source.stored, tensors, abstract, progress=progress)))
        copy_files(folder, partial)
        shutil.copyfile(folder / CONFIG, partial / CONFIG)
        text = f"# {source.architecture.name}, imported from {folder.name}.\n"
        (partial / MODEL).write_text(text + config_file.bindings(decoder), encoding="utf-8")

    make_new(out, make=make)
    return dataclasses.replace(source, config=decoder)


def _mesh(decoder: DecoderConfig) -> Mesh:
    """Returns a mesh of as many devices as the model's width can be divided over."""
    devices = jax.devices()
    most = max(n for n in range(1, len(devices) + 1) if decoder.embed_dim % n == 0)
    return build_mesh(MeshConfig(fsdp=most), devices=devices[:most])


def abstract_parameters(decoder: DecoderConfig, *, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns path -> shape, dtype and sharding of every parameter; allocates nothing."""
    table = RulesConfig().parameters
    found = {}
    for path, (axes, shape) in decoder_parameters.parameters(decoder).items():
        spec = resolve(axes, shape=shape, rules=table, sizes=axis_sizes(mesh), name=path).spec
        sharding = NamedSharding(mesh, spec)
        found[path] = jax.ShapeDtypeStruct(shape, decoder.param_dtype, sharding=sharding)
    return found


def _save(folder: pathlib.Path, parameters: Any) -> None:
    store = CheckpointStore(open_root(str(folder)), attempt=1, config=CheckpointConfig())
    store.save(0, {"groups": {"model": {"parameters": parameters}}}, data={})
    store.close()


def copy_files(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies what belongs to a model besides its weights and config.json, where it is there."""
    for pattern in (*FILES, "generation_config.json"):
        for file in source.glob(pattern):
            copy = target / file.relative_to(source)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, copy)
