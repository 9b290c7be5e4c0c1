"""The one place that calls Orbax: writing and reading trees of jax arrays in directories.

Imports Orbax inside its functions: the first training step needs none of it, and it takes seconds
to load. Orbax decides nothing here: no retention, no discovery, no deletion.
"""

import logging
import pathlib
from typing import Any, Protocol

OBJECT_BYTES = 256 * 2**20
"""Largest array file of the portable form, so that one object is uploaded and read at once."""


_UNTRUE = ("Skipping merge of OCDBT", "TensorStore data files not found")
"""Warnings with which Orbax doubts the portable form; they would be in every save and restore."""


class Writing(Protocol):
    """A save that goes on in the background."""

    def result(self, timeout: float | None = None) -> None:
        """Waits for the end; raises what went wrong, or TimeoutError."""


def save_async(
    path: pathlib.Path,
    state: Any,
    *,
    compress: bool,
    timeout_s: float,
    primary: int = 0,
    portable: bool = False,
) -> Writing:
    """Starts to write a state; returns when the arrays may be changed again.

    Args:
      path: a directory that does not exist yet, the same on all processes.
      state: nested dict of jax arrays, which may span processes.
      compress: zstd.
      timeout_s: limit of the background part.
      primary: the process that writes what is not sharded; the lowest of those that share the
        directory.
      portable: one file per array piece instead of a database per process. Then directories that
        several hosts have filled apart are put together by copying their files into one.
    """
    from orbax.checkpoint import v1 as ocp

    context = ocp.Context()
    context.array.saving.use_compression = compress
    context.array.saving.use_ocdbt = not portable
    context.array.saving.use_zarr3 = True
    logging.getLogger("absl").addFilter(_is_true)
    if portable:
        context.array.saving.storage_options.chunk_byte_size = OBJECT_BYTES
        # The signal that directories exist is global, but each host has its own to wait for.
        context.asynchronous.create_directories_asynchronously = False
        # Wants to see every process's metadata in one directory; the manifest has shape and dtype.
        context.array.saving.array_metadata_store = None
    context.asynchronous.timeout_secs = max(1, int(timeout_s))
    context.multiprocessing.primary_host = primary
    with context:
        writing: Writing = ocp.save_async(path, state)
    return writing


def load(path: pathlib.Path, abstract: Any, *, partial: bool = False) -> Any:
    """Reads arrays onto the shardings of the abstract tree.

    Args:
      path: the directory that ``save_async`` was given.
      abstract: nested dict of ``jax.ShapeDtypeStruct`` with shardings.
      partial: the abstract tree is a part of the stored one.
    """
    from orbax.checkpoint import v1 as ocp

    logging.getLogger("absl").addFilter(_is_true)
    context = ocp.Context()
    context.pytree.loading.partial_load = partial
    with context:
        return ocp.load(path, abstract)


def _is_true(record: logging.LogRecord) -> bool:
    return not any(phrase in str(record.msg) for phrase in _UNTRUE)
