"""How long a step takes, and where the time goes: a waterfall that adds up to the step.

A roofline per kind of work with a few efficiencies of the chip, transfers from traffic.py on the
links that they cross, and rules for what hides behind what. docs/calibration.md holds the
predictions against published runs. Standard library only.
"""

import dataclasses

from partitioning.planner.answers import Quantity
from partitioning.planner.calculators.reliability import HOUR
from partitioning.planner.cost_model.block_memory import fused_attention
from partitioning.planner.cost_model.compute import Compute, compute
from partitioning.planner.cost_model.step_flops import StepFlops, step_flops
from partitioning.planner.cost_model.step_traffic import AxisTraffic, communication
from partitioning.planner.hardware import ChipConfig, ClusterConfig
from partitioning.planner.plan import Plan
from partitioning.traffic_step import Step


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """One step.

    Attributes:
      waterfall: seconds by cause, all positive; they add up to the step.
      traffic: what each set of mesh axes moves, over which link, hidden or not.
      flops: of the step, on all devices.
      pipeline_flops: forward passes that a pipeline does once more for its backward passes.
      fused: whether attention runs in a kernel that never holds its scores.
      tokens: of the step.
      devices: of the mesh.
      peak: FLOP/s of one device in bfloat16.
    """

    waterfall: tuple[Quantity, ...]
    traffic: tuple[AxisTraffic, ...]
    flops: StepFlops
    pipeline_flops: float
    fused: bool
    tokens: int
    devices: int
    peak: float

    @property
    def seconds(self) -> float:
        """Duration of the step."""
        return sum(part.value for part in self.waterfall)

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all devices together."""
        return self.tokens / self.seconds

    def cost(self, price: float) -> float:
        """Returns USD per 1e9 tokens while it trains; ``price`` is per device and hour."""
        return 1e9 / self.tokens_per_second / HOUR * self.devices * price

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation, attention counted as causal."""
        return self._share(self.flops.total("causal"))

    @property
    def mfu_full(self) -> float:
        """The same with the whole attention square, as many published figures have it."""
        return self._share(self.flops.total("full"))

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilisation: what is computed again counts, too."""
        return self._share(self.flops.hardware + self.pipeline_flops)

    @property
    def bottleneck(self) -> str:
        """The largest part beside products, and beside attention in a fused kernel."""
        work = ("products", "attention") if self.fused else ("products",)
        rest = [part for part in self.waterfall if part.name not in work]
        return max(rest, key=lambda part: part.value).name if rest else "products"

    def _share(self, flops: float) -> float:
        return flops / self.seconds / (self.devices * self.peak)


def predict(plan: Plan, *, cluster: ClusterConfig) -> Prediction:
    """Returns the step of a plan on a cluster.

    Raises:
      ValueError: rules, mesh and schedule do not fit together.
    """
    step, chip = plan.step, cluster.chip
    work = compute(plan, chip=chip)
    traffic = communication(plan, cluster=cluster, work=work)
    flops = step_flops(plan.model, rows=plan.work.rows, length=plan.work.length)
    parts = (
        *_computed(work, flops, plan=plan, chip=chip),
        _bubble(step, work),
        *_offloaded(work, cluster),
        *(_s(f"exposed_{'_'.join(t.axes)}", t.exposed, t.formula) for t in traffic),
    )
    passes = step.uses("pattern").forward - 1
    return Prediction(
        waterfall=tuple(part for part in parts if part.value),
        traffic=traffic,
        flops=flops,
        pipeline_flops=passes * flops.total("causal") / 3,
        fused=fused_attention(plan.model, sizes=plan.sizes, chip=chip),
        tokens=plan.tokens,
        devices=plan.devices,
        peak=chip.peak_flops,
    )


def _s(name: str, value: float, formula: str = "") -> Quantity:
    return Quantity(name=name, value=value, unit="s", formula=formula)


def _computed(
    work: Compute, flops: StepFlops, *, plan: Plan, chip: ChipConfig
) -> tuple[Quantity, ...]:
    rate = chip.memory_bandwidth * chip.bandwidth_efficiency

    def arithmetic(name: str, seconds: float, whole: float) -> Quantity:
        share = whole / plan.devices / chip.peak_flops
        reached = share / seconds if seconds else 0.0
        formula = (
            f"{whole / plan.devices:.4g} FLOP / ({chip.peak_flops:.4g} FLOP/s x {reached:.2f})"
        )
        return _s(name, seconds, formula)

    def moved(name: str, seconds: float) -> Quantity:
        return _s(name, seconds, f"{seconds * rate:.4g} B / {rate:.4g} B/s")

    return (
        arithmetic("products", work.products, flops.products),
        arithmetic("attention", work.attention, flops.attention_causal),
        moved("elementwise", work.elementwise),
        _s("recomputation", work.recomputed, f"remat={plan.model.remat!r}"),
        moved("loss", work.loss),
        moved("optimizer", work.optimizer),
    )


def _bubble(step: Step, work: Compute) -> Quantity:
    """Idle slots of the busiest stage; a tick lasts as its slowest stage."""
    if step.schedule is None:
        return _s("bubble", 0.0)
    share = step.schedule.bubble(backward=work.backward_ratio)
    formula = f"{work.seconds:.4g} s x {share:.3f} / (1 - {share:.3f})"
    return _s("bubble", work.seconds * share / (1.0 - share), formula)


def _offloaded(work: Compute, cluster: ClusterConfig) -> tuple[Quantity, ...]:
    """Activations cross to the host beside products; the update waits for its state."""
    rate = cluster.host_bandwidth
    values = max(0.0, work.offloaded / rate - work.seconds)
    return (
        _s("host_offload", values, f"{work.offloaded:.4g} B / {rate:.4g} B/s beside the rest"),
        _s("state_offload", work.state_offloaded / rate, f"{work.state_offloaded:.4g} B"),
    )
