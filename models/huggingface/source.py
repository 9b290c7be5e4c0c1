"""A Hugging Face folder, opened and checked before anything is loaded. Imports no jax."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from models.decoder_config import DecoderConfig
from models.huggingface import config_file, safetensors_files
from models.huggingface.architectures import Architecture
from models.huggingface.safetensors_files import TensorFolder
from models.huggingface.tensors import Tensor

CONFIG = "config.json"

TRAINING_ONLY = frozenset(
    "dtype param_dtype init_scale remat scan_layers matmul attention context_attention loss_chunks "
    "dropout lora balance_weight z_weight capacity buffer exchange".split()
)
"""Fields of DecoderConfig and ExpertsConfig that do not change what trained parameters mean."""

_END = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A folder whose tensors are those that its config.json describes.

    Attributes:
      folder: where.
      architecture: its table.
      config: the decoder.
      stored: its files' tensors.
    """

    folder: pathlib.Path
    architecture: Architecture
    config: DecoderConfig
    stored: TensorFolder

    @property
    def tensors(self) -> list[Tensor]:
        """Where each parameter's values are, in the order of the files."""
        return self.architecture.tensors(self.config)

    def check_model(self, decoder: DecoderConfig) -> None:
        """Raises ValueError, naming every field, where a run's decoder is another model."""
        lines = [
            f"  {name} = {mine!r}, but {theirs!r} in {CONFIG}"
            for name, mine, theirs in _differences(decoder, self.config)
        ]
        if lines:
            text = "\n".join(lines)
            raise ValueError(
                f"{self.folder} holds another model than the run describes:\n{text}\n"
                "`python -m models.huggingface inspect` prints the bindings that fit."
            )

    def fingerprint(self) -> str:
        """Returns a digest of config.json and of the size and both ends of every file.

        Reading all of a large model would take minutes at each start of a run.
        """
        known = hashlib.sha256((self.folder / CONFIG).read_bytes())
        for path in self.stored.files:
            size = path.stat().st_size
            known.update(f"{path.name} {size} ".encode())
            with path.open("rb") as file:
                known.update(file.read(_END))
                file.seek(max(0, size - _END))
                known.update(file.read(_END))
        return known.hexdigest()


def open_source(folder: pathlib.Path, *, ignore: Sequence[str] = ()) -> Source:
    """Opens a folder and compares its tensors with its config.json.

    Args:
      folder: where config.json and the safetensors are.
      ignore: keys of config.json that are passed over although they may matter.

    Raises:
      ValueError: something that our decoder cannot express, or a damaged or incomplete folder.
    """
    path = folder / CONFIG
    architecture, decoder = config_file.read(_json(path), where=str(path), ignore=ignore)
    stored = TensorFolder(folder)
    safetensors_files.check(
        stored.tensors,
        {tensor.name: tensor.their_shape for tensor in architecture.tensors(decoder)},
        redundant=lambda name: architecture.is_redundant(name, decoder),
        where=str(folder),
    )
    return Source(folder=folder, architecture=architecture, config=decoder, stored=stored)


def _json(path: pathlib.Path) -> Mapping[str, Any]:
    if not path.is_file():
        folder = path.parent
        there = sorted(each.name for each in folder.iterdir())[:8] if folder.is_dir() else None
        found = "there is no such folder" if there is None else f"it holds {there}"
        raise ValueError(f"{folder} has no {path.name}, which describes the model; {found}.")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}). Fetch it again.") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds {type(value).__name__} instead of an object.")
    return value


def _differences(ours: Any, theirs: Any) -> Iterator[tuple[str, Any, Any]]:
    for field in dataclasses.fields(ours):
        mine, other = getattr(ours, field.name), getattr(theirs, field.name)
        if field.name == "experts" and mine is not None and other is not None:
            yield from _differences(mine, other)
        elif field.name not in TRAINING_ONLY and mine != other:
            yield f"{type(ours).__name__}.{field.name}", mine, other
