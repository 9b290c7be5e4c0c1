"""A formula says yes, no, or that it is too close to call, and what would make room."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.contract import Verdict
from partitioning.planner.answers import Quantity
from partitioning.planner.cost_model.memory import MemoryUse
from partitioning.planner.cost_model.memory_verdict import (
    PREALLOCATED,
    formula_verdict,
    host_verdict,
    memory_fraction,
)
from trainer.fleet import load_cluster

H100 = load_cluster("h100_8")


def use(total: float, *, name: str = "activations") -> MemoryUse:
    """A step that needs a share of the device, nearly all of it for one part."""
    parts = (
        Quantity(name=name, value=0.9 * total * 80 * 2**30, unit="B"),
        Quantity(name="batch", value=0.1 * total * 80 * 2**30, unit="B"),
    )
    return MemoryUse(parts=parts, moment="backward", host=0.0, limit=80 * 2**30)


@pytest.mark.parametrize(
    ("share", "verdict"),
    [(0.5, Verdict.OK), (0.9, Verdict.WARNING), (1.1, Verdict.WARNING), (1.2, Verdict.ERROR)],
)
def test_only_beyond_its_own_uncertainty_the_formula_is_sure(share, verdict):
    assert formula_verdict(use(share), cluster=H100).verdict is verdict


def test_too_close_to_call_names_the_compiler_and_the_flags():
    said = formula_verdict(use(1.0), cluster=H100).message
    assert "--mode=dry_run" in said
    assert "activations 72.0 GiB" in said
    assert "DecoderConfig.remat = 'full'" in said


@pytest.mark.parametrize(
    ("part", "flag"),
    [
        ("optimizer_state", "MeshConfig.fsdp"),
        ("logits", "DecoderConfig.loss_chunks"),
        ("gathered_weights", "MeshConfig.tensor"),
        ("something", "more devices"),
    ],
)
def test_the_largest_part_decides_what_is_to_be_changed(part, flag):
    assert flag in formula_verdict(use(2.0, name=part), cluster=H100).message


def test_hosts_have_an_end_too():
    assert host_verdict(0.0, cluster=H100) is None
    small = dataclasses.replace(H100, host_memory=10**12, per_host=8)
    fits, full = (host_verdict(size, cluster=small) for size in (1e11, 2e11))
    assert fits is not None
    assert full is not None
    assert (fits.verdict, full.verdict) == (Verdict.OK, Verdict.ERROR)
    assert "1.6 TB (1.455 TiB) of 1 TB" in full.message
    assert "offload" in full.message


@given(st.floats(0.0, 0.93))
def test_jax_is_told_to_take_more_only_where_its_own_share_is_too_small(needed):
    fraction = memory_fraction(needed)
    if needed <= PREALLOCATED:
        assert fraction is None
    else:
        assert fraction is not None
        assert needed < fraction <= 0.95
