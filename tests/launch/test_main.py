"""The front door: every command, its answer for people and for machines, and its exit code."""

import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import pytest

from launch import arguments, main, submission
from launch.control import Control, Want
from launch.engines.engine import ENGINES, EngineState, Standing
from launch.findings import Report
from launch.journal import Journal
from launch.run_index import RunIndex
from launch.run_status import RunState, RunStatus
from tests.launch import toy_engine
from tests.launch.door import PROGRAM, Door, on_sleep, status_of
from tests.launch.job_files import write

RUN_COMMANDS = ("status", "logs", "explain", "cancel", "drain", "resume")


def test_help_teaches_with_a_job_file_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main.main(["--help"])
    text = capsys.readouterr().out
    for command in ("validate", "render", "submit", *RUN_COMMANDS):
        assert command in text
        with pytest.raises(SystemExit, match="0"):
            main.main([command, "--help"])
        assert f"  {arguments.PROGRAM} {command}" in capsys.readouterr().out
    assert "resources: {accelerator: cpu}" in text
    with pytest.raises(SystemExit, match="0"):
        main.main(["admin", "render", "--help"])
    assert "admin render configs/clusters/teams.yaml" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [[], ["submi"], ["submit"], ["submit", "a", "--engine=b"]])
def test_a_wrong_command_line_leaves_with_64(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main.main(argv)
    assert caught.value.code == 64
    assert "--help" in capsys.readouterr().err


def test_validate_tells_and_submits_nothing(door: Door) -> None:
    assert "ready for toy" in door("validate", str(door.file), "--engine=toy")
    write(door.folder, PROGRAM.replace("cpu", "cpu\n  host: 8") + "code: {image: a}\n")
    assert "Did you mean hosts" in door("validate", str(door.file), "--engine=toy", code=64)
    write(door.folder, PROGRAM + "code: {image: a}\n")
    answer = door.json("validate", str(door.file), "--engine=toy", code=64)
    assert [f["about"] for f in answer["findings"] if f["verdict"] == "error"] == ["engine"]
    assert sorted(path.name for path in door.folder.iterdir()) == ["job.yaml"]


@pytest.mark.parametrize("command", ["validate", "render", "submit"])
def test_a_bad_job_file_leaves_with_64_and_submits_nothing(door: Door, command: str) -> None:
    write(door.folder, "name: tiny\n")
    assert "version: is missing" in door(command, str(door.file), "--engine=toy", code=64)
    answer = door.json(command, str(door.file), "--engine=toy", code=64)
    assert answer["exit_code"] == 64
    assert not (door.folder / "runs").exists()


def test_render_prints_what_submit_writes(door: Door) -> None:
    text = door("render", str(door.file), "--engine=toy", "--run_id=tiny-1")
    assert "exec true '$x'" in text
    assert not (door.folder / "runs").exists()
    door.submitted("--run_id=tiny-1")
    rendered = (door.folder / "runs" / "tiny" / "rendered" / "toy.sh").read_text()
    assert rendered.strip() in text
    answer = door.json("render", str(door.file), "--engine=toy", "--run_id=tiny-1")
    assert answer["jobs"][0]["files"] == {"toy.sh": rendered}


def test_submit_writes_the_folder_of_the_job_and_says_what_to_do_next(door: Door) -> None:
    text = door("submit", str(door.file), "--engine=toy", "--run_id=tiny-1")
    for command in ("status", "logs", "explain", "cancel"):
        assert f"{arguments.PROGRAM} {command} tiny-1" in text
    folder = door.folder / "runs" / "tiny"
    assert (folder / "job.yaml").read_text() == PROGRAM
    assert json.loads((folder / "job.json").read_text())["run_id"] == "tiny-1"
    (entry,) = Journal(folder).entries()
    assert (entry.event, entry.details["engine"]) == ("submitted", "toy")


def test_a_run_is_not_submitted_twice_and_goes_on_after_its_end(door: Door) -> None:
    run_id = door.submitted()
    write(door.folder, PROGRAM + "trials: 1\n")
    assert "nothing was changed" in door("submit", str(door.file), "--engine=toy")
    folder = door.folder / "runs" / "tiny"
    assert (folder / "job.yaml").read_text() == PROGRAM
    toy_engine.move(run_id, EngineState.ENDED, code=64)
    status_of(folder, RunState.FAILED, code=64)
    assert "goes on" in door("submit", str(door.file), "--engine=toy")
    assert (folder / "job.yaml").read_text() != PROGRAM
    assert RunStatus.read(str(folder)) is None
    events = [entry.event for entry in Journal(folder).entries()]
    assert events == ["submitted", "resumed", "submitted"]


def test_a_run_that_stopped_on_one_engine_goes_on_on_another(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = door.folder / "runs" / "tiny"
    run_id = door.submitted()
    status_of(folder, RunState.STOPPED, code=75)
    Control(want=Want.DRAIN, by="ada", time=0.0).write(str(folder))
    toy_engine.move(run_id, EngineState.ENDED, code=75)
    argv = ("submit", str(door.file), "--engine=supervised_toy")
    monkeypatch.setattr(toy_engine.Toy, "standing", lambda *_: Standing(state=EngineState.UNKNOWN))
    (run,) = door.json(*argv)["runs"]
    assert (run["run_id"], run["how"], run["engine"]) == (run_id, "again", "supervised_toy")
    assert RunStatus.read(str(folder)) is None
    control = Control.read(str(folder))
    assert control is not None
    assert control.want is Want.GO_ON


def test_a_name_that_is_no_text_does_not_end_the_command(door: Door) -> None:
    name = os.fsdecode(b"job-\xff.yaml")
    (door.folder / name).write_text("name: tiny\n")
    assert "\\udcff" in door("validate", name, "--engine=toy", code=64)


def test_of_many_submissions_at_once_one_wins(door: Door) -> None:
    arguments_of = ("submit", str(door.file), "--engine=toy", "--json")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda _: main.main(arguments_of), range(8)))
    assert 0 in codes
    assert set(codes) <= {0, 64}  # 64: its name was made up before the winner's was written
    events = [entry.event for entry in Journal(door.folder / "runs" / "tiny").entries()]
    assert events == ["submitted"]
    assert len(RunIndex.of(os.environ).entries()) == 1


