"""Every supported layout computes the step of one device; docs/equivalence.md is what it shows."""

import dataclasses

import jax
import pytest

from tests.trainer import equivalence, equivalence_table
from tests.trainer.equivalence_cases import CASES


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.dtype}: {case.name}")
def test_loss_every_gradient_and_parameters_equal_one_device(case):
    found = equivalence.outcome(case)
    expected = equivalence.on_one_device(case.reference())
    for what, (leaf, error) in equivalence.errors(found, expected).items():
        assert error <= equivalence.TOLERANCE[case.dtype], f"{what}: {leaf} is off by {error:.1e}"
