"""A Hugging Face folder, opened and checked before anything is loaded. Imports no jax."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from models.decoder_config import DecoderConfig
from models.huggingface import config_file, safetensors_files
from models.huggingface.architecture import Architecture, differing
from models.huggingface.safetensors_files import TensorFolder
from models.huggingface.tensors import Tensor

CONFIG = "config.json"
MODEL = "model.gin"
"""What an imported folder has besides."""

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

    def tensors(self, decoder: DecoderConfig) -> list[Tensor]:
        """Returns where each parameter's values are, in the order of the files.

        Args:
          decoder: the same model, perhaps divided otherwise into prefix, pattern and suffix.

        Raises:
          ValueError: it is another model; names the fields.
        """
        lines = [
            f"  {name} = {mine!r}, but {theirs!r} in {CONFIG}"
            for name, (mine, theirs) in differing(decoder, self.config).items()
        ]
        if lines:
            text = "\n".join(lines)
            raise ValueError(
                f"{self.folder} holds another model than the run describes:\n{text}\n"
                "`python -m models.huggingface inspect` prints the bindings that fit."
            )
        return self.architecture.tensors(decoder)

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


def is_huggingface(url: str) -> bool:
    """Whether a URL names a Hugging Face folder rather than a run, a step or an import of ours."""
    return "://" not in url and (pathlib.Path(url) / CONFIG).is_file() and not is_imported(url)


def is_imported(url: str) -> bool:
    """Whether a URL names a folder that was imported."""
    return "://" not in url and (pathlib.Path(url) / MODEL).is_file()


def open_source(folder: pathlib.Path, *, ignore: Sequence[str] = ()) -> Source:
    """Opens a folder and compares its tensors with its config.json.

    Args:
      folder: where config.json and the safetensors are.
      ignore: keys of config.json that are passed over although they may matter.

    Raises:
      ValueError: something that our decoder cannot express, or a damaged or incomplete folder.
    """
    if is_imported(str(folder)):
        raise ValueError(f"{folder} was imported already; name it as TrainConfig.init_from.")
    described = read_config(folder)
    where = str(folder / CONFIG)
    architecture, decoder = config_file.read(described, where=where, ignore=ignore)
    stored = TensorFolder(folder)
    safetensors_files.check(
        stored.tensors,
        {tensor.name: tensor.their_shape for tensor in architecture.tensors(decoder)},
        redundant=architecture.redundant(decoder),
        where=str(folder),
    )
    return Source(folder=folder, architecture=architecture, config=decoder, stored=stored)


def read_config(folder: pathlib.Path) -> Mapping[str, Any]:
    """Returns the content of a folder's config.json.

    Raises:
      ValueError: there is none, or it is no JSON object.
    """
    path = folder / CONFIG
    if not path.is_file():
        there = sorted(each.name for each in folder.iterdir())[:8] if folder.is_dir() else None
        found = f"it holds {there}"
        if there is None:
            found = "there is no such folder. `hf download NAME --local-dir FOLDER` makes one"
        if path.exists() or path.is_symlink():
            found = "what has this name is no file, or a link to none"
        raise ValueError(f"{folder} has no {path.name}, which describes the model; {found}.")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON ({error}). Fetch it again.") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds {type(value).__name__} instead of an object.")
    return value
