"""Folders of safetensors files: checked when opened, read in parts, written as a stream.

Nothing is executed: pickled files (``*.bin``, ``*.pt``) are refused, and names in an index cannot
lead out of the folder. Imports NumPy, and safetensors for reading.

A file is: 8 bytes, the length of the header, little endian; the header, JSON from a tensor's name
to its dtype, shape and place; the tensors' bytes (https://huggingface.co/docs/safetensors).
"""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from models.huggingface.tensors import Slices

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".msgpack", ".h5")
SHARD_BYTES = 5 * 10**9
"""A file is closed before the tensor that would make it larger, as the ecosystem does."""

DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
"""Types that a parameter may be stored in; eight bits and less need scales that only some programs
know."""


def dtype_of(name: str) -> np.dtype:
    """Returns a type by its name, "bfloat16" included."""
    return np.dtype(getattr(ml_dtypes, name, name))


def check_range(values: np.ndarray, dtype: np.dtype, *, name: str) -> None:
    """Refuses a conversion that would make numbers infinite.

    Args:
      values: in their own type.
      dtype: what they are to become.
      name: of the tensor.

    Raises:
      ValueError: a finite number is beyond what ``dtype`` holds.
    """
    most = float(ml_dtypes.finfo(dtype).max)
    if float(ml_dtypes.finfo(values.dtype).max) <= most or not values.size:
        return
    highest = (np.fmax.reduce(values, axis=None), -np.fmin.reduce(values, axis=None))
    if not any(float(each) > most for each in highest):
        return
    finite = np.abs(values[np.isfinite(values)])
    with np.errstate(over="ignore"):
        lost = finite[np.isinf(finite.astype(dtype))]
    if lost.size:
        raise ValueError(
            f"{name} has {lost.size} number(s) up to {float(lost.max()):.4g}, which {dtype} cannot "
            f"hold: its largest is {most:.4g}. Choose a type with more range."
        )


@dataclasses.dataclass(frozen=True)
class Stored:
    """One tensor of a folder: its file, its type as safetensors names it, and its shape."""

    file: pathlib.Path
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Size in the file; 0 for types that are not read."""
        size = DTYPES[self.dtype].itemsize if self.dtype in DTYPES else 0
        return size * math.prod(self.shape)


class TensorFolder:
    """The tensors of one model, wherever in the folder's files they are.

    Attributes:
      folder: where.
      tensors: name -> what its file says of it.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        """Reads the index, where there is one, and the header of every file.

        Raises:
          ValueError: no safetensors there; a damaged file or index; says which and why.
        """
        self.folder = folder
        named = _indexed(folder)
        files = sorted(set(named.values())) if named is not None else [_single(folder)]
        self.tensors: dict[str, Stored] = {}
        for file in files:
            for name, stored in _header(folder / file).items():
                if name in self.tensors:
                    first = self.tensors[name].file.name
                    raise ValueError(
                        f"{folder}: {_printable(name)} is in {first} and again in {file}."
                    )
                self.tensors[name] = stored
        for name, file in (named or {}).items():
            found = self.tensors.get(name)
            if found is None or found.file.name != file:
                where = "nowhere" if found is None else f"in {found.file.name}"
                raise ValueError(
                    f"{folder / INDEX}: {_printable(name)} should be in {file} but is {where}. The "
                    "download is incomplete, or files of two versions are mixed; fetch it again."
                )

    @property
    def files(self) -> list[pathlib.Path]:
        """The safetensors files, by name."""
        return sorted({stored.file for stored in self.tensors.values()})

    def read(self, name: str, part: Slices) -> np.ndarray:
        """Returns a part of a tensor, in the type of its file.

        The file is opened for this one read: its pages do not stay in the process's memory.

        Raises:
          ValueError: the file has changed or cannot be read any more.
        """
        stored = self.tensors[name]
        with _opened(stored.file) as file:
            values = np.asarray(file.get_slice(name)[part])
        if values.dtype != DTYPES[stored.dtype]:
            raise ValueError(f"{stored.file}: {name} has changed since it was opened.")
        return values


