"""A model's parameters on the host, one at a time and without adapters, wherever they are.

What exporting writes. Where a run keeps an average of what it trains, the average is read, as
evaluation uses it. Adapters are merged into the kernels that they were trained beside.
"""

import contextlib
import dataclasses
import pathlib
from typing import Protocol

import numpy as np

from models.decoder_config import DecoderConfig
from models.huggingface.loading import read_part
from models.huggingface.safetensors_files import check_range, dtype_of
from models.huggingface.source import Source, is_huggingface, open_source
from models.huggingface.tensors import by_path, whole_shape
from models.lora import merged_kernel
from trainer.bases import Base, recorded_base
from trainer.checkpoints.reading import StoredStep, open_step
from trainer.program import ADAPTERS, MODEL


class Parameters(Protocol):
    """Arrays by path, such as "embedding"."""

    @property
    def dtype(self) -> str:
        """The type of most of them."""

    def read(self, path: str) -> np.ndarray:
        """Returns one whole parameter."""


class _OfStep:
    """A trained group of a step."""

    def __init__(self, step: StoredStep, group: str) -> None:
        self._step = step
        self.averaged = any(path.startswith(f"groups/{group}/average/") for path in step.tree)
        self._inside = f"groups/{group}/{'average' if self.averaged else 'parameters'}"
        self.paths = {
            path.removeprefix(f"{self._inside}/")
            for path in step.tree
            if path.startswith(f"{self._inside}/")
        }
        kernel = f"groups/{group}/parameters/{min(self.paths)}"
        self.dtype = step.tree[kernel].dtype

    def read(self, path: str) -> np.ndarray:
        return self._step.read(f"{self._inside}/{path}")


class _OfFolder:
    """A Hugging Face folder."""

    def __init__(self, source: Source, decoder: DecoderConfig) -> None:
        self._source = source
        self._tensors = by_path(source.tensors(decoder))
        self.dtype: str = decoder.param_dtype

    def read(self, path: str) -> np.ndarray:
        parts = self._tensors[path]
        whole = np.empty(whole_shape(parts), dtype_of(self.dtype))
        for part in parts:
            everything = tuple(slice(0, size) for size in part.shape)
            values = read_part(self._source.stored, part, everything)
            check_range(values, whole.dtype, name=part.name)
            whole[part.at] = values
        return whole


@dataclasses.dataclass(frozen=True)
class _Merged:
    """Kernels with adapters merged into them, in the kernels' dtype."""

    base: Parameters
    adapters: _OfStep
    scale: float

    @property
    def dtype(self) -> str:
        return self.base.dtype

    def read(self, path: str) -> np.ndarray:
        values = self.base.read(path)
        layer, _, leaf = path.rpartition("/")
        if leaf != "kernel" or f"{layer}/adapter/a" not in self.adapters.paths:
            return values
        a, b = (self.adapters.read(f"{layer}/adapter/{matrix}") for matrix in "ab")
        return merged_kernel(values, a, b, scale=self.scale).astype(values.dtype)


@dataclasses.dataclass(frozen=True)
class Opened:
    """Parameters, and what they are of.

    Attributes:
      parameters: to be read.
      step: step and attempt; empty for a Hugging Face folder.
      averaged: whether they, or the adapters in them, are an average over steps.
    """

    parameters: Parameters
    step: str
    averaged: bool


def open_parameters(url: str, decoder: DecoderConfig, *, stack: contextlib.ExitStack) -> Opened:
    """Opens the parameters of a run, of one of its steps, or of a folder.

    Args:
      url: what ``TrainConfig.init_from`` takes.
      decoder: the model, without adapters.
      stack: keeps them open.

    Raises:
      ValueError: there is nothing, or the base of adapters has changed.
      CheckpointError: no step is whole.
    """
    if is_huggingface(url):
        source = open_source(pathlib.Path(url))
        return Opened(_OfFolder(source, decoder), step="", averaged=False)
    step = stack.enter_context(open_step(url))
    if "adapters" not in step.data:
        own = _OfStep(step, MODEL)
        return Opened(own, step=str(step.name), averaged=own.averaged)
    record = step.data["adapters"]
    recorded = Base(**record["base"])
    base = recorded_base(recorded, adapters=url)
    kernels = open_parameters(base.url, decoder, stack=stack).parameters
    adapters = _OfStep(step, ADAPTERS)
    merged = _Merged(kernels, adapters, scale=record["scale"])
    return Opened(merged, step=str(step.name), averaged=adapters.averaged)
