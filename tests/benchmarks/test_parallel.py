"""Layouts are measured by what their programs say, and what is not used costs nothing."""

import dataclasses
import functools
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from benchmarks.parallel import DENSE, EXPERTS, LAYOUTS, Axis, Measured, show
from benchmarks.products import product_flops
from benchmarks.subjects import histogram
from models.decoder_config import DecoderConfig
from partitioning.mesh_config import MeshConfig, PipelineConfig
from trainer.certificate import programs
from trainer.program import Program
from trainer.state import abstract_batch, abstract_state
from trainer.step import build_train_step

COMMAND = (sys.executable, "-m", "benchmarks.parallel")
SMALL = dataclasses.replace(DENSE, layers=2, embed_dim=32, mlp_dim=64, vocab_size=64)


def operations(program: Program) -> dict[str, int]:
    batch = abstract_batch(program, rows=16, length=16)
    compiled = build_train_step(program).lower(abstract_state(program), batch).compile()
    return dict(histogram(compiled.as_text()))


@functools.cache
def plain(mesh: MeshConfig, model: DecoderConfig = SMALL) -> dict[str, int]:
    return operations(programs.program(model, mesh=mesh, rules=programs.rules("fsdp")))


MESHES = pytest.mark.parametrize(
    "mesh", [MeshConfig(), MeshConfig(fsdp=4)], ids=["one device", "fsdp"]
)


@MESHES
@pytest.mark.parametrize("rules", ["pp", "cp", "ep"])
def test_axes_of_size_1_leave_the_program_as_it_is(mesh, rules):
    model = dataclasses.replace(SMALL, context_attention="ring")
    program = programs.program(
        model,
        mesh=mesh,
        rules=programs.rules(rules),
        pipeline=PipelineConfig(schedule="circular", idle="compute"),
    )
    assert operations(program) == plain(mesh)


def test_an_exchange_of_experts_that_is_not_needed_is_not_there():
    experts = EXPERTS.experts
    assert experts is not None
    dropless = dataclasses.replace(experts, capacity=None)
    model = dataclasses.replace(SMALL, pattern=EXPERTS.pattern, experts=dropless)
    bounded = dataclasses.replace(model, experts=dataclasses.replace(dropless, buffer=2.0))
    mesh = MeshConfig()
    rules = programs.rules("ep")
    assert operations(programs.program(bounded, mesh=mesh, rules=rules)) == plain(mesh, model)


def test_two_layouts_are_measured():
    done = subprocess.run(
        [*COMMAND, "--only=^ddp$|^pp x tp$", "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    ddp, pipeline = json.loads(done.stdout)["layouts"]
    assert ddp["flops"] == pytest.approx(ddp["ideal_flops"])
    assert (ddp["ticks"], ddp["bubble"]) == (None, None)
    (axis,) = ddp["axes"]
    assert axis["sent"] == pytest.approx(axis["formula"], rel=0.01)
    assert pipeline["ticks"] == 10
    assert pipeline["bubble"] == pytest.approx(1 / 9)
    # Every piece but the last runs forward twice: 4/3, and more for the stage with both ends.
    assert 4 / 3 < pipeline["flops"] / pipeline["ideal_flops"] < 1.5


def test_every_parallelism_has_a_layout():
    sizes = [dataclasses.replace(layout.mesh, outer=()).sizes(8) for layout in LAYOUTS]
    used = {axis for each in sizes for axis, size in each.items() if size > 1}
    assert used == {"data", "stage", "fsdp", "expert", "context", "tensor"}
    assert {layout.model.context_attention for layout in LAYOUTS} == {"ring", "all_gather"}


def test_products_count_with_the_loops_around_them():
    def loop(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]

    shapes = jnp.ones((4, 8)), jnp.ones((5, 8, 8))
    text = jax.jit(loop).lower(*shapes).compile().as_text()
    assert product_flops(text) == 5 * 2 * 4 * 8 * 8


def test_products_in_branches_count_as_often_as_these_are_taken():
    def loop(x: jax.Array, w: jax.Array) -> jax.Array:
        def tick(x: jax.Array, number: jax.Array) -> tuple[jax.Array, None]:
            return jax.lax.cond(number % 3 == 0, lambda x: jnp.tanh(x @ w), jnp.sin, x), None

        return jax.lax.scan(tick, x, jnp.arange(6))[0]

    text = jax.jit(loop).lower(jnp.ones((4, 8)), jnp.ones((8, 8))).compile().as_text()
    whole = 6 * 2 * 4 * 8 * 8
    assert product_flops(text) == whole
    assert product_flops(text, taken=(1 / 3,)) == pytest.approx(whole / 3)


def test_the_table_shows_what_there_is():
    row = Measured(
        name="x",
        ticks=None,
        bubble=None,
        flops=3e6,
        ideal_flops=2e6,
        temporary_bytes=2**20,
        axes=(Axis(axes=("fsdp", "context"), sent=2e6, formula=1e6),),
    )
    text = show([row, dataclasses.replace(row, ticks=7, bubble=0.25)])
    assert "1.50" in text
    assert "fsdp+context 2.00 MB (2.00)" in text
    assert "25.0%" in text
