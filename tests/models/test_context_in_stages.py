"""Attention over `context` inside a pipeline over `stage`: forward and gradients are right.

The pipeline here is the smallest there is: two stages, one projection and one attention each, ticks
in a scan. A tick without work is masked, or skipped by a branch.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from models.attention_kernels import Tokens
from models.context_attention import attend_over_context
from partitioning.activations import Activations
from partitioning.mesh import build_mesh
from partitioning.mesh_config import MeshConfig, RulesConfig
from partitioning.rules import activation_rules
from tests.models.test_context_attention import PLAIN, documents, full
from trainer.certificate.one_step import fast_compilation

MESH = MeshConfig(stage=2, context=2, tensor=2)
M, B, T, H, K = 3, 2, 32, 4, 4


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True), fast_compilation(True):
        yield


def block(x_BTHK, weights_KK, attend):
    """Keys are another function of the input than queries and values."""
    h = x_BTHK @ weights_KK
    return x_BTHK + attend(h, jnp.tanh(h), x_BTHK)


def pipeline(way, *, skip, shard):
    places = documents("packed")

    def attend(q, k, v):
        at = Tokens(positions=jnp.asarray(places[0]), segments=jnp.asarray(places[1]))
        return attend_over_context(q, k, v, at, way=way, scoring=PLAIN, shard=shard)

    def of_stage(weights, x):
        stage = jax.lax.axis_index("stage")

        def tick(carry, t):
            here, total = carry
            active = (t >= stage) & (t - stage < M)
            here = jnp.where(stage == 0, x[jnp.clip(t, 0, M - 1)], here)
            work = functools.partial(block, weights_KK=weights[0], attend=attend)
            if skip:
                here = jax.lax.cond(active, work, lambda y: y, here)
            else:
                here = jnp.where(active, work(here), here)
            total += jnp.where(active & (stage == 1), (here**2).sum(), 0)
            return (jax.lax.ppermute(here, "stage", [(0, 1), (1, 0)]), total), None

        start = (jnp.zeros(x.shape[1:]), jnp.zeros(()))
        (_, total), _ = jax.lax.scan(tick, start, jnp.arange(M + 1))
        return total[None]

    run = jax.shard_map(
        of_stage,
        mesh=shard.mesh,
        in_specs=(P("stage"), P()),
        out_specs=P("stage"),
        axis_names={"stage"},
        check_vma=False,
    )
    return lambda weights, x: run(weights, x).sum()


def plain(weights, x):
    attend = functools.partial(
        full, positions=documents("packed")[0], segments=documents("packed")[1], scoring=PLAIN
    )
    for stage in range(2):
        x = jax.vmap(lambda y, stage=stage: block(y, weights[stage], attend))(x)
    return (x**2).sum()


# A ring in a branch that not every stage takes exchanges wrong values on CPU, without a word: the
# compiler's exchange speaks of all devices at once. Pipelines mask there.
@pytest.mark.parametrize(
    ("way", "skip"), [("ring", False), ("all_gather", False), ("all_gather", True)]
)
def test_loss_and_gradients_of_a_pipeline_equal_the_plain_model(way, skip):
    shard = Activations(mesh=build_mesh(MESH), rules=activation_rules(RulesConfig()))
    random = np.random.default_rng(0)
    weights, x = random.standard_normal((2, K, K)), random.standard_normal((M, B, T, H, K))
    placed = (
        jax.device_put(weights, NamedSharding(shard.mesh, P("stage"))),
        jax.device_put(x, NamedSharding(shard.mesh, P(None, None, "context", "tensor"))),
    )
    run = jax.jit(jax.value_and_grad(pipeline(way, skip=skip, shard=shard), argnums=(0, 1)))
    loss, gradients = jax.device_get(run(*placed))
    expected, wanted = jax.value_and_grad(plain, argnums=(0, 1))(weights, x)
    assert abs(loss / expected - 1) < 1e-12
    for found, exact in zip(gradients, wanted, strict=True):
        assert np.abs(found - exact).max() < 1e-12 * np.abs(exact).max()
