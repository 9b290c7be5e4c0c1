"""The group of adapters in the state and in the step: what moves, what is held, what is saved."""

import dataclasses

import jax
import numpy as np
import pytest

from models.lora_config import LoraConfig
from partitioning.mesh_config import MeshConfig
from trainer.certificate import programs
from trainer.optimizer_config import AdamW, Muon
from trainer.paths import leaves
from trainer.program import ADAPTERS
from trainer.sampling import Sampling, generate
from trainer.state import (
    MODEL,
    abstract_batch,
    abstract_state,
    from_portable,
    init_state,
    to_portable,
    with_parameters,
)
from trainer.step import build_eval_step, build_train_step

LORA = LoraConfig(rank=3, targets=("attention/.*/kernel", "mlp/.*/kernel"))
MODEL_32 = programs.decoder(dtype="float32", param_dtype="float32", lora=LORA)
SAMPLING = Sampling(count=8, seed=1)
PLAIN = dataclasses.replace(MODEL_32, lora=None)


def host(tree):
    return {path: np.array(leaf) for path, leaf in leaves(tree).items()}


def same(one, other):
    assert one.keys() == other.keys()
    return all(np.array_equal(one[path], other[path]) for path in one)


def stepped(program, *, steps=2):
    state, step = init_state(program), build_train_step(program)
    for seed in range(steps):
        state, metrics = step(state, programs.batch("packed", seed=seed))
    return state, metrics


@pytest.mark.parametrize("optimizer", [AdamW(weight_decay=0.1), Muon()], ids=["adamw", "muon"])
def test_adapters_move_and_nothing_else(optimizer):
    program = programs.program(MODEL_32, optimizer=optimizer, train={"ema_decay": 0.5})
    before = init_state(program)
    start = {name: host(group) for name, group in before.groups.items()}
    state, metrics = stepped(program)
    assert same(host(state.groups[MODEL]), start[MODEL])
    group = state.groups[ADAPTERS]
    for path, value in host(group.parameters).items():
        assert not np.array_equal(value, start[ADAPTERS][f"parameters/{path}"]), path
    assert not same(host(group.average), host(group.parameters))
    assert len(leaves(group.parameters)) == len(leaves(group.average)) == 14
    assert metrics["param_norm"] == pytest.approx(
        np.sqrt(sum((x**2).sum() for x in host(group.parameters).values())), rel=1e-5
    )


def test_some_adapters_can_be_frozen():
    program = programs.program(MODEL_32, train={"frozen": ("adapter/a",)})
    start = host(init_state(program).groups[ADAPTERS].parameters)
    after = host(stepped(program)[0].groups[ADAPTERS].parameters)
    moved = {path for path in start if not np.array_equal(start[path], after[path])}
    assert moved == {path for path in start if path.endswith("/b")}


def test_evaluation_and_sampling_see_the_adapters_average_on_the_base():
    program = programs.program(MODEL_32, train={"ema_decay": 0.5})
    state, _ = stepped(program, steps=3)
    group, batch = state.groups[ADAPTERS], programs.batch("packed")
    averaged = dataclasses.replace(group, parameters=group.average, average=None)
    other = dataclasses.replace(state, groups={**state.groups, ADAPTERS: averaged})
    score = build_eval_step(program)
    assert score(state, batch)["loss"] == score(other, batch)["loss"]
    now = dataclasses.replace(group, average=None)
    current = dataclasses.replace(state, groups={**state.groups, ADAPTERS: now})
    assert score(state, batch)["loss"] != score(current, batch)["loss"]
    prompt = [np.asarray([1, 2], np.int32)]
    drawn = [
        [found.tokens.tolist() for found in generate(program, each, prompt, sampling=SAMPLING)]
        for each in (state, other)
    ]
    assert drawn[0] == drawn[1]


def test_a_nonfinite_step_leaves_the_adapters_alone():
    program = programs.program(MODEL_32)
    bad = programs.batch("packed")
    bad["loss_weights"][0, 0] = np.inf
    state = init_state(program)
    before = host(state)
    state, metrics = build_train_step(program)(state, bad)
    after = host(state)
    assert metrics["nonfinite"] == 1
    assert same(*({p: x for p, x in each.items() if "groups/" in p} for each in (before, after)))


# On CPU, blocks that keep everything keep reshaped kernels, too.
WIDE = dataclasses.replace(
    MODEL_32, layers=4, embed_dim=256, mlp_dim=1024, head_dim=32, scan_layers=True, remat="full"
)


@pytest.mark.parametrize("microbatches", [1, 4])
def test_the_base_is_neither_copied_nor_has_gradients_or_moments(microbatches):
    """Of the compiled step: what it is given it gives back, and a second base has no room."""

    def analysis(model):
        train = {"microbatches": microbatches}
        program = programs.program(model, optimizer=AdamW(), train=train)
        batch = abstract_batch(program, rows=4, length=16)
        step = build_train_step(program).lower(abstract_state(program), batch)
        return step.compile().memory_analysis()

    adapted, plain = analysis(WIDE), analysis(dataclasses.replace(WIDE, lora=None))
    base = plain.argument_size_in_bytes / 3
    assert adapted.argument_size_in_bytes < 1.1 * base
    assert adapted.alias_size_in_bytes > 0.99 * adapted.argument_size_in_bytes
    assert adapted.temp_size_in_bytes < 0.5 * base
    assert plain.temp_size_in_bytes > base


def test_16_bit_bases_keep_32_bit_adapters_and_moments():
    program = programs.program(dataclasses.replace(MODEL_32, param_dtype="bfloat16"))
    groups = abstract_state(program).groups
    assert {leaf.dtype.name for leaf in leaves(groups[MODEL]).values()} == {"bfloat16"}
    assert {leaf.dtype.name for leaf in leaves(groups[ADAPTERS]).values()} == {"float32"}


def test_what_is_saved_is_the_group_of_adapters():
    program = programs.program(MODEL_32, optimizer=AdamW())
    state, _ = stepped(program)
    portable = to_portable(state, program)
    assert set(portable["groups"]) == {ADAPTERS}
    restored = from_portable(portable, abstract_state(program), program)
    complete = with_parameters(restored, state.groups[MODEL].parameters)
    assert jax.tree.structure(complete) == jax.tree.structure(state)
    assert same(host(complete), host(state))


def test_given_parameters_take_the_place_of_random_ones():
    mesh = MeshConfig(fsdp=4, tensor=2)
    for model in (PLAIN, MODEL_32):
        program = programs.program(model, mesh=mesh, train={"ema_decay": 0.9})
        other = programs.program(model, mesh=mesh, train={"parameter_seed": 7})
        given = init_state(other).groups[MODEL].parameters
        wanted = host(given)
        state = init_state(program, given)
        assert same(host(state.groups[MODEL].parameters), wanted)
        assert jax.tree.map(lambda x: x.sharding, state) == jax.tree.map(
            lambda x: x.sharding, abstract_state(program)
        )
        if model is PLAIN:
            assert same(host(state.groups[MODEL].average), wanted)


def test_without_adapters_there_is_one_group():
    assert set(abstract_state(programs.program(PLAIN)).groups) == {MODEL}
