"""Job files for tests: the smallest one, and any valid one (hypothesis)."""

import dataclasses
import enum
import pathlib
import textwrap
from typing import Any

import yaml
from hypothesis import strategies as st

from launch import spec
from launch.spec import JobSpec

SMALLEST = textwrap.dedent(
    """\
    version: 1
    name: tiny
    owner:
      team: research
    workload:
      gin_files: [configs/runs/quickstart.gin]
    resources:
      accelerator: cpu
    checkpoint:
      root: runs/tiny
    """
)


def write(folder: pathlib.Path, text: str = SMALLEST) -> pathlib.Path:
    """Writes a job file and returns its path."""
    path = folder / "job.yaml"
    path.write_text(text)
    return path


def plain(value: Any) -> Any:
    """Returns dataclasses, tuples and enums as what YAML has."""
    if dataclasses.is_dataclass(value):
        pairs = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {name: plain(item) for name, item in pairs if item is not None}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


class _Quoting(yaml.SafeDumper):
    """Puts every text in double quotes; the other styles do not bring every text back."""


_Quoting.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


def as_yaml(job: JobSpec) -> str:
    """Returns a job file that says the same."""
    return str(yaml.dump(plain(job), Dumper=_Quoting, sort_keys=False, width=10**6))


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
"""Any text that a program can be given: quotes, $, newlines and all."""
_WORDS = st.from_regex(r"\A[a-z]([-a-z0-9]{0,20}[a-z0-9])?\Z")
_VARIABLES = st.from_regex(r"\AX[A-Z0-9_]{0,8}X\Z")
_LONG = st.one_of(st.integers(3600, 10**6), st.floats(3600, 1e6))


@st.composite
def valid_specs(draw: st.DrawFn) -> JobSpec:
    """Any job that every check passes."""
    slices, per_slice, processes = (
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
        draw(_counts(3)),
    )
    hosts = slices * per_slice
    fewest = draw(st.none() | st.integers(1, hosts))
    return JobSpec(
        name=draw(_WORDS),
        owner=spec.Owner(team=draw(_WORDS), user=draw(st.sampled_from(["", "ada", "no"]))),
        workload=dataclasses.replace(draw(_workloads()), processes_per_host=processes),
        resources=spec.Resources(
            accelerator=draw(st.sampled_from(["h100", "tpu-v5p", "cpu"])),
            hosts=hosts,
            per_host=processes * draw(_counts(4)),
            min_hosts=fewest,
            max_hosts=draw(st.none() | st.integers(hosts, 100)),
            fabric=draw(st.sampled_from(spec.Fabric)),
        ),
        checkpoint=spec.Checkpoint(root=draw(st.sampled_from(["/r/{run_id}", "gs://b/{trial}"]))),
        code=draw(
            st.sampled_from([spec.Code(), spec.Code(snapshot="."), spec.Code(image="a/b:1")])
        ),
        dataset=draw(st.none() | st.builds(spec.Dataset, path=TEXTS, license=TEXTS)),
        priority=draw(st.sampled_from(spec.Priority)),
        topology=spec.Topology(level=draw(st.sampled_from(spec.TopologyLevel)), slices=slices),
        spot=spec.Spot(use=draw(st.sampled_from(spec.SpotUse)), notice_s=spec.Seconds(draw(_LONG))),
        runtime=spec.Runtime(grace_s=spec.Seconds(draw(st.integers(1, 3600)))),
        recovery=draw(_recoveries(can_shrink=fewest is not None and fewest < hosts)),
        secrets=tuple(draw(st.lists(_secrets(), max_size=2, unique_by=lambda s: s.name))),
        isolation=spec.Isolation(deny_other_jobs=draw(st.booleans())),
        trials=draw(st.integers(1, 9)),
        slurm=spec.SlurmOptions(setup=tuple(draw(st.lists(TEXTS, max_size=2)))),
        kubernetes=spec.KubernetesOptions(node_selector=draw(st.dictionaries(TEXTS, TEXTS))),
    )


def _counts(most: int) -> st.SearchStrategy[int]:
    return st.integers(1, most)


@st.composite
def _workloads(draw: st.DrawFn) -> spec.Workload:
    env = draw(st.dictionaries(_VARIABLES, TEXTS, max_size=3))
    if draw(st.booleans()):
        program = draw(st.sampled_from(["python", "./run me", "$HOME/x"]))
        return spec.Workload(command=(program, *draw(st.lists(TEXTS, max_size=3))), env=env)
    return spec.Workload(
        gin_files=tuple(draw(st.lists(TEXTS, min_size=1, max_size=2))),
        gin_bindings=tuple(f"A.b={text}" for text in draw(st.lists(TEXTS, max_size=2))),
        flags=tuple(f"--cache_dir={text}" for text in draw(st.lists(TEXTS, max_size=2))),
        env=env,
    )


@st.composite
def _recoveries(draw: st.DrawFn, *, can_shrink: bool) -> spec.Recovery:
    losses = [spec.OnLoss.REQUEUE, *([spec.OnLoss.SHRINK] if can_shrink else [])]
    return spec.Recovery(
        budgets=spec.Budgets(hang=draw(st.integers(0, 5))),
        watchdog=spec.Watchdog(step_factor=draw(st.floats(1, 100))),
        spares=draw(st.integers(0, 3)),
        on_loss=draw(st.sampled_from(losses)),
    )


@st.composite
def _secrets(draw: st.DrawFn) -> spec.Secret:
    return spec.Secret(
        name=draw(st.from_regex(r"\AS[A-Z0-9_]{0,8}S\Z")),
        ref=draw(st.sampled_from(["file:/etc/keys/a b", "env:HF_TOKEN", "k8s:hub/token"])),
        form=draw(st.sampled_from(spec.SecretForm)),
    )
