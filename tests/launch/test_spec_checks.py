"""Combinations that cannot work are refused before anything is submitted."""

import dataclasses
import pathlib

import pytest
from hypothesis import given

from launch import spec_checks, spec_reader
from launch.spec import JobSpec
from launch.spec_problems import Problem, Severity, SpecError
from tests.launch.job_files import SMALLEST, valid_specs, write


def problems(folder: pathlib.Path, more: str, *, engine: str | None = None) -> list[Problem]:
    """What is wrong with the smallest job after sections were added or replaced."""
    kept = SMALLEST.splitlines(keepends=True)
    for name in ("workload", "resources", "checkpoint", "owner", "name"):
        if f"\n{name}:" in f"\n{more}":
            start = next(i for i, line in enumerate(kept) if line.startswith(f"{name}:"))
            stop = start + 1
            while stop < len(kept) and kept[stop].startswith(" "):
                stop += 1
            del kept[start:stop]
    path = write(folder, "".join(kept) + more + "\n")
    try:
        return list(spec_reader.load(path, engine=engine).warnings)
    except SpecError as error:
        return list(error.problems)


@given(job=valid_specs())
def test_what_generates_valid_jobs_generates_no_errors(job: JobSpec) -> None:
    found = [p for p in spec_checks.check(job) if p.severity is Severity.ERROR]
    assert found == []


@pytest.mark.parametrize(
    ("more", "path", "expected"),
    [
        ("name: -tiny", "name", "at most 40 lower-case letters"),
        (f"name: {'a' * 41}", "name", "at most 40"),
        ("name: a_b", "name", "lower-case letters, digits and -"),
        ("owner: {team: Team A}", "owner.team", "a namespace and an account"),
        ("owner: {team: a, user: 'a;b'}", "owner.user", "allowed are letters, digits"),
        ("workload: {}", "workload", "there is nothing to run"),
        ("workload: {command: [a], gin_files: [b]}", "workload.gin_files", "keep one of the two"),
        ("workload: {command: [a], flags: [--b]}", "workload.flags", "keep one of the two"),
        ("workload: {command: ['']}", "workload.command[0]", "no name"),
        ("workload: {gin_files: [a], gin_bindings: [b]}", "workload.gin_bindings[0]", "NAME=VALUE"),
        ("workload: {gin_files: [a], flags: [b]}", "workload.flags[0]", "reads --name=value"),
        ("workload: {gin_files: [a], flags: [--run_dir=b]}", "workload.flags[0]", "checkpoint"),
        ("workload: {gin_files: [a], flags: [--gin.A.b=1]}", "workload.flags[0]", "gin_bindings"),
        ("workload: {gin_files: [a], flags: [--gin_file=b]}", "workload.flags[0]", "gin_files"),
        ("workload: {command: [a, --api-key=b]}", "workload.command[1]", "looks like a secret"),
        ("workload: {command: [a], env: {LAUNCH_X: a}}", "workload.env.LAUNCH_X", "the launcher"),
        ("workload: {command: [a], env: {RANK: '1'}}", "workload.env.RANK", "the launcher"),
        ("workload: {command: [a], env: {A-B: a}}", "workload.env.A-B", "no name of a variable"),
        ("workload: {command: [a], env: {HF_TOKEN: x}}", "workload.env.HF_TOKEN", "secrets:"),
        ("workload: {command: [a], env: {password: x}}", "workload.env.password", "secrets:"),
        ("workload: {command: [a], env: {AWS_SECRET_ACCESS_KEY: x}}",
         "workload.env.AWS_SECRET_ACCESS_KEY", "secrets:"),
        ("workload: {command: [a], processes_per_host: 3}", "workload.processes_per_host",
         "does not divide resources.per_host=1"),
        ("resources: {accelerator: H100}", "resources.accelerator", "name the kind"),
        ("resources: {accelerator: cpu, hosts: 0}", "resources.hosts", "at least 1"),
        ("resources: {accelerator: cpu, per_host: -8}", "resources.per_host", "at least 1"),
        ("resources: {accelerator: cpu, hosts: 2, min_hosts: 3}", "resources.min_hosts",
         "starts with hosts: 2"),
        ("resources: {accelerator: cpu, hosts: 2, max_hosts: 1}", "resources.max_hosts",
         "starts with hosts: 2"),
        ("resources: {accelerator: cpu, hosts: 8}\ntopology: {slices: 3}", "topology.slices",
         "nearest: 2 or 4"),
        ("topology: {slices: 2}", "topology.slices", "given 2, more than resources.hosts=1"),
        (f"resources: {{accelerator: cpu, hosts: {10**18}}}\ntopology: {{slices: 3}}",
         "resources.hosts", "at most 100000"),
        ("trials: 100000", "trials", "at most 1000"),
        ("topology: {placement: required}", "topology.placement", "name rack or block"),
        ("trials: 0", "trials", "at least 1"),
        ("trials: 2", "checkpoint.root", "put {trial} or {run_id}"),
        ("checkpoint: {root: 'runs/{user}'}", "checkpoint.root", "{user} stands for nothing"),
        ("checkpoint: {root: 'hdfs://a/b'}", "checkpoint.root", "gs://bucket/"),
        ("checkpoint: {root: 'gs://'}", "checkpoint.root", "gs://bucket/"),
        ("checkpoint: {root: ''}", "checkpoint.root", "is empty"),
        ("recovery: {spares: -1}", "recovery.spares", "at least 0"),
        ("recovery: {budgets: {same_step: 0}}", "recovery.budgets.same_step", "at least 1"),
        ("recovery: {budgets: {window_s: 0}}", "recovery.budgets.window_s", "must be longer"),
        ("recovery: {on_loss: shrink}", "recovery.on_loss", "nothing to shrink to"),
        ("recovery: {watchdog: {beat_s: 10, lost_after_s: 10}}", "recovery.watchdog.lost_after_s",
         "Take at least 20s"),
        ("recovery: {watchdog: {step_factor: 0.5}}", "recovery.watchdog.step_factor", "too slow"),
        ("recovery: {watchdog: {step_min_s: 1h}}", "recovery.watchdog.step_max_s",
         "given 30m, less than step_min_s=1h"),
        ("runtime: {grace_s: 10m, max_walltime_s: 5m}", "runtime.grace_s",
         "given 10m, but an allocation lasts runtime.max_walltime_s=5m"),
        ("runtime: {save_s: 0}", "runtime.save_s", "must be longer"),
        ("spot: {use: require}", "spot.notice_s", "the save would be cut off"),
        ("secrets: [{name: A, ref: sk-123456}]", "secrets[0].ref", "looks like the value itself"),
        ("secrets: [{name: A, ref: 'file:a'}]", "secrets[0].ref", "given 'file:a'"),
        ("secrets: [{name: A, ref: 'k8s:a'}]", "secrets[0].ref", "k8s:secret/key"),
        ("secrets: [{name: LAUNCH_A, ref: 'env:A'}]", "secrets[0].name", "not LAUNCH_"),
        ("secrets: [{name: A, ref: 'env:A'}, {name: A, ref: 'env:B'}]", "secrets[1].name",
         "A_FILE is set twice"),
        ("code: {snapshot: ., image: a}", "code.snapshot", "the image brings its own code"),
        ("code: {image: a b}", "code.image", "no spaces"),
        ("checkpoint: {root: 'gs://a/b'}\nkubernetes: {volume_claim: a}",
         "kubernetes.volume_claim", "a claim holds"),
    ],
)  # fmt: skip
def test_an_impossible_combination_is_refused_with_what_to_do(
    tmp_path: pathlib.Path, more: str, path: str, expected: str
) -> None:
    found = {problem.path: problem for problem in problems(tmp_path, more)}
    assert path in found, found
    assert expected in found[path].message
    assert found[path].line > 0


