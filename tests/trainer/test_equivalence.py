"""Every supported layout computes the step of one device; docs/equivalence.md is what it shows."""

import dataclasses
import functools
import json
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

from partitioning.mesh_config import MeshConfig
from trainer.certificate import matrix, one_step
from trainer.certificate.cases import CASES, EXPERTS_MODEL, HALF, LARGE
from trainer.certificate.controls import CONTROLS
from trainer.certificate.page import PAGE, Row

SMALL = one_step.Case(name="control", mesh=MeshConfig(), microbatches=2, batch="padded")


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.dtype}: {case.name}")
def test_loss_every_gradient_and_parameters_equal_one_device(case):
    row = matrix.run(case)
    assert row.passed, row.as_json()
    if case.activations:
        alone = on_one_device_in(case.activations)
        assert all(found <= 2 * one for found, one in zip(row.errors, alone.errors, strict=True))


@functools.cache
def on_one_device_in(dtype):
    """How far one device is off when its activations have ``dtype``."""
    return matrix.run(dataclasses.replace(HALF[0], activations=dtype))


@pytest.mark.parametrize(
    ("rules", "sizes"),
    [
        ("tp", {"tensor": 2}),
        ("ep", {"fsdp": 2, "expert": 2}),
        ("fsdp_ep_tp", {"fsdp": 2, "expert": 2, "tensor": 2}),
    ],
    ids=str,
)
def test_experts_in_bfloat16_run_on_every_mesh(rules, sizes):
    """Their router flips near ties, so that only the loss is compared, to its few digits."""
    case = one_step.Case(
        name="half",
        rules=rules,
        mesh=MeshConfig(**sizes),
        model=EXPERTS_MODEL,
        dtype="float32",
        activations="bfloat16",
    )
    found = one_step.outcome(case).loss["loss"]
    assert found == pytest.approx(one_step.on_one_device(case.reference()).loss["loss"], rel=5e-3)


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_a_fault_is_seen(control):
    assert matrix.run(control).passed


def test_the_command_certifies_a_layout_on_sixteen_devices_and_says_so():
    command = [sys.executable, "-m", "trainer.certify", "--json", f"--only={LARGE[0].name}"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    report = json.loads(found.stdout)
    assert (report["passed"], report["failed"]) == (1, 0)
    assert report["rows"][0]["worst"] < 1e-12


def test_a_row_passes_when_a_layout_is_right_and_when_a_fault_is_seen():
    assert Row(of=SMALL, errors=(0.0, 1e-15, 0.0)).passed
    assert not Row(of=SMALL, errors=(0.0, float("nan"), 0.0)).passed
    assert not Row(of=SMALL, errors=(0.0, 0.0, 1e-11)).passed
    assert not Row(of=CONTROLS[0], errors=(1e-9, 1e-9, 0.0)).passed
    assert Row(of=CONTROLS[0], errors=(0.0, float("nan"), 0.0)).passed


def test_the_page_has_a_row_for_everything_and_no_other():
    lines = [line for line in PAGE.read_text().splitlines() if re.search(r"^\|.*\de[+-]\d", line)]
    assert len(lines) == len(matrix.EVERYTHING)
    for of, line in zip(matrix.EVERYTHING, lines, strict=True):
        assert line.startswith("| " + " | ".join(matrix.names(of)) + " |")
        errors = tuple(float(cell) for cell in line.split("|")[-4:-1])
        assert len(errors) == 3
        assert Row(of=of, errors=errors).passed


def test_control_any_leaf_that_is_off_by_a_billionth_is_seen():
    expected = one_step.on_one_device(SMALL.reference())
    leaves = [
        (field.name, name)
        for field in dataclasses.fields(one_step.Outcome)
        for name in getattr(expected, field.name)
    ]
    assert len(leaves) > 25
    for group, name in leaves:
        changed = dict(getattr(expected, group))
        changed[name] = changed[name] * (1 + 1e-9)
        found = one_step.errors(dataclasses.replace(expected, **{group: changed}), expected)
        assert found[group][0] == name
        assert found[group][1] > 1e-12
        changed[name] = changed[name] * np.nan
        found = one_step.errors(dataclasses.replace(expected, **{group: changed}), expected)
        assert not found[group][1] <= 1e-12
