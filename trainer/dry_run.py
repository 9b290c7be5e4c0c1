"""``--mode=dry_run``: the run's own step, compiled for a cluster that is not there.

Whether it fits and who takes the memory, what it moves against the formulas, what it should take
and cost, and what is unwise in its layout. Chips whose compiler is not here get what tracing and
CPU's compiler can tell, and the planner's formulas for the rest.
"""

import contextlib
import dataclasses
import math
import signal
import sys
from collections.abc import Iterator, Sequence

import jax
from jax._src import xla_bridge  # no public name says whether devices were looked for

from launch.contract import ExitCode, Finding, Verdict
from partitioning.planner.cost_model import lints
from partitioning.planner.cost_model.memory import MemoryUse, device_memory
from partitioning.planner.cost_model.run_outlook import RunOutlook, run_outlook
from partitioning.planner.cost_model.step_time import Prediction, predict
from partitioning.planner.hardware import ClusterConfig
from partitioning.planner.inputs import plan_of
from partitioning.targets import TARGETS, has_compiler
from trainer import dry_run_compile
from trainer.config import load
from trainer.config_errors import ConfigError
from trainer.deviceless import device_count, target_program
from trainer.dry_run_compile import for_cpu
from trainer.dry_run_report import DryRun, Tier, as_json, show
from trainer.endings import UserError, user_error
from trainer.fleet import cluster_names, load_cluster
from trainer.program import Program
from trainer.run_config import LanguageModel, RunConfig
from trainer.state import parameter_rows


def command(
    files: Sequence[str], bindings: Sequence[str], *, cluster: str | None, quick: bool, json: bool
) -> None:
    """Runs a dry run and prints what it found.

    Args:
      files: gin files of the run.
      bindings: ``NAME=VALUE``.
      cluster: name of a cluster (trainer/fleet.py).
      quick: compile in less time, to slower kernels, and leave out the table of parameters.
      json: print one JSON object.

    Raises:
      UserError: the cluster is not known, or the run cannot work on it; that has been printed.
    """
    if cluster is None:
        raise UserError(
            "--mode=dry_run needs --cluster, the devices to compile for: --cluster=h100_512 are "
            f"512 of kind h100. Kinds: {', '.join(cluster_names())}; or give a gin file of your "
            "own, as configs/clusters/h100.gin is."
        )
    with user_error(ExitCode.CONFIGURATION):
        there = load_cluster(cluster)
    with _interruptible():
        found = examine(files, bindings, cluster=there, quick=quick)
    print(as_json(found) if json else show(found), flush=True)  # noqa: T201 - what was asked for
    if not found.fits:
        about = ", ".join(dict.fromkeys(finding.about for finding in found.errors))
        raise UserError(f"It cannot work on {cluster}: {about}.")