def _indexed(folder: pathlib.Path) -> dict[str, str] | None:
    """Returns tensor -> file as the index says; None without an index."""
    path = folder / INDEX
    if not path.is_file():
        return None
    try:
        named = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        if not isinstance(named, dict) or not named:
            raise TypeError("weight_map is empty or no object")
        files = set(named.values())
        if not all(isinstance(file, str) for file in files):
            raise TypeError("a file's name is no text")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} is no index of tensors ({type(error).__name__}: {error}). Fetch it again."
        ) from error
    for file in sorted(files):
        if file != os.path.basename(file) or file in ("", ".", ".."):
            raise ValueError(f"{path} names {file!r}: only files of this folder are read.")
        if not file.endswith(".safetensors"):
            raise ValueError(f"{path} names {file!r}, which is no .safetensors file. {_NO_PICKLE}")
        if not (folder / file).is_file():
            raise ValueError(
                f"{path} names {file!r}, which is missing. The download is incomplete."
            )
    return named


def _single(folder: pathlib.Path) -> str:
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder. Name the folder that holds config.json.")
    if (folder / SINGLE).is_file():
        return SINGLE
    found = sorted(path.name for path in folder.iterdir())
    several = [name for name in found if name.endswith(".safetensors")]
    if len(several) == 1:
        return several[0]
    if several:
        raise ValueError(
            f"{folder} holds {', '.join(several)} but no {INDEX}, which says that they are whole."
        )
    pickled = [name for name in found if name.endswith(PICKLED)]
    if pickled:
        raise ValueError(f"{folder} holds {', '.join(pickled[:4])}. {_NO_PICKLE}")
    raise ValueError(f"{folder} holds no *.safetensors; it has {found[:10]}.")


_NO_PICKLE = (
    "Only safetensors are read: loading a pickled file runs the code in it. Most models are "
    "published in both forms; or convert it where you trust it, with save_pretrained of "
    "transformers."
)


def _header(path: pathlib.Path) -> dict[str, Stored]:
    with _opened(path) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no dict
        return {
            name: Stored(path, str(found.get_dtype()), tuple(found.get_shape()))
            for name, found in slices.items()
        }


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[Any]:
    import safetensors

    if not path.is_file():  # opening a pipe would wait for whoever writes into it
        raise ValueError(f"{path} is no file, or a link to none.")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            yield file
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(
            f"{path}: not a whole safetensors file ({error}). The download is incomplete or the "
            "file is damaged; fetch it again."
        ) from error


@dataclasses.dataclass(frozen=True)
class Planned:
    """A tensor that will be written: name and shape; all of a folder have one type."""

    name: str
    shape: tuple[int, ...]

    def bytes(self, dtype: np.dtype) -> int:
        """Size in a file."""
        return math.prod(self.shape) * dtype.itemsize


