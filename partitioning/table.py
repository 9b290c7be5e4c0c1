"""The table that shows where every parameter lives, and what stays replicated."""

import dataclasses
import math
from collections.abc import Iterable

import jax
from jax.sharding import NamedSharding


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One array.

    Attributes:
      name: its path.
      shape: global shape.
      spec: mesh axes by dimension.
      bytes_per_device: of its shard.
      bytes_total: of the whole.
      note: why a dimension did not take its rule's first choice.
    """

    name: str
    shape: tuple[int, ...]
    spec: str
    bytes_per_device: int
    bytes_total: int
    note: str = ""


def row_of(name: str, leaf: jax.ShapeDtypeStruct, *, note: str = "") -> Row:
    """Returns the row of an abstract array with a NamedSharding."""
    assert isinstance(leaf.sharding, NamedSharding)
    size = leaf.dtype.itemsize
    return Row(
        name=name,
        shape=tuple(leaf.shape),
        spec=show_spec(leaf.sharding),
        bytes_per_device=size * math.prod(leaf.sharding.shard_shape(leaf.shape)),
        bytes_total=size * math.prod(leaf.shape),
        note=note,
    )


def show_spec(sharding: NamedSharding) -> str:
    """Returns ``fsdp, tensor``-like text, ``-`` for a dimension that is not split."""
    entries = [
        "-" if entry is None else entry if isinstance(entry, str) else "+".join(entry)
        for entry in sharding.spec
    ]
    return ", ".join(entries) or "-"


def replicated_share(rows: Iterable[Row]) -> float:
    """Returns the share of all bytes that every device holds whole."""
    rows = list(rows)
    total = sum(row.bytes_total for row in rows)
    whole = sum(row.bytes_total for row in rows if row.bytes_per_device == row.bytes_total)
    return whole / total if total else 0.0


def show(rows: Iterable[Row]) -> str:
    """Returns the table as aligned text, with a last line of sums."""
    rows = list(rows)
    cells = [("parameter", "shape", "mesh axes", "per device", "")]
    cells += [
        (row.name, _shape(row.shape), row.spec, show_bytes(row.bytes_per_device), row.note)
        for row in rows
    ]
    widths = [max(len(cell[i]) for cell in cells) for i in range(4)]
    lines = [
        f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:<{widths[2]}}  {d:>{widths[3]}}  {e}".rstrip()
        for a, b, c, d, e in cells
    ]
    each = sum(row.bytes_per_device for row in rows)
    total = sum(row.bytes_total for row in rows)
    lines.append(
        f"{show_bytes(total)} in all, {show_bytes(each)} per device, "
        f"{replicated_share(rows):.1%} replicated"
    )
    return "\n".join(lines)


def show_bytes(count: float) -> str:
    """Returns bytes in binary units, e.g. ``1.50 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
