"""What processes print is merged, with the rank in front and the culprit first."""

import dataclasses
import pathlib

import pytest

from launch import jobs, run_logs, spec_reader
from launch.exit_codes import RetryClass
from launch.jobs import Options
from launch.records import Reason
from launch.run_index import RunIndex
from launch.run_logs import NoLogsError
from launch.spec import Job
from tests.launch.job_files import write
from tests.launch.toy_engine import Toy


@pytest.fixture
def job(here: pathlib.Path) -> Job:
    options = Options(engine="toy", index=RunIndex(here), run_id="tiny-1")
    return jobs.resolve(spec_reader.load(write(here)).spec, options=options).jobs[0]


def printed(job: Job, attempt: int, **texts: str) -> pathlib.Path:
    """Writes logs of an attempt: rank0="text"."""
    folder = pathlib.Path(job.job_dir) / "attempts" / str(attempt)
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        with (folder / "logs" / f"{name}.log").open("a") as file:
            file.write(text)
    return folder


def shown(job: Job, **changes: int | None) -> list[str]:
    given = {"attempt": None, "rank": None, "lines": None, **changes}
    return list(run_logs.show(job, engine=Toy(), **given))


def test_the_newest_attempt_is_shown_by_rank(job: Job) -> None:
    printed(job, 9, rank0="old\n")
    printed(job, 10, rank10="c\n", rank2="b1\nb2\n", rank0="a\n")
    assert shown(job) == ["[0] a", "[2] b1", "[2] b2", "[10] c"]
    assert shown(job, attempt=9) == ["[0] old"]
    assert shown(job, rank=2, lines=1) == ["[2] b2"]


def test_the_process_that_failed_first_comes_first(job: Job) -> None:
    folder = printed(job, 1, rank0="a\n", rank1="b\n")
    reason = Reason(
        attempt=1, code=1, retry=RetryClass.EXCEPTION, rank=1, host="a", cause="", message="",
        action="", time=0.0,
    )  # fmt: skip
    (folder / "reason.json").write_text(reason.to_json())
    assert shown(job) == ["[1] b", "[0] a"]
    (folder / "reason.json").write_text(dataclasses.replace(reason, rank=None).to_json())
    assert shown(job) == ["[0] a", "[1] b"]
    (folder / "reason.json").write_text("{")
    assert shown(job) == ["[0] a", "[1] b"]


def test_what_is_not_there_is_refused_with_what_is(job: Job) -> None:
    with pytest.raises(NoLogsError, match="started no process yet"):
        shown(job)
    printed(job, 3, rank0="a\n", rank1="b\n")
    with pytest.raises(NoLogsError, match="no logs of attempt 2; it has: 3"):
        shown(job, attempt=2)
    with pytest.raises(NoLogsError, match="no log of rank 7; it has: 0, 1"):
        shown(job, rank=7)


def test_a_supervisor_that_did_not_start_shows_its_own_words(job: Job) -> None:
    pathlib.Path(job.job_dir).mkdir(parents=True)
    (pathlib.Path(job.job_dir) / "supervisor.log").write_text("Traceback\nImportError\n")
    assert shown(job, lines=1) == ["[supervisor] ImportError"]


def test_bytes_that_are_no_text_do_not_end_the_command(job: Job) -> None:
    folder = printed(job, 1, rank0="a\n")
    (folder / "logs" / "rank1.log").write_bytes(b"\xff\xfe\n")
    assert len(shown(job)) == 2


def test_following_shows_each_line_once_also_of_later_attempts(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    happens = iter(
        [
            lambda: printed(job, 1, rank0="one\nha"),
            lambda: printed(job, 1, rank0="lf\n", rank1="two\n"),
            lambda: printed(job, 2, rank0="three\nwithout an end"),
        ]
    )
    over = [False]

    def go_on(_: float) -> None:
        step = next(happens, None)
        if step is None:
            over[0] = True
        else:
            step()

    monkeypatch.setattr(run_logs.time, "sleep", go_on)
    engine = Toy()
    run_logs.follow(job, engine=engine, rank=None, ended=lambda: over[0], say=said.append)
    assert said == [
        "--- attempt 1",
        "[0] one",
        "[0] half",
        "[1] two",
        "--- attempt 2",
        "[0] three",
        "[0] without an end",
    ]


def test_following_what_only_the_engine_has_shows_each_line_once(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = iter([None, "a\nb", "a\nb\nc", "a\nb\nc\nd"])
    newest: list[str | None] = [None]
    over = [False]

    def go_on(_: float) -> None:
        newest[0] = next(texts)
        over[0] = newest[0] is not None and newest[0].endswith("d")

    monkeypatch.setattr(run_logs.time, "sleep", go_on)
    monkeypatch.setattr(Toy, "logs", lambda self, job: newest[0])
    said: list[str] = []
    run_logs.follow(job, engine=Toy(), rank=None, ended=lambda: over[0], say=said.append)
    assert said == ["a", "b", "c", "d"]
