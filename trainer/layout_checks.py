"""What the planner's formulas say of a run on a kind of device; nothing is compiled. No jax."""

import dataclasses

from launch.contract import Finding, Verdict
from partitioning.planner.cost_model import lints
from partitioning.planner.cost_model.memory import device_memory
from partitioning.planner.cost_model.memory_verdict import formula_verdict, host_verdict
from partitioning.planner.cost_model.run_outlook import checkpoint_bytes, run_outlook
from partitioning.planner.cost_model.step_time import predict
from partitioning.planner.hardware import ClusterConfig
from partitioning.planner.inputs import plan_of
from trainer.run_config import LanguageModel, RunConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Where:
    """The devices of a run.

    Attributes:
      cluster: what they are; None if that is not known.
      name: of the cluster, as --cluster takes it.
      accelerator: what a job file calls them; empty if there is none.
    """

    cluster: ClusterConfig | None = None
    name: str = ""
    accelerator: str = ""


def layout_findings(run: RunConfig, *, devices: int, where: Where) -> list[Finding]:
    """Returns whether the run fits, what it costs, and what is unwise in its layout.

    Its sizes must divide (size_checks.py).
    """
    if where.cluster is None:
        return [_unchecked(_why(where))]
    if not isinstance(run.task, LanguageModel):
        return [_unchecked(f"there are formulas for LanguageModel, not {type(run.task).__name__}")]
    cluster = dataclasses.replace(where.cluster, devices=devices)
    try:
        plan = plan_of(run, devices=devices)
        use, step = device_memory(plan, chip=cluster.chip), predict(plan, cluster=cluster)
    except ValueError as error:  # a rule that does not fit a parameter
        return [Finding(about="model", verdict=Verdict.ERROR, message=str(error))]
    outlook = run_outlook(
        run,
        cluster=cluster,
        devices=devices,
        step_seconds=step.seconds,
        checkpoint=checkpoint_bytes(plan),
    )
    host = host_verdict(use.host, cluster=cluster)
    return [
        formula_verdict(use, cluster=cluster),
        *([host] if host is not None else []),
        *lints.layout_lints(plan, cluster=cluster),
        *lints.run_lints(step, outlook),
    ]


def _why(where: Where) -> str:
    if not where.accelerator:
        return "name the devices, as in --cluster=h100_512"
    if where.accelerator == "cpu":
        return "CPU devices share their host's"
    return (
        f"nothing is known of {where.accelerator!r}; a file of ten lines in configs/clusters/ "
        "tells, as h100.gin does"
    )


def _unchecked(why: str) -> Finding:
    return Finding(about="memory", verdict=Verdict.INFO, message=f"not checked: {why}.")
