"""Combinations in a job file that cannot work, or may not do what was meant. No imports but ours.

Each check looks at one matter and yields `Problem`s; `check` runs them all, so that a user sees
everything at once. What only an engine knows stands in its `refusals`.
"""

import re
from collections.abc import Callable, Iterator

from launch.spec import JobSpec, OnLoss, Placement, SpotUse, TopologyLevel
from launch.spec_problems import Problem, Severity
from launch.spec_program_checks import PROGRAM_CHECKS, references_of_engine

NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
MOST_HOSTS = 100_000
_TEAM = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*")


def check(spec: JobSpec, *, engine: str | None = None) -> list[Problem]:
    """Returns everything that is wrong with a job file that could be read.

    Args:
      spec: the job.
      engine: name of the engine; None leaves out what depends on it.
    """
    found = [problem for one in _CHECKS for problem in one(spec)]
    if engine is not None:
        found += references_of_engine(spec, engine=engine)
    return found


def _names(spec: JobSpec) -> Iterator[Problem]:
    if not NAME.fullmatch(spec.name):
        yield Problem(
            path="name",
            message=f"given {spec.name!r}; a name is at most 40 lower-case letters, digits and -, "
            "starts with a letter and does not end in -.",
        )
    if not _TEAM.fullmatch(spec.owner.team):
        yield Problem(
            path="owner.team",
            message=f"given {spec.owner.team!r}; a team is lower-case letters, digits and -, so "
            "that it can be a namespace and an account.",
        )
    for key in ("user", "account"):
        value = getattr(spec.owner, key)
        if value and not _USER.fullmatch(value):
            yield Problem(
                path=f"owner.{key}",
                message=f"given {value!r}; allowed are letters, digits and _ . @ -.",
            )
    if not re.fullmatch(r"[a-z0-9][-a-z0-9.]*", spec.resources.accelerator):
        yield Problem(
            path="resources.accelerator",
            message=f"given {spec.resources.accelerator!r}; name the kind, such as h100, tpu-v5p "
            "or cpu.",
        )


def _counts(spec: JobSpec) -> Iterator[Problem]:
    for path, (value, least, most) in _bounds(spec).items():
        if value is not None and not least <= value <= most:
            allowed = f"at least {least}" if value < least else f"at most {most}"
            yield Problem(path=path, message=f"given {value}; it must be {allowed}.")


def _bounds(spec: JobSpec) -> dict[str, tuple[int | None, int, int]]:
    """Returns key -> value, least and most; the most is what no mistyped zero slips through."""
    need, recovery = spec.resources, spec.recovery
    return {
        "resources.hosts": (need.hosts, 1, MOST_HOSTS),
        "resources.per_host": (need.per_host, 1, 1024),
        "resources.min_hosts": (need.min_hosts, 1, MOST_HOSTS),
        "resources.max_hosts": (need.max_hosts, 1, MOST_HOSTS),
        "resources.cpus_per_host": (need.cpus_per_host, 0, 65_536),
        "resources.memory_gib": (need.memory_gib, 0, 1 << 20),
        "workload.processes_per_host": (spec.workload.processes_per_host, 1, 1024),
        "topology.slices": (spec.topology.slices, 1, MOST_HOSTS),
        "trials": (spec.trials, 1, 1000),
        "recovery.spares": (recovery.spares, 0, MOST_HOSTS),
        "recovery.exclude_after": (recovery.exclude_after, 1, 1000),
        "slurm.segment": (spec.slurm.segment, 0, MOST_HOSTS),
        **{
            f"recovery.budgets.{name}": (value, int(name in ("no_progress", "same_step")), 10**6)
            for name, value in vars(recovery.budgets).items()
            if name != "window_s"
        },
    }


def _hosts(spec: JobSpec) -> Iterator[Problem]:
    need = spec.resources
    if need.min_hosts is not None and need.min_hosts > need.hosts:
        yield Problem(
            path="resources.min_hosts",
            also=("resources.hosts",),
            message=f"given {need.min_hosts}, but the run starts with hosts: {need.hosts}.",
        )
    if need.max_hosts is not None and need.max_hosts < need.hosts:
        yield Problem(
            path="resources.max_hosts",
            also=("resources.hosts",),
            message=f"given {need.max_hosts}, but the run starts with hosts: {need.hosts}.",
        )
    processes = spec.workload.processes_per_host
    if processes > 0 and need.per_host % processes:
        yield Problem(
            path="workload.processes_per_host",
            also=("resources.per_host",),
            message=f"given {processes}, which does not divide resources.per_host="
            f"{need.per_host}; devices are dealt out evenly.",
        )
    if spec.recovery.on_loss is OnLoss.SHRINK and need.min_hosts in (None, need.hosts):
        yield Problem(
            path="recovery.on_loss",
            also=("resources.min_hosts", "resources.hosts"),
            message="shrink needs resources.min_hosts below resources.hosts; otherwise there is "
            "nothing to shrink to.",
        )


