"""Where everything lives, and what the compiler does about it, as text that shows up in review.

``UPDATE_GOLDEN=1 python -m pytest -n 0 tests/trainer/test_golden_shardings.py`` rewrites both.
"""

import math
import os
import pathlib
import types

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import AbstractMesh, AxisType

from partitioning import table
from partitioning.collectives import instruction_counts
from partitioning.mesh_config import AXES, MeshConfig
from trainer.certificate import one_step, programs
from trainer.paths import path_of
from trainer.program import Program, build_program, build_task
from trainer.state import MODEL, abstract_batch, abstract_state, parameter_rows
from trainer.step import build_train_step

GOLDEN = pathlib.Path(__file__).parent / "golden" / "shardings"
COLLECTIVES = pathlib.Path(__file__).parent / "golden" / "collectives.txt"
RULE_SETS = ("ddp", "fsdp", "hsdp", "tp", "fsdp_tp", "zero1", "pp", "cp")
DENSE = {"tiny": 8, "llama3_8b": 8, "llama3_70b": 64}
EXPERTS = {"tiny_moe": 8, "mixtral_8x7b": 64}
DEVICES = DENSE | EXPERTS
PAIRS = [
    *((model, rules) for model in DENSE for rules in RULE_SETS),
    *((model, rules) for model in EXPERTS for rules in ("ep", "fsdp_ep_tp")),
]
SMALL = programs.decoder(dtype="float32", param_dtype="float32")


def mesh_of(rules: str, *, devices: int, tensor: int) -> MeshConfig:
    """Returns the mesh that a rule set is made for."""
    inside = min(tensor, devices // 2)
    return {
        "ddp": MeshConfig(data=devices),
        "zero1": MeshConfig(data=devices),
        "fsdp": MeshConfig(fsdp=devices),
        "hsdp": MeshConfig(data=2, fsdp=devices // 2),
        "tp": MeshConfig(tensor=tensor),
        "fsdp_tp": MeshConfig(fsdp=devices // tensor, tensor=tensor),
        "cp": MeshConfig(fsdp=devices // 4, context=4),
        "ep": MeshConfig(fsdp=devices // 4, expert=4),
        "fsdp_ep_tp": MeshConfig(fsdp=devices // 4, expert=2, tensor=2),
        "pp": MeshConfig(data=devices // 2 // inside, stage=2, tensor=inside),
    }[rules]


def abstract_program(model: str, rules: str) -> Program:
    """Returns a program for devices that do not exist."""
    run = programs.load(model=model, rules=rules, optimizer="adamw")
    config = mesh_of(rules, devices=DEVICES[model], tensor=4 if model.startswith("tiny") else 8)
    sizes = tuple(getattr(config, axis) for axis in AXES)
    mesh = AbstractMesh(sizes, AXES, axis_types=(AxisType.Auto,) * len(AXES))
    return build_program(run, task=build_task(run.task), mesh=mesh)


def show(program: Program) -> str:
    """Returns the tables of parameters and of Adam's first moment."""
    used = [f"{axis}={size}" for axis, size in program.mesh.shape.items() if size > 1]
    moment = abstract_state(program).groups[MODEL].optimizer[0].mu
    leaves = jax.tree.leaves_with_path(moment)
    parts = {
        "parameters": parameter_rows(program),
        "first moment": [table.row_of(path_of(path), leaf) for path, leaf in leaves],
    }
    text = [" ".join(used)]
    for name, rows in parts.items():
        text += ["", name, table.show(rows)]
    return "\n".join(text) + "\n"


def check(path: pathlib.Path, text: str) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{path.name} changed; if that is meant, UPDATE_GOLDEN=1"


@pytest.mark.parametrize(("model", "rules"), PAIRS)
def test_every_array_lives_where_it_did(model, rules):
    check(GOLDEN / f"{model}.{rules}.txt", show(abstract_program(model, rules)))


def test_every_golden_table_has_its_model_and_rule_set():
    names = {f"{model}.{rules}.txt" for model, rules in PAIRS}
    assert {path.name for path in GOLDEN.iterdir()} == names


def test_seventy_billion_parameters_fit_on_64_devices_of_80_gigabytes():
    group = abstract_state(abstract_program("llama3_70b", "fsdp_tp")).groups[MODEL]
    each = sum(
        leaf.dtype.itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape))
        for leaf in jax.tree.leaves((group.parameters, group.optimizer))
    )
    assert 12 * 70_553_706_496 / 64 <= each < 14e9


PLANS = {
    **{rules: (rules, mesh_of(rules, devices=8, tensor=2), True) for rules in RULE_SETS},
    "tp 4, no SP": ("tp", MeshConfig(tensor=4), False),
    "tp 4": ("tp", MeshConfig(tensor=4), True),
    "fsdp_tp, no SP": ("fsdp_tp", MeshConfig(fsdp=4, tensor=2), False),
    "cp 4 x tensor 2": ("cp", MeshConfig(context=4, tensor=2), True),
}


@pytest.fixture(scope="module")
def compiled():
    """Compiles the step of every plan, without the cache: a cached program prints no warning."""
    programs_of, cache = {}, jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    for name, (rules, mesh, sequence_parallel) in PLANS.items():
        tables = programs.rules(rules)
        program = programs.program(
            SMALL,
            mesh=mesh,
            rules=type(tables)(**{**vars(tables), "sequence_parallel": sequence_parallel}),
            optimizer=programs.load(optimizer="adamw").optimizer,
            train={"microbatches": 2 * mesh.stage if mesh.stage > 1 else 1},
        )
        batch = abstract_batch(program, rows=programs.ROWS, length=programs.LENGTH)
        programs_of[name] = (program, batch)
    yield types.MappingProxyType(programs_of)
    jax.config.update("jax_compilation_cache_dir", cache)
    compilation_cache.reset_cache()


def compile_step(program: Program, batch) -> str:
    with one_step.fast_compilation(True):
        lowered = build_train_step(program).lower(abstract_state(program), batch)
        return lowered.compile().as_text()


def test_the_compiled_steps_have_their_collectives_and_no_forced_replication(compiled, capfd):
    lines = []
    for name, (program, batch) in compiled.items():
        counts = instruction_counts(compile_step(program, batch))
        shown = ", ".join(f"{kind} {count}" for kind, count in counts.items())
        lines.append(f"{name}: {shown}")
        said = capfd.readouterr().err
        assert "Involuntary full rematerialization" not in said, f"{name}: {said}"
    check(COLLECTIVES, "\n".join(lines) + "\n")


def test_control_the_compiler_s_complaint_reaches_this_test(compiled, capfd):
    """An array that moves to another axis and another dimension at once is replicated first."""
    program, _ = compiled["fsdp_tp"]
    spec = jax.sharding.PartitionSpec

    def place(x, *entries):
        sharding = jax.sharding.NamedSharding(program.mesh, spec(*entries))
        return jax.lax.with_sharding_constraint(x, sharding)

    def clash(x):
        return place(jax.numpy.sin(place(x * 2, "tensor")), None, "fsdp")

    x = jax.ShapeDtypeStruct((16, 16), "float32")
    jax.jit(clash).lower(x).compile()
    assert "Involuntary full rematerialization" in capfd.readouterr().err
