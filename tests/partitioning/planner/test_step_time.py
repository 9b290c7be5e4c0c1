"""What a predicted step consists of, and how it answers to a changed plan or cluster."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioning.mesh_config import MeshConfig, PipelineConfig
from partitioning.planner.cost_model.compute import compute
from partitioning.planner.cost_model.step_time import Prediction, predict
from partitioning.planner.inputs import load_inputs, plan_of
from trainer.deviceless import device_count
from trainer.fleet import load_cluster


def plan(file: str, *bindings: str):
    run = load_inputs([f"configs/runs/{file}.gin"], list(bindings))
    return plan_of(run, devices=device_count(run))


def step(asked, name: str = "h100") -> Prediction:
    return predict(asked, cluster=load_cluster(f"{name}_{asked.devices}"))


def changed(asked, **model):
    return dataclasses.replace(asked, model=dataclasses.replace(asked.model, **model))


def part(found: Prediction, name: str) -> float:
    return next((p.value for p in found.waterfall if p.name == name), 0.0)


EIGHT = plan("llama3_8b_8", "TrainConfig.microbatches=1")
PIPELINE = plan("llama3_70b_512_pp")
MIXTURE = plan("mixtral_8x7b_64")


@pytest.mark.parametrize("asked", [EIGHT, PIPELINE, MIXTURE], ids=["fsdp", "pipeline", "experts"])
def test_the_waterfall_adds_up_and_explains_itself(asked) -> None:
    found = step(asked)
    assert found.seconds == sum(p.value for p in found.waterfall)
    assert found.tokens_per_second * found.seconds == pytest.approx(asked.tokens)
    assert all(p.value > 0 and p.formula for p in found.waterfall)
    assert 0 < found.mfu < found.mfu_full < 1
    for one in found.traffic:
        assert 0 <= one.exposed <= one.seconds


def test_utilisation_is_flops_over_time_and_peak() -> None:
    found = step(EIGHT)
    rate = found.flops.total("causal") / found.seconds / 8
    assert found.mfu == pytest.approx(rate / 989.4e12)
    full = changed(EIGHT, remat="full")
    assert step(full).hfu > step(full).mfu
    assert step(full).flops.products == found.flops.products


def test_what_is_computed_again_takes_time() -> None:
    took = [
        part(step(changed(EIGHT, remat=remat, loss_chunks=1)), "recomputation")
        for remat in ("none", "selective", "full")
    ]
    assert took == sorted(took)
    assert took[0] == 0
    assert len(set(took)) == 3


def test_eight_bits_are_faster_but_not_twice() -> None:
    wide, narrow = step(EIGHT), step(changed(EIGHT, matmul="fp8"))
    assert 0.5 * wide.seconds < narrow.seconds < 0.9 * wide.seconds
    assert part(narrow, "elementwise") > part(wide, "elementwise")


def test_the_bubble_is_that_of_the_table() -> None:
    cluster = load_cluster("h100_512")
    work = compute(PIPELINE, chip=cluster.chip)
    share = PIPELINE.step.schedule.bubble(backward=work.backward_ratio)
    found = part(predict(PIPELINE, cluster=cluster), "bubble")
    assert found / (found + work.seconds) == pytest.approx(share)


def test_interleaving_shrinks_the_bubble() -> None:
    def bubble(chunks: int) -> float:
        work = dataclasses.replace(PIPELINE.work, pipeline=PipelineConfig(chunks=chunks))
        return part(step(dataclasses.replace(PIPELINE, work=work)), "bubble")

    assert bubble(4) < bubble(2) < bubble(1)


def test_tensor_parallelism_across_hosts_costs_more_than_within() -> None:
    inside, across = (
        step(dataclasses.replace(EIGHT, sizes=MeshConfig(tensor=t, fsdp=16 // t).sizes(16)))
        for t in (8, 16)
    )
    assert part(across, "exposed_tensor") > 2 * part(inside, "exposed_tensor")


def test_the_sum_over_replicas_hides_unless_it_comes_after_all_microbatches() -> None:
    sizes = MeshConfig(data=2, fsdp=8).sizes(16)
    once, often = (
        step(
            dataclasses.replace(
                EIGHT, sizes=sizes, work=dataclasses.replace(EIGHT.work, microbatches=count)
            )
        )
        for count in (1, 4)
    )
    beside, after = (
        next(t for t in found.traffic if t.axes == ("data",)) for found in (once, often)
    )
    assert beside.exposed < 0.5 * beside.seconds
    assert after.exposed == after.seconds


def test_an_offloaded_state_lengthens_the_step_by_its_way_to_the_host() -> None:
    optimizer = dataclasses.replace(EIGHT.optimizer, offload=True)
    found = step(dataclasses.replace(EIGHT, optimizer=optimizer))
    state = 2 * 8 * 8_030_261_248 / 8
    assert part(found, "state_offload") == pytest.approx(state / 50e9, rel=0.01)


def test_offloaded_values_cost_nothing_while_they_cross_beside_products() -> None:
    moved = changed(EIGHT, remat="offload:mlp_up", scan_layers=True)
    assert part(step(moved), "host_offload") == 0
    cluster = dataclasses.replace(load_cluster("h100"), host_bandwidth=1e9)
    assert part(predict(moved, cluster=cluster), "host_offload") > 0


def test_without_a_fused_kernel_attention_is_the_bottleneck() -> None:
    long = plan("llama3_8b_128k_64")
    assert (step(long).fused, step(long).bottleneck) == (False, "attention")
    assert step(EIGHT).fused


def test_a_chip_with_twice_the_rates_takes_half_the_time() -> None:
    cluster = load_cluster("h100")
    chip = dataclasses.replace(
        cluster.chip,
        peak_flops=2 * cluster.chip.peak_flops,
        memory_bandwidth=2 * cluster.chip.memory_bandwidth,
    )
    fast = predict(EIGHT, cluster=dataclasses.replace(cluster, chip=chip))
    slow = predict(EIGHT, cluster=cluster)
    for name in ("products", "attention", "elementwise", "optimizer"):
        assert part(fast, name) == pytest.approx(part(slow, name) / 2)


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
)
def test_any_layout_has_a_step(tensor: int, fsdp: int, data: int, microbatches: int) -> None:
    sizes = MeshConfig(data=data, fsdp=fsdp, tensor=tensor).sizes(data * fsdp * tensor)
    work = dataclasses.replace(EIGHT.work, microbatches=microbatches)
    found = step(dataclasses.replace(EIGHT, sizes=sizes, work=work))
    assert found.seconds > 0
    assert 0.01 < found.mfu < 0.7
    more = dataclasses.replace(work, rows=2 * work.rows)
    longer = step(dataclasses.replace(EIGHT, sizes=sizes, work=more))
    assert longer.seconds > found.seconds
    assert longer.mfu > 0.999 * found.mfu
