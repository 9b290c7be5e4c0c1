"""Activations: names become constraints; where matmuls may be flattened."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from partitioning.activations import Activations
from partitioning.mesh import build_mesh
from partitioning.mesh_config import MeshConfig, RulesConfig
from partitioning.rules import activation_rules


def activations(*, sequence_parallel=True, **sizes):
    rules = activation_rules(RulesConfig(sequence_parallel=sequence_parallel))
    count = 1
    for size in sizes.values():
        count *= size
    mesh = build_mesh(MeshConfig(**sizes), devices=jax.devices()[:count])
    return Activations(mesh=mesh, rules=rules)


def test_an_array_is_placed_as_its_names_say():
    shard = activations(fsdp=2, tensor=4)
    x = jax.jit(lambda x: shard(x, "act_batch", "act_length_residual", "act_embed"))(
        jnp.zeros((4, 8, 6))
    )
    assert x.sharding.spec == P("fsdp", "tensor", None) or x.sharding.spec == P("fsdp", "tensor")
    assert shard.spec(("act_batch", "act_length", "act_heads"), shape=(4, 8, 4)) == P(
        "fsdp", None, "tensor"
    )


def test_on_one_device_nothing_is_constrained_and_no_name_is_looked_up():
    x = jnp.zeros((3,))
    assert Activations()(x, "anything") is x
    assert activations(data=1)(x, "anything") is x


def test_a_batch_that_does_not_divide_names_the_sizes():
    with pytest.raises(ValueError, match="'act_batch' fits its size 6"):
        activations(fsdp=4).spec(("act_batch",), shape=(6,))


def test_equal_activations_are_one_key_of_the_compilation_cache():
    assert activations(fsdp=2) == activations(fsdp=2)
    assert hash(activations(fsdp=2)) == hash(activations(fsdp=2))


@pytest.mark.parametrize(
    ("shard", "expected"),
    [
        (lambda: Activations(), True),
        (lambda: activations(data=2, fsdp=4), True),
        (lambda: activations(tensor=2), False),
        (lambda: activations(tensor=2, sequence_parallel=False), True),
        (lambda: activations(context=2), False),
        (lambda: activations(context=2, sequence_parallel=False), False),
    ],
)
def test_matmuls_are_flattened_on_cpu_where_no_length_is_split(shard, expected):
    assert shard().flatten_matmuls is expected


def test_matmuls_are_left_alone_on_accelerators():
    class Mesh:
        shape = dict.fromkeys(("data", "stage", "fsdp", "expert", "context", "tensor"), 1)
        devices = type("Grid", (), {"flat": [type("Device", (), {"platform": "gpu"})]})

    assert Activations(mesh=Mesh()).flatten_matmuls is False
