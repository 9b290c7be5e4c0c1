"""Names of leaves: a tree of arrays as paths such as ``stacks/pattern/blocks/0/mlp/up/kernel``.

Frozen parameters and adapters are taken out of a tree, and put back, by patterns of these paths.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax

from models.lora_config import is_adapter

Tree = Any


def path_of(path: tuple[Any, ...]) -> str:
    """Returns a tree path as text, its keys joined by slashes."""
    return "/".join(_name(key) for key in path)


def leaves(tree: Tree, *, is_leaf: Callable[[Any], bool] | None = None) -> dict[str, Any]:
    """Returns path -> leaf, in the tree's order."""
    named = jax.tree.leaves_with_path(tree, is_leaf=is_leaf)
    return {path_of(path): leaf for path, leaf in named}


def nest(flat: Mapping[str, Any]) -> Tree:
    """Turns ``{"a/b": x}`` into ``{"a": {"b": x}}``."""
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        *parents, last = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree


def split_frozen(
    parameters: Tree,
    frozen: tuple[str, ...],
    *,
    is_leaf: Callable[[Any], bool] | None = None,
) -> tuple[Tree, Tree]:
    """Splits a nested dict into (trainable, frozen) by patterns of paths.

    Raises:
      ValueError: a pattern matches no parameter, or nothing is left to train.
    """
    if not frozen:
        return parameters, {}
    flat = leaves(parameters, is_leaf=is_leaf)
    for pattern in frozen:
        if not any(re.search(pattern, path) for path in flat):
            raise ValueError(
                f"TrainConfig.frozen: {pattern!r} matches no parameter path of what is trained; "
                f"the first of {len(flat)} is {min(flat)!r}."
            )
    fixed = {path for path in flat if any(re.search(pattern, path) for pattern in frozen)}
    if len(fixed) == len(flat):
        raise ValueError(
            f"TrainConfig.frozen={frozen} matches every parameter: nothing is trained."
        )
    return _parted(flat, fixed)


def split_adapters(
    parameters: Tree, *, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[Tree, Tree]:
    """Splits a nested dict into (adapters, all others); ``merge_frozen`` undoes it."""
    flat = leaves(parameters, is_leaf=is_leaf)
    return _parted(flat, {path for path in flat if not is_adapter(path)})


def merge_frozen(trainable: Tree, frozen: Tree) -> Tree:
    """Undoes ``split_frozen``."""
    if not frozen:
        return trainable
    return nest(leaves(trainable) | leaves(frozen))


def _parted(flat: Mapping[str, Any], fixed: set[str]) -> tuple[Tree, Tree]:
    parts = ({p: v for p, v in flat.items() if (p in fixed) == kept} for kept in (False, True))
    trainable, kept = (nest(part) for part in parts)
    return trainable, kept


def _name(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
