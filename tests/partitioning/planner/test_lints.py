"""What is possible but unwise is named with its numbers and with the flag that changes it."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.contract import Verdict
from partitioning.planner.cost_model import lints
from partitioning.planner.cost_model.run_outlook import RunOutlook
from partitioning.planner.cost_model.step_time import predict
from partitioning.planner.inputs import load_inputs, plan_of
from trainer.deviceless import device_count
from trainer.fleet import load_cluster

H100 = load_cluster("h100_512")
SEVENTY = "configs/runs/llama3_70b_512.gin"
STAGES = "configs/runs/llama3_70b_512_pp.gin"


def plan(file: str, *bindings: str):
    run = load_inputs([file], bindings)
    return plan_of(run, devices=device_count(run))


def told(asked, *, cluster=H100) -> dict[str, str]:
    found = lints.layout_lints(asked, cluster=cluster)
    assert {f.verdict for f in found} <= {Verdict.WARNING}
    return {finding.about: finding.message for finding in found}


@pytest.mark.parametrize(
    "name", ["llama3_8b_8", "llama3_70b_512", "llama3_70b_512_pp", "mixtral_8x7b_64"]
)
def test_the_known_layouts_are_as_they_should_be(name):
    assert told(plan(f"configs/runs/{name}.gin")) == {}


@pytest.mark.parametrize(
    ("binding", "expected"),
    [
        (
            "DecoderConfig.mlp_dim=28680",
            "mlp_dim=28680 / MeshConfig.tensor=8 = 3585 is no multiple of 64: 1.7%",
        ),
        ("DecoderConfig.mlp_dim=28680", "Take 28672 or 29184."),
        ("DecoderConfig.vocab_size=128008", "vocab_size=128008"),
        ("DecoderConfig.head_dim=100", "head_dim=100 is no multiple of 64: 21.9%"),
    ],
)
def test_sides_that_leave_tiles_empty_are_named(binding, expected):
    assert expected in told(plan(SEVENTY, binding))["dimensions"]


def test_what_tensor_does_not_split_counts_whole():
    odd = plan(
        "configs/runs/llama3_8b_8.gin", "DecoderConfig.embed_dim=4104", "DecoderConfig.head_dim=128"
    )
    assert "embed_dim=4104 is no multiple of 64" in told(odd)["dimensions"]


def test_tiles_of_tpus_are_twice_as_wide():
    small = plan(SEVENTY, "DecoderConfig.head_dim=64")
    assert "dimensions" not in told(small)
    found = told(small, cluster=load_cluster("v5p_512"))["dimensions"]
    assert "head_dim=64 is no multiple of 128: 50.0%" in found


def test_tensor_that_leaves_the_host_is_named_and_on_a_torus_it_does_not():
    wide = plan(SEVENTY, "MeshConfig.tensor=16", "MeshConfig.fsdp=32")
    found = told(wide)["mesh"]
    assert "MeshConfig.tensor=16 is more than the 8 devices that nvlink joins" in found
    assert "9 times slower" in found
    assert "mesh" not in told(wide, cluster=load_cluster("v5p_512"))


def test_a_bubble_names_the_fewest_microbatches_that_would_do():
    found = told(plan(STAGES, "TrainConfig.microbatches=4"))["pipeline"]
    assert "idle 27% of the time" in found
    assert "TrainConfig.microbatches=16 would do" in found
    assert "pipeline" not in told(plan(STAGES, "TrainConfig.microbatches=16"))


def test_a_bubble_that_the_batch_cannot_fill_says_so():
    few = plan(STAGES, "TrainConfig.microbatches=4", "DataConfig.global_batch=64")
    assert "raise DataConfig.global_batch" in told(few)["pipeline"]


def test_parameters_that_everybody_holds_are_named_with_the_bound():
    whole = plan("configs/runs/llama3_8b_8.gin", "MeshConfig.fsdp=1", "MeshConfig.data=8")
    found = told(whole)["sharding"]
    assert "100% of the parameters whole" in found
    assert "RulesConfig.max_replicated=0.05" in found
    rules = dataclasses.replace(whole.rules, max_replicated=1.0)
    assert "sharding" not in told(dataclasses.replace(whole, rules=rules))


def test_a_microbatch_of_few_tokens_is_named():
    few = plan("configs/runs/llama3_8b_8.gin", "DataConfig.sequence_length=512")
    assert "512 tokens on each device" in told(few)["batch"]


def test_a_step_that_waits_names_the_axis_its_link_and_what_to_change():
    waiting = plan(SEVENTY, "MeshConfig.tensor=64", "MeshConfig.fsdp=8",
                   "DecoderConfig.heads=64", "DecoderConfig.kv_heads=64")  # fmt: skip
    step = predict(waiting, cluster=H100)
    (found,) = (f for f in lints.run_lints(step, OUTLOOK) if f.about == "communication")
    assert "over tensor (infiniband)" in found.message
    assert "a smaller MeshConfig.tensor" in found.message


OUTLOOK = RunOutlook(
    steps=10_000,
    step_seconds=2.0,
    devices=512,
    price=2.0,
    checkpoint=840e9,
    write_seconds=8.4,
    mtbf=118_000.0,
    every=700,
)
STEP = predict(plan(SEVENTY), cluster=H100)


def interval(**changes) -> str:
    outlook = dataclasses.replace(OUTLOOK, **changes)
    found = [f for f in lints.run_lints(STEP, outlook) if f.about == "interval"]
    return "\n".join(f"{f.verdict}: {f.message}" for f in found)


def test_intervals_far_from_the_best_are_named_with_the_best():
    assert interval().startswith("ok: CheckpointConfig.every=700")
    assert "warning: CheckpointConfig.every=7000 loses 1.944 h of work" in interval(every=7000)
    assert "saves more often than pays" in interval(every=50)
    assert "CheckpointConfig.every=710 loses least" in interval(every=50)


def test_a_run_that_is_over_before_it_fails_need_not_save():
    assert interval(every=0, steps=1000) == ""
    assert "warning" in interval(every=0)


def test_a_cluster_that_never_fails_has_no_best_interval():
    assert interval(mtbf=math.inf) == ""
    assert dataclasses.replace(OUTLOOK, mtbf=math.inf).interval_steps == 0


def test_the_price_has_its_terms():
    (found,) = (f for f in lints.run_lints(STEP, OUTLOOK) if f.about == "price")
    assert "TrainConfig.steps=10000 of 2 s take 5.556 h" in found.message
    assert "512 devices at $2.00 an hour are $5,689" in found.message


@given(st.floats(0.1, 100.0), st.floats(0.01, 1e4), st.floats(1e3, 1e7), st.integers(1, 10**6))
def test_the_best_interval_never_outruns_the_write(step_seconds, write_seconds, mtbf, steps):
    outlook = dataclasses.replace(
        OUTLOOK, step_seconds=step_seconds, write_seconds=write_seconds, mtbf=mtbf, steps=steps
    )
    assert outlook.interval >= write_seconds
    best = outlook.interval / step_seconds
    assert best <= outlook.interval_steps <= max(best * 1.1 + 1, best + 1)
    assert outlook.cost == pytest.approx(steps * step_seconds / 3600 * 512 * 2.0)
