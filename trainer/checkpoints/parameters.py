"""Parameters of another run, for fine-tuning: ``load_params``.

Promises: verified like a resumed step; a path that does not exist is an error that says what there
is near it (P052); a parameter that the checkpoint does not have is an error unless the caller lists
it (P051).
"""

import pathlib
import re
import tempfile
from collections.abc import Sequence
from typing import Any

from absl import logging

from trainer.checkpoints import fencing, history, layout, manifest, restoring, structure
from trainer.checkpoints.layout import StepName
from trainer.checkpoints.manifest import Leaf, Manifest
from trainer.checkpoints.restoring import Wanted
from trainer.checkpoints.root import Root, open_root
from trainer.checkpoints.session import CheckpointError, Session, join_hosts
from trainer.coordination import Alone, Coordination
from trainer.paths import leaves, nest
from trainer.run_config import CheckpointConfig

PARAMS = "groups/model/parameters"


def load_params(
    url: str,
    abstract_params: Any,
    *,
    missing: Sequence[str] = (),
    unused: Sequence[str] = (),
    allow_dtype_change: bool = False,
    coordination: Coordination | None = None,
    staging: pathlib.Path | None = None,
) -> Any:
    """Loads the model's parameters from a step or from the newest whole step of a run.

    Args:
      url: a run directory, its ``checkpoints`` directory, or one step (``.../100.a1``).
      abstract_params: nested dict of ``jax.ShapeDtypeStruct`` with shardings.
      missing: regular expressions of parameters that the checkpoint need not have.
      unused: regular expressions of stored parameters that are not wanted.
      allow_dtype_change: convert parameters saved with another dtype.
      coordination: the other processes; None for a single one.
      staging: see ``CheckpointStore``.

    Returns:
      The nested dict of loaded arrays, with None for each leaf that is missing as ``missing`` has
      allowed.

    Raises:
      ValueError: no checkpoint there; parameters that do not fit.
      CheckpointError: no step there is whole.
    """
    structure.check_shardings(abstract_params)
    root, name = find(url)
    session = Session(
        root=root, attempt=None, config=CheckpointConfig(), peers=coordination or Alone()
    )
    if root.local_path("state") is None:
        session = join_hosts(session, base=staging or pathlib.Path(tempfile.gettempdir()))
    found = choose(root, name)
    abstract = leaves(abstract_params)
    present = _fitting(
        found,
        abstract,
        missing=missing,
        unused=unused,
        allow_dtype_change=allow_dtype_change,
        url=url,
    )
    kept = {f"{PARAMS}/{path}": leaf for path, leaf in abstract.items() if path in present}
    wanted = Wanted(state=nest(kept), allow_dtype_change=allow_dtype_change, partial=True)
    try:
        outcome = restoring.restore_one(session, found, wanted, tag=f"load_params/{url}")
    finally:
        session.drop_all_staged()
    logging.info("%s: parameters of step %s loaded", root.url, outcome.name)
    loaded = {path.removeprefix(f"{PARAMS}/"): leaf for path, leaf in leaves(outcome.state).items()}
    return nest({path: loaded.get(path) for path in abstract})


def find(url: str) -> tuple[Root, StepName | None]:
    """The ``checkpoints`` directory and, where the URL names one, the step.

    Raises:
      ValueError: there is no checkpoint; says what is near.
    """
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


def choose(root: Root, name: StepName | None) -> Manifest:
    """Returns the manifest of a step; None takes the newest whole one.

    Raises:
      CheckpointError: the step, or every one there is, was not written to its end.
    """
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


def _fitting(
    found: Manifest,
    abstract: dict[str, Any],
    *,
    missing: Sequence[str],
    unused: Sequence[str],
    allow_dtype_change: bool,
    url: str,
) -> frozenset[str]:
    """The wanted parameters that are stored; raises where the rest was not allowed for."""
    inside = f"{PARAMS}/"
    stored = {p.removeprefix(inside): x for p, x in found.tree.items() if p.startswith(inside)}
    wanted: dict[str, Leaf] = structure.describe(abstract)
    absent = {p for p in wanted.keys() - stored.keys() if _matches(p, missing)}
    surplus = {p for p in stored.keys() - wanted.keys() if _matches(p, unused)}
    structure.check_fits(
        {p: leaf for p, leaf in stored.items() if p not in surplus},
        {p: leaf for p, leaf in wanted.items() if p not in absent},
        where=f"{url} ({found.name})",
        allow_dtype_change=allow_dtype_change,
    )
    for path in sorted(absent):
        logging.warning("%s: %s is not in it and keeps its initial value", url, path)
    for path in sorted(surplus):
        logging.warning("%s: %s is not used", url, path)
    return frozenset(wanted.keys() - absent)


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(re.search(pattern, path) for pattern in patterns)
