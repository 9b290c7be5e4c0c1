"""What a step's transfers take on their links, and how much of it hides behind computation.

Standard library only.
"""

import dataclasses

from partitioning.planner.cost_model.compute import Compute
from partitioning.planner.cost_model.network import Level, passage
from partitioning.planner.decoder_parameters import parameters
from partitioning.planner.hardware import ClusterConfig
from partitioning.planner.plan import Plan
from partitioning.traffic import expected
from partitioning.transfers import Transfer


@dataclasses.dataclass(frozen=True, kw_only=True)
class AxisTraffic:
    """All transfers over one set of mesh axes.

    Attributes:
      axes: mesh axes, outermost first.
      levels: links that they cross, with what is sent there per device and step.
      seconds: that they take.
      exposed: seconds that the step is longer for them.
    """

    axes: tuple[str, ...]
    levels: tuple[Level, ...]
    seconds: float
    exposed: float

    @property
    def slowest(self) -> Level:
        """The link that takes longest."""
        return max(self.levels, key=lambda level: level.seconds)

    @property
    def hidden(self) -> float:
        """Seconds that pass behind computation."""
        return self.seconds - self.exposed

    @property
    def formula(self) -> str:
        """The terms."""
        slowest = self.slowest
        return (
            f"{slowest.sent / 1e9:.2f} GB over {slowest.link} in {self.seconds:.4g} s, "
            f"of which {self.hidden:.4g} s hide"
        )


def communication(plan: Plan, *, cluster: ClusterConfig, work: Compute) -> tuple[AxisTraffic, ...]:
    """Returns the traffic of a step by mesh axes."""
    chip = cluster.chip
    moved = expected(
        plan.model,
        parameters=parameters(plan.model),
        sizes=plan.sizes,
        rules=plan.rules,
        work=plan.work,
    )
    blocks = plan.model.layers / plan.sizes["stage"] * plan.work.microbatches
    room = work.seconds
    found: dict[tuple[str, ...], AxisTraffic] = {}
    for transfer in moved:
        times = 2 * blocks if transfer.per_block else 1.0
        way = passage(transfer, sizes=plan.sizes, cluster=cluster, times=times)
        hidden = 0.0
        if _between_products(transfer):
            hidden = chip.inline_overlap * way.seconds
        elif _beside_products(transfer, plan):
            hidden = min(chip.overlap * way.seconds, room)
            room -= hidden
        more = AxisTraffic(
            axes=transfer.axes,
            levels=way.levels,
            seconds=way.seconds,
            exposed=way.seconds - hidden,
        )
        before = found.get(transfer.axes)
        found[transfer.axes] = more if before is None else _together(before, more)
    return tuple(found.values())


def _together(one: AxisTraffic, other: AxisTraffic) -> AxisTraffic:
    levels = tuple(
        Level(link=a.link, sent=a.sent + b.sent, seconds=a.seconds + b.seconds)
        for a, b in zip(one.levels, other.levels, strict=True)
    )
    return AxisTraffic(
        axes=one.axes,
        levels=levels,
        seconds=one.seconds + other.seconds,
        exposed=one.exposed + other.exposed,
    )


def _between_products(transfer: Transfer) -> bool:
    """Whether the next product waits for it."""
    return "tensor" in transfer.axes or transfer.before == "product"


def _beside_products(transfer: Transfer, plan: Plan) -> bool:
    """Whether computation that does not wait for it goes on meanwhile.

    Not so the sum over replicas after the last microbatch, or parameters after the update.
    """
    if transfer.before == "end":
        return False
    once = plan.sizes["stage"] > 1 or plan.work.microbatches > 1
    return not ("data" in transfer.axes and once)
