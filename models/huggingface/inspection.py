"""What ``python -m models.huggingface inspect`` says of a folder. Imports no jax.

Read from config.json and the files' headers alone: a model of any size takes a second.
"""

import math
from collections.abc import Sequence
from typing import Any

from models.huggingface import config_file
from models.huggingface.source import Source
from models.huggingface.tensors import Tensor, by_path, whole_shape


def describe(source: Source) -> dict[str, Any]:
    """Returns what the model is, as text and as numbers: bindings, and where parameters are."""
    wanted = source.tensors(source.config)
    stored = [source.stored.tensors[tensor.name] for tensor in wanted]
    numbers = sum(math.prod(each.shape) for each in stored)
    types = sorted({each.dtype for each in stored})
    size, largest = sum(each.bytes for each in stored), max(each.bytes for each in stored)
    bindings = config_file.bindings(source.config)
    text = [
        f"{source.folder}: {source.architecture.name}",
        f"{numbers:,} parameters, {'/'.join(types)}, {size / 1e9:.2f} GB in "
        f"{len(source.stored.files)} file(s); the largest tensor has {largest / 1e9:.3f} GB",
        "",
        bindings,
        *_table(wanted),
    ]
    return {
        "text": "\n".join(text),
        "architecture": source.architecture.name,
        "parameters": numbers,
        "dtypes": types,
        "bytes": size,
        "largest_tensor_bytes": largest,
        "bindings": bindings.splitlines(),
    }


def _table(wanted: Sequence[Tensor]) -> list[str]:
    """One line per parameter of ours: path, shape, and the tensors that it is made of."""
    lines = []
    for path, parts in by_path(wanted).items():
        names = [parts[0].name, parts[-1].name][: len(parts)]
        count = f" ({len(parts)} tensors)" if len(parts) > 1 else ""
        shape = list(whole_shape(parts))
        lines.append(f"{path} {shape}: {' ... '.join(names)}{count}, {parts[0].layout.text}")
    return lines
