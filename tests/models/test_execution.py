"""How a decoder is executed changes memory, never numbers; dropout is part of the numbers."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.context import Context, dropout
from partitioning.mesh_config import MeshConfig
from trainer.certificate import one_step, programs
from trainer.certificate.cases import EXPERTS_MODEL
from trainer.state import abstract_batch, abstract_state, init_state
from trainer.step import build_train_step


@pytest.mark.parametrize(
    ("remat", "scan"),
    [
        *itertools.product(("none", "selective", "full", "save:query,mlp_gate"), (False, True)),
        # CPU has no other memory to move them to: this shows that the numbers stay the same.
        ("save:query;offload:attention,mlp_gate", True),
    ],
)
def test_loss_and_gradients_do_not_depend_on_remat_or_scan(remat, scan):
    how = (("remat", remat), ("scan_layers", scan))
    case = one_step.Case(
        name="execution",
        mesh=MeshConfig(),
        execution=how,
        model=(("layers", 3), ("dropout", 0.2)),
    )
    with jax.enable_x64(True):
        found, expected = one_step.outcome(case), one_step.on_one_device(case.reference())
    for _, error in one_step.errors(found, expected).values():
        assert error < 1e-13


@pytest.mark.parametrize("scan", [False, True])
def test_remat_policies_need_less_memory_in_their_order(scan):
    def temporary(remat):
        model = programs.decoder(
            dtype="float32",
            param_dtype="float32",
            layers=6,
            remat=remat,
            scan_layers=scan,
            loss_chunks=8,
        )
        program = programs.program(model)
        batch = programs.batch("packed", rows=8, length=64)
        compiled = build_train_step(program).lower(init_state(program), batch).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    none, selective, full = map(temporary, ("none", "selective", "full"))
    assert none > 1.2 * selective > 1.2 * full, (none, selective, full)


X = jnp.ones((8, 64, 32))


def drop(*, key=0, layer=0, site=0, rows=None, rate=0.3, x=X):
    rows = jnp.arange(x.shape[0]) if rows is None else rows
    ctx = Context(dropout_key=jax.random.key(key), rows=rows, layer=layer)
    return np.asarray(dropout(x, rate=rate, site=site, ctx=ctx))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_mean(rate):
    dropped = drop(rate=rate)
    assert dropped.mean() == pytest.approx(1.0, abs=5 * (rate / (1 - rate) / X.size) ** 0.5)
    np.testing.assert_allclose(np.unique(dropped), [0.0, 1 / (1 - rate)], rtol=1e-6)


def test_masks_differ_between_steps_layers_sites_and_rows():
    base = drop()
    for other in (drop(key=1), drop(layer=1), drop(site=1), drop(rows=jnp.arange(8) + 8)):
        assert 0.3 < (base != other).mean() < 0.5  # independent masks differ in 42% of places
    rows = base.reshape(8, -1)
    assert all((a != b).mean() > 0.3 for i, a in enumerate(rows) for b in rows[:i])
    np.testing.assert_array_equal(drop(layer=jnp.asarray(1)), drop(layer=1))


def test_a_row_has_its_mask_wherever_it_stands():
    order = jnp.asarray([5, 2, 7, 0])
    np.testing.assert_array_equal(drop(rows=order, x=X[:4]), drop()[np.asarray(order)])


def test_without_a_key_nothing_is_dropped():
    np.testing.assert_array_equal(dropout(X, rate=0.5, site=0, ctx=Context()), X)


def test_two_steps_from_one_state_drop_differently():
    model = programs.decoder(dtype="float32", param_dtype="float32", dropout=0.5)
    program = programs.program(model)
    step = build_train_step(program)
    losses = []
    for number in (0, 0, 1):
        state = dataclasses.replace(init_state(program), step=jnp.asarray(number, jnp.int32))
        losses.append(float(step(state, programs.batch("packed"))[1]["loss"]))
    assert losses[0] == losses[1] != losses[2]


def test_saving_what_experts_got_and_gave_back_saves_their_exchanges():
    def exchanges(remat):
        model = programs.decoder(
            dtype="float32", param_dtype="float32", remat=remat, **dict(EXPERTS_MODEL)
        )
        mesh = MeshConfig(fsdp=2, expert=4)
        program = programs.program(model, mesh=mesh, rules=programs.rules("ep"))
        batch = abstract_batch(program, rows=8, length=16)
        traced = build_train_step(program).trace(abstract_state(program), batch)
        return str(traced.jaxpr).count("all_to_all[")

    everything, nothing = exchanges("none"), exchanges("full")
    assert exchanges("save:expert_in") < nothing
    assert exchanges("save:expert_in,expert_out,mlp_up,mlp_gate") < exchanges("save:expert_in")
    assert everything < nothing
