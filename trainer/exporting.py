"""Models out: a saved step becomes a Hugging Face folder, which appears whole or not at all."""

import contextlib
import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from input_pipeline.cache import check_new, make_new
from input_pipeline.dataset import dataset_tokenizer
from input_pipeline.tokenizer_files import save_tokenizer
from models.huggingface import config_file, safetensors_files
from models.huggingface.architectures import ARCHITECTURES, Architecture, fitting
from models.huggingface.config_keys import short
from models.huggingface.loading import OnProgress
from models.huggingface.safetensors_files import FolderWriter, Planned
from models.huggingface.source import CONFIG, is_huggingface, read_config
from models.huggingface.tensors import Tensor, by_path
from trainer import importing
from trainer.plain_parameters import Parameters, open_parameters
from trainer.prompts import stop_tokens
from trainer.run_config import RunConfig
from trainer.stored_config import run_of, stored_config


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written.

    Attributes:
      architecture: whose table was used.
      step: step and attempt of the run.
      averaged: whether it is the average of the parameters that the run kept.
      files: names of the safetensors files.
      dtype: their type.
      no_tokenizer: why no tokenizer was written beside them; empty where it was.
    """

    architecture: str
    step: str
    averaged: bool
    files: Sequence[str]
    dtype: str
    no_tokenizer: str


@dataclasses.dataclass(frozen=True)
class _Ids:
    """What config.json says of tokens, and why there are no files of a tokenizer, if so."""

    bos: int | None = None
    eos: int | Sequence[int] | None = None
    missing: str = ""


def export_step(
    url: str,
    out: pathlib.Path,
    *,
    dtype: str | None = None,
    architecture: str | None = None,
    shard_bytes: int = safetensors_files.SHARD_BYTES,
    cache_dir: pathlib.Path,
    progress: OnProgress = lambda done, of: None,
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
      cache_dir: where runs keep what they prepare, a trained tokenizer for example.
      progress: is told numbers written and numbers in all.

    Raises:
      ValueError: ``out`` exists; no table expresses the model; there is no checkpoint.
      CheckpointError: no step is whole.
    """
    check_new(out)
    if is_huggingface(url):
        raise ValueError(f"{url} is a Hugging Face folder already; there is nothing to export.")
    decoder, run = stored_config(url)
    decoder = dataclasses.replace(decoder, lora=None)
    table = _named(architecture) if architecture else fitting(decoder)
    tensors = table.tensors(decoder)

    def make(folder: pathlib.Path) -> Exported:
        ids = _add_tokenizer(folder, url, run, cache_dir=cache_dir)
        with contextlib.ExitStack() as stack:
            opened = open_parameters(url, decoder, stack=stack)
            kept = dtype or opened.parameters.dtype
            planned = [Planned(tensor.name, tensor.their_shape) for tensor in tensors]
            writer = FolderWriter(folder, planned, dtype=kept, shard_bytes=shard_bytes)
            _write(opened.parameters, writer, tensors, progress=progress)
        content = config_file.write(
            decoder,
            architecture=table,
            dtype=kept,
            max_length=_longest(url, run),
            bos=ids.bos,
            eos=ids.eos,
        )
        text = json.dumps(content, indent=2, sort_keys=True) + "\n"
        (folder / CONFIG).write_text(text, encoding="utf-8")
        return Exported(
            architecture=table.name,
            step=opened.step,
            averaged=opened.averaged,
            files=writer.files,
            dtype=kept,
            no_tokenizer=ids.missing,
        )

    return make_new(out, make=make)


def _write(
    parameters: Parameters, writer: FolderWriter, tensors: Sequence[Tensor], *, progress: OnProgress
) -> None:
    total, written = sum(math.prod(tensor.shape) for tensor in tensors), 0
    for path, parts in by_path(tensors).items():
        values = parameters.read(path)
        for part in parts:
            writer.write(part.name, part.layout.to_theirs(values[part.at]))
            written += math.prod(part.shape)
            progress(written, total)
    writer.close()


def _add_tokenizer(
    folder: pathlib.Path, url: str, run: RunConfig | None, *, cache_dir: pathlib.Path
) -> _Ids:
    """Writes the tokenizer that goes with the parameters, and returns its ids for config.json."""
    if run is None:
        # As it came, byte for byte.
        source = pathlib.Path(run_of(url))
        importing.copy_files(source, folder)
        content = read_config(source)
        return _Ids(*(_token_ids(content, key) for key in ("bos_token_id", "eos_token_id")))
    try:
        tokenizer = dataset_tokenizer(run.data, cache_dir=cache_dir)
        # Named, though documents may begin without it.
        bos = tokenizer.special.get(tokenizer.conventions.names.get("bos_token", ""))
        ids = _Ids(bos, stop_tokens(run.data.source, tokenizer=tokenizer))
    except ValueError as error:
        return _Ids(missing=str(error))
    save_tokenizer(folder, tokenizer)
    return ids


def _token_ids(content: Mapping[str, Any], key: str) -> Any:
    """Returns what a config.json says of a token: None, an id, or ids."""
    ids = content.get(key)
    listed = ids if isinstance(ids, list) else [ids]
    if ids is not None and not all(type(each) is int for each in listed):
        raise ValueError(f"{CONFIG}: {key}={short(ids)} must be a number or a list of numbers.")
    return ids


def _longest(url: str, run: RunConfig | None) -> int | None:
    """Returns the longest context, in tokens: that of training, or of what it started from."""
    known = [] if run is None else [run.data.sequence_length]
    start = url if run is None else run.train.init_from
    path = pathlib.Path(run_of(start or "")) / CONFIG
    if start and "://" not in start and path.is_file():
        length = read_config(path.parent).get("max_position_embeddings")
        known += [length] if type(length) is int else []
    return max(known, default=0) or None


def _named(architecture: str) -> Architecture:
    for known in ARCHITECTURES:
        if architecture in (known.name, known.model_type):
            return known
    names = ", ".join(known.model_type for known in ARCHITECTURES)
    raise ValueError(f"No architecture {architecture!r}; there are {names}.")
