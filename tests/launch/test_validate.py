"""The dry run tells everything that is wrong before anything is submitted, and writes nothing."""

import dataclasses
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import pytest

from launch import jobs, run_checks
from launch.findings import Report, Verdict
from launch.jobs import Options
from launch.records import RunRecord
from launch.run_index import RunIndex
from launch.validate import validate
from tests.launch.job_files import SMALLEST, write

ANY_PROGRAM = "workload: {command: ['true']}"
TRAINER = "workload: {gin_files: [configs/runs/quickstart.gin]}"


@pytest.fixture
def options(tmp_path: pathlib.Path) -> Options:
    """A user in a folder of his own."""
    (tmp_path / "here").mkdir()
    return Options(engine="local", index=RunIndex(tmp_path / "home"), folder=tmp_path / "here")


def dry_run(options: Options, *sections: str) -> Report:
    """The report on the smallest job with other sections."""
    kept = SMALLEST.replace("workload:\n  gin_files: [configs/runs/quickstart.gin]\n", "")
    for section in sections:
        name = section.split(":")[0]
        kept = "".join(lines for lines in _sections(kept) if not lines.startswith(f"{name}:"))
        kept += f"{section}\n"
    return validate(write(options.folder, kept), options=options).report


def _sections(text: str) -> list[str]:
    return re.split(r"^(?=\w)", text, flags=re.MULTILINE)


def told(report: Report, about: str) -> str:
    return "\n".join(f"{f.verdict}: {f.message}" for f in report.findings if f.about == about)


def test_the_quickstart_is_ready_and_nothing_is_written(options: Options) -> None:
    report = dry_run(options, TRAINER)
    assert report.errors == 0, report.show()
    assert report.exit_code == 0
    assert [path.name for path in options.folder.iterdir()] == ["job.yaml"]
    assert not options.index.home.exists()
    assert "CPU devices share their host's" in told(report, "memory")
    assert set(report.seconds) == {
        "spec", "engine", "code", "trainer", "data", "checkpoint", "secrets"
    }  # fmt: skip
    assert "ready for local" in report.show().splitlines()[-1]


@pytest.mark.parametrize(
    ("sections", "about", "expected"),
    [
        (("resources: {accelerator: cpu, host: 1}",), "spec", "resources.host: there is no such"),
        ((TRAINER.replace("quickstart", "absent"),), "configuration", "absent.gin"),
        ((TRAINER, "resources: {accelerator: cpu, per_host: 3}"), "batch", "multiple of 3"),
        ((TRAINER, "dataset: {path: nowhere}"), "data", "does not exist"),
    ],
)
def test_a_bad_job_is_refused_with_64(
    options: Options, sections: tuple[str, ...], about: str, expected: str
) -> None:
    report = dry_run(options, *((TRAINER,) if len(sections) == 1 else ()), *sections)
    assert report.exit_code == 64
    assert expected in told(report, about), report.show()


def test_everything_is_told_at_once(options: Options) -> None:
    (options.folder / "runs").write_text("a file")
    report = dry_run(
        options,
        "workload: {gin_files: [configs/runs/quickstart.gin], gin_bindings: [TrainConfig.x=1]}",
        "resources: {accelerator: cpu, hosts: 99}",
        "dataset: {path: nowhere}",
        "secrets: [{name: A, ref: 'file:/nowhere'}]",
        "code: {python: /nowhere/python}",
    )
    wrong = {f.about for f in report.findings if f.verdict is Verdict.ERROR}
    assert wrong == {"engine", "code", "configuration", "data", "checkpoint", "secrets"}
    assert f"{report.errors} errors" in report.show().splitlines()[-1]


def test_sizes_that_the_run_may_shrink_to_are_checked_too(options: Options) -> None:
    report = dry_run(
        options,
        TRAINER,
        "resources: {accelerator: cpu, hosts: 4, min_hosts: 3}",
        "recovery: {on_loss: shrink}",
    )
    assert "error: with 3 hosts: DataConfig.global_batch=8" in told(report, "batch")


def compiled(options: Options, accelerator: str) -> tuple[Report, list[str]]:
    """The report on Llama 3 8B on eight devices, and what was said before compiling."""
    said: list[str] = []
    resources = f"accelerator: {accelerator}\n  per_host: 8"
    text = SMALLEST.replace("quickstart", "llama3_8b_8").replace("accelerator: cpu", resources)
    assert resources in text
    file = write(options.folder, text)
    return validate(file, options=options, compiling=said.append).report, said


