"""``explain`` tells every line of a journal, in words; nothing is left out."""

import dataclasses
import pathlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from launch import story
from launch.exit_codes import RetryClass
from launch.journal import Journal
from launch.records import JournalEntry, Reason
from launch.story import Summary


def entry(event: str, *, attempt: int = 1, time: float = 1e9, **details: Any) -> JournalEntry:
    return JournalEntry(time=time, event=event, attempt=attempt, details=details)


def ended(attempt: int, *, code: int, retry: RetryClass, step: int, saved: int) -> JournalEntry:
    reason = Reason(
        attempt=attempt, code=code, retry=retry, rank=3, host="b", cause="SIGKILL",
        message="killed", action="retried", time=1e9, step=step, saved_step=saved,
    )  # fmt: skip
    return entry("attempt_ended", attempt=attempt, reason=dataclasses.asdict(reason))


STORY = [
    entry("submitted", attempt=0, engine="slurm", engine_id="4711"),
    entry("supervisor_started", attempt=0, pid=12, host="a"),
    entry("allocated", attempt=0, hosts=["a", "b"]),
    entry("attempt_planned", hosts=["a", "b"], spares=["c"], coordinator="a:1"),
    entry("attempt_started", owner="process 14 on a", changes=["TrainConfig.steps: 1 -> 2"]),
    entry("attempt_running", step=0),
    entry("incident", code=137, cause="SIGKILL", rank=3, host="b", message="killed",
          detected_s=0.4),
    entry("stacks", folder="/x/stacks", ranks=[0, 3]),
    ended(1, code=137, retry=RetryClass.SIGNAL, step=41, saved=40),
    entry("decided", action="replace", exclude=["b"], why="b failed twice", delay_s=5.0),
    entry("attempt_planned", attempt=2, hosts=["a", "c"], spares=[]),
    entry("recovered", attempt=2, timeline={"detect_s": 0.4, "first_step_s": 3, "total_s": 9.1},
          step=40),
    entry("config_changed", attempt=2, key="mesh"),
    ended(2, code=0, retry=RetryClass.DONE, step=50, saved=50),
    entry("done", attempt=2, code=0),
]  # fmt: skip


def test_a_run_is_told_in_words() -> None:
    text = "\n".join(story.tell(STORY))
    for part in (
        "2 attempts; interrupted by 1 x signal; 1 step computed again; back in 9.1 s (median).",
        "submitted to slurm as 4711",
        "its supervisor starts (process 12 on a)",
        "has 2 hosts: a, b",
        "starts on a, b; spare: c",
        "changed: TrainConfig.steps: 1 -> 2",
        "trains, from step 0",
        "rank 3 on b: SIGKILL: killed (seen after 0.4 s)",
        "stacks of 0, 3 are in /x/stacks",
        "ends with 137 (killed by signal 9)",
        "first cause: rank 3 on b: SIGKILL: killed",
        "reached step 41, had saved step 40: 1 step again",
        "decides: replace, in 5 s. b failed twice",
        "avoids from now on: b",
        "is back at step 40 after 9.1 s: detect 0.4, first step 3",
        "config changed: key=mesh",
        "ends with 0 (the run is complete)",
        "is complete",
    ):
        assert part in text, part
    assert text.index("Attempt 1") < text.index("trains") < text.index("Attempt 2")


def test_a_run_that_nothing_happened_to_is_told_too() -> None:
    assert story.tell([]) == ["Nothing has happened yet: the journal is empty."]
    assert str(Summary.of([])) == "0 attempts."


def test_what_ends_a_run_says_why_and_with_which_code() -> None:
    for event, words in {
        "held": "is held for a person: why (exit code 86)",
        "stopped": "is stopped: why (exit code 86)",
        "failed": "has failed: why (exit code 86)",
    }.items():
        assert story.told(entry(event, code=86, why="why")) == [words]
    assert story.told(entry("readmitted", hosts=["a", "b"])) == ["trusts again: a, b"]
    assert story.told(entry("resumed", by="ada")) == ["resumed by ada; budgets start afresh"]


def test_what_the_engine_or_a_lost_supervisor_ended_counts_against_nothing() -> None:
    told = story.told(entry("attempt_ended", reason={"code": 85}, excused=True))
    assert told[-1] == "counts against no budget"


def test_a_new_day_is_marked() -> None:
    lines = story.tell([entry("a", time=1e9), entry("b", time=1e9 + 86_400)])
    assert [line for line in lines if line.strip()[:4].isdigit() and len(line.strip()) == 10]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
EVENTS = st.sampled_from([*story._TELLERS, "of_another_version"])


@given(events=st.lists(st.tuples(EVENTS, st.booleans(), VALUES, VALUES), max_size=8))
def test_any_journal_is_told_line_by_line(events: list[tuple[str, bool, Any, Any]]) -> None:
    names = ("reason", "timeline", "hosts", "rank", "code", "why", "exclude", "delay_s", "step")
    entries = [
        entry(event, attempt=2 if twice else 1, **dict.fromkeys(names, value), other=other)
        for event, twice, value, other in events
    ]
    assert len(story.tell(entries)) > len(entries)
    assert all(story.told(one) and all(story.told(one)) for one in entries)


def test_a_torn_line_at_the_end_is_left_out(tmp_path: pathlib.Path) -> None:
    journal = Journal(tmp_path)
    journal.append("submitted", attempt=0, engine="local")
    with journal.path.open("a") as file:
        file.write('{"version": 1, "time": 1.0, "ev')
    assert "submitted to local" in "\n".join(story.tell(journal.entries()))
