"""A job file becomes a run: its name, its folders and its code are settled once."""

import dataclasses
import pathlib
import shutil
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings

from launch import jobs, spec_reader
from launch.jobs import JobError, Options, Resolved
from launch.records import ContractError, RunRecord
from launch.run_index import RunIndex, UnknownRunError
from launch.spec import Checkpoint, Code, Dataset, Job, JobSpec, Workload
from tests.launch.job_files import valid_specs, write


@pytest.fixture
def options(tmp_path: pathlib.Path) -> Options:
    """Options of a user whose home and working directory are empty folders."""
    (tmp_path / "here").mkdir()
    index = RunIndex(tmp_path / "home")
    return Options(engine="local", index=index, folder=tmp_path / "here")


@pytest.fixture
def spec(tmp_path: pathlib.Path) -> JobSpec:
    return spec_reader.load(write(tmp_path)).spec


def changed(spec: JobSpec, **changes: object) -> JobSpec:
    return dataclasses.replace(spec, **changes)  # type: ignore[arg-type]


def only(resolved: Resolved) -> Job:
    (job,) = resolved.jobs
    return job


def prepared(job: Job, options: Options) -> Job:
    jobs.prepare(job, code=None, text="version: 1\n", index=options.index)
    return job


def test_paths_become_absolute_and_the_folder_of_the_job_is_the_run_directory(
    spec: JobSpec, options: Options
) -> None:
    (options.folder / "a.gin").write_text("")
    work = Workload(gin_files=("a.gin", "configs/runs/elsewhere.gin"))
    job = only(jobs.resolve(changed(spec, workload=work, dataset=Dataset(path="data")),
                            options=options))  # fmt: skip
    assert job.spec.checkpoint.root == job.job_dir == f"{options.folder}/runs/tiny"
    assert job.spec.workload.gin_files == (
        f"{options.folder}/a.gin",
        "configs/runs/elsewhere.gin",
    )
    assert job.spec.dataset == Dataset(path=f"{options.folder}/data")
    assert job.code_dir == str(options.folder)
    assert (job.python, job.code_digest) == (sys.executable, "")
    assert job.spec.owner.user


def test_a_run_on_an_object_store_keeps_its_records_at_home(
    spec: JobSpec, options: Options
) -> None:
    spec = changed(spec, checkpoint=Checkpoint(root="gs://bucket/runs/{run_id}/"))
    job = only(jobs.resolve(spec, options=dataclasses.replace(options, run_id="r1")))
    assert job.spec.checkpoint.root == "gs://bucket/runs/r1"
    assert job.job_dir == f"{options.index.home}/runs/r1"


def test_a_new_run_gets_the_jobs_name_and_something_random(spec: JobSpec, options: Options) -> None:
    names = {only(jobs.resolve(spec, options=options)).run_id for _ in range(50)}
    assert len(names) == 50
    assert all(name.startswith("tiny-") and len(name) == 11 for name in names)


def test_a_job_file_goes_on_with_the_run_that_its_root_holds(
    spec: JobSpec, options: Options
) -> None:
    job = prepared(only(jobs.resolve(spec, options=options)), options)
    assert only(jobs.resolve(spec, options=options)).run_id == job.run_id
    record = RunRecord(run_id="of-the-trainer", created=0.0, identity="")
    (pathlib.Path(job.job_dir) / "run.json").write_text(record.to_json())
    assert only(jobs.resolve(spec, options=options)).run_id == "of-the-trainer"
    given = dataclasses.replace(options, run_id="mine")
    assert only(jobs.resolve(spec, options=given)).run_id == "mine"


def test_a_run_on_an_object_store_is_found_again_by_its_root(
    spec: JobSpec, options: Options
) -> None:
    spec = changed(spec, checkpoint=Checkpoint(root="s3://bucket/run"))
    job = prepared(only(jobs.resolve(spec, options=options)), options)
    assert only(jobs.resolve(spec, options=options)).run_id == job.run_id


@pytest.mark.parametrize("copied", [False, True])
def test_two_runs_in_two_folders_never_have_one_name(
    spec: JobSpec, options: Options, tmp_path: pathlib.Path, copied: bool
) -> None:
    named = dataclasses.replace(options, run_id="one")
    first = prepared(only(jobs.resolve(spec, options=named)), named)
    other = changed(spec, checkpoint=Checkpoint(root=str(tmp_path / "other")))
    if copied:
        shutil.copytree(first.job_dir, tmp_path / "other")
        named = options
    with pytest.raises(JobError, match=f"--job_dir={first.job_dir} to go on with that one"):
        jobs.resolve(other, options=named)
    assert only(jobs.resolve(spec, options=named)).run_id == "one"
    shutil.rmtree(first.job_dir)
    assert only(jobs.resolve(other, options=named)).run_id == "one", "it was moved"


def test_a_root_named_after_the_run_is_always_a_new_run(spec: JobSpec, options: Options) -> None:
    spec = changed(spec, checkpoint=Checkpoint(root="runs/{run_id}"))
    job = prepared(only(jobs.resolve(spec, options=options)), options)
    again = only(jobs.resolve(spec, options=options))
    assert again.run_id != job.run_id
    assert job.job_dir.endswith(job.run_id)