class FolderWriter:
    """Writes tensors in any order into files whose layout is fixed beforehand.

    Attributes:
      files: names of the files, in order.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        planned: Sequence[Planned],
        *,
        dtype: str,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        """Lays out the files and writes their headers.

        Args:
          folder: an empty folder.
          planned: every tensor, in the order of the files.
          dtype: their type, as NumPy and ml_dtypes name it.
          shard_bytes: a file is closed before the tensor that would make it larger.
        """
        self._folder = folder
        self._dtype = dtype_of(dtype)
        code = next(code for code, known in DTYPES.items() if known == self._dtype)
        shards = _shards(planned, dtype=self._dtype, most=shard_bytes)
        self.files = _file_names(len(shards))
        self._places: dict[str, tuple[str, int, Planned]] = {}
        self._open: dict[str, BinaryIO] = {}
        for file, shard in zip(self.files, shards, strict=True):
            self._lay_out(file, shard, code=code)
        self._left = set(self._places)

    def _lay_out(self, file: str, shard: Sequence[Planned], *, code: str) -> None:
        entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for each in shard:
            begin, end = end, end + each.bytes(self._dtype)
            entries[each.name] = {"dtype": code, "shape": each.shape, "data_offsets": [begin, end]}
        header = json.dumps(entries, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)  # tensors begin at a multiple of eight
        out = (self._folder / file).open("xb")
        self._open[file] = out
        out.write(len(header).to_bytes(8, "little") + header)
        for each in shard:
            begin = entries[each.name]["data_offsets"][0]
            self._places[each.name] = (file, 8 + len(header) + begin, each)
        out.truncate(8 + len(header) + end)

    def write(self, name: str, values: np.ndarray) -> None:
        """Writes one tensor, converted to the files' type; each is written once.

        Raises:
          ValueError: the type cannot hold one of the numbers.
        """
        file, place, planned = self._places[name]
        assert values.shape == planned.shape, (name, values.shape, planned.shape)
        check_range(values, self._dtype, name=name)
        self._left.remove(name)
        out = self._open[file]
        out.seek(place)
        out.write(np.ascontiguousarray(values, self._dtype).reshape(-1).view(np.uint8).data)

    def close(self) -> None:
        """Flushes everything to disk and, where there are several files, writes the index."""
        assert not self._left, sorted(self._left)[:3]
        for out in self._open.values():
            out.flush()
            os.fsync(out.fileno())
            out.close()
        if len(self.files) > 1:
            total = sum(planned.bytes(self._dtype) for _, _, planned in self._places.values())
            index = {
                "metadata": {"total_size": total},
                "weight_map": {name: file for name, (file, _, _) in self._places.items()},
            }
            text = json.dumps(index, indent=2, sort_keys=True)
            (self._folder / INDEX).write_text(text + "\n", encoding="utf-8")


def _shards(planned: Sequence[Planned], *, dtype: np.dtype, most: int) -> list[list[Planned]]:
    shards: list[list[Planned]] = [[]]
    size = 0
    for each in planned:
        if shards[-1] and size + each.bytes(dtype) > most:
            shards.append([])
            size = 0
        shards[-1].append(each)
        size += each.bytes(dtype)
    return shards


def _file_names(count: int) -> list[str]:
    if count == 1:
        return [SINGLE]
    return [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]


def check(
    found: Mapping[str, Stored],
    wanted: Mapping[str, tuple[int, ...]],
    *,
    redundant: Collection[str] = (),
    where: str,
) -> None:
    """Compares what a folder holds with what a model needs.

    Args:
      found: name -> tensor of the folder.
      wanted: name -> shape in their layout.
      redundant: names that may be there although they are not wanted.
      where: for messages.

    Raises:
      ValueError: names every kind of difference: missing, extra, another shape or type.
    """
    differences = {
        "missing": [f"{name} {shape}" for name, shape in wanted.items() if name not in found],
        "not part of this model": [
            f"{_printable(name)} {found[name].shape}"
            for name in found
            if name not in wanted and name not in redundant
        ],
        "of another shape": [
            f"{name} is {found[name].shape}, the configuration says {shape}"
            for name, shape in wanted.items()
            if name in found and found[name].shape != shape
        ],
        "of a type that is not read": [
            f"{name} is {found[name].dtype}"
            for name in wanted
            if name in found and found[name].dtype not in DTYPES
        ],
    }
    lines = [_listed(kind, names) for kind, names in differences.items() if names]
    if lines:
        raise ValueError(
            f"{where} does not hold the model that its config.json describes:\n" + "\n".join(lines)
        )


def _printable(name: str) -> str:
    """Returns a name out of a file as a terminal may show it."""
    plain = name.isprintable() and name.strip() == name != ""
    shown = name if plain else repr(name)
    return shown if len(shown) <= 200 else f"{shown[:200]}..."


def _listed(kind: str, names: Sequence[str], most: int = 8) -> str:
    more = f"\n    and {len(names) - most} more" if len(names) > most else ""
    return f"  {len(names)} {kind}:\n    " + "\n    ".join(names[:most]) + more
