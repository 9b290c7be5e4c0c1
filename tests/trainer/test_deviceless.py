"""Train steps compiled for H100 without one: their collectives are the ones that the rules ask for.

CPU programs cannot show this: XLA on CPU never emits a reduce-scatter.
"""

import dataclasses
import functools
import os

import jax
import numpy as np
import pytest

from models.decoder_config import DecoderConfig
from models.experts_config import ExpertsConfig
from partitioning.collectives import Collective, collectives, traffic
from partitioning.mesh_config import MeshConfig, PipelineConfig
from partitioning.targets import target_devices
from partitioning.traffic_check import rows, verdicts
from trainer import deviceless
from trainer.certificate import programs
from trainer.collectives import compare
from trainer.run_config import LanguageModel, RunConfig
from trainer.state import abstract_state

MODEL = programs.decoder(
    vocab_size=640,
    embed_dim=256,
    layers=9,
    heads=8,
    kv_heads=4,
    mlp_dim=1024,
    dtype="bfloat16",
    param_dtype="float32",
)
EXPERTS = dataclasses.replace(
    MODEL,
    pattern=("global+experts",),
    experts=ExpertsConfig(count=4, chosen=2, mlp_dim=1024, buffer=1.5),
)
ROWS, LENGTH = 16, 128


def run_of(*, sequence_parallel: bool = True, model: DecoderConfig = MODEL, **how) -> RunConfig:
    run = programs.run(model, rows=ROWS, length=LENGTH, **how)
    rules = dataclasses.replace(run.rules, sequence_parallel=sequence_parallel)
    return dataclasses.replace(run, rules=rules)


@functools.cache
def compiled(**how) -> tuple[RunConfig, deviceless.CompiledStep]:
    run = run_of(**how)
    program = deviceless.target_program(run, target="h100")
    return run, deviceless.compile_train_step(program, run=run, quick=True)


def found_in(step: deviceless.CompiledStep) -> tuple[Collective, ...]:
    return collectives(step.text, mesh=step.mesh)


def of_activations(found: tuple[Collective, ...], kind: str) -> list[Collective]:
    """Collectives of whole residual streams over tensor."""
    size = ROWS // 4 * LENGTH * MODEL.embed_dim
    return [c for c in found if c.axes == ("tensor",) and c.kind == kind and c.payload >= size]


HYBRID = MeshConfig(fsdp=4, tensor=2)


def test_sequence_parallelism_scatters_and_gathers_and_never_reduces_to_everyone():
    _, step = compiled(rules="fsdp_tp", mesh=HYBRID)
    found = found_in(step)
    gathers = sum(c.runs for c in of_activations(found, "all-gather"))
    scatters = sum(c.runs for c in of_activations(found, "reduce-scatter"))
    # Two of each per block and direction; one of each for the embedding and for the head.
    assert (gathers, scatters) == (4 * MODEL.layers + 2, 4 * MODEL.layers + 2)
    assert of_activations(found, "all-reduce") == []


def test_without_sequence_parallelism_sums_go_to_everyone():
    _, step = compiled(rules="fsdp_tp", mesh=HYBRID, sequence_parallel=False)
    found = found_in(step)
    sums = sum(c.runs for c in of_activations(found, "all-reduce"))
    assert sums == 4 * MODEL.layers + 2
    assert of_activations(found, "reduce-scatter") == []
    assert of_activations(found, "all-gather") == []


def test_activations_move_in_the_compute_dtype():
    """A gather on the wrong side of a norm's last conversion would move float32."""
    _, step = compiled(rules="fsdp_tp", mesh=HYBRID)
    found = found_in(step)
    moved = of_activations(found, "all-gather") + of_activations(found, "reduce-scatter")
    assert {dtype for c in moved for dtype in c.dtypes} == {"bf16"}


def test_no_device_gathers_or_sums_the_whole_vocabulary():
    _, step = compiled(rules="fsdp_tp", mesh=HYBRID)
    whole = (MODEL.vocab_size, MODEL.embed_dim)
    for collective in found_in(step):
        assert whole not in collective.shapes, collective
        assert whole[::-1] not in collective.shapes, collective


