"""What a step's transfers take on their links, and how much of it hides behind computation.

Standard library only.
"""

import dataclasses
from typing import TYPE_CHECKING

from partitioning.planner.decoder_parameters import parameters
from partitioning.planner.hardware import ClusterConfig
from partitioning.planner.network import passage
from partitioning.planner.plan import Plan
from partitioning.traffic import expected
from partitioning.transfers import Transfer

if TYPE_CHECKING:
    from partitioning.planner.compute import Compute

OVERLAP = {"nvidia": 0.8, "amd": 0.8, "google": 0.9}
"""Share of a step's computation behind which gathers and reductions of weights hide."""

INLINE = {"nvidia": 0.0, "amd": 0.0, "google": 0.4}
"""Share of what stands between two dependent products that hides all the same: TPU's compiler
takes such products apart and sends meanwhile."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AxisTraffic:
    """All transfers over one set of mesh axes.

    Attributes:
      axes: mesh axes, outermost first.
      link: the slowest that they cross.
      sent: bytes per device and step over that link.
      seconds: that they take.
      exposed: seconds that the step is longer for them.
    """

    axes: tuple[str, ...]
    link: str
    sent: float
    seconds: float
    exposed: float

    @property
    def hidden(self) -> float:
        """Seconds that pass behind computation."""
        return self.seconds - self.exposed

    @property
    def formula(self) -> str:
        """The terms."""
        return (
            f"{self.sent / 1e9:.2f} GB over {self.link} in {self.seconds:.4g} s, "
            f"of which {self.hidden:.4g} s hide"
        )


def communication(
    plan: Plan, *, cluster: ClusterConfig, work: "Compute"
) -> tuple[AxisTraffic, ...]:
    """Returns the traffic of a step by mesh axes."""
    step, vendor = plan.step, cluster.chip.vendor
    moved = expected(
        plan.model,
        parameters=parameters(plan.model),
        sizes=plan.sizes,
        rules=plan.rules,
        work=plan.work,
    )
    blocks = plan.model.layers / plan.sizes["stage"] * plan.work.microbatches
    room = OVERLAP[vendor] * work.seconds
    found: dict[tuple[str, ...], list[float]] = {}
    links: dict[tuple[str, ...], tuple[str, float]] = {}
    for transfer in moved:
        times = 2 * blocks if transfer.why.startswith(("blocks", "keys", "experts")) else 1.0
        way = passage(transfer, sizes=plan.sizes, cluster=cluster, times=times)
        hideable = _hideable(transfer, plan)
        hidden = min(way.seconds * (1 - 1 / max(blocks, 2)), room) if hideable else 0.0
        if not hideable and _inline(transfer):
            hidden = INLINE[vendor] * way.seconds
        elif hideable:
            room -= hidden
        entry = found.setdefault(transfer.axes, [0.0, 0.0])
        entry[0] += way.seconds
        entry[1] += way.seconds - hidden
        link, sent = links.get(transfer.axes, ("", 0.0))
        links[transfer.axes] = (way.link or link, sent + way.sent)
    del step
    return tuple(
        AxisTraffic(
            axes=axes,
            link=links[axes][0],
            sent=links[axes][1],
            seconds=seconds,
            exposed=exposed,
        )
        for axes, (seconds, exposed) in found.items()
    )


def _inline(transfer: Transfer) -> bool:
    return "tensor" in transfer.axes or "expert" in transfer.axes


def _hideable(transfer: Transfer, plan: Plan) -> bool:
    """Whether computation that does not wait for it goes on meanwhile."""
    if "tensor" in transfer.axes or transfer.why.startswith("experts"):
        return False
    if transfer.why.endswith("updated parameters"):
        return False
    once = plan.sizes["stage"] > 1 or plan.work.microbatches > 1
    return not ("data" in transfer.axes and once)
