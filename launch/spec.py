"""The job file: one declarative, versioned description of a run, the same for every engine.

Plain frozen dataclasses over the standard library, so that the supervisor reads them on any host.
`launch.spec_reader` makes them from YAML; docs/launch.md is generated from them, so every field's
meaning stands in its class's docstring.
"""

import dataclasses
import pathlib
from typing import NewType, Self

from launch.records import ContractError, Schema
from launch.spec_engines import KubernetesOptions, SlurmOptions
from launch.spec_words import (
    Fabric,
    OnLoss,
    Placement,
    Priority,
    SecretForm,
    SpotUse,
    TopologyLevel,
)

JOB_FILE = "job.json"

Seconds = NewType("Seconds", float)
"""In a job file a number of seconds, or a text such as 90s, 30m, 12h or 7d."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Owner:
    """Whose job it is.

    Attributes:
      team: team that pays and shares; queue, namespace or account where no other is given.
      user: person to ask; default: who submits.
      account: account of the engine, where it is not named like the team.
    """

    team: str
    user: str = ""
    account: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """What runs in every process: Lockstep's trainer, or any command.

    Attributes:
      gin_files: gin files of python -m trainer.main.
      gin_bindings: bindings such as TrainConfig.steps=20; they win over the files.
      flags: further flags of trainer.main, such as --cache_dir=/scratch/cache.
      command: program and arguments, instead of the trainer. Each process gets LAUNCH_* and the
        variables that torchrun sets (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT).
      env: further variables, nothing secret.
      processes_per_host: processes on each host; devices are dealt out evenly.
    """

    gin_files: tuple[str, ...] = ()
    gin_bindings: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    processes_per_host: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Code:
    """Which code and which programs run; fixed at submission, its digest recorded.

    Attributes:
      snapshot: folder of which the files that git tracks, with their uncommitted changes, are
        copied at submission and used by every attempt; empty runs the code where it is.
      image: container image, best by digest (name@sha256:...).
      python: Python interpreter on the hosts; default: the one that submits, python3 in an image.
    """

    snapshot: str = ""
    image: str = ""
    python: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """What the run reads, for checks before it starts.

    Attributes:
      path: folder of prepared shards; must hold a manifest.
      license: what the manifest must say; empty takes any, but there must be one.
    """

    path: str
    license: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resources:
    """What a run needs: hosts x per_host accelerators, all or nothing.

    Attributes:
      accelerator: kind, such as h100, h200, a100, tpu-v5p or cpu; one kind per run.
      hosts: hosts to start with.
      per_host: accelerators of each host.
      min_hosts: fewest hosts that the run may go on with; default: hosts.
      max_hosts: most hosts that it makes use of; default: hosts.
      cpus_per_host: processor cores; 0 takes all.
      memory_gib: host memory of each host in GiB; 0 takes all.
      fabric: network between the hosts.
    """

    accelerator: str
    hosts: int = 1
    per_host: int = 1
    min_hosts: int | None = None
    max_hosts: int | None = None
    cpus_per_host: int = 0
    memory_gib: int = 0
    fabric: Fabric = Fabric.ETHERNET


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topology:
    """How close together the hosts must be.

    Attributes:
      level: all hosts of a slice share one of these; host asks for nothing.
      placement: whether the run waits for such a place or only prefers it.
      slices: equal parts that the hosts form; each part is as close as level says.
      max_wait_s: how long a preferred place is waited for.
    """

    level: TopologyLevel = TopologyLevel.HOST
    placement: Placement = Placement.PREFERRED
    slices: int = 1
    max_wait_s: Seconds = Seconds(600.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spot:
    """Whether the run may use capacity that can be taken back.

    Attributes:
      use: never, allow (beside other capacity) or require.
      notice_s: how long before it is gone its owner tells.
    """

    use: SpotUse = SpotUse.NEVER
    notice_s: Seconds = Seconds(30.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runtime:
    """How long things may take.

    Attributes:
      max_walltime_s: longest time of one allocation; the run saves and queues again before it
        ends. 0 asks for the engine's own limit.
      grace_s: between the request to stop and the kill; a save must fit in.
      start_s: limit for a process to come up and join the others.
      restore_s: limit for restoring.
      compile_s: limit for tracing and compiling, until the first step.
      save_s: limit for a save that blocks the loop.
      evaluate_s: limit for an evaluation batch.
    """

    max_walltime_s: Seconds = Seconds(0.0)
    grace_s: Seconds = Seconds(120.0)
    start_s: Seconds = Seconds(900.0)
    restore_s: Seconds = Seconds(1800.0)
    compile_s: Seconds = Seconds(3600.0)
    save_s: Seconds = Seconds(1800.0)
    evaluate_s: Seconds = Seconds(1800.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watchdog:
    """When a run that says nothing is stuck; counts from the first step on.

    Attributes:
      step_factor: a step may take this many times the typical one ...
      step_min_s: ... but never less than this ...
      step_max_s: ... and never more than this.
      beat_s: how often agents and supervisor tell one another that they live.
      lost_after_s: silence after which a host counts as lost, and after which a host that hears
        nothing stops its own processes.
    """

    step_factor: float = 10.0
    step_min_s: Seconds = Seconds(60.0)
    step_max_s: Seconds = Seconds(1800.0)
    beat_s: Seconds = Seconds(1.0)
    lost_after_s: Seconds = Seconds(10.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budgets:
    """How often each class of failure is answered by another attempt, per window.

    Attributes:
      infrastructure: lost hosts, networks and devices.
      hang: no progress within the deadline.
      exception: errors of the program without a class of their own.
      signal: death by a signal.
      numerics: numbers that are no longer finite.
      corruption: suspected silent corruption.
      no_progress: attempts in a row that save no new step; then the run is held.
      same_step: failures at one and the same step; then the run is held.
      window_s: failures older than this no longer count.
    """

    infrastructure: int = 50
    hang: int = 10
    exception: int = 3
    signal: int = 10
    numerics: int = 3
    corruption: int = 2
    no_progress: int = 3
    same_step: int = 2
    window_s: Seconds = Seconds(86400.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recovery:
    """How the run comes back.

    Attributes:
      budgets: how often.
      watchdog: when silence is a failure.
      spares: hosts allocated beside the run's, idle until one of its hosts fails.
      on_loss: without a spare: queue again, or go on smaller (not below min_hosts).
      exclude_after: failures of the same host after which the run avoids it.
      exclude_s: for how long it is avoided.
      backoff_s: pause before the second and each further restart in a row without a new saved
        step; doubles each time, ten minutes at most.
    """

    budgets: Budgets = Budgets()
    watchdog: Watchdog = Watchdog()
    spares: int = 0
    on_loss: OnLoss = OnLoss.REQUEUE
    exclude_after: int = 2
    exclude_s: Seconds = Seconds(86400.0)
    backoff_s: Seconds = Seconds(5.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Where the run lives.

    Attributes:
      root: the run directory: a path that all hosts share, gs:// or s3://. {run_id} is replaced.
    """

    root: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Secret:
    """Something secret, by reference: its value is read on the host, by the process's agent.

    Attributes:
      name: variable that the process sees (form env), or NAME_FILE (form file).
      ref: file:/path (readable by its owner only), env:NAME (of the host's agent), or
        k8s:secret/key.
      form: file or env.
    """

    name: str
    ref: str
    form: SecretForm = SecretForm.FILE


