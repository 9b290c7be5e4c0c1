"""Learning rates: end points, warm-up, no jumps, a pure function of the step."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.optimizer_config import ScheduleConfig
from trainer.optimizers import build_schedule

NAMES = ("constant", "linear", "cosine", "wsd", "rsqrt")


def rates(*, steps, until=None, **fields):
    schedule = build_schedule(ScheduleConfig(**{"peak": 1.0, **fields}), steps=steps)
    return np.asarray(jax.vmap(schedule)(np.arange((until or steps) + 1)))


@pytest.mark.parametrize("name", NAMES)
def test_the_warm_up_rises_evenly_from_its_first_step_and_ends_at_the_peak(name):
    found = rates(name=name, steps=40, warmup_steps=4, cooldown_steps=8)
    np.testing.assert_allclose(found[:5], [0.25, 0.5, 0.75, 1.0, 1.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "middle", "end"),
    [
        ("constant", 1.0, 1.0),
        ("linear", 0.6, 0.2),
        ("cosine", 0.6, 0.2),
        ("wsd", 1.0, 0.2),
        ("rsqrt", 4**-0.5, 7**-0.5),
    ],
)
def test_middle_and_end_are_what_the_name_says(name, middle, end):
    fields = {"warmup_steps": 10, "cooldown_steps": 10, "final_ratio": 0.2}
    found = rates(name=name, steps=70, **fields)
    np.testing.assert_allclose(found[[40, 70]], [middle, end], rtol=1e-6)


@pytest.mark.parametrize("name", ["linear", "cosine", "wsd"])
def test_after_its_end_the_rate_stays_at_the_last(name):
    found = rates(name=name, steps=99, decay_steps=20, cooldown_steps=5, final_ratio=0.1)
    np.testing.assert_allclose(found[20:], 0.1, rtol=1e-6)


def test_the_cool_down_is_a_line_over_the_last_steps():
    found = rates(name="wsd", steps=20, warmup_steps=2, cooldown_steps=4, final_ratio=0.0)
    np.testing.assert_allclose(found[2:17], 1.0)
    np.testing.assert_allclose(found[16:], [1.0, 0.75, 0.5, 0.25, 0.0], atol=1e-6)


def test_a_schedule_longer_than_its_decay_is_refused():
    config = ScheduleConfig(peak=1.0, name="wsd", warmup_steps=8, cooldown_steps=8)
    with pytest.raises(ValueError, match="warmup_steps=8 \\+ cooldown_steps=8 exceed the 10 steps"):
        build_schedule(config, steps=10)


configs = st.builds(
    ScheduleConfig,
    peak=st.floats(1e-6, 10.0),
    name=st.sampled_from(NAMES),
    warmup_steps=st.integers(0, 30),
    cooldown_steps=st.integers(0, 30),
    final_ratio=st.floats(0.0, 1.0),
)


@settings(max_examples=60, deadline=None)
@given(configs, st.integers(60, 90))
def test_every_schedule_stays_between_zero_and_the_peak_without_jumps(config, steps):
    schedule = build_schedule(config, steps=steps)
    found = np.asarray(jax.vmap(schedule)(np.arange(steps + 5)))
    assert found.dtype == np.float32
    assert (found >= 0).all()
    assert found.max() <= config.peak * (1 + 1e-5)
    assert math.isclose(found.max(), config.peak, rel_tol=1e-5)
    ramp = 1 / max(config.warmup_steps, 1)
    decay = steps - config.warmup_steps
    fall = 1 / max(config.cooldown_steps, 1) if config.name == "wsd" else math.pi / 2 / decay
    fall = 0.3 if config.name == "rsqrt" else fall
    largest = config.peak * max(ramp if config.warmup_steps > 1 else 0, fall)
    assert np.abs(np.diff(found)).max() <= largest * (1 + 1e-4) + 1e-12
    after = found[config.warmup_steps :]
    assert (np.diff(after) <= config.peak * 1e-6).all()


@settings(max_examples=30, deadline=None)
@given(configs, st.integers(0, 80))
def test_one_step_asked_alone_has_the_rate_that_it_has_in_a_run(config, step):
    schedule = build_schedule(config, steps=80)
    alone = float(schedule(step))
    again = float(jax.jit(build_schedule(dataclasses.replace(config), steps=80))(step))
    assert math.isclose(alone, again, rel_tol=1e-6, abs_tol=1e-9)
