"""Roots in object stores (``gs://``, ``s3://``) through tensorstore's key-value client.

May import tensorstore and ``root``. Promises what ``Root`` promises, by the stores' own strong
consistency and conditional writes. Endpoints and credentials come from the environment:
``AWS_ENDPOINT_URL[_S3]``, ``AWS_REGION``, ``AWS_ACCESS_KEY_ID`` and the rest of the AWS chain;
``TENSORSTORE_GCS_HTTP_URL`` and Google's application default credentials.
"""

import os
import pathlib
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorstore as ts
from absl import logging

from trainer.checkpoints.root import Root, check_key

MAX_OBJECT_BYTES = 4 * 2**30
_TRANSIENT = ("UNAVAILABLE", "ABORTED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "INTERNAL")
_TRIES = 5
_FIRST_WAIT_S = 0.2
_CALL_TIMEOUT_S = 600.0


def open_bucket(url: str) -> "ObjectRoot":
    """Opens ``gs://bucket/path`` or ``s3://bucket/path``.

    Raises:
      ValueError: no bucket in the URL.
    """
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    if not bucket:
        raise ValueError(f"{url!r} has no bucket; write {scheme}://bucket/path.")
    driver = "gcs" if scheme == "gs" else "s3"
    spec: dict[str, Any] = {"driver": driver, "bucket": bucket}
    if driver == "s3":
        spec |= _s3_settings(os.environ)
    return ObjectRoot(f"{scheme}://{bucket}", spec=spec, path=path)


def _s3_settings(environ: Mapping[str, str]) -> dict[str, str]:
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    settings = {"endpoint": endpoint} if endpoint else {}
    if region or endpoint:  # an endpoint that is not Amazon's cannot be asked for its region
        settings["aws_region"] = region or "us-east-1"
    return settings


class ObjectRoot(Root):
    """A prefix of a tensorstore key-value store."""

    def __init__(
        self,
        base: str,
        *,
        spec: dict[str, Any],
        path: str = "",
        tries: int = _TRIES,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """Opens a store.

        Args:
          base: what stands before the path in the URL, for messages.
          spec: tensorstore's key-value store spec without ``path``.
          path: prefix of all keys, without slashes at its ends.
          tries: how often a request that failed for a passing reason is made.
          wait: called with the seconds between two tries.
        """
        path = path.strip("/")
        self.url = f"{base}/{path}" if path else base
        self._base, self._spec, self._path = base, spec, path
        self._tries, self._wait = tries, wait
        self._store = self._patiently(
            "open", lambda: ts.KvStore.open(dict(spec, path=f"{path}/" if path else ""))
        )

    def child(self, name: str) -> "ObjectRoot":
        path = "/".join(part for part in (self._path, check_key(name)) if part)
        return ObjectRoot(
            self._base, spec=self._spec, path=path, tries=self._tries, wait=self._wait
        )

    def create(self, key: str, data: bytes) -> bool:
        check_key(key)
        present = self._patiently(f"read {key}", lambda: self._store.read(key))
        if present.state == "missing":
            absent = present.stamp.generation
            written = self._patiently(
                f"create {key}", lambda: self._store.write(key, data, if_equal=absent)
            )
            if written.generation:
                return True
            present = self._patiently(f"read {key}", lambda: self._store.read(key))
        # Not ours, or ours with the answer lost on the way and the request made again.
        return bool(present.value == data)

    def write(self, key: str, data: bytes) -> None:
        check_key(key)
        self._patiently(f"write {key}", lambda: self._store.write(key, data))

    def read(self, key: str) -> bytes | None:
        check_key(key)
        found = self._patiently(f"read {key}", lambda: self._store.read(key))
        return None if found.state == "missing" else bytes(found.value)

    def chunks(self, key: str, *, cold: bool = False) -> Iterator[bytes]:
        del cold  # nothing is cached on this side
        data = self.read(key)  # objects are kept small enough to be read at once
        if data is None:
            raise FileNotFoundError(f"{self.url}/{key} does not exist.")
        yield data

    def list(self, prefix: str = "") -> tuple[str, ...]:
        if prefix:
            check_key(prefix, directory=True)
        keys = self._patiently(f"list {prefix}", lambda: self._store.list(_below(prefix)))
        return tuple(sorted(key.decode() for key in keys))

    def children(self, prefix: str = "") -> tuple[str, ...]:
        names = {key.removeprefix(prefix).split("/", 1)[0] for key in self.list(prefix)}
        return tuple(sorted(names))

    def remove(self, key: str) -> None:
        check_key(key)
        self._patiently(f"remove {key}", lambda: self._store.write(key, None))

    def delete(self, prefix: str, *, first: str) -> None:
        check_key(prefix, directory=True)
        self.remove(prefix + first)
        self._patiently(f"delete {prefix}", lambda: self._store.delete_range(_below(prefix)))

    def put_file(self, key: str, source: pathlib.Path) -> None:
        size = source.stat().st_size
        if size > MAX_OBJECT_BYTES:
            raise ValueError(
                f"{source} has {size:,} bytes; one object of {self.url} may have"
                f" {MAX_OBJECT_BYTES:,}. Write it in smaller files."
            )
        self.write(key, source.read_bytes())

    def _patiently(self, what: str, request: Callable[[], Any]) -> Any:
        """Makes a request, again after a growing wait where the reason may pass by itself."""
        for attempt in range(1, self._tries + 1):
            try:
                return request().result(timeout=_CALL_TIMEOUT_S)
            except (ValueError, OSError) as error:  # tensorstore's errors; TimeoutError too
                text = str(error)
                passing = isinstance(error, TimeoutError) or text.startswith(_TRANSIENT)
                if attempt == self._tries or not passing:
                    message = f"{self.url}: could not {what} (try {attempt}): {text}"
                    raise OSError(message) from error
                pause = _FIRST_WAIT_S * 2 ** (attempt - 1) * (1 + random.random())
                logging.warning("%s: %s failed, again in %.1f s: %s", self.url, what, pause, text)
                self._wait(pause)
        raise AssertionError("the last try returns or raises")


def _below(prefix: str) -> ts.KvStore.KeyRange:
    if not prefix:
        return ts.KvStore.KeyRange()
    return ts.KvStore.KeyRange(prefix, prefix[:-1] + chr(ord("/") + 1))
