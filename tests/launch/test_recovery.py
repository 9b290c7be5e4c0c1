"""What happens next follows from the journal alone, stays within its budgets, and always ends."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from launch.exit_codes import ExitCode, RetryClass, ending
from launch.records import JournalEntry, Reason
from launch.recovery import BACKOFF_MAX_S, Action, Decision, History, decide
from launch.spec import (
    Budgets,
    Checkpoint,
    JobSpec,
    OnLoss,
    Owner,
    Recovery,
    Resources,
    Seconds,
    Workload,
)

CODES = (1, 64, 65, 70, 71, 75, 85, 86, 93, 97, 98, 124, 134, 137, 143)
HOSTS = ("a", "b", "c", "d")


def spec_of(*, hosts: int = 4, min_hosts: int | None = None, **recovery: object) -> JobSpec:
    return JobSpec(
        name="job",
        owner=Owner(team="t"),
        workload=Workload(gin_files=("x.gin",)),
        resources=Resources(accelerator="h100", hosts=hosts, per_host=8, min_hosts=min_hosts),
        checkpoint=Checkpoint(root="/runs/x"),
        recovery=Recovery(**recovery),
    )


def reason_of(code: int, **changes: object) -> Reason:
    what = ending(code)
    values = {
        "attempt": 1,
        "code": code,
        "retry": what.retry,
        "rank": 0,
        "host": "a",
        "cause": "X",
        "message": "m",
        "action": what.action,
        "time": 1000.0,
        "step": 5,
        "saved_step": 4,
    }
    return Reason(**{**values, **changes})


class Story:
    """A journal in the making."""

    def __init__(self) -> None:
        self.entries: list[JournalEntry] = []
        self.time = 0.0

    @property
    def history(self) -> History:
        return History.of(self.entries)

    def write(self, event: str, attempt: int, **details: object) -> None:
        self.time += 1.0
        written = JournalEntry(time=self.time, event=event, attempt=attempt, details=details)
        self.entries.append(JournalEntry.from_json(written.to_json(), source="journal"))

    def attempt(self, reason: Reason, **details: object) -> None:
        number = self.history.attempt + 1
        self.write("attempt_planned", number, hosts=list(HOSTS), spares=[])
        reason = dataclasses.replace(reason, attempt=number, time=self.time)
        self.write("attempt_ended", number, reason=dataclasses.asdict(reason), **details)

    def decide(self, spec: JobSpec, **options: object) -> Decision:
        values = {"spares": 0, "hosts": 4, **options}
        decision = decide(self.history, spec=spec, **values)
        self.write(
            "decided",
            self.history.attempt,
            action=decision.action,
            exclude=list(decision.exclude),
            why=decision.why,
        )
        return decision


def after(code: int, *, spec: JobSpec | None = None, **options: object) -> Decision:
    """The decision after one attempt that ended so."""
    story = Story()
    details = {
        name: options.pop(name) for name in ("banned", "displaced", "excused") if name in options
    }
    story.attempt(reason_of(code), **details)
    return story.decide(spec or spec_of(), **options)


def test_the_first_decision_for_each_code():
    found = {code: after(code).action for code in (0, *CODES)}
    assert found == {
        0: Action.DONE,
        1: Action.RESTART,
        64: Action.FAIL,
        65: Action.FAIL,
        70: Action.RESTART,
        71: Action.FAIL,
        75: Action.RESTART,
        85: Action.RESTART,
        86: Action.HOLD,
        93: Action.HOLD,
        97: Action.RESTART,
        98: Action.REQUEUE,
        124: Action.RESTART,
        134: Action.RESTART,
        137: Action.RESTART,
        143: Action.RESTART,
    }


def test_a_lost_host_is_replaced_by_a_spare():
    decision = after(85, banned=["a"], spares=1)
    assert (decision.action, decision.exclude) == (Action.REPLACE, ("a",))


def test_a_lost_host_without_a_spare_queues_again_without_it():
    decision = after(85, banned=["a"])
    assert (decision.action, decision.exclude) == (Action.REQUEUE, ("a",))


def test_several_lost_hosts_need_as_many_spares():
    lost = ["a", "b"]
    assert after(85, banned=lost, spares=2).action is Action.REPLACE
    decision = after(85, banned=lost, spares=1)
    assert (decision.action, decision.exclude) == (Action.REQUEUE, ("a", "b"))
    spec = spec_of(min_hosts=2, on_loss=OnLoss.SHRINK)
    assert after(85, spec=spec, banned=lost).action is Action.SHRINK
    assert after(85, spec=spec, banned=[*lost, "c"]).action is Action.REQUEUE


def test_an_elastic_run_goes_on_smaller_down_to_its_least():
    spec = spec_of(min_hosts=3, on_loss=OnLoss.SHRINK)
    assert after(85, spec=spec, banned=["a"]).action is Action.SHRINK
    assert after(85, spec=spec, banned=["a"], hosts=3).action is Action.REQUEUE


def test_a_broken_host_without_any_other_is_held():
    decision = after(85, banned=["a"], elsewhere=False)
    assert (decision.action, decision.code) == (Action.HOLD, ExitCode.HOLD)


def test_the_same_host_twice_is_avoided():
    story, spec = Story(), spec_of(exclude_after=2)
    story.attempt(reason_of(124, saved_step=4))
    assert story.decide(spec).exclude == ()
    story.attempt(reason_of(124, saved_step=5))
    assert story.decide(spec).exclude == ("a",)
    assert story.history.avoided(now=story.time, for_s=100.0) == ("a",)
    assert story.history.avoided(now=story.time + 101, for_s=100.0) == ()


def test_the_engine_gets_its_hosts_back_at_once_and_it_costs_nothing():
    story, spec = Story(), spec_of(budgets=Budgets(no_progress=2))
    for _ in range(20):
        story.attempt(reason_of(75), displaced=True)
        decision = story.decide(spec)
        assert (decision.action, decision.delay_s) == (Action.REQUEUE, 0.0)


def test_allocations_too_short_for_a_step_to_be_saved_are_not_taken_forever():
    story, spec = Story(), spec_of()
    for saved in (1, 2, 3, 4, 5):
        story.attempt(reason_of(75, saved_step=saved), displaced=True, expired=True)
        assert story.decide(spec).action is Action.REQUEUE
    for left in (2, 1, 0):
        story.attempt(reason_of(75, saved_step=5), displaced=True, expired=True)
        decision = story.decide(spec)
        assert decision.action is (Action.REQUEUE if left else Action.HOLD)
    assert decision.code == ExitCode.NO_PROGRESS
    story = Story()
    for _ in range(20):
        story.attempt(reason_of(75, saved_step=None), displaced=True)
        assert story.decide(spec).action is Action.REQUEUE, "preempted by others"


def test_saving_and_leaving_forever_without_a_new_step_is_held():
    story, spec = Story(), spec_of(budgets=Budgets(no_progress=3))
    actions = []
    for _ in range(4):
        story.attempt(reason_of(75))
        actions.append(story.decide(spec).action)
    assert actions == [Action.RESTART, Action.RESTART, Action.RESTART, Action.HOLD]


def test_a_pause_grows_while_nothing_is_saved_and_has_a_limit():
    story, spec = Story(), spec_of(backoff_s=Seconds(5.0), budgets=Budgets(no_progress=100))
    pauses = []
    for _ in range(12):
        story.attempt(reason_of(85, host=""))
        pauses.append(story.decide(spec).delay_s)
    assert pauses[:5] == [0.0, 0.0, 5.0, 10.0, 20.0]
    assert pauses[-1] == BACKOFF_MAX_S


def test_a_person_who_resumes_gets_new_budgets():
    story, spec = Story(), spec_of(budgets=Budgets(exception=0))
    story.attempt(reason_of(70))
    assert story.decide(spec).action is Action.HOLD
    story.write("held", 1, code=86)
    assert story.history.final == 86
    story.write("resumed", 1)
    assert story.history.final is None
    assert story.history.incidents == ()


def test_failures_outside_the_window_are_forgotten():
    spec = spec_of(budgets=Budgets(signal=1, window_s=Seconds(10.0), no_progress=100))
    story = Story()
    for saved in range(5):
        story.attempt(reason_of(137, saved_step=saved, host=""))
        assert story.decide(spec).action is Action.RESTART
        story.time += 20.0


REASONS = st.builds(
    reason_of,
    st.sampled_from([code for code in CODES if code not in (64, 65, 71, 86, 93)]),
    host=st.sampled_from(("", *HOSTS)),
    step=st.integers(0, 30),
    saved_step=st.one_of(st.none(), st.integers(0, 30)),
    cause=st.sampled_from(("X", "Y")),
)


@given(
    reasons=st.lists(REASONS, min_size=1, max_size=60),
    banned=st.booleans(),
    spares=st.integers(0, 2),
    shrink=st.booleans(),
    elsewhere=st.booleans(),
)
def test_budgets_hold_whatever_happens(reasons, banned, spares, shrink, elsewhere):
    budgets = Budgets(infrastructure=6, hang=4, signal=4, no_progress=5)
    spec = spec_of(
        min_hosts=2,
        budgets=budgets,
        on_loss=OnLoss.SHRINK if shrink else OnLoss.REQUEUE,
    )
    story = Story()
    for reason in reasons:
        story.attempt(reason, banned=[reason.host] if banned and reason.host else [])
        before = story.history
        decision = story.decide(spec, spares=spares, elsewhere=elsewhere)
        assert decide(before, spec=spec, spares=spares, hosts=4, elsewhere=elsewhere) == decision
        assert 0 <= decision.delay_s <= BACKOFF_MAX_S
        if decision.is_final:
            assert decision.code in (ExitCode.HOLD, ExitCode.NO_PROGRESS)
            break
        counts = story.history.incidents
        for retry in (RetryClass.INFRASTRUCTURE, RetryClass.HANG, RetryClass.EXCEPTION):
            used = sum(each.reason.retry is retry for each in counts)
            assert used <= getattr(budgets, retry.value)
        assert story.history.stalled < budgets.no_progress or decision.exclude
        assert set(decision.exclude) <= {reason.host}
        assert decision.action is not Action.REQUEUE or elsewhere
        assert decision.action is not Action.REPLACE or spares
    numbers = [entry.attempt for entry in story.entries if entry.event == "attempt_planned"]
    assert numbers == list(range(1, len(numbers) + 1))


@given(st.lists(REASONS, min_size=1, max_size=20), st.data())
def test_a_person_may_resume_after_any_line_of_the_journal(reasons, data):
    story, spec = Story(), spec_of()
    for reason in reasons:
        story.attempt(reason)
        story.decide(spec)
    story.entries = story.entries[: data.draw(st.integers(1, len(story.entries)))]
    story.write("resumed", story.history.attempt)
    assert story.history.final is None
    if story.history.open:
        story.write("attempt_ended", story.history.attempt, reason=dataclasses.asdict(reasons[0]))
    if story.history.undecided:
        assert story.decide(spec).action in Action
    story.attempt(reasons[0])
    assert story.decide(spec).action in Action


FINAL = (Action.HOLD, Action.FAIL, Action.DONE)


@given(st.lists(REASONS, min_size=1, max_size=20), st.data())
def test_a_journal_cut_anywhere_is_a_history(reasons, data):
    story, spec = Story(), spec_of(budgets=Budgets(no_progress=100, same_step=100))
    for reason in reasons:
        story.attempt(reason)
        story.decide(spec)
    cut = data.draw(st.integers(0, len(story.entries)))
    history = History.of(story.entries[:cut])
    last = story.entries[cut - 1] if cut else None
    event = last.event if last else ""
    # A decision that ends the run is not done before the line that says so.
    ends = event == "decided" and Action(last.details["action"]) in FINAL
    assert history.open == (event == "attempt_planned")
    assert history.undecided == (event == "attempt_ended" or ends)
    assert history.attempt <= story.history.attempt
