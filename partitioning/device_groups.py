"""Which devices a collective joins, and which mesh axes that is.

Compilers write groups of devices as lists, as a reshaped and transposed range, or as axes of a
named mesh; permutations as pairs. Devices are numbered in the order of the mesh, last axis
fastest.

Imports numpy only.
"""

import math
import re
from collections.abc import Mapping

import numpy as np

_LISTS = re.compile(r"replica_groups=\{(\{[\d, ]*\}(?:,\s*\{[\d, ]*\})*)?\}")
_RANGE = r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?"
_IOTA = re.compile(rf"replica_groups={_RANGE}")
_NAMED = re.compile(
    r"replica_groups=@?\w*\[(?P<axes>'[^\]]*)\](?P<order>[^{]*)\{(?P<chosen>[^}]*)\}"
)
_PAIRS = re.compile(r"source_target_pairs=\"?\{((?:\{\d+,\s*\d+\},?\s*)*)\}")
_AXIS = re.compile(r"'([^']*)'=(\d+)")
_CHOSEN = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")


def groups(attributes: str, *, devices: int | None = None) -> np.ndarray | None:
    """Returns [groups, members] device numbers, or None if the text names no groups.

    Args:
      attributes: of an instruction.
      devices: how many there are in all, for the empty list, which means all of them.

    Raises:
      ValueError: groups are there in a form that is not known, or differ in size.
    """
    if listed := _LISTS.search(attributes):
        return _listed(listed[1], devices=devices)
    if iota := _IOTA.search(attributes):
        return _arranged(iota[2], iota[3]).reshape(_numbers(iota[1]))
    if named := _NAMED.search(attributes):
        return _named(named["axes"], order=named["order"], chosen=named["chosen"])
    if "replica_groups=" in attributes:
        start = attributes.index("replica_groups=")
        raise ValueError(f"Unknown form of device groups: {attributes[start : start + 120]}")
    return None


def pairs(attributes: str) -> np.ndarray | None:
    """Returns [pairs, 2] (source, target) device numbers of a permutation, or None."""
    found = _PAIRS.search(attributes)
    if found is None:
        return None
    numbers = [int(number) for number in re.findall(r"\d+", found[1])]
    return np.asarray(numbers, int).reshape(-1, 2)


def axes_of(members: np.ndarray, *, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the mesh axes along which devices of one row differ, in the mesh's order.

    Args:
      members: [rows, members] device numbers: groups, or (source, target) pairs.
      sizes: devices on each mesh axis, outermost first.
    """
    coordinates = np.stack(np.unravel_index(members, tuple(sizes.values())))
    differs = (coordinates != coordinates[:, :, :1]).any(axis=(1, 2))
    return tuple(axis for axis, spans in zip(sizes, differs, strict=True) if spans)


def _listed(text: str | None, *, devices: int | None) -> np.ndarray:
    if not text or not re.search(r"\d", text):
        if devices is None:
            raise ValueError("A collective joins all devices, but their number is not given.")
        return np.arange(devices).reshape(1, -1)
    rows = [[int(number) for number in re.findall(r"\d+", row)] for row in text.split("}")]
    rows = [row for row in rows if row]
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"Device groups of different sizes: {text[:120]}")
    return np.asarray(rows, int)


def _named(axes: str, *, order: str, chosen: str) -> np.ndarray:
    """Groups along axes of a mesh that the text declares, or along parts of such axes.

    ``'a':(m)k`` is the part of axis ``a`` that has k coordinates and m coordinates outside it.
    """
    sizes = {name: int(size) for name, size in _AXIS.findall(axes)}
    numbers = np.arange(math.prod(sizes.values()))
    if (range_ := re.search(_RANGE, order)) is not None:
        numbers = _arranged(range_[2], range_[3])
    elif (plain := re.search(r"\(?\[([\d,]+)\]\)?", order)) is not None:
        numbers = np.asarray(_numbers(plain[1]))
    wanted = [
        (name, (int(outside), int(size)) if size else None)
        for name, outside, size in _CHOSEN.findall(chosen)
    ]
    shape: list[int] = []
    labels: list[tuple[str, tuple[int, int] | None]] = []
    for name, size in sizes.items():
        parts = sorted(part for axis, part in wanted if axis == name and part is not None)
        for outside, length in _cut(size, parts):
            shape.append(length)
            labels.append((name, (outside, length) if parts else None))
    inside = [labels.index(label) for label in wanted]
    around = [dimension for dimension in range(len(shape)) if dimension not in inside]
    grid = numbers.reshape(shape).transpose(around + inside)
    return grid.reshape(-1, math.prod(shape[dimension] for dimension in inside))


def _cut(size: int, parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns (coordinates outside, length) of consecutive parts that make up an axis."""
    whole: list[tuple[int, int]] = []
    reached = 1
    for outside, length in parts:
        if outside > reached:
            whole.append((reached, outside // reached))
        whole.append((outside, length))
        reached = outside * length
    if reached < size or not parts:
        whole.append((reached, size // reached))
    return whole


def _arranged(shape: str, transposed: str | None) -> np.ndarray:
    dimensions = _numbers(shape)
    grid = np.arange(math.prod(dimensions)).reshape(dimensions)
    return (grid.transpose(_numbers(transposed)) if transposed else grid).reshape(-1)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]
