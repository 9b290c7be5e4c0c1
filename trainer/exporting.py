"""Models out: a saved step becomes a Hugging Face folder, which appears whole or not at all."""

import dataclasses
import json
import math
import pathlib
import tempfile
from collections.abc import Callable, Sequence

from input_pipeline.cache import make_once
from models.decoder_config import DecoderConfig
from models.huggingface import config_file, safetensors_files
from models.huggingface.architectures import ARCHITECTURES, Architecture, fitting
from models.huggingface.loading import Progress
from models.huggingface.safetensors_files import FolderWriter, Planned
from models.huggingface.tensors import Tensor
from trainer import config, importing, run_records
from trainer.checkpoints import layout
from trainer.checkpoints.reading import StoredStep, open_step
from trainer.checkpoints.root import open_root
from trainer.run_config import LanguageModel, RunConfig

_GROUP = "groups/model"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written.

    Attributes:
      architecture: whose table was used.
      step: step and attempt of the run.
      averaged: whether it is the average of the parameters that the run kept.
      files: names of the safetensors files.
      dtype: their type.
    """

    architecture: str
    step: str
    averaged: bool
    files: Sequence[str]
    dtype: str


def export_step(
    url: str,
    out: pathlib.Path,
    *,
    dtype: str | None = None,
    architecture: str | None = None,
    shard_bytes: int = safetensors_files.SHARD_BYTES,
    tokenizer: Callable[[pathlib.Path], None] = lambda folder: None,
    progress: Progress = lambda done, of: None,
) -> Exported:
    """Writes a saved step as a folder that ``transformers`` and other programs load.

    One parameter, all layers of it, is in memory at a time. Where the run keeps an average of its
    parameters, that is what is written, as evaluation uses it.

    Args:
      url: a run, one of its steps, or an imported folder.
      out: folder to make.
      dtype: type of the files; None keeps that of the parameters.
      architecture: name of a table, such as "llama"; None takes the first that fits.
      shard_bytes: a file is closed before the tensor that would make it larger.
      tokenizer: writes the tokenizer's files into the folder that it is given.
      progress: is told numbers written and numbers in all.

    Raises:
      ValueError: ``out`` exists; no table expresses the model; there is no checkpoint.
      CheckpointError: no step is whole.
    """
    importing.check_absent(out)
    decoder, _ = stored_config(url)
    table = _named(architecture) if architecture else fitting(decoder)
    done: list[Exported] = []

    def make(folder: pathlib.Path) -> None:
        with open_step(url) as step:
            averaged = any(path.startswith(f"{_GROUP}/average/") for path in step.tree)
            inside = f"{_GROUP}/{'average' if averaged else 'parameters'}"
            kept = dtype or step.tree[f"{inside}/embedding"].dtype
            tensors = table.tensors(decoder)
            planned = [Planned(tensor.name, tensor.their_shape) for tensor in tensors]
            writer = FolderWriter(folder, planned, dtype=kept, shard_bytes=shard_bytes)
            _write(step, writer, tensors, inside=inside, progress=progress)
        described = config_file.write(decoder, architecture=table, dtype=kept)
        text = json.dumps(described, indent=2, sort_keys=True) + "\n"
        (folder / importing.CONFIG).write_text(text, encoding="utf-8")
        tokenizer(folder)
        done.append(
            Exported(
                architecture=table.name,
                step=str(step.name),
                averaged=averaged,
                files=writer.files,
                dtype=kept,
            )
        )

    make_once(out, make=make)
    return done[0]


def _write(
    step: StoredStep,
    writer: FolderWriter,
    tensors: Sequence[Tensor],
    *,
    inside: str,
    progress: Progress,
) -> None:
    paths = list(dict.fromkeys(tensor.path for tensor in tensors))
    sizes = [math.prod(step.tree[f"{inside}/{path}"].shape) for path in paths]
    for number, path in enumerate(paths):
        values = step.read(f"{inside}/{path}")
        for tensor in tensors:
            if tensor.path == path:
                writer.write(tensor.name, tensor.layout.to_theirs(values[tensor.at]))
        progress(sum(sizes[: number + 1]), sum(sizes))
    writer.close()


def stored_config(url: str) -> tuple[DecoderConfig, RunConfig | None]:
    """Returns the decoder of a run, of one of its steps, or of an imported folder.

    Returns:
      The decoder, and the whole configuration where there was a run.

    Raises:
      ValueError: there is none, or the run's task has no decoder.
      ConfigError: it was recorded by another version whose settings are no longer known.
    """
    run_dir = _run_of(url)
    if importing.is_imported(run_dir):
        return importing.imported_config(pathlib.Path(run_dir)), None
    text = run_records.last_operative(open_root(run_dir))
    if text is None:
        raise ValueError(f"{url}: no run there has recorded its configuration.")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "operative.gin"
        path.write_text(text, encoding="utf-8")
        run = config.load([str(path)]).run
    if not isinstance(run.task, LanguageModel):
        raise ValueError(
            f"{url}: its task is {type(run.task).__name__}; only decoders of LanguageModel are "
            "exported."
        )
    return run.task.model, run


def _run_of(url: str) -> str:
    """Returns the run directory of a run, of its checkpoints, or of one of its steps."""
    url = url.rstrip("/")
    above, _, last = url.rpartition("/")
    if layout.parse(last):
        url, (above, _, last) = above, above.rpartition("/")
    return above if last == layout.CHECKPOINTS else url


def _named(architecture: str) -> Architecture:
    for known in ARCHITECTURES:
        if architecture in (known.name, known.model_type):
            return known
    names = ", ".join(known.model_type for known in ARCHITECTURES)
    raise ValueError(f"No architecture {architecture!r}; there are {names}.")
