"""Counted and formula are held against each other per axis, and a difference is explained."""

import math

import pytest

from partitioning.collectives import Collective, traffic
from partitioning.traffic_check import rows, verdicts
from partitioning.transfers import Transfer


def counted(kind: str, axes: tuple[str, ...], payload: float, *, runs: int = 1) -> Collective:
    return Collective(
        kind=kind,
        name=f"{kind}.1",
        dtypes=("bf16",),
        shapes=((4, 8),),
        members=None,
        axes=axes,
        group=4,
        payload=payload,
        loops=(runs,),
        conditional=None,
        source="block/mul",
    )


def formula(kind: str, axes: tuple[str, ...], payload: float, *, why: str = "x") -> Transfer:
    return Transfer(kind=kind, axes=axes, group=4, payload=payload, why=why)


TENSOR, FSDP = ("tensor",), ("fsdp",)


@pytest.mark.parametrize(("bytes_", "agrees"), [(100, True), (109, True), (91, True), (112, False),
                                               (88, False)])  # fmt: skip
def test_a_tenth_is_tolerated(bytes_, agrees):
    found = [counted("all-gather", FSDP, bytes_)]
    (verdict,) = verdicts(found, [formula("all-gather", FSDP, 100)], platform="cuda")
    assert (verdict.judged, verdict.agrees) == (True, agrees)
    assert verdict.ratio == pytest.approx(bytes_ / 100)
    assert bool(verdict.notes) == (bytes_ > 110)


def test_a_sum_taken_apart_is_the_same_traffic():
    found = [counted("reduce-scatter", TENSOR, 100), counted("all-gather", TENSOR, 100)]
    (verdict,) = verdicts(found, [formula("all-reduce", TENSOR, 100)], platform="cuda")
    assert verdict.agrees


def test_reducing_to_everyone_is_named_and_the_instruction_shown():
    found = [counted("all-reduce", FSDP, 10, runs=10)]
    (verdict,) = verdicts(found, [formula("reduce-scatter", FSDP, 100)], platform="tpu")
    assert not verdict.agrees
    assert "twice" in verdict.notes[0]
    assert "10 x bf16 4x8" in verdict.notes[1]
    assert "block/mul" in verdict.notes[1]


def test_what_the_formulas_do_not_know_is_a_difference():
    found = [counted("all-gather", FSDP, 100), counted("all-gather", TENSOR, 50)]
    tensor = {v.axes: v for v in verdicts(found, [formula("all-gather", FSDP, 100)], platform="x")}
    assert tensor[FSDP].agrees
    assert not tensor[TENSOR].agrees
    assert tensor[TENSOR].judged
    assert math.isinf(tensor[TENSOR].ratio)


def test_what_the_program_leaves_out_is_a_difference():
    (verdict,) = verdicts([], [formula("all-gather", FSDP, 100)], platform="cuda")
    assert (verdict.judged, verdict.agrees) == (True, False)


def test_a_hundredth_of_the_bytes_is_shown_and_not_judged():
    found = [counted("all-gather", FSDP, 1000), counted("all-reduce", TENSOR, 1)]
    small = verdicts(found, [formula("all-gather", FSDP, 1000)], platform="cuda")[1]
    assert (small.axes, small.judged) == (TENSOR, False)


def test_cpu_is_said_to_be_no_measure():
    found = [counted("all-reduce", FSDP, 400)]
    (verdict,) = verdicts(found, [formula("reduce-scatter", FSDP, 100)], platform="cpu")
    assert "CPU" in verdict.notes[0]


def test_rows_add_up_reasons_and_keep_both_sides():
    table = rows(
        traffic([counted("all-gather", FSDP, 30, runs=2), counted("all-reduce", TENSOR, 1)]),
        [formula("all-gather", FSDP, 20), formula("all-gather", FSDP, 30, why="y"),
         formula("reduce-scatter", FSDP, 5)],
    )  # fmt: skip
    assert [(r.kind, r.count, r.counted, r.formula) for r in table] == [
        ("all-gather", 2, 60, 50),
        ("reduce-scatter", 0, 0, 5),
        ("all-reduce", 1, 1, 0),
    ]
