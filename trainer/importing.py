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
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
from jax.sharding import Mesh, NamedSharding

from input_pipeline.cache import make_once
from models.decoder_config import DecoderConfig
from models.huggingface import config_file, loading
from models.huggingface.loading import Progress
from models.huggingface.source import CONFIG, MODEL, Source, open_source
from partitioning.mesh import axis_sizes, build_mesh
from partitioning.mesh_config import MeshConfig, RulesConfig
from partitioning.planner import decoder_parameters
from partitioning.rules import resolve
from trainer import config
from trainer.checkpoints.root import open_root
from trainer.checkpoints.store import CheckpointStore
from trainer.config_schema import Schema
from trainer.paths import nest
from trainer.run_config import CheckpointConfig

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
"""What belongs to a model besides its weights; copied where it is there."""


def import_folder(
    folder: pathlib.Path,
    out: pathlib.Path,
    *,
    param_dtype: str = "float32",
    ignore: Sequence[str] = (),
    progress: Progress = lambda done, of: None,
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
    check_absent(out)
    source = open_source(folder, ignore=ignore)
    decoder = dataclasses.replace(source.config, param_dtype=cast(Any, param_dtype))

    def make(partial: pathlib.Path) -> None:
        abstract = abstract_parameters(decoder, mesh=build_mesh(MeshConfig(fsdp=-1)))
        tensors = source.tensors(decoder)
        _save(partial, nest(loading.load(source.stored, tensors, abstract, progress=progress)))
        copy_files(folder, partial, names=(CONFIG, *TOKENIZER_FILES))
        text = f"# {source.architecture.name}, imported from {folder.name}.\n"
        (partial / MODEL).write_text(text + config_file.bindings(decoder), encoding="utf-8")

    make_new(out, make=make)
    return dataclasses.replace(source, config=decoder)


def imported_config(folder: pathlib.Path) -> DecoderConfig:
    """Returns the decoder of a folder that ``import_folder`` wrote.

    Raises:
      ConfigError: its model.gin was changed and cannot be read.
    """
    classes = {cls.__name__: cls for cls in config_file.CLASSES}
    schema = Schema(DecoderConfig, classes, frozenset())
    return cast(DecoderConfig, config.build([str(folder / MODEL)], schema=schema)[0].instance)


def abstract_parameters(
    decoder: DecoderConfig, *, mesh: Mesh, rules: RulesConfig | None = None
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns path -> shape, dtype and sharding of every parameter; allocates nothing.

    Raises:
      ValueError: the rules do not fit the mesh or the model.
    """
    table = (rules or RulesConfig()).parameters
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


def copy_files(source: pathlib.Path, target: pathlib.Path, *, names: Sequence[str]) -> None:
    """Copies those of the named files that are there."""
    for name in names:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def make_new(out: pathlib.Path, *, make: Callable[[pathlib.Path], None]) -> None:
    """Makes a folder as `make_once` does, but raises ValueError if another process was first."""
    mine: list[pathlib.Path] = []

    def noted(partial: pathlib.Path) -> None:
        mine.append(partial)
        make(partial)

    make_once(out, make=noted)
    if not mine:
        raise ValueError(f"{out} was made by another process in the meantime; it is kept.")


def check_absent(out: pathlib.Path) -> None:
    """Raises ValueError if there is something where a folder is to be made."""
    if out.exists() or out.is_symlink():
        raise ValueError(f"{out} exists already; delete it or give another name.")
