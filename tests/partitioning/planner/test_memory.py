"""Formulas against compiled programs, and how parts move when a plan changes."""

import dataclasses
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioning.attention_pair import QUERY_BLOCK
from partitioning.mesh_config import MeshConfig, PipelineConfig
from partitioning.planner.cost_model.block_memory import RING_QUERIES, fused_attention
from partitioning.planner.cost_model.memory import device_memory
from partitioning.planner.inputs import load_inputs, plan_of
from tests.partitioning.planner.record_memory import FILE, LAYOUTS, Layout
from trainer.deviceless import device_count
from trainer.fleet import load_cluster

COMPILED = json.loads(FILE.read_text())
TOLERANCE = 0.10
CHIP = load_cluster("h100").chip


def plan(file: str, *bindings: str, more: Sequence[str] = ()):
    run = load_inputs([file, *more], list(bindings))
    return plan_of(run, devices=device_count(run))


def changed(base, **model):
    return dataclasses.replace(base, model=dataclasses.replace(base.model, **model))


def predicted(layout: Layout):
    """What a layout holds by the formulas; none of the chip's own reserve."""
    attention = "cudnn" if layout.fused else "xla"
    asked = plan(*layout.files[:1], *layout.bindings, more=layout.files[1:])
    asked = changed(asked, attention=attention)
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


def test_what_is_offloaded_waits_on_the_host_but_for_one_block() -> None:
    saved = use(changed(EIGHT, remat="save:mlp_up", scan_layers=True))
    moved = use(changed(EIGHT, remat="offload:mlp_up", scan_layers=True))
    gone = saved.part("activations") - moved.part("activations")
    assert gone == pytest.approx(moved.host * (1 - 1 / EIGHT.model.layers))
    assert saved.host == 0


def test_an_offloaded_state_leaves_the_device_and_comes_back_for_the_update() -> None:
    optimizer = dataclasses.replace(EIGHT.optimizer, offload=True)
    small = dataclasses.replace(EIGHT.work, rows=8, length=128)
    away = use(dataclasses.replace(EIGHT, optimizer=optimizer, work=small))
    assert (away.moment, away.part("optimizer_state")) == ("update", 0)
    assert away.part("state_for_update") == away.host == use().part("optimizer_state")


def replicated(name: str, *, microbatches: int = 1):
    """8B on eight replicas under one of the rule sets."""
    files = ["configs/models/llama3_8b.gin", f"configs/partitioning/{name}.gin"]
    work = dataclasses.replace(EIGHT.work, microbatches=microbatches)
    rules, sizes = load_inputs(files).rules, MeshConfig(data=8).sizes(8)
    return dataclasses.replace(EIGHT, rules=rules, sizes=sizes, work=work)


def test_zero1_shares_the_optimizers_state_alone() -> None:
    whole, shared = (use(replicated(name)) for name in ("ddp", "zero1"))
    assert shared.part("parameters") == whole.part("parameters")
    assert shared.part("optimizer_state") < 0.13 * whole.part("optimizer_state")


def test_zero1_shares_gradients_of_one_microbatch_but_no_sums_of_several() -> None:
    once, several = (use(replicated("zero1", microbatches=count)) for count in (1, 4))
    assert once.part("gradients") < 0.13 * once.part("parameters")
    assert several.part("gradients") == several.part("gradient_sums") == once.part("parameters")


def test_blocks_that_compute_nothing_again_keep_cast_weights() -> None:
    kept, narrow = changed(EIGHT, remat="none"), changed(EIGHT, remat="none", dtype="float32")
    assert use(kept).part("cast_weights") > 0.4 * use(kept).part("parameters")
    assert use(narrow).part("cast_weights") == use().part("cast_weights") == 0


def test_an_offloaded_state_meets_whole_sums_and_their_share_at_the_update() -> None:
    base = replicated("zero1", microbatches=8)
    work = dataclasses.replace(base.work, length=256)
    base = dataclasses.replace(base, sizes=MeshConfig(data=2).sizes(2), work=work)
    optimizer = dataclasses.replace(base.optimizer, offload=True)
    found = use(dataclasses.replace(base, optimizer=optimizer))
    sums = found.part("gradient_sums")
    assert found.moment == "update"
    assert found.part("scattered_gradients") == pytest.approx(sums / 2, rel=0.001)


def test_masks_of_a_ring_grow_faster_than_its_row_and_stand_for_scanned_blocks_only() -> None:
    ring = plan("configs/runs/llama3_8b_128k_64.gin")
    work = dataclasses.replace(ring.work, length=ring.work.length // 2)
    long, short = use(ring), use(dataclasses.replace(ring, work=work))
    assert 2 < long.part("ring_masks") / short.part("ring_masks") < 4
    assert use(changed(ring, scan_layers=False)).part("ring_masks") == 0
    assert RING_QUERIES == QUERY_BLOCK


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
