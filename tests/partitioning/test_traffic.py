"""The formulas give the bytes that a step moves, term by term."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.decoder_config import DecoderConfig
from partitioning.mesh_config import AXES, RulesConfig
from partitioning.traffic import expected
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
    found = terms(parameters=parameters, expert=4, fsdp=2)
    assert {(kind, t.axes) for (kind, _), t in found.items()} == {
        ("all-gather", ("fsdp",)),
        ("reduce-scatter", ("fsdp",)),
    }
    assert found["all-gather", "blocks: gathered where used"].payload == 2 * 2 * 3 * 2 * 64 * 256


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
