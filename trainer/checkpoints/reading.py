"""The arrays of one saved step, read one at a time without devices: what exporting needs.

Promises: every file was compared with the manifest before anything is read; nothing is written
beside the step. Imports tensorstore inside its functions.
"""

import contextlib
import dataclasses
import pathlib
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from trainer.checkpoints import finding, layout
from trainer.checkpoints.layout import StepName
from trainer.checkpoints.manifest import Leaf
from trainer.checkpoints.session import CheckpointError, Deadline, Session, join_hosts
from trainer.coordination import Alone
from trainer.run_config import CheckpointConfig

_ARRAYS = "state"
"""Folder of the arrays inside of what Orbax writes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredStep:
    """A verified step.

    Attributes:
      name: step and attempt.
      tree: path of each array, such as "groups/model/parameters/embedding", to shape and dtype.
      data: what was saved as ``data``.
      folder: where its arrays are on this machine.
    """

    name: StepName
    tree: Mapping[str, Leaf]
    data: Mapping[str, Any]
    folder: pathlib.Path

    def read(self, path: str) -> np.ndarray:
        """Returns one whole array.

        Raises:
          CheckpointError: it cannot be read.
        """
        import tensorstore

        key = path.replace("/", ".") + "/"
        base = f"file://{self.folder}/"
        is_database = (self.folder / "manifest.ocdbt").exists()
        store = {"driver": "ocdbt", "base": base, "path": key} if is_database else f"{base}{key}"
        spec: Any = {"driver": "zarr3", "kvstore": store}
        try:
            return np.asarray(tensorstore.open(spec, open=True, read=True).result().read().result())
        except ValueError as error:
            raise CheckpointError(f"{self.folder}: {path} cannot be read: {error}") from error


@contextlib.contextmanager
def open_step(url: str) -> Iterator[StoredStep]:
    """Opens the step that a URL names, or the newest whole one of a run.

    Args:
      url: a run directory, its ``checkpoints`` directory, or one step (``.../100.a1``).

    Raises:
      ValueError: there is no checkpoint.
      CheckpointError: no step there is whole.
    """
    root, found = finding.find(url)
    session = Session(root=root, attempt=None, config=CheckpointConfig(), peers=Alone())
    with tempfile.TemporaryDirectory(prefix="lockstep-") as base:
        if root.local_path(layout.STATE) is None:
            session = join_hosts(session, base=pathlib.Path(base))
        deadline = Deadline(session.config.save_timeout_s)
        if wrong := session.fetch(found, tag=f"open_step/{url}", deadline=deadline):
            raise CheckpointError(f"{root.url}/{found.name} cannot be read: {'; '.join(wrong)}")
        folder = session.directory(found.name) / layout.STATE / _ARRAYS
        yield StoredStep(
            name=found.name,
            tree=found.tree,
            data=finding.document(root, found, layout.DATA),
            folder=folder.absolute(),
        )
