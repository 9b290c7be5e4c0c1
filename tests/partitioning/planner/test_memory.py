"""Formulas against compiled programs, and how parts move when a plan changes."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioning.mesh_config import MeshConfig, PipelineConfig
from partitioning.planner.cost_model.memory import device_memory, fused_attention
from partitioning.planner.inputs import load_inputs, plan_of
from tests.partitioning.planner.record_memory import FILE, LAYOUTS, Layout
from trainer.deviceless import device_count
from trainer.fleet import load_cluster

COMPILED = json.loads(FILE.read_text())
TOLERANCE = 0.10
CHIP = load_cluster("h100").chip


def plan(file: str, *bindings: str):
    run = load_inputs([file], list(bindings))
    return plan_of(run, devices=device_count(run))


def changed(base, **model):
    return dataclasses.replace(base, model=dataclasses.replace(base.model, **model))


def predicted(layout: Layout):
    """What a layout holds by the formulas; none of the chip's own reserve."""
    attention = "cudnn" if layout.fused else "xla"
    asked = changed(plan(layout.file, *layout.bindings), attention=attention)
    chip = load_cluster(layout.target).chip
    return device_memory(asked, chip=dataclasses.replace(chip, reserved=0))


EIGHT = plan("configs/runs/llama3_8b_8.gin", "TrainConfig.microbatches=1")


def use(asked=EIGHT):
    return device_memory(asked, chip=CHIP)


def test_every_layout_was_recorded() -> None:
    assert set(COMPILED) == set(LAYOUTS)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_peak_is_that_of_the_compiled_program(name: str) -> None:
    assert predicted(LAYOUTS[name]).total == pytest.approx(COMPILED[name]["peak"], rel=TOLERANCE)


@pytest.mark.parametrize("name", LAYOUTS)
def test_state_and_batch_are_the_arguments_of_the_compiled_program(name: str) -> None:
    found = predicted(LAYOUTS[name])
    held = sum(found.part(part) for part in ("parameters", "optimizer_state", "batch"))
    assert held == pytest.approx(COMPILED[name]["arguments"], rel=0.002)


def test_most_layouts_agree_within_a_twentieth() -> None:
    errors = [abs(predicted(LAYOUTS[n]).total / COMPILED[n]["peak"] - 1) for n in LAYOUTS]
    assert sum(error < 0.05 for error in errors) >= 0.9 * len(errors)


def test_less_is_kept_the_more_is_computed_again() -> None:
    policies = ("none", "selective", "save:attention", "full")
    kept = [use(changed(EIGHT, remat=policy)).part("activations") for policy in policies]
    assert kept == sorted(kept, reverse=True)
    assert len(set(kept)) == len(kept)


def test_what_is_offloaded_counts_on_the_host_only() -> None:
    saved = use(changed(EIGHT, remat="save:mlp_up", scan_layers=True))
    moved = use(changed(EIGHT, remat="offload:mlp_up", scan_layers=True))
    gone = saved.part("activations") - moved.part("activations")
    assert moved.host == pytest.approx(gone)
    assert saved.host == 0


def test_an_offloaded_state_leaves_the_device_and_comes_back_for_the_update() -> None:
    optimizer = dataclasses.replace(EIGHT.optimizer, offload=True)
    small = dataclasses.replace(EIGHT.work, rows=8, length=128)
    away = use(dataclasses.replace(EIGHT, optimizer=optimizer, work=small))
    assert (away.moment, away.part("optimizer_state")) == ("update", 0)
    assert away.part("state_for_update") == away.host == use().part("optimizer_state")


def test_zero1_shares_the_optimizers_state_alone() -> None:
    rules = {
        name: load_inputs(
            ["configs/models/llama3_8b.gin", f"configs/partitioning/{name}.gin"]
        ).rules
        for name in ("ddp", "zero1")
    }
    sizes = MeshConfig(data=8).sizes(8)
    whole, shared = (
        use(dataclasses.replace(EIGHT, rules=rules[name], sizes=sizes)) for name in ("ddp", "zero1")
    )
    assert shared.part("parameters") == whole.part("parameters")
    assert shared.part("optimizer_state") < 0.13 * whole.part("optimizer_state")


def test_interleaved_pieces_keep_fewer_activations_at_once_and_more_inputs() -> None:
    base = plan("configs/runs/llama3_70b_512_pp.gin", "PipelineConfig.chunks=1")
    work = dataclasses.replace(base.work, pipeline=PipelineConfig(chunks=4))
    one, four = use(base), use(dataclasses.replace(base, work=work))
    assert four.part("activations") == one.part("activations") / 4
    assert four.part("stash") > one.part("stash")


@given(st.sampled_from([1, 2, 4, 8]))
def test_microbatches_divide_activations_and_keep_sums_of_gradients(microbatches: int) -> None:
    work = dataclasses.replace(EIGHT.work, microbatches=microbatches)
    found = use(dataclasses.replace(EIGHT, work=work))
    assert found.part("activations") == use().part("activations") / microbatches
    assert (found.part("gradient_sums") > 0) == (microbatches > 1)


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from(["none", "selective", "full"]))
def test_parts_add_up_and_none_is_negative(tensor: int, remat: str) -> None:
    sizes = MeshConfig(fsdp=8 // tensor, tensor=tensor).sizes(8)
    found = use(changed(dataclasses.replace(EIGHT, sizes=sizes), remat=remat))
    assert found.total == sum(part.value for part in found.parts)
    assert all(part.value > 0 for part in found.parts)


def test_scores_are_held_where_no_kernel_fuses_attention() -> None:
    ring = plan("configs/runs/llama3_8b_128k_64.gin")
    for asked, chip, fused in (
        (EIGHT, "h100", True),
        (EIGHT, "v6e", False),
        (changed(EIGHT, attention="xla"), "h100", False),
        (changed(EIGHT, attention_soft_cap=50.0), "h100", False),
        (ring, "h100", False),
    ):
        kind = load_cluster(chip).chip
        assert fused_attention(asked.model, sizes=asked.sizes, chip=kind) == fused
    assert use(changed(EIGHT, attention="xla")).part("block") > 5 * use().part("block")
