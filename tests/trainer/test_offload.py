"""An optimizer whose state waits in host memory updates as if it did not.

CPU has the memory by name only, which is enough to see where the state lives and that the numbers
are the same; what it frees is read from a program compiled for TPU, whose devices name theirs.
"""

import dataclasses

import jax
import numpy as np
import pytest

from partitioning.mesh_config import MeshConfig
from trainer import deviceless
from trainer.certificate import programs
from trainer.memory_checks import check_memory
from trainer.optimizer_config import AdamW
from trainer.run_config import LanguageModel
from trainer.state import HOST, MODEL, abstract_state, from_portable, init_state, to_portable
from trainer.step import build_train_step

MODEL_32 = programs.decoder(dtype="float32", param_dtype="float32")


def built(offload, **changes):
    how = {"mesh": MeshConfig(fsdp=4), "rules": programs.rules("fsdp"), **changes}
    return programs.program(MODEL_32, optimizer=AdamW(offload=offload), **how)


def kinds(state):
    """Memory of each leaf that is not on the device."""
    return {
        name: leaf.sharding.memory_kind
        for name, leaf in to_flat(state).items()
        if leaf.sharding.memory_kind == HOST
    }


def to_flat(state):
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(state)}


def test_moments_wait_in_host_memory_before_and_after_a_step_and_nothing_else_does():
    program = built(True)
    abstract, state = abstract_state(program), init_state(program)
    moments = 2 * len(jax.tree.leaves(abstract.groups[MODEL].parameters))
    assert len(kinds(abstract)) == moments
    assert all("optimizer" in name for name in kinds(abstract))
    assert kinds(state) == kinds(abstract)
    state, _ = build_train_step(program)(state, programs.batch("packed"))
    assert kinds(state) == kinds(abstract)
    assert kinds(abstract_state(built(False))) == {}


@pytest.mark.parametrize("microbatches", [1, 2])
def test_steps_are_those_of_an_optimizer_on_the_device(microbatches):
    after = []
    for offload in (True, False):
        program = built(offload, train={"microbatches": microbatches})
        state = init_state(program)
        for seed in range(3):
            state, _ = build_train_step(program)(state, programs.batch("packed", seed=seed))
        after.append(to_flat(state))
    assert after[0].keys() == after[1].keys()
    for name, leaf in after[0].items():
        np.testing.assert_array_equal(leaf, after[1][name], err_msg=name)


def test_a_skipped_step_keeps_the_moments():
    program = built(True)
    state = init_state(program)
    before = jax.tree.map(np.asarray, state.groups[MODEL].optimizer)
    batch = programs.batch("packed")
    batch["loss_weights"] = np.full_like(batch["loss_weights"], np.nan)
    state, metrics = build_train_step(program)(state, batch)
    assert metrics["nonfinite"] == 1
    assert len(kinds(state)) == len(kinds(abstract_state(program)))
    jax.tree.map(np.testing.assert_array_equal, state.groups[MODEL].optimizer, before)


def test_what_checkpoints_hold_goes_back_where_it_waited():
    program = built(True)
    state = init_state(program)
    back = from_portable(to_portable(state, program), abstract_state(program), program)
    assert kinds(back) == kinds(state)


def test_offloading_on_cpu_is_refused():
    run = dataclasses.replace(programs.load(), optimizer=AdamW(offload=True))
    with pytest.raises(ValueError, match=r"AdamW\.offload=True.*nothing would be freed"):
        check_memory(run, mesh=built(False).mesh)


def test_compiled_for_tpu_the_moments_take_no_device_memory_between_steps():
    memory = {}
    for offload in (True, False):
        loaded = programs.load(rules="fsdp")
        run = dataclasses.replace(
            loaded,
            task=LanguageModel(model=programs.decoder(dtype="bfloat16", param_dtype="float32")),
            mesh=MeshConfig(fsdp=4),
            optimizer=AdamW(offload=offload),
        )
        program = deviceless.target_program(run, target="v5e")
        step = deviceless.compile_train_step(program, run=run, quick=True)
        memory[offload] = step.memory
    moments = [
        leaf.dtype.itemsize * int(np.prod(leaf.sharding.shard_shape(leaf.shape)))
        for name, leaf in to_flat(abstract_state(program)).items()
        if ".mu" in name or ".nu" in name
    ]
    freed = memory[False].arguments - memory[True].arguments
    assert freed >= sum(moments) > 0
    assert memory[True].aliased <= memory[True].outputs
