"""The framework's step is the hand-written step: same maths, same program. No wall times here."""

import dataclasses
import functools
import json
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from benchmarks import hand_written, report
from benchmarks.intervals import median_interval, ratios
from benchmarks.step import GROUPS, compare
from benchmarks.subjects import build, contents, histogram, our_program, synthetic_batch
from benchmarks.work import SMALL, Layers, Subject, Work, hand_written_form
from trainer.state import MODEL, init_state
from trainer.step import build_train_step

# What ours does beyond the hand-written step, by opcode: the guard's branch and the copies of its
# two counters; norms of the new parameters and the accuracy are fusions.
EXTRA = {"conditional": 1, "copy": 4, "fusion": 20}
FORMS = pytest.mark.parametrize("scanned", [False, True], ids=["unrolled", "scanned"])
DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


@functools.cache
def program_of(subject: Subject, *, dtype: str, scanned: bool, stacked: bool = True) -> dict:
    work = dataclasses.replace(SMALL, dtype=dtype)
    built = build(subject, work=work, scanned=scanned, stacked=stacked)
    return contents(built.step.lower(built.state, built.batches[0]).compile())


@DTYPES
@FORMS
def test_the_step_computes_what_the_best_hand_written_loop_computes(dtype, scanned):
    ours = program_of(Subject.OURS, dtype=dtype, scanned=scanned)
    best = program_of(Subject.BEST, dtype=dtype, scanned=scanned)
    assert ours["operations"]["dot"] == best["operations"]["dot"]
    assert ours["donated_bytes"] == pytest.approx(best["donated_bytes"], abs=64)
    assert ours["temporary_bytes"] <= 1.05 * best["temporary_bytes"]
    names = {*ours["operations"], *best["operations"]}
    extra = {n: ours["operations"].get(n, 0) - best["operations"].get(n, 0) for n in names}
    assert all(count <= EXTRA.get(name, 0) for name, count in extra.items()), extra


@FORMS
def test_its_products_cost_the_same(scanned):
    ours = program_of(Subject.OURS, dtype="float32", scanned=scanned)
    best = program_of(Subject.BEST, dtype="float32", scanned=scanned)
    assert ours["product_flops"] == pytest.approx(best["product_flops"], rel=1e-3)


@FORMS
def test_the_guard_costs_no_copies_of_the_state(scanned):
    guarded = program_of(Subject.OURS, dtype="float32", scanned=scanned)
    free = program_of(Subject.UNGUARDED, dtype="float32", scanned=scanned)
    assert guarded["operations"].get("copy", 0) == free["operations"].get("copy", 0)
    assert guarded["temporary_bytes"] <= 1.01 * free["temporary_bytes"] + 4096


def test_the_same_parameters_give_the_same_losses_in_all_loops():
    batches = [synthetic_batch(SMALL, seed=seed) for seed in range(3)]
    program = our_program(SMALL, scanned=False)
    state = init_state(program)
    listed = as_hand_written(state.groups[MODEL].parameters, SMALL)
    step, losses = build_train_step(program), []
    for batch in batches:
        state, metrics = step(state, batch)
        losses.append([float(metrics["loss"]), float(metrics["grad_norm"])])
    for flat in (True, False):
        form = hand_written.Form(flat=flat, layers=Layers.LISTED)
        by_hand = (jax.tree.map(np.array, listed), hand_written.optimizer(SMALL).init(listed))
        run = hand_written.build_step(SMALL, form)
        for batch, expected in zip(batches, losses, strict=True):
            by_hand, metrics = run(by_hand, batch)
            found = [float(metrics["loss"]), float(metrics["grad_norm"])]
            np.testing.assert_allclose(found, expected, rtol=2e-5)


def as_hand_written(parameters: dict, work: Work) -> dict:
    """Gives our parameters the names and shapes of the hand-written loop."""
    block = parameters["stacks"]["pattern"]["blocks"]["0"]
    attention, mlp = block["attention"], block["mlp"]
    stacked = {
        "q": attention["query"]["kernel"],
        "k": attention["key"]["kernel"],
        "v": attention["value"]["kernel"],
        "o": attention["out"]["kernel"],
        **{name: mlp[name]["kernel"] for name in ("up", "gate", "down")},
    }
    square = (work.layers, work.embed, work.embed)
    flat = {n: np.array(x).reshape(square if n in "qkvo" else x.shape) for n, x in stacked.items()}
    flat |= {
        "norm1": np.array(block["attention_norm"]["scale"]),
        "norm2": np.array(block["mlp_norm"]["scale"]),
    }
    return {
        "embedding": np.array(parameters["embedding"]),
        "head": np.array(parameters["head"]["kernel"]),
        "norm": np.array(parameters["final_norm"]["scale"]),
        "layers": [{n: x[i] for n, x in flat.items()} for i in range(work.layers)],
    }


