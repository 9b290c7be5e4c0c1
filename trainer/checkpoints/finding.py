"""Finds the step that a URL means: a run, its ``checkpoints`` directory, or one step.

Imports no jax.
"""

import hashlib
import json
from typing import Any

from trainer.checkpoints import fencing, history, layout, manifest
from trainer.checkpoints.layout import StepName
from trainer.checkpoints.manifest import Manifest
from trainer.checkpoints.root import Root, open_root
from trainer.checkpoints.session import CheckpointError


def find(url: str) -> tuple[Root, Manifest]:
    """The ``checkpoints`` directory, and the step that the URL names or the newest in it.

    Raises:
      ValueError: there is no checkpoint; says what is near.
      CheckpointError: no step there is whole.
    """
    root, name = _place(url)
    return root, _choose(root, name)


def document(root: Root, found: Manifest, file: str) -> dict[str, Any]:
    """One of a step's JSON documents, verified.

    Raises:
      CheckpointError: it is missing or not as it was written.
    """
    wrong = manifest.faults(root, found, [file])
    if wrong:
        raise CheckpointError(f"{root.url}/{found.name}: {wrong[0]}")
    contents: dict[str, Any] = json.loads(root.read(found.name.key(file)) or b"")
    return contents


def fingerprint(found: Manifest) -> str:
    """What identifies the arrays of a step, wherever it lies: a digest of its files' digests."""
    files = {path: record.sha256 for path, record in found.files.items()}
    arrays = {path: files[path] for path in sorted(files) if path.startswith(f"{layout.STATE}/")}
    return hashlib.sha256(json.dumps(arrays).encode()).hexdigest()


def _place(url: str) -> tuple[Root, StepName | None]:
    trimmed = url.rstrip("/")
    above, _, last = trimmed.rpartition("/")
    name = layout.parse(last)
    if name:
        root = open_root(above or ".")
        if str(name) in root.children():
            return root, name
        raise ValueError(f"{url} does not exist. {_near(root)}")
    root = open_root(trimmed)
    for place in (root.child(layout.CHECKPOINTS), root):
        if fencing.written(place):
            return place, None
    raise ValueError(f"{url} holds no checkpoint. {_near(root)}")


def _near(root: Root) -> str:
    """What exists at the deepest existing directory on the way to a root."""
    names = root.children()
    local = root.local_path("state")
    while not names and local and local.parent != local.parent.parent:
        local = local.parent
        root = open_root(local)
        names = root.children()
    listed = ", ".join(names[:10]) or "nothing"
    return f"{root.url} holds {listed}{' and more' if len(names) > 10 else ''}."


def _choose(root: Root, name: StepName | None) -> Manifest:
    if name:
        try:
            found = manifest.read(root, name)
        except ValueError as error:
            raise CheckpointError(f"{root.url}/{name}: {error}") from error
        if found is None:
            raise CheckpointError(f"{root.url}/{name} was not written to its end: no manifest.")
        return found
    seen = history.look(root, fencing.current(root))
    newest = seen.newest
    if newest is None:
        reasons = "; ".join(f"{n}: {why}" for n, why in {**seen.broken, **seen.aside}.items())
        raise CheckpointError(f"{root.url} has no step that can be read. {reasons}")
    return seen.usable[newest]
