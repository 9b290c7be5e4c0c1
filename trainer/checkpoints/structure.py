"""The tree of a state: paths, shapes, dtypes, and whether a stored tree is the wanted one.

May import jax. Promises: whatever does not fit is one ``ValueError`` that names every path (ten at
most), what the checkpoint has and what is wanted, before any array is read.
"""

from collections.abc import Mapping
from typing import Any

from trainer.checkpoints.manifest import Leaf
from trainer.paths import leaves

_SHOWN = 10


def describe(tree: Any) -> dict[str, Leaf]:
    """Shape and dtype of each leaf by path."""
    return {path: Leaf(tuple(x.shape), str(x.dtype)) for path, x in leaves(tree).items()}


def check_shardings(abstract: Any) -> None:
    """Raises ValueError for a leaf that does not say where it shall live (P049, P050)."""
    bare = [p for p, leaf in leaves(abstract).items() if getattr(leaf, "sharding", None) is None]
    if bare:
        raise ValueError(
            "Each leaf of the abstract state needs a sharding (jax.ShapeDtypeStruct(shape, dtype,"
            f" sharding=...)), since the stored one is not used; {_some(bare)} have none."
        )


def check_fits(
    stored: Mapping[str, Leaf],
    wanted: Mapping[str, Leaf],
    *,
    where: str,
    allow_dtype_change: bool = False,
) -> None:
    """Raises ValueError where a stored tree is not the wanted one.

    Args:
      stored: the manifest's tree.
      wanted: the tree that the caller asks for.
      where: the checkpoint, for the message.
      allow_dtype_change: arrays of another dtype may be converted.
    """
    lines = [f"missing: {p} (wanted {wanted[p]})" for p in sorted(wanted.keys() - stored.keys())]
    lines += [f"extra: {p} (stored {stored[p]})" for p in sorted(stored.keys() - wanted.keys())]
    for path in sorted(wanted.keys() & stored.keys()):
        have, want = stored[path], wanted[path]
        if have.shape != want.shape:
            lines.append(f"shape: {path} is stored as {have}, wanted {want}")
        elif have.dtype != want.dtype and not allow_dtype_change:
            lines.append(f"dtype: {path} is stored as {have}, wanted {want}")
    if lines:
        raise ValueError(
            f"{where} does not fit the model:\n  {_some(lines, separator=chr(10) + '  ')}\n"
            "Give the configuration that it was saved with (an import has its model.gin beside "
            "it), or start another run from its parameters with TrainConfig.init_from."
        )


def _some(items: list[str], separator: str = ", ") -> str:
    more = f"{separator}and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return separator.join(items[:_SHOWN]) + more
