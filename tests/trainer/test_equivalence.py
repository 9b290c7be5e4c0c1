"""Every supported layout computes the step of one device; docs/equivalence.md is what it shows."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.context import dropout
from partitioning.activations import Activations
from partitioning.mesh_config import MeshConfig
from tests.trainer import equivalence, equivalence_table, programs
from tests.trainer.equivalence_cases import CASES
from trainer.language_model import LanguageModelTask
from trainer.run_config import LanguageModel

SMALL = equivalence.Case(name="control", mesh=MeshConfig(), microbatches=2, batch="padded")


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


def test_the_page_has_a_row_for_every_case_and_no_other():
    lines = equivalence_table.PAGE.read_text().split("|---|---|---|---|---|---|---|\n")[1]
    rows = lines.strip().splitlines()
    assert [row.rsplit(" |", 4)[0] + " |" for row in rows] == [
        equivalence_table.key(case) for case in CASES
    ]
    for case, row in zip(CASES, rows, strict=True):
        numbers = [float(cell) for cell in re.findall(r"\d\.\de[+-]\d+", row)]
        assert len(numbers) == 3
        assert max(numbers) <= equivalence.TOLERANCE[case.dtype]


def worst(found):
    expected = equivalence.on_one_device(SMALL.reference())
    return max(error for _, error in equivalence.errors(found, expected).values())


def test_control_any_leaf_that_is_off_by_a_billionth_is_seen():
    expected = equivalence.on_one_device(SMALL.reference())
    leaves = [
        (field.name, name)
        for field in dataclasses.fields(equivalence.Outcome)
        for name in getattr(expected, field.name)
    ]
    assert len(leaves) > 25
    for group, name in leaves:
        changed = dict(getattr(expected, group))
        changed[name] = changed[name] * (1 + 1e-9)
        found = equivalence.errors(dataclasses.replace(expected, **{group: changed}), expected)
        assert found[group][0] == name
        assert found[group][1] > 1e-12
        changed[name] = changed[name] * np.nan
        found = equivalence.errors(dataclasses.replace(expected, **{group: changed}), expected)
        assert not found[group][1] <= 1e-12


class MeanOfMeans(LanguageModelTask):
    """Averages inside each microbatch, as accumulation in other frameworks did."""

    def loss(self, model, batch, *, ctx):
        total, weight, metrics = super().loss(model, batch, ctx=ctx)
        return total / weight, jnp.ones_like(weight), metrics


def test_control_a_mean_of_means_is_seen():
    program = programs.program(
        SMALL.decoder(),
        train={"microbatches": 2},
        task=MeanOfMeans(LanguageModel(model=SMALL.decoder(), z_loss=1e-3)),
    )
    assert worst(equivalence.outcome(SMALL, program=program)) > 1e-4


def test_control_a_missing_mask_is_seen():
    batch = programs.batch(SMALL.batch)
    batch["segment_ids"] = np.ones_like(batch["segment_ids"])
    assert worst(equivalence.outcome(SMALL, batch=batch)) > 1e-4


def test_control_dropout_by_the_row_within_a_microbatch_is_seen(monkeypatch):
    case = dataclasses.replace(SMALL, model=(("dropout", 0.3),), name="dropout control")
    expected = equivalence.on_one_device(case.reference())

    def local(x, *, ctx, **rest):
        return dropout(x, ctx=dataclasses.replace(ctx, rows=jnp.arange(x.shape[0])), **rest)

    monkeypatch.setattr("models.stack.dropout", local)
    found = equivalence.errors(equivalence.outcome(case), expected)
    assert found["gradients"][1] > 1e-4


def test_control_dropout_by_the_place_on_the_devices_is_seen(monkeypatch):
    """A row is dealt out in another order, and the same token must still be dropped."""
    case = equivalence.Case(
        name="layout control", rules="cp", mesh=MeshConfig(context=2), model=(("dropout", 0.3),)
    )
    monkeypatch.setattr(Activations, "columns", lambda self, length: jnp.arange(length))
    found = equivalence.errors(
        equivalence.outcome(case), equivalence.on_one_device(case.reference())
    )
    assert found["gradients"][1] > 1e-4
