"""What a formula says is moved: kind, mesh axes, bytes, and why.

Imports neither jax nor flax, so that what plans a run may use it.
"""

import dataclasses
from collections.abc import Iterable
from typing import Literal

_ONE_WAY = ("collective-permute", "collective-broadcast", "send")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transfer:
    """Bytes that one device takes part in moving per step, for one reason.

    Attributes:
      kind: as in collectives.KINDS.
      axes: mesh axes that it spans, outermost first.
      group: devices that exchange with each other.
      payload: bytes per step, as collectives.py defines them.
      why: what is moved.
      per_block: whether every block moves its own part.
      before: what cannot begin until it is there: the next product, or the step's end, since the
        update comes first; "" where computation goes on meanwhile.
    """

    kind: str
    axes: tuple[str, ...]
    group: int
    payload: float
    why: str
    per_block: bool = False
    before: Literal["", "product", "end"] = ""

    @property
    def wire(self) -> float:
        """Bytes that one device sends per step, in a ring."""
        return wire_bytes(self.kind, payload=self.payload, group=self.group)


def wire_bytes(kind: str, *, payload: float, group: int) -> float:
    """Returns what one device sends in a ring of ``group`` devices.

    An all-gather passes every device's share on to the next, ``g - 1`` times ``payload / g``; a
    reduce-scatter and an all-to-all send as much; an all-reduce is a reduce-scatter and an
    all-gather (Patarasuk and Yuan, 2009). A permutation sends its payload.
    """
    if kind in _ONE_WAY:
        return payload
    return payload * (group - 1) / group * (2 if kind == "all-reduce" else 1)


def merged(transfers: Iterable[Transfer]) -> tuple[Transfer, ...]:
    """Adds up transfers of the same kind, axes and reason; drops what moves nothing."""
    found: dict[tuple[str, tuple[str, ...], str], list[Transfer]] = {}
    for transfer in transfers:
        if transfer.payload and transfer.group > 1:
            key = (transfer.kind, transfer.axes, transfer.why)
            found.setdefault(key, []).append(transfer)
    return tuple(
        dataclasses.replace(same[0], payload=sum(transfer.payload for transfer in same))
        for same in found.values()
    )
