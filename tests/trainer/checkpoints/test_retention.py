import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.checkpoints import retention
from trainer.checkpoints.layout import StepName
from trainer.checkpoints.retention import Candidate, Rules

METRICS = st.none() | st.floats(allow_nan=True)


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    names = draw(st.sets(st.builds(StepName, st.integers(0, 30), st.integers(0, 3)), max_size=12))
    return [
        Candidate(
            name=name,
            metric=draw(METRICS),
            verified=draw(st.booleans()),
            abandoned=draw(st.integers(0, 4)) == 0,
        )
        for name in names
    ]


RULES = st.builds(
    Rules,
    keep_latest=st.integers(0, 4),
    keep_best=st.integers(0, 3),
    keep_every=st.integers(0, 7),
)


def live(given: list[Candidate]) -> list[Candidate]:
    return sorted((c for c in given if not c.abandoned), key=lambda c: c.name)


@given(candidates(), RULES)
def test_newest_and_one_older_verified_step_always_stay(
    given: list[Candidate], rules: Rules
) -> None:
    gone = set(retention.deletable(given, rules))
    if not gone:
        return
    left = [c for c in live(given) if c.name not in gone]
    assert left[-1] == live(given)[-1]
    assert left[-1].verified
    assert any(c.verified for c in left[:-1])


@given(candidates(), RULES)
def test_each_rule_keeps_its_steps(given: list[Candidate], rules: Rules) -> None:
    gone = set(retention.deletable(given, rules))
    ordered = live(given)
    if rules.keep_latest:
        assert not gone & {c.name for c in ordered[-rules.keep_latest :]}
    if rules.keep_every:
        assert not gone & {c.name for c in ordered if c.name.step % rules.keep_every == 0}
    scores = sorted(c.metric for c in ordered if c.metric is not None and math.isfinite(c.metric))
    for candidate in ordered:
        metric = candidate.metric
        if metric is not None and math.isfinite(metric) and candidate.name in gone:
            assert metric >= scores[: rules.keep_best][-1] if rules.keep_best else True


@given(candidates())
def test_nothing_is_kept_without_a_reason(given: list[Candidate]) -> None:
    sure = [Candidate(name=c.name, verified=True) for c in given]
    gone = retention.deletable(sure, Rules(keep_latest=1))
    assert len(sure) - len(gone) == min(2, len(sure))


def test_a_damaged_newest_step_costs_no_older_one() -> None:
    steps = [Candidate(name=StepName(s, 1), verified=s < 40) for s in (10, 20, 30, 40)]
    assert retention.deletable(steps, Rules(keep_latest=1)) == ()


def test_rules_are_separate() -> None:
    steps = [
        Candidate(name=StepName(s, 1), metric=abs(s - 20) / 10, verified=True)
        for s in range(0, 100, 10)
    ]
    gone = retention.deletable(steps, Rules(keep_latest=2, keep_best=1, keep_every=50))
    kept = {c.name.step for c in steps} - {name.step for name in gone}
    assert kept == {0, 20, 50, 80, 90}


def test_steps_that_a_later_attempt_went_back_behind_are_abandoned() -> None:
    names = [StepName(10, 1), StepName(20, 1), StepName(30, 1), StepName(20, 2)]
    parents = {1: None, 2: StepName(10, 1)}
    assert retention.abandoned(names, parents) == {StepName(20, 1), StepName(30, 1)}


def test_resuming_from_the_newest_abandons_nothing() -> None:
    names = [StepName(10, 1), StepName(20, 1), StepName(30, 2)]
    assert retention.abandoned(names, {1: None, 2: StepName(20, 1)}) == frozenset()


def test_negative_rules_are_refused() -> None:
    with pytest.raises(ValueError, match=r"CheckpointConfig\.keep_latest=-1"):
        Rules(keep_latest=-1)
