"""The two-dimensional form of projections is right, reshards nothing, and is for CPU alone."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.context import Context
from models.layers import matmul
from partitioning.activations import Activations
from partitioning.collectives import instruction_counts
from partitioning.mesh_config import AXES, MeshConfig
from trainer.certificate import programs
from trainer.program import Program
from trainer.state import abstract_batch, abstract_state
from trainer.step import build_train_step


class NeverFlat(Activations):
    """The same constraints, with projections left in three dimensions."""

    flatten_matmuls = False


LAYOUTS = {
    "ddp": MeshConfig(data=8),
    "fsdp": MeshConfig(fsdp=8),
    "hsdp": MeshConfig(data=2, fsdp=4),
    "tp": MeshConfig(tensor=8),
    "fsdp_tp": MeshConfig(fsdp=4, tensor=2),
    "zero1": MeshConfig(data=8),
}


def collectives(program: Program) -> dict[str, int]:
    batch = abstract_batch(program, rows=programs.ROWS, length=programs.LENGTH)
    compiled = build_train_step(program).lower(abstract_state(program), batch).compile()
    return instruction_counts(compiled.as_text())


@pytest.mark.parametrize(
    ("rules", "sequence_parallel"),
    [*((rules, False) for rules in LAYOUTS), ("tp", True), ("fsdp_tp", True)],
)
def test_flattening_adds_no_collective_under_any_rule_set(rules, sequence_parallel):
    table = dataclasses.replace(programs.rules(rules), sequence_parallel=sequence_parallel)
    model = programs.decoder(dtype="float32", param_dtype="float32")
    program = programs.program(model, mesh=LAYOUTS[rules], rules=table)
    plain = dataclasses.replace(
        program, shard=NeverFlat(mesh=program.shard.mesh, rules=program.shard.rules)
    )
    found = collectives(program)
    assert found
    assert found == collectives(plain)


def test_flattening_is_on_wherever_the_length_is_whole():
    model = programs.decoder(dtype="float32", param_dtype="float32")
    flat = {
        rules: programs.program(
            model,
            mesh=mesh,
            rules=dataclasses.replace(programs.rules(rules), sequence_parallel=False),
        ).shard.flatten_matmuls
        for rules, mesh in LAYOUTS.items()
    }
    assert all(flat.values()), flat
    assert Activations().flatten_matmuls


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_accelerators_keep_their_programs(platform):
    device = types.SimpleNamespace(platform=platform)
    mesh = types.SimpleNamespace(devices=np.array([device]), shape=dict.fromkeys(AXES, 1))
    assert not Activations(mesh=mesh).flatten_matmuls


@pytest.mark.parametrize(("inputs", "outputs"), [((6,), (3, 4)), ((3, 4), (6,)), ((6,), (5,))])
def test_both_forms_give_the_same_product_and_gradients(inputs, outputs):
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(2, 5, *inputs)), jnp.float32)
    w = jnp.asarray(random.normal(size=(*inputs, *outputs)), jnp.float32)

    def run(ctx: Context):
        def loss(x, w):
            return jnp.sin(matmul(x, w, contract=len(inputs), ctx=ctx)).sum()

        return jax.value_and_grad(loss, argnums=(0, 1))(x, w)

    flat, plain = run(Context()), run(Context(shard=NeverFlat()))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6), flat, plain)
