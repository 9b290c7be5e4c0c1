"""Every value of golden/seed_golden.json, from the calculators.

The file holds what the documents print (`book`), and what their formulas and the right ones give,
worked out apart from this code, in the units of its keys.
"""

import json
import pathlib

import pytest

from tests.partitioning.planner.golden_layout import PIPELINE, SHARDING, STEP, TENSOR
from tests.partitioning.planner.golden_questions import QUESTIONS
from tests.partitioning.planner.golden_running import FAILING, INPUT, MONEY
from tests.partitioning.planner.golden_terms import Rounded

VALUES = INPUT | TENSOR | PIPELINE | SHARDING | STEP | FAILING | MONEY | QUESTIONS

GOLDEN = json.loads((pathlib.Path(__file__).parent / "golden" / "seed_golden.json").read_text())
KEYS = [(key, name) for key, values in GOLDEN.items() for name in values]


@pytest.mark.parametrize(("key", "name"), KEYS, ids=lambda part: part)
def test_golden(key, name):
    ours, golden = VALUES[key][name], GOLDEN[key][name]
    if isinstance(ours, Rounded):
        assert ours == golden
    elif isinstance(golden, int):
        assert round(ours, 9) == golden
    else:
        assert ours == pytest.approx(golden, rel=0.005, abs=1e-9)


def test_every_key_is_computed_and_no_other():
    assert {key: set(values) for key, values in VALUES.items()} == {
        key: set(values) for key, values in GOLDEN.items()
    }


def test_a_rounded_value_is_the_printed_one_only_within_its_digits():
    assert Rounded(5.12, 0.1) == 5.1
    assert Rounded(5.12, 0.1) != 5.3
