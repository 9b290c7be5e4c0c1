"""What ``python -m models.huggingface inspect`` says of a folder. Imports no jax.

Read from config.json and the files' headers alone: a model of any size takes a second.
"""

import dataclasses
import math
from collections.abc import Sequence

from models.huggingface import config_file
from models.huggingface.source import Source
from models.huggingface.tensors import Tensor, by_path, whole_shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
    """What a folder holds.

    Attributes:
      folder: where.
      architecture: its name in config.json.
      parameters: how many numbers.
      dtypes: types that they are stored in, as safetensors names them.
      files: how many safetensors files.
      bytes: size of all tensors in them.
      largest_tensor_bytes: size of the largest.
      bindings: gin lines of the model.
      table: a line per parameter of ours: path, shape, and the tensors that it is made of.
    """

    folder: str
    architecture: str
    parameters: int
    dtypes: Sequence[str]
    files: int
    bytes: int
    largest_tensor_bytes: int
    bindings: Sequence[str]
    table: Sequence[str]

    def __str__(self) -> str:
        head = (
            f"{self.folder}: {self.architecture}",
            f"{self.parameters:,} parameters, {'/'.join(self.dtypes)}, {self.bytes / 1e9:.2f} GB "
            f"in {self.files} file(s); the largest tensor has "
            f"{self.largest_tensor_bytes / 1e9:.3f} GB",
        )
        return "\n".join((*head, "", *self.bindings, "", *self.table))


def describe(source: Source) -> Description:
    """Returns what the model is, and where its parameters are."""
    wanted = source.tensors(source.config)
    stored = [source.stored.tensors[tensor.name] for tensor in wanted]
    return Description(
        folder=str(source.folder),
        architecture=source.architecture.name,
        parameters=sum(math.prod(each.shape) for each in stored),
        dtypes=sorted({each.dtype for each in stored}),
        files=len(source.stored.files),
        bytes=sum(each.bytes for each in stored),
        largest_tensor_bytes=max(each.bytes for each in stored),
        bindings=config_file.bindings(source.config).splitlines(),
        table=[_line(path, parts) for path, parts in by_path(wanted).items()],
    )


def _line(path: str, parts: Sequence[Tensor]) -> str:
    names = " ... ".join([parts[0].name, parts[-1].name][: len(parts)])
    count = f" ({len(parts)} tensors)" if len(parts) > 1 else ""
    return f"{path} {list(whole_shape(parts))}: {names}{count}, {parts[0].layout.text}"