@dataclasses.dataclass(frozen=True, kw_only=True)
class Isolation:
    """What keeps jobs apart, where the engine can.

    Attributes:
      deny_other_jobs: no traffic from or to other jobs (Kubernetes: a NetworkPolicy).
      run_as_non_root: containers may not be root.
      service_account: identity towards storage and the cluster.
    """

    deny_other_jobs: bool = True
    run_as_non_root: bool = True
    service_account: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobSpec(Schema):
    """A job file.

    Attributes:
      name: name of the job: lower-case letters, digits and -, at most 40.
      owner: whose it is.
      workload: what runs.
      resources: what it needs.
      checkpoint: where the run lives.
      code: which code and programs.
      dataset: what it reads, for the checks; the trainer's gin files decide.
      priority: who goes first.
      topology: closeness of hosts.
      spot: capacity that can be taken back.
      runtime: time limits.
      recovery: how it comes back.
      secrets: by reference only.
      isolation: what keeps it apart.
      trials: copies with LAUNCH_TRIAL=0, 1, ... and {trial} replaced in bindings and root.
      slurm: for the engine slurm.
      kubernetes: for the engine kubernetes.
    """

    name: str
    owner: Owner
    workload: Workload
    resources: Resources
    checkpoint: Checkpoint
    code: Code = Code()
    dataset: Dataset | None = None
    priority: Priority = Priority.NORMAL
    topology: Topology = Topology()
    spot: Spot = Spot()
    runtime: Runtime = Runtime()
    recovery: Recovery = Recovery()
    secrets: tuple[Secret, ...] = ()
    isolation: Isolation = Isolation()
    trials: int = 1
    slurm: SlurmOptions = SlurmOptions()  # noqa: RUF009 - frozen
    kubernetes: KubernetesOptions = KubernetesOptions()  # noqa: RUF009 - frozen

    @property
    def is_trainer(self) -> bool:
        """Whether the processes are Lockstep's trainer."""
        return not self.workload.command


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job(Schema):
    """A job file made one run's: what is submitted, rendered and supervised (``job.json``).

    Attributes:
      run_id: name of the run on every engine and in every record.
      spec: the job file, resolved: paths are absolute, {run_id} and {trial} replaced.
      engine: local, slurm, kubernetes or another registered name.
      job_dir: folder that all hosts of the engine share, for what the launcher writes: job.json,
        rendered/, journal.jsonl, status.json, attempts/<n>/{logs,stacks}; the run directory
        itself where that is a path.
      code_dir: folder in which the processes start.
      code_digest: digest of the snapshot or of the image; empty where the code is not fixed.
      python: interpreter of supervisor, agents and trainer.
      trial: which of spec.trials.
    """

    run_id: str
    spec: JobSpec
    engine: str
    job_dir: str
    code_dir: str
    python: str
    code_digest: str = ""
    trial: int = 0

    @classmethod
    def of_folder(cls, job_dir: str | pathlib.Path) -> Self:
        """Returns the job that a folder holds.

        Raises:
          ContractError: it holds none, or one of another version.
        """
        path = pathlib.Path(job_dir) / JOB_FILE
        job = cls.read_file(path)
        if job is None:
            raise ContractError(f"{path} does not exist: this is no folder of a job.")
        return job

    def command(self) -> tuple[str, ...]:
        """Returns the command of every process; arguments, never a line for a shell."""
        work = self.spec.workload
        if work.command:
            return work.command
        return (
            self.python,
            "-m",
            "trainer.main",
            *(f"--gin_file={name}" for name in work.gin_files),
            *(f"--gin_bindings={binding}" for binding in work.gin_bindings),
            f"--run_dir={self.spec.checkpoint.root}",
            *work.flags,
        )