def test_a_damaged_record_is_not_taken_for_a_new_run(spec: JobSpec, options: Options) -> None:
    root = options.folder / "runs" / "tiny"
    root.mkdir(parents=True)
    (root / "run.json").write_text("{")
    with pytest.raises(ContractError, match=r"run\.json is not JSON"):
        jobs.resolve(spec, options=options)


def test_trials_are_runs_of_their_own(spec: JobSpec, options: Options) -> None:
    work = Workload(gin_files=("a.gin",), gin_bindings=("TrainConfig.parameter_seed = {trial}",))
    spec = changed(spec, trials=2, workload=work, checkpoint=Checkpoint(root="runs/{trial}"))
    found = jobs.resolve(spec, options=dataclasses.replace(options, run_id="sweep")).jobs
    assert [job.run_id for job in found] == ["sweep-0", "sweep-1"]
    assert [job.trial for job in found] == [0, 1]
    assert [job.job_dir for job in found] == [f"{options.folder}/runs/{n}" for n in (0, 1)]
    assert found[1].spec.workload.gin_bindings == ("TrainConfig.parameter_seed = 1",)
    placed = dataclasses.replace(options, run_id="sweep", job_dir="jobs")
    assert [job.job_dir for job in jobs.resolve(spec, options=placed).jobs] == [
        f"{options.folder}/jobs/0",
        f"{options.folder}/jobs/1",
    ]


def test_a_snapshot_is_what_runs_and_its_digest_is_recorded(
    spec: JobSpec, options: Options
) -> None:
    for name in ("tracked.gin", "untracked.gin"):
        (options.folder / name).write_text("")
    for command in (["init", "-q"], ["add", "tracked.gin"]):
        subprocess.run(["git", "-C", str(options.folder), *command], check=True, timeout=60)
    work = Workload(gin_files=("tracked.gin", "untracked.gin"))
    spec = changed(spec, code=Code(snapshot="."), workload=work)
    found = jobs.resolve(spec, options=options)
    job = only(found)
    assert found.code is not None
    assert job.code_digest == f"sha256:{found.code.digest}"
    assert job.spec.workload.gin_files == ("tracked.gin", f"{options.folder}/untracked.gin")
    assert not pathlib.Path(job.job_dir).exists()
    jobs.prepare(job, code=found.code, text="", index=options.index)
    assert (pathlib.Path(job.code_dir) / "tracked.gin").is_file()


def test_an_image_brings_its_code_its_interpreter_and_its_digest(
    spec: JobSpec, options: Options
) -> None:
    spec = changed(spec, code=Code(image="registry/lockstep@sha256:abc"))
    job = only(jobs.resolve(spec, options=options))
    assert (job.code_dir, job.python, job.code_digest) == ("", "python3", "sha256:abc")
    spec = changed(spec, code=Code(image="registry/lockstep:1", python="/opt/python"))
    job = only(jobs.resolve(spec, options=options))
    assert (job.python, job.code_digest) == ("/opt/python", "")


@pytest.mark.parametrize("run_id", ["", "../a", "a/b", "-a", "a" * 65, "a\n"])
def test_a_run_id_that_is_no_file_name_is_refused(
    spec: JobSpec, options: Options, run_id: str
) -> None:
    with pytest.raises(JobError, match="letters, digits"):
        jobs.resolve(spec, options=dataclasses.replace(options, run_id=run_id))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(job_spec=valid_specs())
def test_any_job_reads_back_from_its_record(options: Options, job_spec: JobSpec) -> None:
    job_spec = changed(job_spec, code=Code())
    for job in jobs.resolve(job_spec, options=options).jobs:
        assert Job.from_json(job.to_json(), source="job.json") == job


def test_a_run_is_found_by_its_name_its_folder_and_its_file(
    spec: JobSpec, options: Options
) -> None:
    job = prepared(only(jobs.resolve(spec, options=options)), options)
    for name in (job.run_id, job.job_dir, f"{job.job_dir}/job.json"):
        assert options.index.find(name) == job
    assert [entry.run_id for entry in options.index.entries()] == [job.run_id]


def test_an_unknown_run_is_refused_with_the_nearest_names(spec: JobSpec, options: Options) -> None:
    with pytest.raises(UnknownRunError, match="None was submitted from here"):
        options.index.find("tiny")
    job = prepared(only(jobs.resolve(spec, options=options)), options)
    with pytest.raises(UnknownRunError, match=f"Did you mean {job.run_id}"):
        options.index.find("tiny")
    (pathlib.Path(job.job_dir) / "job.json").unlink()
    with pytest.raises(UnknownRunError, match="no longer there"):
        options.index.find(job.run_id)


def test_a_damaged_entry_does_not_hide_the_other_runs(spec: JobSpec, options: Options) -> None:
    job = prepared(only(jobs.resolve(spec, options=options)), options)
    (options.index.home / "runs" / "torn.json").write_text("{")
    assert [entry.run_id for entry in options.index.entries()] == [job.run_id]


def test_the_home_is_taken_from_the_environment(tmp_path: pathlib.Path) -> None:
    assert RunIndex.of({"LOCKSTEP_HOME": str(tmp_path)}).home == tmp_path
    assert RunIndex.of({}).home == pathlib.Path.home() / ".lockstep"