def examine(
    files: Sequence[str], bindings: Sequence[str], *, cluster: ClusterConfig, quick: bool = False
) -> DryRun:
    """Returns everything that can be known of a run on a cluster; mistakes become findings.

    jax must not have looked for devices yet, unless it has enough virtual ones.
    """
    found = DryRun(cluster=cluster.name, chip=cluster.chip.name, devices=cluster.devices)
    try:
        run = load(files, bindings).run
    except ConfigError as error:
        problems = (_error("configuration", str(problem)) for problem in error.problems)
        return dataclasses.replace(found, findings=tuple(problems))
    try:
        sizes = run.mesh.sizes(cluster.devices)
    except ValueError as error:
        return dataclasses.replace(found, findings=(_error("mesh", _hinted(error, run, cluster)),))
    found = dataclasses.replace(found, mesh={axis: n for axis, n in sizes.items() if n > 1})
    tier = _tier(cluster)
    _start_jax(cluster, tier=tier)
    adapted, left_out = for_cpu(run) if tier == "cpu" else (run, ())
    try:
        program = _program(adapted, cluster=cluster, tier=tier)
        planned = _planned(run, cluster=cluster, program=program)
    except ValueError as error:
        return dataclasses.replace(found, findings=(_error("configuration", str(error)),))
    _say(f"Compiling for {cluster.devices} x {cluster.chip.name}, usually in under a minute ...")
    done = dry_run_compile.compiled(
        program, run=run, cluster=cluster, tier=tier, quick=quick, formula=planned.memory
    )
    said = () if tier != "cpu" else (_instead(cluster), *left_out)
    return dataclasses.replace(
        found,
        compiler=tier,
        memory=done.memory,
        traffic=done.traffic,
        counted=done.counted,
        flops=done.flops,
        table=() if quick else tuple(parameter_rows(program)),
        predicted=planned.step,
        outlook=planned.outlook,
        findings=(*said, *done.findings, *planned.findings),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Planned:
    """What formulas say; all None where the task has none."""

    memory: MemoryUse | None = None
    step: Prediction | None = None
    outlook: RunOutlook | None = None
    findings: tuple[Finding, ...] = ()


def _planned(run: RunConfig, *, cluster: ClusterConfig, program: Program) -> _Planned:
    if not isinstance(run.task, LanguageModel):
        name = type(run.task).__name__
        text = f"no formulas for {name}: step time, price and traffic are not predicted."
        return _Planned(findings=(Finding(about="step", verdict=Verdict.INFO, message=text),))
    plan = plan_of(run, devices=cluster.devices)
    step = predict(plan, cluster=cluster)
    outlook = run_outlook(
        run,
        cluster=cluster,
        devices=cluster.devices,
        step_seconds=step.seconds,
        checkpoint=dry_run_compile.checkpoint_bytes(program),
    )
    advice = (*lints.layout_lints(plan, cluster=cluster), *lints.run_lints(step, outlook))
    memory = device_memory(plan, chip=cluster.chip)
    return _Planned(memory=memory, step=step, outlook=outlook, findings=advice)


def _tier(cluster: ClusterConfig) -> Tier:
    target = cluster.chip.target
    return TARGETS[target].platform if has_compiler(target) else "cpu"


def _program(run: RunConfig, *, cluster: ClusterConfig, tier: Tier) -> Program:
    target = "cpu" if tier == "cpu" else cluster.chip.target
    slices = _slices(run, cluster) if tier == "tpu" else 1
    return target_program(run, target=target, devices=cluster.devices, slices=slices)


def _slices(run: RunConfig, cluster: ClusterConfig) -> int:
    """Returns the TPU slices: as the mesh says, else as few as hold the devices."""
    inner = cluster.links[0].devices
    named = math.prod(factor for _, factor in run.mesh.outer)
    return max(named, math.ceil(cluster.devices / inner) if inner else 1)


def _start_jax(cluster: ClusterConfig, *, tier: Tier) -> None:
    """Keeps jax off real devices, which a dry run does not need."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_threefry_partitionable", True)
    if tier == "cpu" and not xla_bridge.backends_are_initialized():
        jax.config.update("jax_num_cpu_devices", cluster.devices)


def _hinted(error: ValueError, run: RunConfig, cluster: ClusterConfig) -> str:
    """Adds the cluster's name that the mesh would fit, where it says how many devices it needs."""
    with contextlib.suppress(ValueError):
        devices = device_count(run)
        if cluster.name in cluster_names():
            return f"{error} The cluster may be --cluster={cluster.name}_{devices}."
        return f"{error} The cluster's file may say ClusterConfig.devices = {devices}."
    return str(error)


def _instead(cluster: ClusterConfig) -> Finding:
    """Says what CPU's compiler can and cannot tell."""
    chip = cluster.chip
    why = (
        f"the compiler for {chip.name} is not here: run `make aot` to get it"
        if chip.target
        else f"XLA cannot compile for {chip.name} without the device"
    )
    return Finding(
        about="compiler",
        verdict=Verdict.WARNING,
        message=f"{why}. Compiled for {cluster.devices} virtual CPU devices instead, which tells "
        "whether the step traces, divides and is sharded as meant, and the exact bytes of state "
        "and batch. Temporaries, and with them whether it fits, and bytes per axis are the "
        "planner's formulas.",
    )


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Lets signals end the process at once: a compiler listens to nothing."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _error(about: str, message: str) -> Finding:
    return Finding(about=about, verdict=Verdict.ERROR, message=message)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - progress, beside what is printed
