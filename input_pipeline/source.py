"""Documents by number, read many at a time. Imports NumPy only.

A source returns *ragged* arrays: the values of all documents asked for, one after the other, and
``lengths``, one per document. Sources hold paths, not open files, so that worker processes get
cheap copies.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

_NEWLINE = 10
_SPACES = np.frombuffer(b" \t\r\v\f", dtype=np.uint8)
_SCAN_BYTES = 1 << 26


class Source(Protocol):
    """Random access to documents."""

    def __len__(self) -> int:
        """Number of documents."""

    def read(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Returns documents.

        Args:
          indices: int64 [n], each in ``[0, len(self))``.

        Returns:
          ``lengths`` int64 [n], and either ``text`` uint8 [sum(lengths)] (UTF-8) or ``tokens``
          [sum(lengths)].
        """

    def where(self, index: int) -> str:
        """Returns where a document stands, for errors."""


class FileDocuments:
    """Each file is one document of UTF-8 text."""

    def __init__(self, root: Path, *, paths: Sequence[str]) -> None:
        self._root = root
        self._paths = tuple(paths)

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """See `Source.read`.

        Raises:
          ValueError: a file is not UTF-8; it is named.
        """
        texts = [(self._root / self._paths[i]).read_bytes() for i in indices]
        for index, text in zip(indices, texts):
            _check_utf8(text, where=self.where(index))
        return ragged_text(texts)

    def where(self, index: int) -> str:
        """See `Source.where`."""
        return str(self._root / self._paths[index])


class JsonLineDocuments:
    """Each line of JSON Lines files is one document; blank lines are not."""

    def __init__(
        self, root: Path, *, paths: Sequence[str], text_of: Callable[[dict[str, Any]], str]
    ) -> None:
        """Finds the lines.

        Args:
          root: folder.
          paths: files, relative to it.
          text_of: returns a line's text, or raises ValueError with what is wrong with it.
        """
        self._root = root
        self._paths = tuple(paths)
        self._text_of = text_of
        spans = [line_spans(root / path) for path in self._paths]
        self._starts = np.concatenate([s[0] for s in spans])
        self._stops = np.concatenate([s[1] for s in spans])
        self._lines = np.concatenate([s[2] for s in spans])
        self._file = np.repeat(np.arange(len(spans)), [len(s[0]) for s in spans])

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def records(self) -> list[int]:
        """Documents per file."""
        return np.bincount(self._file, minlength=len(self._paths)).tolist()

    def read(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """See `Source.read`.

        Raises:
          ValueError: a line is not a JSON object, or not one with a text; file and line number
            are named.
        """
        texts: list[bytes] = [b""] * len(indices)
        for number in np.unique(self._file[indices]):
            with (self._root / self._paths[number]).open("rb") as file:
                for place in np.flatnonzero(self._file[indices] == number):
                    index = indices[place]
                    file.seek(self._starts[index])
                    line = file.read(self._stops[index] - self._starts[index])
                    texts[place] = self._text(line, index=index)
        return ragged_text(texts)

    def where(self, index: int) -> str:
        """See `Source.where`."""
        return f"{self._root / self._paths[self._file[index]]}:{self._lines[index]}"

    def _text(self, line: bytes, *, index: int) -> bytes:
        where = self.where(index)
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            message = f"{where}: not valid JSON ({error}). Each line must be one JSON object."
            raise ValueError(message) from error
        if not isinstance(record, dict):
            raise ValueError(f"{where}: a line must be a JSON object, not {type(record).__name__}.")
        try:
            return self._text_of(record).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{where}: {error}.") from error
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: {error}") from error


def text_in(record: Mapping[str, Any], *, field: str) -> str:
    """Returns the text under ``field``.

    Raises:
      ValueError: there is none.
    """
    if field not in record:
        raise ValueError(f"no field {field!r}; it has {sorted(record)}. Set JsonLines.field.")
    text = record[field]
    if not isinstance(text, str):
        raise ValueError(f"field {field!r} is {type(text).__name__}, not text.")
    return text


class Subset:
    """Some documents of a source, such as one split."""

    def __init__(self, source: Source, *, indices: np.ndarray) -> None:
        self._source = source
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def read(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """See `Source.read`."""
        return self._source.read(self._indices[indices])

    def where(self, index: int) -> str:
        """See `Source.where`."""
        return self._source.where(int(self._indices[index]))


def read_all(source: Source, *, at_once: int) -> Iterator[dict[str, np.ndarray]]:
    """Yields all documents in order, as `Source.read` gives them, ``at_once`` at a time."""
    for start in range(0, len(source), at_once):
        yield source.read(np.arange(start, min(start + at_once, len(source))))


def ragged_text(texts: Sequence[bytes]) -> dict[str, np.ndarray]:
    """Returns ``text`` uint8 [sum] and ``lengths`` int64 [n] of some texts."""
    return {
        "text": np.frombuffer(b"".join(texts), dtype=np.uint8),
        "lengths": np.array([len(text) for text in texts], dtype=np.int64),
    }


def split_ragged(values: np.ndarray, lengths: np.ndarray) -> list[bytes]:
    """Returns the texts that `ragged_text` joined."""
    whole = values.tobytes()
    stops = np.cumsum(lengths)
    return [whole[stop - length : stop] for stop, length in zip(stops.tolist(), lengths.tolist())]


def line_spans(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Finds the lines of a file that are not blank, in bounded memory.

    Returns:
      First byte, byte after the last (without the newline) and 1-based line number: int64 [n].
    """
    size = path.stat().st_size
    content = np.memmap(path, dtype=np.uint8, mode="r") if size else np.zeros(0, np.uint8)
    found = [
        start + np.flatnonzero(content[start : start + _SCAN_BYTES] == _NEWLINE)
        for start in range(0, size, _SCAN_BYTES)
    ]
    newlines = np.concatenate([np.zeros(0, np.int64), *found])
    starts = np.concatenate([np.zeros(1, np.int64), newlines + 1])
    stops = np.concatenate([newlines, np.full(1, size, np.int64)])
    numbers = np.arange(1, len(starts) + 1)
    wide = np.flatnonzero(stops > starts)
    spaced = wide[np.isin(content[starts[wide]], _SPACES)]
    blank = [i for i in spaced if not content[starts[i] : stops[i]].tobytes().strip()]
    keep = np.setdiff1d(wide, blank, assume_unique=True)
    return starts[keep], stops[keep], numbers[keep]


def _check_utf8(text: bytes, *, where: str) -> None:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where}: not UTF-8 text ({error}). Convert the file, or leave it out of the patterns."
        ) from error