@pytest.mark.parametrize(
    "more",
    [
        "workload: {command: [a], env: {HF_TOKEN: /run/secrets/token, KEYS: x, TOKENS: x}}",
        "workload: {command: [a, --tokenizer=b, --max_tokens=5]}",
        "workload: {gin_files: [a], gin_bindings: ['m/A.b = 1']}",
        "runtime: {max_walltime_s: 0}",
        "trials: 2\ncheckpoint: {root: 'r/{trial}'}",
        "spot: {use: require, notice_s: 2m}",
    ],
)
def test_what_only_looks_wrong_is_accepted(tmp_path: pathlib.Path, more: str) -> None:
    assert problems(tmp_path, more) == []


def test_a_secret_of_kubernetes_is_refused_elsewhere(tmp_path: pathlib.Path) -> None:
    more = "secrets: [{name: A, ref: 'k8s:hub/token'}]"
    assert problems(tmp_path, more, engine="kubernetes") == problems(tmp_path, more) == []
    (problem,) = problems(tmp_path, more, engine="slurm")
    assert "engine slurm does not have" in problem.message


@pytest.mark.parametrize("use", ["allow", "require"])
def test_a_short_notice_is_an_error_only_where_all_capacity_is_spot(
    tmp_path: pathlib.Path, use: str
) -> None:
    (problem,) = problems(tmp_path, f"spot: {{use: {use}, notice_s: 30s}}")
    assert problem.severity is (Severity.ERROR if use == "require" else Severity.WARNING)
    assert "Set runtime.grace_s to at most 30s" in problem.message


@pytest.mark.parametrize("value", ["hunter2", "4711", "2026-01-01", "yes", "[hunter2]"])
def test_the_value_of_what_may_be_a_secret_is_never_repeated(
    tmp_path: pathlib.Path, value: str
) -> None:
    more = (
        f"workload: {{command: [a, '--password={value}', --token, '{value}'], "
        f"env: {{MY_KEY: {value}}}}}\n"
        f"secrets: [{{name: A, ref: {value}}}, {{name: B, ref: 'vault:{value}'}}]"
    )
    found = problems(tmp_path, more)
    assert {"workload.env.MY_KEY", "secrets[0].ref"} <= {p.path for p in found}
    assert not any(value in str(problem) for problem in found)


@pytest.mark.parametrize("flag", ["--api-key", "--hub_token", "-password"])
@pytest.mark.parametrize("key", ["gin_files: [a], flags", "command"])
def test_a_value_beside_its_flag_is_a_value_too(
    tmp_path: pathlib.Path, key: str, flag: str
) -> None:
    found = problems(tmp_path, f"workload: {{{key}: [--a, {flag}, hunter2]}}")
    assert f"workload.{key.split()[-1]}[2]" in {p.path for p in found}
    assert not any("hunter2" in str(problem) for problem in found)


def test_every_problem_of_one_job_is_found_in_one_go(tmp_path: pathlib.Path) -> None:
    more = "trials: 0\nspot: {use: require}\ncode: {image: a b}\nrecovery: {spares: -1}"
    found = problems(tmp_path, more)
    assert {p.path for p in found} == {"trials", "spot.notice_s", "code.image", "recovery.spares"}
    assert found == sorted(found, key=lambda p: p.line)


def test_problems_name_only_keys_that_exist(tmp_path: pathlib.Path) -> None:
    bad = dataclasses.replace(spec_reader.load(write(tmp_path)).spec, name="", trials=0)
    assert {p.path for p in spec_checks.check(bad)} == {"name", "trials"}
