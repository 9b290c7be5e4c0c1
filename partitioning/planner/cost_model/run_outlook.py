"""What a whole run comes to on a cluster: hours, money, checkpoints and how often to write them.

The step's duration is predicted (step_time.py); everything else follows from it and from what the
cluster's file says of prices, failures and storage. Standard library only.
"""

import dataclasses
import math

from partitioning.planner.calculators.reliability import HOUR, mtbf, young
from partitioning.planner.cost_model.layout import leaves, trained
from partitioning.planner.cost_model.optimizer_state import state_elements, state_width
from partitioning.planner.hardware import ClusterConfig
from partitioning.planner.plan import Plan
from trainer.run_config import RunConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOutlook:
    """One run, if nothing fails.

    Attributes:
      steps: of the run.
      step_seconds: predicted duration of one.
      devices: that it takes.
      price: USD per device and hour.
      checkpoint: bytes of one checkpoint, uncompressed.
      write_seconds: that the store takes for one.
      mtbf: seconds between interruptions of the job.
      every: steps between checkpoints, as configured; 0 saves only at the end.
    """

    steps: int
    step_seconds: float
    devices: int
    price: float
    checkpoint: float
    write_seconds: float
    mtbf: float
    every: int

    @property
    def hours(self) -> float:
        """Duration of all steps."""
        return self.steps * self.step_seconds / HOUR

    @property
    def cost(self) -> float:
        """USD for the devices."""
        return self.hours * self.devices * self.price

    @property
    def interval(self) -> float:
        """Seconds between checkpoints that lose least, by Young; never less than a write takes."""
        return _least_lossy(self.write_seconds, between=self.mtbf)

    @property
    def interval_steps(self) -> int:
        """The same in steps, rounded up to two digits; 0 where nothing fails."""
        return _in_steps(self.interval, step_seconds=self.step_seconds)


def run_outlook(
    run: RunConfig,
    *,
    cluster: ClusterConfig,
    devices: int,
    step_seconds: float,
    checkpoint: float,
) -> RunOutlook:
    """Returns what a run comes to.

    Args:
      run: says how many steps there are, and when it saves.
      cluster: prices, failures and storage.
      devices: that the run takes.
      step_seconds: of one step.
      checkpoint: bytes of one checkpoint.
    """
    return RunOutlook(
        steps=run.train.steps,
        step_seconds=step_seconds,
        devices=devices,
        price=cluster.price,
        checkpoint=checkpoint,
        write_seconds=checkpoint / cluster.storage_write,
        mtbf=_between_failures(cluster, devices=devices),
        every=run.checkpoint.every,
    )


def checkpoint_bytes(plan: Plan) -> float:
    """Returns the bytes of trained parameters and optimizer state, which a checkpoint holds."""
    tree = trained(leaves(plan))
    kept = sum(state_elements(plan.optimizer, leaf) for leaf in tree)
    width = state_width(plan.optimizer, param_dtype=plan.model.param_dtype)
    return sum(leaf.elements * leaf.width for leaf in tree) + kept * width


def best_every(plan: Plan, *, cluster: ClusterConfig, step_seconds: float) -> int:
    """Returns the steps between checkpoints that lose least; 0 on a cluster that never fails.

    Args:
      plan: on all devices of the cluster.
      cluster: failures and storage.
      step_seconds: of one step.
    """
    written = checkpoint_bytes(plan) / cluster.storage_write
    between = _between_failures(cluster, devices=cluster.devices)
    return _in_steps(_least_lossy(written, between=between), step_seconds=step_seconds)


def _between_failures(cluster: ClusterConfig, *, devices: int) -> float:
    return mtbf(devices, rate=cluster.failures) if cluster.failures else math.inf


def _least_lossy(written: float, *, between: float) -> float:
    return max(written, young(written, mtbf=between))


def _in_steps(seconds: float, *, step_seconds: float) -> int:
    if math.isinf(seconds):
        return 0
    steps = max(1, math.ceil(seconds / step_seconds))
    unit = 10 ** max(0, len(str(steps)) - 2)
    return math.ceil(steps / unit) * unit
