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
from trainer.checkpoints import finding, layout
from trainer.checkpoints.parameters import load_params
from trainer.checkpoints.root import open_root
from trainer.coordination import Coordination, agree
from trainer.language_model import LanguageModelTask
from trainer.paths import leaves, nest
from trainer.program import ADAPTERS, MODEL, Program
from trainer.state import abstract_state, on_devices

_AGREE_S = 300.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Base:
    """What parameters were loaded from.

    Attributes:
      url: one step, so that a run that goes on changes nothing.
      fingerprint: of its arrays, wherever they lie.
    """

    url: str
    fingerprint: str

    def to_json(self) -> dict[str, str]:
        """Returns what a checkpoint of adapters keeps of it."""
        return dataclasses.asdict(self)


def base_of(url: str, *, coordination: Coordination | None = None) -> Base:
    """Returns what ``url`` names now, alike on all processes.

    Raises:
      ValueError: there is nothing.
      CheckpointError: no step there is whole.
    """
    if is_huggingface(url):
        folder = pathlib.Path(url).absolute()
        base = Base(url=str(folder), fingerprint=open_source(folder).fingerprint())
    else:
        root, found = finding.find(url)
        base = Base(url=f"{root.url}/{found.name}", fingerprint=finding.fingerprint(found))
    if coordination is None:
        return base
    return Base(**agree(coordination, f"base/{url}", base.to_json(), timeout_s=_AGREE_S))


def same_base(recorded: Base, init_from: str) -> Base:
    """Returns where the base that adapters belong to is now.

    Args:
      recorded: what the adapters' checkpoint says.
      init_from: what the configuration says: the same run, which may have gone on since, or a copy.

    Raises:
      ValueError: what is there is another base.
      CheckpointError: it is not whole.
    """
    place = open_root(init_from.rstrip("/")).url
    here = recorded.url == place or recorded.url.startswith(f"{place}/")
    found = base_of(recorded.url if here else init_from)
    if found.fingerprint != recorded.fingerprint:
        raise ValueError(
            f"TrainConfig.init_from={init_from!r} is {found.url} ({found.fingerprint[:12]}), "
            f"another base than {recorded.url} ({recorded.fingerprint[:12]}), beside which these "
            "adapters were trained. Name that one or a copy of it, or start another run directory."
        )
    return found


def recorded_base(recorded: Base, *, adapters: str) -> Base:
    """Returns the base of adapters where it was when they were trained.

    Args:
      recorded: what the adapters' checkpoint says.
      adapters: where they are, for messages.

    Raises:
      ValueError: it is no longer there, or has changed.
      CheckpointError: it is not whole.
    """
    what = f"{adapters} holds adapters of {recorded.url}"
    remedy = "Put what was there back, or a link to a copy."
    try:
        found = base_of(recorded.url)
    except ValueError as error:
        raise ValueError(f"{what}, which cannot be read any more: {error}\n{remedy}") from error
    if found.fingerprint != recorded.fingerprint:
        raise ValueError(
            f"{what} as it was ({recorded.fingerprint[:12]}), but it has changed since "
            f"({found.fingerprint[:12]}). {remedy}"
        )
    return found


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
