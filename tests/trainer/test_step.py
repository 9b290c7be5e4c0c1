"""The step's own promises: weights, guards, memory, averages, frozen parameters, the rate."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from input_pipeline.placement import PlacedBatch
from partitioning.mesh_config import MeshConfig
from trainer.certificate import one_step, programs
from trainer.endings import NumericsError
from trainer.loop import train
from trainer.optimizer_config import SGD, AdamW, ScheduleConfig
from trainer.paths import path_of
from trainer.state import MODEL, init_state
from trainer.step import build_eval_step, build_train_step

TINY = programs.decoder(dtype="float32", param_dtype="float32")


def host(tree):
    return jax.tree.map(np.array, tree)


def same(first, second):
    return all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second))
    )


def two_rows(*lengths):
    batch = programs.batch("padded", rows=len(lengths), length=128)
    real = np.arange(128) < np.asarray(lengths)[:, None]
    first = np.arange(128) == np.asarray(lengths)[:, None] - 1
    batch["segment_ids"] = real.astype(np.int32)
    batch["positions"] = np.where(real, np.arange(128), 0).astype(np.int32)
    batch["loss_weights"] = (real & ~first).astype(np.float32)
    return batch


def test_a_row_of_11_tokens_weighs_a_tenth_of_one_of_101():
    """P017: the gradient is the mean over 110 tokens, however the rows are cut."""
    case = one_step.Case(name="rows", mesh=MeshConfig())
    both = two_rows(11, 101)
    assert both["loss_weights"].sum(axis=1).tolist() == [10, 100]
    with jax.enable_x64(True):
        whole = one_step.outcome(case, batch=both)
        cut = one_step.outcome(dataclasses.replace(case, microbatches=2), batch=both)
        rows = [
            one_step.outcome(case, batch={name: x[r : r + 1] for name, x in both.items()})
            for r in range(2)
        ]
    assert whole.loss["weight"] == 110
    for _, error in one_step.errors(cut, whole).values():
        assert error < 1e-12
    for name, gradient in whole.gradients.items():
        short, long = (row.gradients[name] for row in rows)
        np.testing.assert_allclose(gradient, (10 * short + 100 * long) / 110, atol=1e-13)


def test_microbatches_lower_the_temporary_memory():
    """P016."""

    def temporary(microbatches):
        program = programs.program(TINY, train={"microbatches": microbatches})
        step = build_train_step(program)
        batch = programs.batch("packed", rows=16, length=64)
        compiled = step.lower(init_state(program), batch).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    one, eight = temporary(1), temporary(8)
    assert eight < one / 2, (one, eight)


def poisoned(program):
    state = init_state(program)
    broken = jax.tree.map(lambda x: x, state.groups[MODEL].parameters)
    broken["embedding"] = broken["embedding"].at[3, 0].set(np.nan)
    group = dataclasses.replace(state.groups[MODEL], parameters=broken)
    return dataclasses.replace(state, groups={MODEL: group})


def test_a_nonfinite_gradient_leaves_the_group_bit_equal_and_is_counted():
    program = programs.program(
        TINY, optimizer=AdamW(weight_decay=0.1), train={"ema_decay": 0.9, "clip_norm": 1.0}
    )
    step = build_train_step(program)
    state, _ = step(init_state(program), programs.batch("packed"))
    before = host(state.groups)
    bad = programs.batch("packed", seed=1)
    bad["loss_weights"][0, 0] = np.inf
    for count in (1, 2):
        state, metrics = step(state, bad)
        assert metrics["nonfinite"] == count
        assert same(before, host(state.groups))
    assert int(state.step) == 3
    state, metrics = step(state, programs.batch("packed"))
    assert metrics["nonfinite"] == 0
    assert not same(before, host(state.groups))


def test_the_guard_can_be_switched_off():
    program = programs.program(TINY, train={"skip_nonfinite": False})
    state, metrics = build_train_step(program)(poisoned(program), programs.batch("packed"))
    assert metrics["nonfinite"] == 1
    assert np.isnan(np.asarray(state.groups[MODEL].parameters["final_norm"]["scale"])).all()


class Never:
    def reached(self):
        return False


def test_the_loop_ends_after_too_many_nonfinite_steps():
    program = programs.program(TINY)
    batches = [
        PlacedBatch(step=n, arrays=jax.device_put(programs.batch("packed")), wait_s=0.0)
        for n in range(9)
    ]
    with pytest.raises(NumericsError, match="not finite for 3 steps up to step 3"):
        train(
            poisoned(program),
            step=build_train_step(program),
            batches=batches,
            hooks=[],
            stop=Never(),
            save=lambda state, step: None,
            max_nonfinite=3,
        )


def test_the_average_of_16_bit_parameters_still_moves_by_small_shares():
    model = programs.decoder(dtype="bfloat16", param_dtype="bfloat16")
    program = programs.program(model, train={"ema_decay": 0.999})
    state = init_state(program)
    first = host(state.groups[MODEL].average)
    state, _ = build_train_step(program)(state, programs.batch("packed"))
    group = state.groups[MODEL]
    moved = [
        np.abs(np.asarray(a) - b).max()
        for a, b in zip(jax.tree.leaves(group.average), jax.tree.leaves(first))
    ]
    assert min(moved) > 0
    assert {leaf.dtype for leaf in jax.tree.leaves(group.scored())} == {jax.numpy.dtype("bfloat16")}


def test_the_average_follows_the_parameters_and_is_what_evaluation_scores():
    program = programs.program(TINY, train={"ema_decay": 0.75})
    step, score = build_train_step(program), build_eval_step(program)
    state = init_state(program)
    expected = host(state.groups[MODEL].parameters)
    for seed in range(3):
        state, _ = step(state, programs.batch("packed", seed=seed))
        now = host(state.groups[MODEL].parameters)
        expected = jax.tree.map(lambda a, p: 0.75 * a + 0.25 * p, expected, now)
    for found, value in zip(
        jax.tree.leaves(state.groups[MODEL].average), jax.tree.leaves(expected)
    ):
        np.testing.assert_allclose(found, value, rtol=1e-6, atol=1e-7)
    batch = programs.batch("packed", seed=9)
    plain = programs.program(TINY)
    averaged = dataclasses.replace(
        state.groups[MODEL], parameters=state.groups[MODEL].average, average=None
    )
    other = dataclasses.replace(state, groups={MODEL: averaged})
    assert score(state, batch)["loss"] == build_eval_step(plain)(other, batch)["loss"]


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor", "lion", "muon", "sgd"])
def test_frozen_parameters_neither_move_nor_have_optimizer_state(optimizer):
    frozen = ("attention/", "embedding")
    program = programs.program(
        TINY,
        mesh=MeshConfig(fsdp=2),
        optimizer=programs.load(optimizer=optimizer).optimizer,
        train={"frozen": frozen},
    )
    state = init_state(program)
    before = one_step.flat(host(state.groups[MODEL].parameters))
    names = [path_of(p) for p, _ in jax.tree.leaves_with_path(state.groups[MODEL].optimizer)]
    assert not [name for name in names if "attention/" in name or "embedding" in name]
    state, _ = build_train_step(program)(state, programs.batch("packed"))
    after = one_step.flat(state.groups[MODEL].parameters)
    still = {name for name in before if np.array_equal(before[name], after[name])}
    assert still == {name for name in before if "attention/" in name or "embedding" in name}
    assert before.keys() == after.keys()


def test_a_frozen_pattern_that_matches_nothing_is_an_error():
    with pytest.raises(ValueError, match="'atention' matches no parameter"):
        init_state(programs.program(TINY, train={"frozen": ("atention",)}))


def test_the_learning_rate_is_a_function_of_the_step_alone():
    schedule = ScheduleConfig(peak=0.1, name="linear", warmup_steps=3, final_ratio=0.0)
    program = programs.program(TINY, optimizer=SGD(), schedule=schedule)
    step = build_train_step(program)
    state = dataclasses.replace(init_state(program), step=jnp.asarray(5, jnp.int32))
    bad = programs.batch("packed")
    bad["loss_weights"][0, 0] = np.nan
    rates = []
    for batch in (bad, programs.batch("packed"), bad, programs.batch("packed")):
        state, metrics = step(state, batch)
        rates.append(float(metrics["learning_rate"]))
    np.testing.assert_allclose(rates, [0.1 * (1 - (n - 3) / 7) for n in (5, 6, 7, 8)], rtol=1e-6)


@pytest.mark.parametrize("microbatches", [1, 2])
def test_a_batch_in_which_nothing_is_learned_is_harmless(microbatches):
    optimizer = SGD(momentum=0.0)
    program = programs.program(TINY, optimizer=optimizer, train={"microbatches": microbatches})
    before = host(init_state(program).groups[MODEL].parameters)
    batch = {**programs.batch("packed", rows=4, length=16)}
    batch["loss_weights"] = np.zeros_like(batch["loss_weights"])
    state, metrics = build_train_step(program)(init_state(program), batch)
    assert {name: float(metrics[name]) for name in ("loss", "weight", "grad_norm")} == {
        "loss": 0.0,
        "weight": 0.0,
        "grad_norm": 0.0,
    }
    assert int(metrics["nonfinite"]) == 0
    assert same(before, host(state.groups[MODEL].parameters))


def test_clipping_scales_the_update_to_the_norm_and_reports_the_norm_before():
    moved = []
    for clip in (None, 0.5):
        program = programs.program(TINY, train={"clip_norm": clip})
        state = init_state(program)
        before = one_step.flat(host(state.groups[MODEL].parameters))
        state, metrics = build_train_step(program)(state, programs.batch("packed"))
        after = one_step.flat(state.groups[MODEL].parameters)
        squares = sum(((after[k] - before[k]).astype(np.float64) ** 2).sum() for k in before)
        moved.append((np.sqrt(squares) / 0.1, float(metrics["grad_norm"])))
    (free, norm), (clipped, again) = moved
    np.testing.assert_allclose([free, clipped, again], [norm, 0.5, norm], rtol=1e-4)
    assert norm > 0.5


def test_microbatches_of_bfloat16_parameters_are_summed_with_more_digits():
    """The mean of 24 equal gradients is that gradient; bfloat16 sums would be off by 0.2%."""
    model = programs.decoder(dtype="bfloat16", param_dtype="bfloat16")
    row = programs.batch("packed", rows=1)
    many = {name: np.repeat(array, 24, axis=0) for name, array in row.items()}

    def norm(batch, microbatches):
        program = programs.program(model, train={"microbatches": microbatches})
        _, metrics = build_train_step(program)(init_state(program), batch)
        return float(metrics["grad_norm"])

    assert norm(many, 24) == pytest.approx(norm(row, 1), rel=1e-5)