def test_the_step_is_compiled_for_devices_that_are_not_here(options: Options) -> None:
    elsewhere = dataclasses.replace(options, engine="slurm")
    report, said = compiled(elsewhere, "h100")
    assert said == ["h100_8"]
    assert "ok: " in told(report, "memory")
    assert "as compiled" in told(report, "memory")
    assert "by formula" not in told(report, "memory")
    assert report.seconds["compile"] > 0


def test_a_kind_without_a_compiler_has_the_formula(options: Options) -> None:
    report, said = compiled(dataclasses.replace(options, engine="slurm"), "mi300x")
    assert said == []
    assert "by formula" in told(report, "memory")


def test_a_job_that_does_not_fit_is_an_error_without_any_compiler(options: Options) -> None:
    slurm = dataclasses.replace(options, engine="slurm")
    large = "workload: {gin_files: [configs/runs/llama3_8b_8.gin]}"
    report = dry_run(slurm, large, "resources: {accelerator: tpu-v5e, per_host: 8}")
    assert "error: does not fit into v5e" in told(report, "memory")
    assert report.exit_code == 64


def test_the_configuration_of_another_program_is_not_checked(options: Options) -> None:
    report = dry_run(options, ANY_PROGRAM)
    assert report.errors == 0, report.show()
    assert told(report, "configuration") == "info: not checked: not Lockstep's trainer."


def test_a_program_that_is_not_here_is_an_error_here_and_a_warning_elsewhere(
    options: Options,
) -> None:
    program = "workload: {command: [no-such-program]}"
    assert "error: workload.command: 'no-such-program'" in told(dry_run(options, program), "code")
    file = write(options.folder, SMALLEST.replace("gin_files: [configs", "command: [no-such"))
    resolved = validate(file, options=options).resolved
    assert resolved is not None
    job = dataclasses.replace(resolved.jobs[0], engine="slurm")
    verdicts = [finding.verdict for finding in run_checks.code(job, None)]
    assert verdicts == [Verdict.INFO, Verdict.WARNING]


def manifest(options: Options, licence: object) -> None:
    (options.folder / "data").mkdir(exist_ok=True)
    text = json.dumps({"manifest": {"licence": licence}} if licence is not None else {})
    (options.folder / "data" / "manifest.json").write_text(text)


@pytest.mark.parametrize(
    ("licence", "asked", "expected"),
    [
        ("CC0-1.0", "", "ok: "),
        ("CC0-1.0", "CC0-1.0", "licence CC0-1.0"),
        ("CC0-1.0", "MIT", "error: dataset.license: 'MIT' is asked for"),
        (" ", "", "names no licence"),
        (None, "", "has no licence field"),
    ],
)
def test_a_dataset_needs_a_manifest_with_the_licence_that_is_asked_for(
    options: Options, licence: object, asked: str, expected: str
) -> None:
    manifest(options, licence)
    report = dry_run(options, ANY_PROGRAM, f"dataset: {{path: data, license: '{asked}'}}")
    assert expected in told(report, "data")


def test_the_directory_of_another_run_is_refused(options: Options) -> None:
    root = options.folder / "runs" / "tiny"
    root.mkdir(parents=True)
    (root / "metrics.jsonl").write_text("")
    assert "no run of Lockstep" in told(dry_run(options, ANY_PROGRAM), "checkpoint")
    record = RunRecord(run_id="other", created=0.0, identity="")
    (root / "run.json").write_text(record.to_json())
    assert "goes on with run other" in told(dry_run(options, ANY_PROGRAM), "checkpoint")
    named = dataclasses.replace(options, run_id="mine")
    assert "or --run_id=other to go on with it" in told(dry_run(named, ANY_PROGRAM), "checkpoint")
    (root / "run.json").write_text("{")
    assert "is not JSON" in told(dry_run(options, ANY_PROGRAM), "checkpoint")


def test_a_root_that_leads_nowhere_is_refused_beside_other_mistakes(options: Options) -> None:
    (options.folder / "runs").symlink_to("runs")
    report = dry_run(options, ANY_PROGRAM, "code: {image: a}")
    assert "Too many levels of symbolic links" in told(report, "checkpoint")
    assert "runs no containers" in told(report, "engine")