def _topology(spec: JobSpec) -> Iterator[Problem]:
    shape, hosts = spec.topology, spec.resources.hosts
    if 0 < shape.slices <= hosts <= MOST_HOSTS and hosts % shape.slices:
        fitting = [n for n in range(1, hosts + 1) if hosts % n == 0]
        near = sorted(fitting, key=lambda n: abs(n - shape.slices))[:2]
        yield Problem(
            path="topology.slices",
            also=("resources.hosts",),
            message=f"given {shape.slices}, which does not divide resources.hosts={hosts}; "
            f"nearest: {' or '.join(map(str, near))}.",
        )
    elif shape.slices > hosts:
        yield Problem(
            path="topology.slices",
            also=("resources.hosts",),
            message=f"given {shape.slices}, more than resources.hosts={hosts}.",
        )
    if shape.placement is Placement.REQUIRED and shape.level is TopologyLevel.HOST:
        yield Problem(
            path="topology.placement",
            also=("topology.level",),
            message="required asks for closeness, but topology.level=host asks for none; name "
            "rack or block.",
            severity=Severity.WARNING,
        )


def _times(spec: JobSpec) -> Iterator[Problem]:
    run, dog = spec.runtime, spec.recovery.watchdog
    limits = {f"runtime.{name}": value for name, value in vars(run).items()}
    limits |= {
        f"recovery.watchdog.{name}": value
        for name, value in vars(dog).items()
        if name != "step_factor"
    }
    limits["recovery.budgets.window_s"] = spec.recovery.budgets.window_s
    for path, value in limits.items():
        if value <= 0 and path != "runtime.max_walltime_s":
            yield Problem(path=path, message="given 0; it must be longer.")
    if 0 < run.max_walltime_s <= run.grace_s:
        yield Problem(
            path="runtime.grace_s",
            also=("runtime.max_walltime_s",),
            message=f"given {_seconds(run.grace_s)}, but an allocation lasts runtime.max_walltime_s"
            f"={_seconds(run.max_walltime_s)}: the run would be stopping from its start.",
        )
    if dog.step_factor < 1:
        yield Problem(
            path="recovery.watchdog.step_factor",
            message=f"given {dog.step_factor:g}; below 1 every ordinary step is too slow.",
        )
    if dog.step_max_s < dog.step_min_s:
        yield Problem(
            path="recovery.watchdog.step_max_s",
            also=("recovery.watchdog.step_min_s",),
            message=f"given {_seconds(dog.step_max_s)}, less than step_min_s="
            f"{_seconds(dog.step_min_s)}.",
        )
    if 0 < dog.lost_after_s < 2 * dog.beat_s:
        yield Problem(
            path="recovery.watchdog.lost_after_s",
            also=("recovery.watchdog.beat_s",),
            message=f"given {_seconds(dog.lost_after_s)}; with beat_s={_seconds(dog.beat_s)} one "
            f"late beat would be a lost host. Take at least {_seconds(2 * dog.beat_s)}.",
        )


def _spot(spec: JobSpec) -> Iterator[Problem]:
    """A notice shorter than the grace is an error where all capacity is of that kind."""
    spot, grace = spec.spot, spec.runtime.grace_s
    if spot.use is SpotUse.NEVER or spot.notice_s >= grace:
        return
    certain = spot.use is SpotUse.REQUIRE
    yield Problem(
        path="spot.notice_s",
        also=("spot.use", "runtime.grace_s"),
        message=f"hosts are gone {_seconds(spot.notice_s)} after the notice, but "
        f"runtime.grace_s={_seconds(grace)} is what a save may take: the save would be cut off. "
        f"Set runtime.grace_s to at most {_seconds(spot.notice_s)} and see that a save fits in.",
        severity=Severity.ERROR if certain else Severity.WARNING,
    )


def _checkpoint(spec: JobSpec) -> Iterator[Problem]:
    root = spec.checkpoint.root
    scheme, found, rest = root.partition("://")
    if found and (scheme not in ("gs", "s3") or not rest.strip("/")):
        yield Problem(
            path="checkpoint.root",
            message=f"given {root!r}; allowed are a path, gs://bucket/... and s3://bucket/....",
        )
    elif not root.strip():
        yield Problem(path="checkpoint.root", message="is empty; name the run's directory.")
    for name in re.findall(r"\{(.*?)\}", root):
        if name not in ("run_id", "trial"):
            yield Problem(
                path="checkpoint.root",
                message=f"{{{name}}} stands for nothing; there are {{run_id}} and {{trial}}.",
            )
    if spec.trials > 1 and not re.search(r"\{(trial|run_id)\}", root):
        yield Problem(
            path="checkpoint.root",
            also=("trials",),
            message=f"{spec.trials} trials would write into one directory; put {{trial}} or "
            "{run_id} into it.",
        )


def _volume(spec: JobSpec) -> Iterator[Problem]:
    claim, root = spec.kubernetes.volume_claim, spec.checkpoint.root
    if claim and "://" in root:
        yield Problem(
            path="kubernetes.volume_claim",
            also=("checkpoint.root",),
            message=f"a claim holds a checkpoint root that is a path, but that is {root!r}.",
            severity=Severity.WARNING,
        )


def _code(spec: JobSpec) -> Iterator[Problem]:
    if spec.code.snapshot and spec.code.image:
        yield Problem(
            path="code.snapshot",
            also=("code.image",),
            message="the image brings its own code; keep one of the two.",
        )
    if re.search(r"\s", spec.code.image):
        yield Problem(
            path="code.image", message=f"given {spec.code.image!r}; an image has no spaces."
        )


def _seconds(value: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if value >= length and value % length == 0:
            return f"{value / length:.0f}{unit}"
    return f"{value:g}s"


_CHECKS: tuple[Callable[[JobSpec], Iterator[Problem]], ...] = (
    _names,
    *PROGRAM_CHECKS,
    _counts,
    _hosts,
    _topology,
    _times,
    _spot,
    _checkpoint,
    _volume,
    _code,
)