def test_a_run_whose_supervisor_lives_is_left_alone_though_the_engine_is_silent(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = door.submitted()
    folder = door.folder / "runs" / "tiny"
    status_of(folder, RunState.RUNNING, time=time.time())
    toy_engine.go_down()
    monkeypatch.setattr(toy_engine, "_check_up", lambda: None)
    assert f"{run_id} is there already" in door("submit", str(door.file), "--engine=toy")


@pytest.mark.parametrize("years", [-1, 1])
def test_a_status_of_another_time_is_no_sign_of_life(door: Door, years: int) -> None:
    run_id = door.submitted()
    at = time.time() + years * 31_536_000
    status_of(door.folder / "runs" / "tiny", RunState.RUNNING, time=at)
    toy_engine.move(run_id, EngineState.HELD)
    assert "supervisor may be gone" in door("status", run_id)
    assert f"{run_id} goes on" in door("submit", str(door.file), "--engine=toy")


def test_an_engine_that_does_not_answer_leaves_with_69(door: Door) -> None:
    run_id = door.submitted()
    toy_engine.go_down()
    assert "does not answer" in door("cancel", run_id, code=69)
    assert door.json("resume", run_id, code=69)["exit_code"] == 69
    write(door.folder, PROGRAM.replace("runs/tiny", "runs/other"))
    assert "does not answer" in door("submit", str(door.file), "--engine=toy", code=69)


@pytest.mark.parametrize("code", [0, 75, 86, 124])
def test_wait_leaves_with_the_code_of_the_run(
    door: Door, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(_: float) -> None:
        toy_engine.move("tiny-1", EngineState.ENDED, code=code)

    on_sleep(monkeypatch, end)
    argv = ("submit", str(door.file), "--engine=toy", "--run_id=tiny-1", "--wait")
    assert "tiny-1: ended" in door(*argv, code=code)


def test_wait_believes_the_supervisor_before_the_engine(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = iter([RunState.STARTING, RunState.RUNNING, RunState.HELD])

    def next_state(_: float) -> None:
        toy_engine.move("tiny-1", EngineState.RUNNING)
        state = next(states)
        status_of(door.folder / "runs" / "tiny", state, code=86 if state.is_final else None)

    on_sleep(monkeypatch, next_state)
    argv = ("submit", str(door.file), "--engine=toy", "--run_id=tiny-1", "--wait")
    lines = [line for line in door(*argv, code=86).splitlines() if line.startswith("tiny-1: ")]
    assert [line.split()[1].strip(",.") for line in lines] == [
        "queued",
        "starting",
        "running",
        "held",
    ]


def test_wait_gives_up_on_an_engine_that_has_lost_the_run(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "LOST_S", 0.0)
    on_sleep(monkeypatch, lambda _: toy_engine.go_down())
    monkeypatch.setattr(toy_engine.Toy, "submit", lambda self, job: self.standing(job))
    argv = ("submit", str(door.file), "--engine=toy", "--run_id=tiny-1", "--wait")
    monkeypatch.setattr(toy_engine, "_check_up", lambda: None)
    assert ", for 0 s." in door(*argv, code=69)


def test_wait_does_not_outlast_a_supervisor_that_is_gone(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_: float) -> None:
        status_of(door.folder / "runs" / "tiny", RunState.RUNNING)
        toy_engine.move("tiny-1", EngineState.HELD)

    monkeypatch.setattr(submission, "LOST_S", 0.0)
    on_sleep(monkeypatch, die)
    argv = ("submit", str(door.file), "--engine=toy", "--run_id=tiny-1", "--wait")
    door(*argv, code=69)


def test_interrupting_the_wait_leaves_the_run_alone(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    on_sleep(monkeypatch, interrupt)
    argv = ("submit", str(door.file), "--engine=toy", "--run_id=tiny-1", "--wait")
    text = door(*argv, code=130)
    assert "The run goes on" in text
    assert "cancel tiny-1" in text
    assert door.json("status", "tiny-1")["state"] == "queued"


def test_trials_are_submitted_together(door: Door) -> None:
    write(door.folder, PROGRAM.replace("runs/tiny", "runs/{trial}") + "trials: 3\n")
    answer = door.json("submit", str(door.file), "--engine=toy", "--run_id=sweep")
    assert [run["run_id"] for run in answer["runs"]] == ["sweep-0", "sweep-1", "sweep-2"]


def test_status_shows_one_run_and_lists_all(door: Door) -> None:
    assert "No run was submitted" in door("status")
    run_id = door.submitted()
    folder = door.folder / "runs" / "tiny"
    toy_engine.move(run_id, EngineState.RUNNING)
    status_of(folder, RunState.RUNNING)
    text = door("status", run_id)
    for shown in (
        run_id,
        "running",
        "step 7",
        "loss 2.5",
        "saved step 5",
        "goes on",
        "may be gone",
    ):
        assert shown in text
    assert door.json("status", str(folder))["status"]["step"] == 7
    (entry,) = door.json("status")["runs"]
    assert (entry["run_id"], entry["state"], entry["step"]) == (run_id, "running", 7)
    assert run_id in door("status")


def test_what_goes_on_and_one_object_are_one_answer_or_a_refusal(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = door.submitted()
    monkeypatch.setattr(
        main.time, "sleep", lambda _: toy_engine.move(run_id, EngineState.ENDED, code=0)
    )
    assert door.json("status", run_id, "--watch")["state"] == "ended"
    assert "--follow" in door.json("logs", run_id, "--follow", code=64)["error"]


def test_watching_ends_with_the_run(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = door.submitted()

    def end(_: float) -> None:
        toy_engine.move(run_id, EngineState.ENDED, code=0)

    monkeypatch.setattr(main.time, "sleep", end)
    text = door("status", run_id, "--watch")
    assert text.index("queued") < text.index("ended")


@pytest.mark.parametrize("command", RUN_COMMANDS)
def test_an_unknown_run_leaves_with_64(door: Door, command: str) -> None:
    run_id = door.submitted()
    assert f"Did you mean {run_id}" in door(command, run_id[:-1], code=64)
    assert "no run" in door.json(command, "nothing-like-it", code=64)["error"]


def test_a_run_of_an_engine_that_this_version_lacks_is_refused(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = door.submitted()
    monkeypatch.delitem(ENGINES, "toy")
    assert "There is no engine 'toy'" in door("status", run_id, code=64)
    assert door.json("status")["runs"][0]["state"] == "unknown"


def test_a_run_on_an_object_store_is_named_by_its_directory_too(door: Door) -> None:
    write(door.folder, PROGRAM.replace("runs/tiny", "gs://bucket/tiny"))
    run_id = door.submitted()
    assert door.json("status", "gs://bucket/tiny")["run_id"] == run_id


def test_a_damaged_status_is_said_and_does_not_hide_the_other_runs(door: Door) -> None:
    run_id = door.submitted()
    (door.folder / "runs" / "tiny" / "status.json").write_text("{")
    assert "is not JSON" in door("status", run_id, code=64)
    (entry,) = door.json("status")["runs"]
    assert entry["state"] == "unknown"
    assert "is not JSON" in entry["problem"]
    assert "is cancelled" in door("cancel", run_id)
    assert door.json("resume", run_id)["done"] == "resume"


def test_cancel_asks_the_supervisor_where_there_is_one_else_the_engine(door: Door) -> None:
    run_id = door.submitted()
    assert "was queued and is cancelled" in door("cancel", run_id)
    assert "has ended already with 75" in door("cancel", run_id, code=64)
    assert door.json("resume", run_id)["done"] == "resume"
    control = Control.read(str(door.folder / "runs" / "tiny"))
    assert control is not None
    assert control.want is Want.GO_ON


def test_explain_tells_the_story_and_what_comes_next(door: Door) -> None:
    run_id = door.submitted()
    text = door("explain", run_id)
    assert "submitted to toy as toy-1" in text
    assert "Now: queued." in text
    answer = door.json("explain", run_id)
    assert [event["event"] for event in answer["events"]] == ["submitted"]
    assert answer["summary"]["attempts"] == 0


def test_logs_come_from_the_folder_or_the_engine(door: Door) -> None:
    run_id = door.submitted()
    assert "has started no process yet" in door("logs", run_id, code=64)
    (door.folder.parent / "toy" / "logs").touch()
    assert door("logs", run_id).splitlines() == [f"first of {run_id}", "last"]
    assert door.json("logs", run_id, "--lines=1")["lines"] == ["last"]
    logs = door.folder / "runs" / "tiny" / "attempts" / "1" / "logs"
    logs.mkdir(parents=True)
    (logs / "rank0.log").write_text("hello\n")
    assert door("logs", run_id) == "[0] hello\n"
    toy_engine.move(run_id, EngineState.ENDED, code=0)
    assert door("logs", run_id, "--follow") == "--- attempt 1\n[0] hello\n"


def test_a_new_engine_is_one_file_and_one_line(door: Door) -> None:
    assert ENGINES["toy"] == toy_engine.NAME
    assert door.json("submit", str(door.file), "--engine=toy")["runs"][0]["engine"] == "toy"


def test_a_reader_that_leaves_ends_the_command_quietly(here: pathlib.Path) -> None:
    program = [sys.executable, "-m", "launch.main", "submit", "--help"]
    door = subprocess.Popen(program, cwd=pathlib.Path(__file__).parents[2], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)  # fmt: skip
    assert door.stdout is not None
    door.stdout.close()
    _, errors = door.communicate(timeout=60)
    assert b"Traceback" not in errors
    assert door.returncode != -signal.SIGPIPE


@pytest.mark.parametrize(("flags", "compiles"), [((), True), (("--no_compile",), False)])
def test_validate_compiles_unless_told_not_to(
    door: Door, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], compiles: bool
) -> None:
    asked: list[bool] = []

    def validate(path: pathlib.Path, *, compiling: Callable[[str], None] | None, **_: Any) -> Any:
        asked.append(compiling is not None)
        if compiling:
            compiling("h100_8")
        report = Report(job=str(path), engine="local", findings=(), seconds={})
        return types.SimpleNamespace(report=report)

    monkeypatch.setattr(main, "validate", validate)
    said = door("validate", str(door.file), *flags)
    assert asked == [compiles]
    assert ("Compiling the step for h100_8" in said) is compiles