def test_the_directory_of_another_job_is_refused_unless_the_run_is_named(options: Options) -> None:
    file = write(options.folder, SMALLEST)
    resolved = validate(file, options=options, slow=False).resolved
    assert resolved is not None
    jobs.prepare(resolved.jobs[0], code=None, text="", index=options.index)
    assert "error" not in told(dry_run(options, ANY_PROGRAM), "checkpoint")
    report = dry_run(options, ANY_PROGRAM, "name: other")
    assert "was made by job 'tiny', not 'other'" in told(report, "checkpoint")
    named = dataclasses.replace(options, run_id=resolved.jobs[0].run_id)
    assert "error" not in told(dry_run(named, ANY_PROGRAM, "name: other"), "checkpoint")


def test_a_directory_that_cannot_be_written_is_refused(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*, dir: pathlib.Path) -> None:
        raise PermissionError(13, "Permission denied", str(dir))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    found = told(dry_run(options, ANY_PROGRAM), "checkpoint")
    assert f"cannot be written: {options.folder}: Permission denied." in found


def test_a_directory_below_a_file_is_refused(options: Options) -> None:
    (options.folder / "runs").write_text("")
    assert "is no folder" in told(dry_run(options, ANY_PROGRAM), "checkpoint")


def test_an_object_store_is_said_not_to_be_looked_at(options: Options) -> None:
    report = dry_run(options, ANY_PROGRAM, "checkpoint: {root: 'gs://a/b'}")
    assert "not looked at: an object store" in told(report, "checkpoint")


def test_secrets_are_looked_for_without_being_read(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = options.folder / "key"
    monkeypatch.delenv("TOKEN_OF_TEST", raising=False)
    section = f"secrets: [{{name: A, ref: 'file:{secret}'}}, {{name: B, ref: 'env:TOKEN_OF_TEST'}}]"
    found = told(dry_run(options, ANY_PROGRAM, section), "secrets")
    assert "A: " in found
    assert "cannot be read here" in found
    assert "variable TOKEN_OF_TEST is not set" in found
    secret.write_text("hunter2")
    secret.chmod(0o644)
    assert "run chmod 600" in told(dry_run(options, ANY_PROGRAM, section), "secrets")
    secret.chmod(0o600)
    monkeypatch.setenv("TOKEN_OF_TEST", "hunter2")
    report = dry_run(options, ANY_PROGRAM, section)
    assert told(report, "secrets") == "ok: 2 by reference."
    assert "hunter2" not in report.as_json()


def test_untracked_code_is_mentioned_and_a_folder_outside_of_git_is_refused(
    options: Options,
) -> None:
    snapshot = "code: {snapshot: .}"
    assert "Name a folder of a git work tree" in told(
        dry_run(options, ANY_PROGRAM, snapshot), "code"
    )
    (options.folder / "a.py").write_text("")
    for command in (["init", "-q"], ["add", "job.yaml"]):
        subprocess.run(["git", "-C", str(options.folder), *command], check=True, timeout=60)
    found = told(dry_run(options, ANY_PROGRAM, snapshot), "code")
    assert "ok: 1 files, sha256:" in found
    assert "warning: git does not track a.py" in found


def test_much_time_kept_for_stopping_is_mentioned(options: Options) -> None:
    report = dry_run(options, ANY_PROGRAM, "runtime: {max_walltime_s: 5m, grace_s: 2m}")
    assert "40% of the time" in told(report, "times")
    report = dry_run(options, ANY_PROGRAM, "runtime: {max_walltime_s: 12h}")
    assert told(report, "times").startswith("ok")


def test_the_report_is_one_json_object(options: Options) -> None:
    plain = json.loads(dry_run(options, ANY_PROGRAM, "dataset: {path: nowhere}").as_json())
    assert (plain["ok"], plain["exit_code"], plain["engine"]) == (False, 64, "local")
    assert {f["verdict"] for f in plain["findings"]} <= {"ok", "info", "warning", "error"}


def test_an_interpreter_that_is_too_old_is_found(tmp_path):
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    assert not run_checks._is_new_enough(str(old))
    assert run_checks._is_new_enough(sys.executable)
