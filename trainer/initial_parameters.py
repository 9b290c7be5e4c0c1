"""Where a run's first parameters come from: ``TrainConfig.init_from``, for all who read it.

What it names is a run of ours or one of its steps, a folder that was imported, or a Hugging Face
folder as it is. Of a run that trained adapters come the parameters that they were trained beside,
with the adapters merged into them, so that whatever loads it needs to know nothing of adapters.
"""

import dataclasses
import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging
from jax.sharding import NamedSharding, PartitionSpec

from input_pipeline.progress import Progress
from models.huggingface import loading
from models.huggingface.source import is_huggingface, open_source
from models.lora import merged
from trainer.bases import Base, recorded_base
from trainer.checkpoints import finding, layout
from trainer.checkpoints.parameters import load_params
from trainer.coordination import Coordination
from trainer.language_model import LanguageModelTask
from trainer.paths import leaves, nest
from trainer.program import ADAPTERS, MODEL, Program
from trainer.state import abstract_state, on_devices


def initial_parameters(url: str, program: Program, *, coordination: Coordination) -> Any:
    """Returns the parameters of the group "model", laid out as those of ``program`` are.

    Parameters that were saved in another dtype are converted to ``DecoderConfig.param_dtype``.

    Raises:
      ValueError: there is nothing, or it does not fit the model.
      CheckpointError: it is damaged.
    """
    abstract = abstract_state(program).groups[MODEL].parameters
    wanted = nest(leaves(abstract))
    loaded = _loaded(url, wanted, program=program, coordination=coordination)
    return on_devices(loaded, program)


def _loaded(url: str, wanted: Any, *, program: Program, coordination: Coordination) -> Any:
    if is_huggingface(url):
        return _streamed(pathlib.Path(url), wanted, program=program)
    root, found = finding.find(url)
    inside = f"groups/{ADAPTERS}/parameters/"
    matrices = {p.removeprefix(inside): x for p, x in found.tree.items() if p.startswith(inside)}
    if not matrices:
        return load_params(url, wanted, allow_dtype_change=True, coordination=coordination)
    record = finding.document(root, found, layout.DATA)["adapters"]
    recorded = Base(**record["base"])
    base = recorded_base(recorded, adapters=url)
    logging.info("%s: adapters of %s, merged into it", url, base.url)
    kernels = _loaded(base.url, wanted, program=program, coordination=coordination)
    # They are small: whole on every device until they are merged.
    mesh = jax.tree.leaves(wanted)[0].sharding.mesh
    everywhere = NamedSharding(mesh, PartitionSpec())
    abstract = {
        path: jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(leaf.dtype), sharding=everywhere)
        for path, leaf in matrices.items()
    }
    adapters = load_params(url, nest(abstract), coordination=coordination, group=ADAPTERS)

    @functools.partial(
        jax.jit, donate_argnums=0, out_shardings=jax.tree.map(lambda leaf: leaf.sharding, wanted)
    )
    def merge(kernels: Any, adapters: Any) -> Any:
        return nest(merged(leaves(kernels) | leaves(adapters), scale=record["scale"]))

    return merge(kernels, adapters)


def _streamed(folder: pathlib.Path, wanted: Any, *, program: Program) -> Any:
    """Returns the parameters of a Hugging Face folder, each process reading its devices' own."""
    if not isinstance(program.task, LanguageModelTask):
        raise ValueError(f"{folder} holds a decoder, but RunConfig.task is no LanguageModel.")
    source = open_source(folder)
    decoder = dataclasses.replace(program.task.config.model, lora=None)
    progress = Progress(f"Reading {folder}")
    return nest(
        loading.load(source.stored, source.tensors(decoder), leaves(wanted), progress=progress)
    )
