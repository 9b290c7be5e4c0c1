"""A root in a dictionary, for tests that need many runs or a hook before each operation."""

import pathlib
from collections.abc import Callable, Iterator

from trainer.checkpoints.root import Root


class MemoryRoot(Root):
    """Calls ``before`` ahead of each operation, each of which is atomic."""

    def __init__(
        self,
        files: dict[str, bytes] | None = None,
        *,
        before: Callable[[], None] = lambda: None,
        prefix: str = "",
    ) -> None:
        self.files: dict[str, bytes] = {} if files is None else files
        self.url = f"memory:{prefix}"
        self._before, self._prefix = before, prefix

    def child(self, name: str) -> "MemoryRoot":
        return MemoryRoot(self.files, before=self._before, prefix=f"{self._prefix}{name}/")

    def create(self, key: str, data: bytes) -> bool:
        self._before()
        return self.files.setdefault(self._prefix + key, data) == data

    def write(self, key: str, data: bytes) -> None:
        self._before()
        self.files[self._prefix + key] = data

    def read(self, key: str) -> bytes | None:
        self._before()
        return self.files.get(self._prefix + key)

    def chunks(self, key: str, *, cold: bool = False) -> Iterator[bytes]:
        data = self.read(key)
        if data is None:
            raise FileNotFoundError(key)
        yield data

    def list(self, prefix: str = "") -> tuple[str, ...]:
        self._before()
        whole = self._prefix + prefix
        found = (k.removeprefix(self._prefix) for k in self.files if k.startswith(whole))
        return tuple(sorted(found))

    def children(self, prefix: str = "") -> tuple[str, ...]:
        names = {key.removeprefix(prefix).split("/")[0] for key in self.list(prefix)}
        return tuple(sorted(names))

    def remove(self, key: str) -> None:
        self._before()
        self.files.pop(self._prefix + key, None)

    def delete(self, prefix: str, *, first: str) -> None:
        self.remove(prefix + first)
        for key in self.list(prefix):
            self.remove(key)

    def put_file(self, key: str, source: pathlib.Path) -> None:
        self.write(key, source.read_bytes())
