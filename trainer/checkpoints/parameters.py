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

from trainer.checkpoints import finding, restoring, structure
from trainer.checkpoints.manifest import Leaf
from trainer.checkpoints.restoring import Wanted
from trainer.checkpoints.session import Session, join_hosts
from trainer.coordination import Alone, Coordination
from trainer.paths import leaves, nest
from trainer.run_config import CheckpointConfig


def load_params(
    url: str,
    abstract_params: Any,
    *,
    missing: Sequence[str] = (),
    unused: Sequence[str] = (),
    allow_dtype_change: bool = False,
    coordination: Coordination | None = None,
    staging: pathlib.Path | None = None,
    group: str = "model",
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
      group: of the state; "adapters" of a run that trained those.

    Returns:
      The nested dict of loaded arrays, with None for each leaf that is missing as ``missing`` has
      allowed.

    Raises:
      ValueError: no checkpoint there; parameters that do not fit.
      CheckpointError: no step there is whole.
    """
    structure.check_shardings(abstract_params)
    root, found = finding.find(url)
    session = Session(
        root=root, attempt=None, config=CheckpointConfig(), peers=coordination or Alone()
    )
    if root.local_path("state") is None:
        session = join_hosts(session, base=staging or pathlib.Path(tempfile.gettempdir()))
    abstract, inside = leaves(abstract_params), f"groups/{group}/parameters/"
    present = _fitting(
        {p.removeprefix(inside): x for p, x in found.tree.items() if p.startswith(inside)},
        abstract,
        missing=missing,
        unused=unused,
        allow_dtype_change=allow_dtype_change,
        where=f"{url} ({found.name})",
    )
    kept = {f"{inside}{path}": leaf for path, leaf in abstract.items() if path in present}
    wanted = Wanted(state=nest(kept), allow_dtype_change=allow_dtype_change, partial=True)
    try:
        outcome = restoring.restore_one(session, found, wanted, tag=f"load_params/{group}/{url}")
    finally:
        session.drop_all_staged()
    logging.info("%s: parameters of step %s loaded", root.url, outcome.name)
    loaded = {path.removeprefix(inside): leaf for path, leaf in leaves(outcome.state).items()}
    return nest({path: loaded.get(path) for path in abstract})


def _fitting(
    stored: dict[str, Leaf],
    abstract: dict[str, Any],
    *,
    missing: Sequence[str],
    unused: Sequence[str],
    allow_dtype_change: bool,
    where: str,
) -> frozenset[str]:
    """The wanted parameters that are stored; raises where the rest was not allowed for."""
    wanted: dict[str, Leaf] = structure.describe(abstract)
    absent = {p for p in wanted.keys() - stored.keys() if _matches(p, missing)}
    surplus = {p for p in stored.keys() - wanted.keys() if _matches(p, unused)}
    structure.check_fits(
        {p: leaf for p, leaf in stored.items() if p not in surplus},
        {p: leaf for p, leaf in wanted.items() if p not in absent},
        where=where,
        allow_dtype_change=allow_dtype_change,
    )
    for path in sorted(absent):
        logging.warning("%s: %s is not in it and keeps its initial value", where, path)
    for path in sorted(surplus):
        logging.warning("%s: %s is not used", where, path)
    return frozenset(wanted.keys() - absent)


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(re.search(pattern, path) for pattern in patterns)
