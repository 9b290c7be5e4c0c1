"""Where the state lives: parameters, optimizer state, averages; the same numbers on every mesh."""

import dataclasses
import logging
import math

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from partitioning import table
from partitioning.collectives import instruction_counts
from partitioning.mesh_config import AXES, MeshConfig, RulesConfig
from trainer import run as trainer_run
from trainer.certificate import one_step, programs
from trainer.paths import path_of
from trainer.state import (
    MODEL,
    abstract_state,
    from_portable,
    init_state,
    parameter_rows,
    to_portable,
)
from trainer.step import build_train_step

MODEL_32 = programs.decoder(dtype="float32", param_dtype="float32", qkv_bias=True)
MESHES = (
    MeshConfig(fsdp=4),
    MeshConfig(fsdp=8),
    MeshConfig(tensor=8),
    MeshConfig(data=2, fsdp=2, tensor=2),
)
OPTIMIZERS = ("adamw", "adafactor", "lion", "muon", "sgd")


def named(tree):
    return {path_of(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


@pytest.fixture(scope="module")
def alone():
    return jax.device_get(named(init_state(programs.program(MODEL_32)).groups[MODEL].parameters))


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_one_seed_gives_the_same_parameters_on_every_mesh(mesh, alone):
    """P011."""
    spread = init_state(programs.program(MODEL_32, mesh=mesh)).groups[MODEL].parameters
    for name, value in named(spread).items():
        np.testing.assert_array_equal(np.asarray(value), alone[name], err_msg=name)


def test_another_seed_gives_other_parameters():
    first, second = (
        named(init_state(programs.program(MODEL_32, train={"parameter_seed": seed})))
        for seed in (0, 1)
    )
    name = "groups/model/parameters/embedding"
    assert np.abs(np.asarray(first[name]) - np.asarray(second[name])).max() > 0.1


@pytest.mark.parametrize(
    ("rules", "optimizer"),
    [("fsdp_tp", "adamw"), ("fsdp_tp", "adafactor"), ("fsdp_tp", "muon"), ("zero1", "adamw")],
)
def test_what_is_created_lives_where_the_abstract_state_says(optimizer, rules):
    mesh = MeshConfig(fsdp=2, tensor=4) if rules == "fsdp_tp" else MeshConfig(data=8)
    program = programs.program(
        MODEL_32,
        mesh=mesh,
        rules=programs.rules(rules),
        optimizer=programs.load(optimizer=optimizer).optimizer,
        train={"ema_decay": 0.9},
    )
    wanted = named(abstract_state(program))
    with one_step.fast_compilation(True):
        state = init_state(program)
    for name, leaf in named(state).items():
        assert leaf.sharding == wanted[name].sharding, name
        assert (leaf.shape, leaf.dtype) == (wanted[name].shape, wanted[name].dtype)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_leaf_of_every_optimizer_follows_its_parameter(optimizer):
    config = programs.load(optimizer=optimizer).optimizer
    if optimizer == "adafactor":
        config = dataclasses.replace(config, min_dim_to_factor=8)
    program = programs.program(MODEL_32, mesh=MeshConfig(fsdp=4, tensor=2), optimizer=config)
    group = abstract_state(program).groups[MODEL]
    parameters, followed = named(group.parameters), 0
    for name, leaf in named(group.optimizer).items():
        owner = next((p for p in parameters if name.endswith("/" + p)), None)
        if owner is None:
            assert math.prod(leaf.shape) <= 3, f"{name} belongs to no parameter"
            continue
        whole = parameters[owner]
        if leaf.shape == whole.shape:
            assert leaf.sharding == whole.sharding, name
            followed += 1
        elif leaf.shape != (1,):
            assert leaf.ndim == whole.ndim - 1
            allowed = [entry for entry in whole.sharding.spec if entry]
            assert all(entry in allowed for entry in leaf.sharding.spec if entry)
    assert followed >= {"adamw": 20, "sgd": 10}.get(optimizer, 3)


def bytes_on_device_0(tree):
    return sum(
        shard.data.nbytes
        for leaf in jax.tree.leaves(tree)
        for shard in leaf.addressable_shards
        if shard.device == jax.devices()[0]
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_device_of_fsdp_8_holds_an_eighth_and_the_small_leaves(optimizer):
    """S0-009, on the arrays themselves."""
    program = programs.program(
        MODEL_32,
        mesh=MeshConfig(fsdp=8),
        optimizer=programs.load(optimizer=optimizer).optimizer,
        train={"ema_decay": 0.9},
    )
    with one_step.fast_compilation(True):
        state = init_state(program)
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    small = sum(
        leaf.nbytes
        for name, leaf in named(state).items()
        if name.endswith(("scale", "bias")) or leaf.size <= 3
    )
    assert small < 0.1 * total
    assert bytes_on_device_0(state) <= total / 8 + small


@pytest.fixture(scope="module")
def zero1():
    return programs.program(
        MODEL_32,
        mesh=MeshConfig(data=8),
        rules=programs.rules("zero1"),
        optimizer=programs.load(optimizer="adamw").optimizer,
    )


def test_zero1_replicates_parameters_and_splits_optimizer_state(zero1):
    group = init_state(zero1).groups[MODEL]
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(group.parameters))
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(group.optimizer))
    assert bytes_on_device_0(group.optimizer) < whole / 8 * 1.2
    moments = named(group.optimizer)
    assert moments["0/mu/embedding"].sharding.spec == P(None, "data")


def test_zero1_reduces_each_gradient_to_its_share_and_gathers_updated_parameters(zero1):
    batch = programs.batch("packed")
    state = init_state(zero1)
    text = build_train_step(zero1).lower(state, batch).compile().as_text()
    counts = instruction_counts(text)
    # XLA on CPU writes a reduce-scatter as an all-reduce and a slice of its result.
    assert counts.get("reduce-scatter", 0) + counts["all-reduce"] > 0
    assert counts["all-gather"] > 0
    assert counts.get("reduce-scatter") or "dynamic-slice" in text
    plain = dataclasses.replace(zero1, rules=dataclasses.replace(zero1.rules, optimizer=None))
    text = build_train_step(plain).lower(init_state(plain), batch).compile().as_text()
    assert "all-gather" not in instruction_counts(text)


def test_a_state_survives_the_form_that_checkpoints_hold():
    program = programs.program(
        MODEL_32,
        optimizer=programs.load(optimizer="muon").optimizer,
        train={"ema_decay": 0.9, "frozen": ("embedding",)},
    )
    state = init_state(program)
    portable = to_portable(state, program)
    assert all(isinstance(key, str) for key in portable["groups"][MODEL])
    back = from_portable(portable, abstract_state(program), program)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    for one, other in zip(jax.tree.leaves(back), jax.tree.leaves(state), strict=True):
        assert one is other


def replicated(rules):
    program = programs.program(MODEL_32, mesh=MeshConfig(fsdp=8), rules=rules)
    leaves = named(abstract_state(program).groups[MODEL].parameters)
    return table.replicated_share(table.row_of(name, leaf) for name, leaf in leaves.items())


def without(logical, rules):
    changed = tuple((rule[0], None) if rule[0] == logical else rule for rule in rules.parameters)
    return dataclasses.replace(rules, parameters=changed)


def test_a_table_that_leaves_parameters_whole_is_seen_in_the_replicated_share():
    """P010."""
    rules = programs.rules("fsdp")
    assert replicated(rules) < rules.max_replicated
    assert replicated(without("embed", rules)) > 0.9


def test_start_up_warns_of_it(caplog):
    """P010: the warning that describe_run writes."""
    program = programs.program(
        MODEL_32, mesh=MeshConfig(fsdp=8), rules=without("embed", programs.rules("fsdp"))
    )
    said = []

    class Run:
        config = programs.load()
        directory = type("Directory", (), {"attempt": 1, "changes": ()})
        data = type("Data", (), {"describe": lambda: "rows"})
        say = said.append
        start_step = 0

    Run.program = program
    with caplog.at_level(logging.WARNING):
        trainer_run.describe_run(Run)
    assert "of the parameter bytes are replicated on every device" in caplog.text
    assert "stacks/pattern/blocks/0/mlp/up/kernel" in said[0]


def test_a_missing_rule_is_an_error_with_the_parameter_s_name():
    """P010: a removed rule is no silent replication."""
    rules = programs.rules("fsdp")
    fewer = tuple(rule for rule in rules.parameters if rule[0] != "mlp")
    program = programs.program(
        MODEL_32, mesh=MeshConfig(fsdp=8), rules=dataclasses.replace(rules, parameters=fewer)
    )
    with pytest.raises(ValueError, match=r"mlp/.*/?kernel: the logical axis 'mlp' has no rule"):
        abstract_state(program)


def test_a_start_warns_of_whole_residual_streams_and_of_replicated_bytes():
    rules = RulesConfig(sequence_parallel=False)
    mesh = MeshConfig(tensor=2, fsdp=4)
    program = programs.program(MODEL_32, mesh=mesh, rules=without("mlp", without("embed", rules)))
    rows = parameter_rows(program)
    sizes = {**dict.fromkeys(AXES, 1), "tensor": 2, "fsdp": 4}
    whole, replicated_bytes = trainer_run.layout_warnings(program.rules, sizes=sizes, rows=rows)
    assert "sequence_parallel=False" in whole
    assert "replicated on every device" in replicated_bytes
    good = programs.program(MODEL_32, mesh=mesh, rules=RulesConfig())
    assert not list(trainer_run.layout_warnings(good.rules, sizes=sizes, rows=parameter_rows(good)))
    alone = trainer_run.layout_warnings(program.rules, sizes=dict.fromkeys(AXES, 1), rows=rows)
    assert not list(alone)
