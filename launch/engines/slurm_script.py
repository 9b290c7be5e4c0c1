"""A job as Slurm takes it: the arguments of sbatch, and the script. Pure, standard library only.

Options are arguments, not #SBATCH lines: arguments win over SBATCH_* variables and need no second
kind of quoting. The script is the same for every allocation of a run.
"""

import math
import shlex

from launch import fabric
from launch.engines.engine import EngineError
from launch.own_code import ROOT
from launch.spec import Job, JobSpec, OnLoss, Placement, SpotUse, TopologyLevel

LOG = "supervisor.log"
SCRIPT = "run.sh"

_MARGIN_S = 30
"""Slurm may send a signal late by its own polling; the grace must be whole."""

_FOREVER = "365-0"
_EXPORT = "HOME,USER,LOGNAME,SHELL,PATH,LANG,TZ,LOCKSTEP_HOME,LOCKSTEP_STATE"
"""Variables that jobs get from whoever submits: nothing that can hold a secret."""


def options(job: Job, *, again: bool = False, exclude: tuple[str, ...] = ()) -> list[str]:
    """Returns the arguments of sbatch, without the script.

    Args:
      job: the job.
      again: the run goes on after it has lost hosts: it may be as small as it is allowed to be.
      exclude: nodes to avoid, beside those of the job file.
    """
    spec, slurm = job.spec, job.spec.slurm
    excluded = tuple(dict.fromkeys((*slurm.exclude, *exclude)))
    found = [
        f"--job-name={job.run_id}",
        f"--comment=lockstep {job.run_id} {spec.owner.team} {spec.owner.user}",
        f"--account={spec.owner.account or spec.owner.team}",
        f"--qos={slurm.qos or spec.priority.value}",
        *_nodes(spec, again=again),
        *_resources(spec),
        *_closeness(spec),
        f"--output={output_pattern(job)}",
        "--open-mode=append",
        "--requeue",
        # B: to the supervisor alone; a step's signal would reach every process of a rank, too.
        f"--signal=B:USR2@{math.ceil(spec.runtime.grace_s) + _MARGIN_S}",
        f"--export={_EXPORT}",
    ]
    if spec.runtime.max_walltime_s:
        found.append(f"--time={max(1, math.ceil(spec.runtime.max_walltime_s / 60))}")
    optional = {
        "partition": slurm.partition,
        "constraint": _constraint(spec),
        "reservation": slurm.reservation,
        "exclude": ",".join(excluded),
    }
    return found + [f"--{name}={value}" for name, value in optional.items() if value]


def script(job: Job) -> str:
    """Returns the batch script: it becomes the keeper of the run's supervisor."""
    lines = [
        "#!/bin/bash",
        f"# Run {job.run_id}. job.json beside this folder says what it does.",
        f"export PYTHONPATH={shlex.quote(str(ROOT))}${{PYTHONPATH:+:$PYTHONPATH}}",
        f"cd -- {shlex.quote(job.code_dir)} || exit 64",
        *job.spec.slurm.setup,
        # exec: the supervisor's exit code is the job's, and nothing stands before signals.
        f"exec {shlex.join([job.python, '-m', 'launch.keeper', '--job_dir', job.job_dir])}",
    ]
    return "\n".join(lines) + "\n"


def output_pattern(job: Job) -> str:
    """Returns the log's path as sbatch takes it.

    Raises:
      EngineError: it cannot be written so that Slurm reads it unchanged.
    """
    path = f"{job.job_dir}/{LOG}"
    if "\\" in path:
        raise EngineError(f"Slurm does not take paths with a backslash: {job.job_dir!r}.")
    return path.replace("%", "%%")


def keeps_allocation(spec: JobSpec) -> bool:
    """Whether the run goes on in an allocation that has lost a host."""
    return bool(spec.recovery.spares) or spec.recovery.on_loss is OnLoss.SHRINK


def _nodes(spec: JobSpec, *, again: bool) -> list[str]:
    resources, spares = spec.resources, spec.recovery.spares
    most = (resources.max_hosts or resources.hosts) + spares
    least = resources.hosts + spares
    if again:  # better without spares than waiting for them
        least = resources.min_hosts or resources.hosts
    # One task per host: an agent, which starts the host's processes.
    return [
        f"--nodes={least}" if least == most else f"--nodes={least}-{most}",
        "--ntasks-per-node=1",
        "--exclusive",
        *(["--no-kill"] if keeps_allocation(spec) else []),
    ]


def _resources(spec: JobSpec) -> list[str]:
    resources = spec.resources
    found = [f"--mem={resources.memory_gib}G" if resources.memory_gib else "--mem=0"]
    if resources.cpus_per_host:
        found.append(f"--mincpus={resources.cpus_per_host}")
    # Never --gpus-per-task: it renumbers devices in every task.
    if fabric.is_gpu(resources.accelerator):
        found.append(f"--gres=gpu:{resources.per_host}")
    return found


def _closeness(spec: JobSpec) -> list[str]:
    topology, slurm = spec.topology, spec.slurm
    if slurm.segment:
        return [f"--segment={slurm.segment}"]
    if topology.level is TopologyLevel.HOST:
        return []
    if topology.level is TopologyLevel.BLOCK:
        return [f"--segment={spec.resources.hosts // topology.slices}"]
    wait = _FOREVER
    if topology.placement is Placement.PREFERRED:
        wait = str(max(1, math.ceil(topology.max_wait_s / 60)))
    return [f"--switches={topology.slices}@{wait}"]


def _constraint(spec: JobSpec) -> str:
    spot = "spot" if spec.spot.use is SpotUse.REQUIRE else ""
    parts = [f"({text})" if "|" in text and spot else text for text in (spec.slurm.constraint,)]
    return "&".join(part for part in (*parts, spot) if part)