LAYOUTS = {
    "fsdp x tensor": {"rules": "fsdp_tp", "mesh": HYBRID},
    "fsdp x tensor, no SP": {"rules": "fsdp_tp", "mesh": HYBRID, "sequence_parallel": False},
    "fsdp, microbatches, chunks (llama3_8b_8)": {
        "rules": "fsdp",
        "mesh": MeshConfig(fsdp=8),
        "model": dataclasses.replace(MODEL, remat="selective", loss_chunks=2),
        "microbatches": 2,
    },
    "data x fsdp x tensor": {
        "rules": "fsdp_tp",
        "mesh": MeshConfig(data=2, fsdp=2, tensor=2),
        "model": dataclasses.replace(MODEL, remat="selective"),
    },
    "zero1, tied": {
        "rules": "zero1",
        "mesh": MeshConfig(data=8),
        "model": dataclasses.replace(MODEL, tied_embedding=True),
    },
    "more tensor than kv heads": {
        "rules": "tp",
        "mesh": MeshConfig(tensor=8),
        "model": dataclasses.replace(MODEL, remat="selective"),
    },
    "data x stage x tensor (llama3_70b_512_pp)": {
        "rules": "pp",
        "mesh": MeshConfig(data=2, stage=2, tensor=2),
        "model": dataclasses.replace(MODEL, layers=12, remat="selective", loss_chunks=2),
        "microbatches": 4,
        "pipeline": PipelineConfig(chunks=2),
    },
    "stage x fsdp, circular": {
        "rules": "fsdp",
        "mesh": MeshConfig(stage=2, fsdp=4),
        "model": dataclasses.replace(MODEL, layers=12),
        "microbatches": 4,
        "pipeline": PipelineConfig(schedule="circular"),
    },
    "fsdp x expert (mixtral_8x7b_64)": {
        "rules": "ep",
        "mesh": MeshConfig(fsdp=2, expert=4),
        "model": dataclasses.replace(EXPERTS, remat="full", loss_chunks=2),
    },
    "fsdp x expert x tensor": {
        "rules": "fsdp_ep_tp",
        "mesh": MeshConfig(fsdp=2, expert=2, tensor=2),
        "model": EXPERTS,
    },
    "fsdp x context x tensor, ring (llama3_8b_128k_64)": {
        "rules": "cp",
        "mesh": MeshConfig(fsdp=2, context=2, tensor=2),
        "model": dataclasses.replace(
            MODEL, remat="selective", loss_chunks=2, context_attention="ring"
        ),
    },
    "fsdp x context, all_gather": {
        "rules": "cp",
        "mesh": MeshConfig(fsdp=2, context=4),
        "model": dataclasses.replace(MODEL, remat="full"),
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_small_step_moves_what_the_formulas_say(layout):
    run, step = compiled(**LAYOUTS[layout])
    assert isinstance(run.task, LanguageModel)
    found, formula = compare(step, run=run)
    judged = [v for v in verdicts(found, formula, platform="cuda") if v.judged]
    assert judged
    assert all(v.agrees for v in judged), (judged, rows(traffic(found), formula))
    assert step.complaints == ()


def test_memory_is_that_of_one_device():
    _, step = compiled(rules="fsdp_tp", mesh=HYBRID)
    abstract = abstract_state(step.program)
    held = sum(
        leaf.dtype.itemsize * int(np.prod(leaf.sharding.shard_shape(leaf.shape)))
        for leaf in jax.tree.leaves(abstract)
    )
    batch = 5 * 4 * ROWS * LENGTH // 4
    assert step.memory.arguments == pytest.approx(held + batch, rel=0.01)
    assert step.memory.aliased == pytest.approx(held, rel=0.01)
    assert step.memory.peak > step.memory.arguments


def test_an_open_mesh_needs_a_number_of_devices():
    run = run_of(rules="fsdp", mesh=MeshConfig(fsdp=-1))
    with pytest.raises(ValueError, match="--devices"):
        deviceless.target_program(run, target="h100")
    assert deviceless.target_program(run, target="h100", devices=16).mesh.shape["fsdp"] == 16


def test_a_batch_that_does_not_divide_is_refused_before_anything_is_compiled():
    run = run_of(rules="fsdp", mesh=MeshConfig(fsdp=64))
    with pytest.raises(ValueError, match="global_batch=16"):
        deviceless.target_program(run, target="h100")


def test_the_partitioner_s_complaints_are_read(capfd):
    devices = np.array(target_devices("h100", devices=8)).reshape(4, 2)
    mesh = jax.sharding.Mesh(devices, ("fsdp", "tensor"))

    def place(x, *entries):
        spec = jax.sharding.PartitionSpec(*entries)
        return jax.lax.with_sharding_constraint(x, jax.sharding.NamedSharding(mesh, spec))

    def clash(x):
        return place(jax.numpy.sin(place(x * 2, "tensor")), None, "fsdp")

    said: list[str] = []
    lowered = jax.jit(clash).lower(jax.ShapeDtypeStruct((16, 16), "float32"))
    with deviceless.without_cache(), deviceless.captured_stderr(said):
        lowered.compile()
    (complaint,) = deviceless.complaints("".join(said))
    assert "clash" in complaint
    assert "'tensor'" in complaint
    assert "'fsdp'" in complaint
    assert "rematerialization" not in capfd.readouterr().err


def test_what_is_no_complaint_is_none():
    assert deviceless.complaints("W1 spmd_partitioner.cc:1] all is well\n") == ()


def test_stderr_is_given_back_where_compiling_fails(capfd):
    said: list[str] = []

    def fail() -> None:
        with deviceless.captured_stderr(said):
            os.write(2, b"the reason\n")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert said == ["the reason\n"]
    assert "the reason" in capfd.readouterr().err
