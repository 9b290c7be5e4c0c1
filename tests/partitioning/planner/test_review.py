"""The answers to the chapter's review questions; ``pytest -k P2b`` runs those of one."""

import pytest

from tests.partitioning.planner.asking import answer

SECTIONS = {section.name: section for section in answer("review").sections}
QUESTIONS = (
    *("F1", "F2", "F3", "I1a", "I1b", "I1c", "I1d", "I1e", "I2a", "I2b", "I2c", "I2d"),
    *("I3a", "I3b", "I3c", "I3d", "P1a", "P1b", "P1c", "P1d", "P2a", "P2b", "P2c", "P2d"),
    *("P2e", "P3a-c", "P3d", "P3e", "P3f"),
)

RIGHT = {
    "F1": {"nvlink": 0.334, "infiniband": 3.006},
    "F2": {"zero_1": 306.25e9, "zero_3": 35e9, "tensor_8": 61.25e9, "no_zero": 35e9},
    "F3": {"of_that_bound": 0.903},
    "I1a": {"tensor": 8},
    "I1b": {"data_4": 120e9, "data_8": 60e9, "data_16": 30e9, "least_that_fits": 8},
    "I1c": {"layers_per_stage": 12},
    "I1d": {"accumulation": 28, "bubble_of_4_PP": 0.158},
    "I1e": {"devices": 256, "zero_3": 1.875e9, "no_zero": 15e9},
    "I2a": {"mfu": 0.0705, "step": 1.910, "mfu_of_1M": 0.4554},
    "I2b": {"step": 1.430},
    "I2d": {
        "step": 1.526,
        "speed": 1.2516,
        "mfu": 0.0882,
        "mfu_perfect": 0.0942,
        "mfu_of_1M": 0.5699,
    },
    "I3a": {"failures_per_week": 40.96, "mtbf": 14_765.6},
    "I3b": {"young": 486.06, "young_steps": 324, "daly": 480.74},
    "I3c": {
        "synchronous": 0.4444,
        "background_65_steps": 0.0758,
        "background_100_steps": 0.0506,
        "background_young": 0.0162,
    },
    "I3d": {
        "all": 688_128,
        "lost_synchronous": 305_835,
        "lost_background_65_steps": 52_180,
        "saved_background_65_steps": 253_654,
        "saved_background_young": 294_692,
        "saved_background_100_steps": 270_993,
    },
    "P1a": {
        "least_replicas": 37.3,
        "book_state_data_256": 10.94e9,
        "book_state_data_64": 43.75e9,
        "book_state_data_32": 87.5e9,
        "state": 1.367e9,
        "layers_per_stage_4": 24,
        "layers_per_stage_8": 12,
        "layer": 0.856e9,
        "selective_4_rows": 82.1e9,
        "full_4_rows": 4.83e9,
        "full_4_rows_with_state": 6.2e9,
        "selective_1_row": 20.5e9,
        "selective_1_row_with_state": 21.9e9,
        "book_activations": 39.6e9,
        "book_sum": 83.35e9,
    },
    "P1b": {"message": 402.65e6, "nvlink": 1.566e-3},
    "P1c": {"accumulation": 35, "bubble": 0.0789, "book_bubble_of_3": 0.0588, "of_8_stages": 81},
    "P1d": {
        "data": 8,
        "tokens": 16_384,
        "layer": 0.856e9,
        "book_state_data": 350e9,
        "book_state_context": 43.75e9,
        "state": 1.367e9,
        "keys_and_values": 6.44e9,
    },
    "P2a": {"failures_per_week": 81.92, "mtbf": 7382.8},
    "P2b": {"young": 297.65, "young_steps": 198.4, "daly": 293.66},
    "P2c": {"checkpoint": 0.0198, "rework": 0.0202, "restart": 0.0813, "lost": 0.121},
    "P2e": {
        "recovery_needed": 37.1,
        "availability": 0.9248,
        "repair_10_min": 1,
        "repair_1_h": 3,
        "repair_4_h": 6,
        "repair_24_h": 21,
        "repair_72_h": 51,
        "repair_168_h": 106,
        "by_share": 52,
    },
    "P3e": {
        "tokens_per_second": 393_842,
        "sequential": 2.680,
        "hidden_80": 1.840,
        "speed": 1.4565,
        "mfu": 0.408,
        "mfu_perfect": 0.460,
        "mfu_I2": 0.350,
        "mfu_I2_perfect": 0.374,
    },
}
BOOK = {
    "F1": {"nvlink": 0.072, "infiniband": 0.864, "difference": 0.792},
    "I1d": {"accumulation": 14},
    "I3b": {"young": 97.98, "young_steps": 65.3},
    "P1b": {
        "nvlink": 0.671e-3,
        "infiniband": 8.05e-3,
        "nvlink_192_calls": 0.1288,
        "infiniband_192_calls": 1.546,
    },
    "P1c": {"accumulation": 2.1875},
    "P2b": {"young": 75.89, "young_steps": 50.6},
    "P2c": {"checkpoint": 0.0741},
}
WORDS = {
    "F2": ("pure data parallelism",),
    "F3": ("sm__pipe_tensor_cycles_active", "FP32"),
    "I2c": ("BACKWARD_PRE", "forward_prefetch=True", "limit_all_gathers=True", "FULL_SHARD"),
    "P1a": ("only full recomputation fits",),
    "P1d": ("CP = 4",),
    "P2d": ("Xid 48", "5.0", "6 standard deviations", "hash", "our proposal"),
    "P2e": ("not make a recovery short",),
    "P3a-c": ("GPU", "Communication", "Framework", "Scheduler", "Input", "Storage"),
    "P3d": ("sm__pipe_tensor_cycles_active",),
    "P3f": ("(1)", "(2)", "(3)", "(4)", "(5)", "(6)", "synchronous checkpoints"),
}


def cases(table):
    return [(q, name, value) for q, values in table.items() for name, value in values.items()]


def quantity(question, name):
    return next(q for q in SECTIONS[question].quantities if q.name == name)


def close(value, expected):
    if isinstance(expected, int):
        return round(value) == expected and abs(value - expected) < 0.5
    return value == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize(("question", "name", "expected"), cases(RIGHT))
def test_right(question, name, expected):
    assert close(quantity(question, name).value, expected)
    assert quantity(question, name).formula


@pytest.mark.parametrize(("question", "name", "expected"), cases(BOOK))
def test_by_the_book(question, name, expected):
    found = quantity(question, name)
    assert close(found.book, expected)
    assert not close(found.value, expected)


@pytest.mark.parametrize("question", WORDS)
def test_words(question):
    text = " ".join(SECTIONS[question].text)
    assert all(word in text for word in WORDS[question])


def test_every_question_is_answered():
    assert tuple(SECTIONS) == QUESTIONS
    assert set(RIGHT) | set(WORDS) == set(QUESTIONS)
    assert [s.name for s in answer("review --only=p2b,F1").sections] == ["P2b", "F1"]


def test_a_question_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(ValueError, match="There is no P9; there are F1, F2"):
        answer("review --only=P9")
