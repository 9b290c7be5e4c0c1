"""The formulas give the bytes that a step moves, term by term."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.decoder_config import DecoderConfig
from models.experts_config import ExpertsConfig
from models.lora_config import LoraConfig
from partitioning.mesh_config import AXES, PipelineConfig, RulesConfig
from partitioning.schedules import build_schedule
from partitioning.traffic import branch_shares, expected
from partitioning.traffic_step import Work
from partitioning.transfers import Transfer, merged, wire_bytes
from trainer.certificate import programs

MODEL = DecoderConfig(
    vocab_size=1024, embed_dim=64, layers=3, heads=8, kv_heads=4, mlp_dim=256, remat="none"
)
PARAMETERS = {
    "embedding": (("vocab", "embed"), (1024, 64)),
    "head/kernel": (("embed", "vocab"), (64, 1024)),
    "up/kernel": (("layers", "embed", "mlp"), (3, 64, 256)),
    "norm/scale": (("layers", "norm"), (3, 64)),
}
WORK = Work(rows=32, length=128)
RESIDUAL = 32 * 128 * 64 * 2


def terms(
    model: DecoderConfig = MODEL,
    *,
    rules: RulesConfig = RulesConfig(),  # noqa: B008 - frozen
    work: Work = WORK,
    parameters=PARAMETERS,
    **sizes: int,
) -> dict[tuple[str, str], Transfer]:
    """Transfers by (kind, what is moved)."""
    mesh = dict.fromkeys(AXES, 1) | sizes
    found = expected(model, parameters=parameters, sizes=mesh, rules=rules, work=work)
    result = {(t.kind, t.why): t for t in found}
    assert len(result) == len(found)
    return result


def moved(kind: str, why: str, **how) -> float:
    found = terms(**how).get((kind, why))
    return found.payload if found else 0.0


def with_model(**changes) -> DecoderConfig:
    return dataclasses.replace(MODEL, **changes)


def test_one_device_moves_nothing():
    assert terms() == {}


def test_blocks_are_gathered_twice_and_reduced_once_per_microbatch():
    size = 3 * 64 * 256 * 2
    for microbatches in (1, 4):
        how = {"work": dataclasses.replace(WORK, microbatches=microbatches), "fsdp": 4}
        assert moved("all-gather", "blocks: gathered where used", **how) == 2 * size * microbatches
        reduced = moved("reduce-scatter", "blocks: gradients to who updates them", **how)
        assert reduced == size * microbatches


def test_the_output_projection_is_gathered_again_where_it_is_computed_again():
    parameters = {"out": (("layers", "heads", "head_dim", "embed"), (3, 8, 8, 64))}
    size = 3 * 8 * 8 * 64 * 2
    for remat, times in (("none", 2), ("selective", 2), ("full", 3)):
        how = {"model": with_model(remat=remat), "parameters": parameters, "fsdp": 4}
        assert moved("all-gather", "blocks: gathered where used", **how) == times * size


def test_keys_and_values_that_all_devices_compute_have_their_gradients_gathered():
    how = {"tensor": 8}
    share = 2 * 4 * 8 / 64
    gathered = moved("all-gather", "blocks: gradients of keys and values", **how)
    assert gathered == 3 * share * RESIDUAL
    assert moved("all-reduce", "blocks: sums", **how) == 3 * RESIDUAL
    assert moved("reduce-scatter", "blocks: sums", **how) == 3 * 3 * RESIDUAL
    assert moved("all-gather", "blocks: gradients of keys and values", tensor=4) == 0


def test_tensor_parallel_devices_gather_their_part_only():
    whole = moved("all-gather", "blocks: gathered where used", fsdp=4)
    assert moved("all-gather", "blocks: gathered where used", fsdp=4, tensor=2) == whole / 2


def test_the_head_goes_through_the_loss_in_chunks():
    size = 64 * 1024 * 2
    for chunks, gathers, reductions in ((1, 1, 1), (4, 1, 4)):
        how = {"model": with_model(loss_chunks=chunks), "fsdp": 4}
        assert moved("all-gather", "head: gathered where used", **how) == gathers * size
        found = moved("reduce-scatter", "head: gradients to who updates them", **how)
        assert found == reductions * size
        assert moved("all-gather", "embedding: gathered where used", **how) == size


def test_replicas_sum_the_shards_of_gradients():
    alone = moved("all-reduce", "blocks: gradients summed", data=4)
    assert alone == 3 * 64 * 256 * 2
    assert moved("all-reduce", "blocks: gradients summed", data=4, fsdp=8) == alone / 8


def test_replicas_sum_once_and_in_float32_after_several_microbatches():
    work = dataclasses.replace(WORK, microbatches=4)
    found = moved("all-reduce", "blocks: gradients summed", data=4, work=work)
    assert found == 3 * 64 * 256 * 4


def test_zero1_scatters_gradients_and_gathers_parameters_in_their_own_dtype():
    rules = programs.rules("zero1")
    size = 3 * 64 * 256
    how = {"rules": rules, "data": 8}
    assert moved("reduce-scatter", "blocks: gradients to who updates them", **how) == 2 * size
    assert moved("all-gather", "blocks: updated parameters", **how) == 4 * size
    assert moved("all-gather", "blocks: gathered where used", **how) == 0


def test_norms_are_summed_in_float32_over_all_that_split_tokens():
    found = terms(fsdp=4, tensor=2)["all-reduce", "norms: gradients summed"]
    assert found.axes == ("fsdp", "tensor")
    assert (found.group, found.payload) == (8, 3 * 64 * 4)
    apart = RulesConfig(sequence_parallel=False)
    found = terms(rules=apart, fsdp=4, tensor=2)["all-reduce", "norms: gradients summed"]
    assert found.axes == ("fsdp",)


@pytest.mark.parametrize(
    ("remat", "gathers", "sums", "alone"),
    [
        ("none", 4, 4, 4),
        ("selective", 6, 4, 4),
        ("full", 6, 5, 5),
        ("save:query,key", 6, 5, 5),
        ("save:attention_out", 6, 4, 4),
    ],
)
def test_tensor_parallelism_counts_both_directions_and_what_is_recomputed(
    remat, gathers, sums, alone
):
    model = with_model(remat=remat)
    how = {"model": model, "tensor": 2}
    assert moved("all-gather", "blocks: inputs of products", **how) == 3 * gathers * RESIDUAL
    assert moved("reduce-scatter", "blocks: sums", **how) == 3 * sums * RESIDUAL
    how |= {"rules": RulesConfig(sequence_parallel=False)}
    assert moved("all-reduce", "blocks: sums", **how) == 3 * alone * RESIDUAL
    assert not any(kind == "reduce-scatter" for kind, _ in terms(**how))


def test_the_sum_of_residuals_does_not_depend_on_microbatches():
    assert moved("reduce-scatter", "blocks: sums", tensor=2) == moved(
        "reduce-scatter", "blocks: sums", tensor=2, work=dataclasses.replace(WORK, microbatches=4)
    )


def test_experts_are_neither_gathered_nor_summed_over_their_own_axis():
    parameters = {"up": (("layers", "experts", "embed", "mlp"), (3, 8, 64, 256))}
    for remat, times in (("none", 1), ("selective", 2), ("full", 2)):
        found = terms(model=with_model(remat=remat), parameters=parameters, expert=4, fsdp=2)
        assert {(kind, t.axes) for (kind, _), t in found.items()} == {
            ("all-gather", ("fsdp",)),
            ("reduce-scatter", ("fsdp",)),
        }
        size = 2 * 3 * 2 * 64 * 256
        assert found["all-gather", "blocks: gathered where used"].payload == times * size


STAGES = {"data": 2, "stage": 2, "tensor": 2}
HALVES = dataclasses.replace(WORK, microbatches=4, pipeline=PipelineConfig(chunks=2))
DEEP = with_model(layers=4)
TICKS = build_schedule("1f1b", stages=2, chunks=2, microbatches=4).ticks


def piped(kind: str, why: str, **how) -> float:
    return moved(kind, why, **({"model": DEEP, "work": HALVES, "parameters": {}, **STAGES} | how))


@pytest.mark.parametrize("schedule", ["1f1b", "circular"])
def test_every_tick_sends_forward_and_back(schedule):
    pipeline = PipelineConfig(schedule=schedule, chunks=2)
    work = dataclasses.replace(HALVES, pipeline=pipeline)
    ticks = build_schedule(schedule, stages=2, chunks=2, microbatches=4).ticks
    part = RESIDUAL / 2 / 4 / 2  # replicas, microbatches, sequence parallelism
    sent = piped("collective-permute", "stages: activations and gradients", work=work)
    assert sent == 2 * ticks * part


def test_a_stage_runs_its_share_of_the_blocks_forward_twice():
    each = 2 * RESIDUAL / 2  # blocks of a stage, rows of a replica
    assert piped("all-gather", "blocks: inputs of products") == 6 * each
    assert piped("reduce-scatter", "blocks: sums") == 6 * each
    model = with_model(layers=4, remat="full")
    assert piped("all-gather", "blocks: inputs of products", model=model) == 8 * each
    assert piped("reduce-scatter", "blocks: sums", model=model) == 7 * each


def test_the_ends_of_a_pipeline_run_once_per_microbatch_and_slot():
    each = RESIDUAL / 2
    assert piped("reduce-scatter", "embedding: sum over the vocabulary") == 2 * each
    assert piped("all-gather", "head: its input") == each
    circular = dataclasses.replace(HALVES, pipeline=PipelineConfig(schedule="circular", chunks=2))
    assert piped("all-gather", "head: its input", work=circular) == 2 * each


def test_idle_ticks_that_compute_move_as_much_as_others():
    idle = dataclasses.replace(HALVES, pipeline=PipelineConfig(chunks=2, idle="compute"))
    for why, busy in (("blocks: sums", 2 * 4), ("head: gradient of its input", 4)):
        ratio = piped("reduce-scatter", why, work=idle) / piped("reduce-scatter", why)
        assert ratio == pytest.approx(TICKS / busy)


def test_replicas_of_a_pipeline_add_up_once_in_float32():
    parameters = {"stacks/pattern/up": (("layers", "embed", "mlp"), (4, 64, 256))}
    found = terms(DEEP, parameters=parameters, work=HALVES, **STAGES)
    summed = found["all-reduce", "blocks: gradients summed"]
    assert (summed.axes, summed.payload) == (("data",), 4 * 64 * 256 * 4 / 2 / 2)


def test_what_all_stages_read_is_gathered_and_added_up_over_them_once():
    rules = programs.rules("pp")
    parameters = {"head/kernel": (("embed", "vocab"), (64, 1024))}
    found = expected(
        DEEP,
        parameters=parameters,
        sizes=dict.fromkeys(AXES, 1) | STAGES,
        rules=rules,
        work=HALVES,
    )
    of_head = [(t.kind, t.axes, t.payload) for t in found if t.why.startswith("head: gra")
               and "tensor" not in t.axes]  # fmt: skip
    size = 64 * 1024 * 4 / 2
    assert of_head == [("reduce-scatter", ("stage",), size),
                       ("reduce-scatter", ("data",), size / 2)]  # fmt: skip
    (gathered,) = (t for t in found if t.why == "head: for all stages")
    assert (gathered.axes, gathered.payload) == (("stage",), size)


def test_branches_are_taken_as_often_as_the_table_is_busy():
    def shares(model: DecoderConfig = DEEP, **sizes: int) -> tuple[float, ...]:
        mesh = dict.fromkeys(AXES, 1) | sizes
        return branch_shares(model, sizes=mesh, rules=RulesConfig(), work=HALVES)

    assert shares() == ()
    assert shares(stage=2) == (8 / TICKS, 4 / TICKS)
    ring = dataclasses.replace(DEEP, context_attention="ring")
    assert shares(ring, stage=2, context=2) == (4 / TICKS,)


def test_keys_and_values_are_gathered_over_context_and_their_gradients_scattered():
    keys = 2 * 32 * 128 * 4 * 8 * 2
    for remat, times in (("none", 1), ("selective", 2), ("full", 2)):
        how = {"model": with_model(remat=remat), "context": 4}
        assert moved("all-gather", "keys and values", **how) == 3 * times * keys
        assert moved("reduce-scatter", "gradients of keys and values", **how) == 3 * keys


def test_in_a_ring_they_go_round_and_gradients_go_all_the_way_home():
    part, tokens = 2 * 32 * 128 * 4 * 8 / 4, 32 * 128 / 4
    for remat, rounds in (("none", 2), ("selective", 2), ("full", 3)):
        how = {"model": with_model(remat=remat, context_attention="ring"), "context": 4}
        there = 3 * (3 * rounds * part * 2 + 3 * tokens * 8)
        assert moved("collective-permute", "keys and values", **how) == there
        back = 3 * (3 * part * 4 + part * 2)
        assert moved("collective-permute", "gradients of keys and values", **how) == back


def test_heads_that_tensor_does_not_divide_are_repeated_for_context():
    how = {"model": with_model(kv_heads=2), "context": 4, "tensor": 8}
    one_head = 2 * 32 * 128 * 8 * 2
    assert moved("reduce-scatter", "gradients of keys and values", **how) == 3 * one_head
    assert moved("all-gather", "blocks: gradients of keys and values", **how) == 0


def test_parameters_split_over_the_sequence_s_axis_are_gathered_over_it():
    parameters = {"up": (("layers", "embed", "mlp"), (3, 64, 256))}
    found = terms(rules=programs.rules("cp"), parameters=parameters, fsdp=2, context=2)
    gathered = found["all-gather", "blocks: gathered where used"]
    assert (gathered.axes, gathered.payload) == (("fsdp", "context"), 2 * 3 * 64 * 256 * 2)


@pytest.mark.parametrize(("remat", "times"), [("none", 4), ("selective", 6), ("full", 6)])
@pytest.mark.parametrize(("buffer", "rows"), [(None, 2 * 128 * 8), (1.0, 2 * 128 * 8 // 4)])
def test_tokens_travel_to_their_experts_and_back(remat, times, buffer, rows):
    experts = ExpertsConfig(count=8, chosen=2, mlp_dim=32, buffer=buffer)
    model = with_model(pattern=("global+experts",), experts=experts, remat=remat)
    sent = moved("all-to-all", "experts: tokens and results", model=model, expert=4)
    assert sent == 3 * times * 4 * rows * 64 * 2


@given(
    st.sampled_from(["all-gather", "reduce-scatter", "all-to-all", "all-reduce"]),
    st.integers(1, 512),
)
def test_a_ring_sends_each_share_to_each_other_device(kind, group):
    sent = wire_bytes(kind, payload=float(group), group=group)
    assert sent == pytest.approx((group - 1) * (2 if kind == "all-reduce" else 1))
    assert wire_bytes("collective-permute", payload=3.0, group=group) == 3.0


@given(st.lists(st.floats(0, 1e6), max_size=6))
def test_merging_keeps_the_bytes(payloads):
    parts = [
        Transfer(kind="all-reduce", axes=("data",), group=2, payload=p, why="x") for p in payloads
    ]
    assert math.isclose(sum(t.payload for t in merged(parts)), sum(payloads), abs_tol=1e-6)
    assert len(merged(parts)) <= 1


def test_beside_adapters_parameters_are_gathered_and_never_summed():
    layer = "stacks/pattern/blocks/0/mlp/up"
    adapted = {
        f"{layer}/kernel": (("layers", "embed", "mlp"), (3, 64, 256)),
        f"{layer}/adapter/a": (("layers", "embed", "rank"), (3, 64, 4)),
        f"{layer}/adapter/b": (("layers", "rank", "mlp"), (3, 4, 256)),
    }
    model = with_model(lora=LoraConfig(rank=4, targets=("mlp/up/kernel",)), param_dtype="bfloat16")
    found = terms(model, parameters=adapted, fsdp=4)
    kernel, a, b = (3 * 64 * 256, 3 * 64 * 4, 3 * 4 * 256)
    assert found["all-gather", "blocks: gathered where used"].payload == 2 * 2 * (kernel + a)
    assert found["reduce-scatter", "blocks: gradients to who updates them"].payload == 2 * a
    assert found["all-reduce", "blocks: gradients summed"].payload == 2 * b
