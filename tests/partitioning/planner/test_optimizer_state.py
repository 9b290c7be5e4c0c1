"""Bytes of optimizer state, against what optax builds."""

import jax
import pytest

from partitioning.mesh_config import MeshConfig
from partitioning.planner.cost_model.layout import leaves
from partitioning.planner.cost_model.optimizer_state import state_elements, state_width
from partitioning.planner.inputs import load_inputs, plan_of
from trainer.certificate import programs
from trainer.deviceless import device_count
from trainer.optimizer_config import SGD, Adafactor, AdamW, Lion, Muon
from trainer.optimizers import build_optimizer

CASES = [
    AdamW(),
    AdamW(b2=0.95, moment_dtype="bfloat16"),
    Lion(),
    Lion(b2=0.95, moment_dtype="bfloat16"),
    SGD(),
    SGD(momentum=0.9),
    Muon(),
    Adafactor(min_dim_to_factor=8),
    Adafactor(min_dim_to_factor=128),
]


@pytest.mark.parametrize("optimizer", CASES, ids=str)
@pytest.mark.parametrize("param_dtype", ["float32", "bfloat16"])
def test_it_is_what_the_optimizer_keeps(optimizer, param_dtype: str) -> None:
    model = programs.decoder(
        param_dtype=param_dtype, layers=2, embed_dim=32, mlp_dim=64, dtype="float32"
    )
    run = programs.run(model, rules="ddp", optimizer="sgd", mesh=MeshConfig(), rows=1, length=8)
    plan = plan_of(run, devices=1)
    tree = leaves(plan)
    shapes = {leaf.name: jax.ShapeDtypeStruct(leaf.shape, param_dtype) for leaf in tree}
    built = build_optimizer(optimizer, axes={leaf.name: leaf.axes for leaf in tree})
    state = jax.tree.leaves(jax.eval_shape(built.init, shapes))
    kept = sum(leaf.size * leaf.dtype.itemsize for leaf in state if leaf.size > 1)
    elements = sum(state_elements(optimizer, leaf) for leaf in tree)
    width = state_width(optimizer, param_dtype=param_dtype)
    # Muon also keeps three coefficients.
    assert elements * width == pytest.approx(kept, abs=12)


def test_moments_are_shared_with_their_parameter() -> None:
    run = load_inputs(["configs/runs/llama3_70b_512.gin"])
    plan = plan_of(run, devices=device_count(run))
    assert all(leaf.ways == leaf.state_ways for leaf in leaves(plan))
    kernel = next(leaf for leaf in leaves(plan) if leaf.name.endswith("up/kernel"))
    assert (kernel.ways, kernel.computing_ways) == (512, 8)
