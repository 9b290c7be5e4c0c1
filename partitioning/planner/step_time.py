"""How long a step takes, and where the time goes: a waterfall that adds up to the step.

A roofline per kind of work with a few efficiencies of the chip, transfers from traffic.py on the
links that they cross, and rules for what hides behind what. docs/calibration.md holds the
predictions against published runs. Standard library only.
"""

import dataclasses

from partitioning.planner.answers import Quantity
from partitioning.planner.step_traffic import AxisTraffic, communication
from partitioning.planner.compute import Compute, compute
from partitioning.planner.hardware import ClusterConfig
from partitioning.planner.plan import Plan
from partitioning.planner.step_flops import StepFlops, step_flops


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """One step.

    Attributes:
      waterfall: seconds by cause, all positive; they add up to the step.
      traffic: what each set of mesh axes moves, over which link, hidden or not.
      flops: of the step, on all devices.
      tokens: of the step.
      devices: of the mesh.
      peak: FLOP/s of one device in bfloat16.
    """

    waterfall: tuple[Quantity, ...]
    traffic: tuple[AxisTraffic, ...]
    flops: StepFlops
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
        return self._share(self.flops.hardware)

    @property
    def bottleneck(self) -> str:
        """The largest part of the step beside products with parameters and attention."""
        rest = [p for p in self.waterfall if p.name not in ("products", "attention")]
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
    away = work.offloaded / cluster.host_bandwidth
    parts = [
        _s("products", work.products),
        _s("attention", work.attention),
        _s("elementwise", work.elementwise),
        _s("recomputation", work.recomputed),
        _s("loss", work.loss),
        _s("bubble", _bubble(step, work)),
        _s("optimizer", work.optimizer + work.state_offloaded / cluster.host_bandwidth),
        _s("host_offload", max(0.0, away - work.seconds)),
        *(_s(f"exposed_{'_'.join(t.axes)}", t.exposed, t.formula) for t in traffic),
    ]
    return Prediction(
        waterfall=tuple(part for part in parts if part.value),
        traffic=traffic,
        flops=step_flops(plan.model, rows=plan.work.rows, length=plan.work.length),
        tokens=plan.tokens,
        devices=plan.devices,
        peak=chip.peak_flops,
    )


def _s(name: str, value: float, formula: str = "") -> Quantity:
    return Quantity(name=name, value=value, unit="s", formula=formula)


def _bubble(step, work: Compute) -> float:
    if step.schedule is None:
        return 0.0
    share = step.schedule.bubble(backward=work.backward_ratio)
    return work.seconds * share / (1.0 - share)