def test_the_run_file_has_the_sizes_that_are_compared():
    from trainer.config import load

    run = load(["configs/runs/benchmark_step.gin"], []).run
    model, work = run.task.model, Work()
    assert (model.vocab_size, model.embed_dim, model.layers) == (work.vocab, work.embed, 4)
    assert (model.heads, model.kv_heads, model.mlp_dim) == (work.heads, work.heads, work.mlp)
    assert (run.data.sequence_length, run.data.global_batch) == (work.length, work.rows)
    assert (run.schedule.peak, run.optimizer.weight_decay) == (work.rate, work.decay)
    assert run.train.clip_norm == work.clip
    assert run.train.skip_nonfinite
    assert model.dtype == work.dtype


def test_histogram_counts_fusions_once_and_products_inside_them():
    hlo = """HloModule m

%fused_computation (p: f32[2,2]) -> f32[2,2] {
  %p = f32[2,2]{1,0} parameter(0)
  %a = f32[2,2]{1,0} add(%p, %p)
  ROOT %d = f32[2,2]{1,0} dot(%a, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%parallel_body (q: f32[2,2]) -> f32[2,2] {
  %q = f32[2,2]{1,0} parameter(0)
  ROOT %c = f32[2,2]{0,1} copy(%q)
}

ENTRY %main (x: f32[2,2]) -> f32[2,2] {
  %x = f32[2,2]{1,0} parameter(0)
  %f = f32[2,2]{1,0} fusion(%x), kind=kLoop, calls=%fused_computation
  ROOT %r = f32[2,2]{0,1} call(%f), to_apply=%parallel_body
}
"""
    assert histogram(hlo) == {"dot": 1, "fusion": 1, "copy": 1, "call": 1}


@pytest.mark.parametrize(
    ("count", "low", "high"), [(1, 0, 0), (5, 0, 4), (6, 0, 5), (9, 1, 7), (12, 2, 9)]
)
def test_the_interval_of_a_median_drops_what_order_statistics_allow(count, low, high):
    values = list(range(count))[::-1]
    assert median_interval(values)[1:] == (low, high)


def test_a_ratio_above_one_means_that_ours_is_faster():
    speeds = {
        Subject.OURS: {"cpu_s": [1.0, 2.0, 1.0]},
        Subject.BEST: {"cpu_s": [1.1, 2.2, 1.1]},
        Subject.PLAIN: {"cpu_s": [2.0, 4.0, 2.0]},
    }
    found = compare(speeds, suffix="_bf16")
    assert found["ratio_bf16"] == pytest.approx(1.1)
    assert found["ratio_plain_bf16_low"] == pytest.approx(2.0)
    assert ratios([3.0], [2.0]) == [1.5]


def test_every_dtype_is_measured_in_both_forms_against_both_loops():
    assert {(group.dtype, group.scanned) for group in GROUPS} == {
        (dtype, scanned) for dtype in ("float32", "bfloat16") for scanned in (False, True)
    }
    needed = {Subject.OURS, Subject.BEST, Subject.PLAIN}
    assert all(needed <= set(group.subjects) for group in GROUPS)
    assert hand_written_form(Subject.BEST, scanned=False).flat
    assert not hand_written_form(Subject.PLAIN, scanned=False).flat


@pytest.mark.slow
def test_the_benchmark_prints_one_json_object():
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.step",
            "--quick",
            "--json",
            "--rounds=1",
            "--steps=1",
            "--part=steps",
        ],
        cwd=pathlib.Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result = json.loads(done.stdout)
    for name in ("ratio", "ratio_plain", "ratio_bf16", "ratio_plain_bf16", "ratio_scanned"):
        assert 0 < result[f"{name}_low"] <= result[name] <= result[f"{name}_high"]
    assert "bfloat16, scanned" in report.show(result)
