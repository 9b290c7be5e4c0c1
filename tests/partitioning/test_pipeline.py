"""A chain of small matrices, run as a pipeline, against the same chain in a loop."""

import collections
import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

from partitioning import pipeline
from partitioning.collectives import MeshShape, collectives
from partitioning.mesh import build_mesh
from partitioning.mesh_config import MeshConfig
from partitioning.pipeline_stage import Chain, Inputs
from partitioning.schedules import IDLE, build_schedule, layer_order

WIDTH, ROWS, EACH = 4, 6, 2
HELD = {"offset": 0.5}
SIZES = [(2, 1, 2), (2, 2, 4), (4, 1, 5), (4, 2, 8), (3, 3, 6), (8, 1, 9)]
NAMES = ("1f1b", "circular")


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def enter(shared, part):
    x = part["x"] @ shared[0]["a"] + shared[1]["offset"]
    return x, (x.sum() * 0.1, jnp.int32(0))


def repeat(stacked, held, x, part, piece):
    del held, part, piece
    y = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stacked[0]["w"])[0]
    return y, (0.01 * (y**2).sum(), jnp.int32(1))


def leave(shared, x, part):
    # Both ends use ``a``, as tied embeddings do.
    y = x @ shared[0]["b"] @ shared[0]["a"].T
    return ((y - part["y"]) ** 2).sum(), jnp.int32(100)


@dataclasses.dataclass(frozen=True)
class Toy:
    stages: int
    chunks: int
    microbatches: int

    @property
    def sizes(self):
        return dataclasses.asdict(self)

    @property
    def order(self):
        layers = self.stages * self.chunks * EACH
        return layer_order(repeats=layers, stages=self.stages, chunks=self.chunks)

    def parameters(self):
        keys = jax.random.split(jax.random.key(0), 3)
        stacked = {"w": jax.random.normal(keys[0], (len(self.order), WIDTH, WIDTH))}
        return stacked, {
            name: jax.random.normal(key, (WIDTH, WIDTH)) for name, key in zip("ab", keys[1:])
        }

    def batch(self):
        shape = (self.microbatches, ROWS, WIDTH)
        return {
            name: jax.random.normal(key, shape)
            for name, key in zip("xy", jax.random.split(jax.random.key(1)))
        }

    def expected(self):
        """(loss, visits), gradients of stacked and of shared, without a pipeline."""

        def one(stacked, shared, part):
            x, first = enter((shared, HELD), part)
            found = [first]
            for piece in range(self.stages * self.chunks):
                weights = {"w": stacked["w"][piece * EACH : (piece + 1) * EACH]}
                x, sums = repeat((weights, {}), HELD, x, part, piece)
                found.append(sums)
            found.append(leave((shared, HELD), x, part))
            return jax.tree.map(lambda *each: sum(each), *found)

        def loss(stacked, shared):
            parts = [
                jax.tree.map(lambda x, m=m: x[m], self.batch()) for m in range(self.microbatches)
            ]
            sums = [one(stacked, shared, part) for part in parts]
            return sum(s[0] for s in sums), sum(s[1] for s in sums)

        sums, grads = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(*self.parameters())
        return sums, *grads

    def compiled(self, name="1f1b", *, repeat=repeat, mesh=None, idle="auto"):
        schedule = build_schedule(name, **self.sizes)
        same = lambda x: x  # noqa: E731
        chain = Chain(
            enter=enter,
            repeat=repeat,
            leave=leave,
            place=same,
            place_stacked=same,
            place_shared=same,
        )
        if not isinstance(mesh, Mesh):
            mesh = mesh or MeshConfig(stage=self.stages)
            count = self.stages * mesh.context * mesh.data
            mesh = build_mesh(mesh, devices=jax.devices()[:count])

        def run(stacked, shared, parts):
            inputs = Inputs(stacked=(stacked, {}), shared=(shared, HELD), parts=parts)
            return pipeline.gradients(chain, schedule, inputs, mesh=mesh, idle=idle)

        return jax.jit(run)

    def found(self, name="1f1b", *, order=None, dtype=None, **rest):
        """The same as ``expected``, from a pipeline."""
        order = self.order if order is None else order
        stacked, shared = jax.tree.map(lambda x: x.astype(dtype or x.dtype), self.parameters())
        run = self.compiled(name, **rest)
        sums, of_stacked, of_shared = run({"w": stacked["w"][order]}, shared, self.batch())
        return sums, {"w": of_stacked["w"][np.argsort(order)]}, of_shared

    def program(self, name):
        shapes = jax.eval_shape(lambda: (*self.parameters(), self.batch()))
        return self.compiled(name).lower(*shapes).compile()


def worst(found, expected):
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


@pytest.mark.parametrize(
    ("sizes", "idle"), [*((sizes, "auto") for sizes in SIZES), ((4, 2, 8), "compute")], ids=str
)
@pytest.mark.parametrize("name", NAMES)
def test_loss_visits_and_every_gradient_equal_a_plain_loop(name, sizes, idle):
    toy = Toy(*sizes)
    found, expected = toy.found(name, idle=idle), toy.expected()
    assert int(found[0][1]) == int(expected[0][1])
    assert worst((found[0][0], *found[1:]), (expected[0][0], *expected[1:])) < 1e-13


@pytest.mark.parametrize(("name", "chunks"), [("1f1b", 1), ("1f1b", 2), ("circular", 2)])
def test_every_stage_runs_what_the_table_says_and_skips_the_rest(name, chunks):
    toy, counts = Toy(4, chunks, 8), collections.Counter()

    def count(what, stage):
        counts[what, int(stage)] += 1

    def seen(what):
        jax.debug.callback(functools.partial(count, what), jax.lax.axis_index("stage"))

    @jax.custom_vjp
    def watched(x):
        seen("forward")
        return x

    watched.defvjp(lambda x: (watched(x), None), lambda _, g: (seen("backward"), (g,))[1])

    def watching(stacked, held, x, part, piece):
        return repeat(stacked, held, watched(x), part, piece)

    # Callbacks know no mesh with other axes beside ``stage``.
    mesh = jax.make_mesh((4,), ("stage",), axis_types=(AxisType.Auto,))
    jax.block_until_ready(toy.found(name, repeat=watching, mesh=mesh))
    jax.effects_barrier()
    schedule = build_schedule(name, **toy.sizes)
    table = schedule.backward if schedule.has_backward else schedule.forward
    for stage, busy in enumerate((table != IDLE).sum(axis=0)):
        # 1F1B runs a piece forward and, before its backward pass, again, but the last piece once.
        # What jax runs again for a backward pass makes no calls.
        again = busy - (toy.microbatches if stage == 3 else 0) if name == "1f1b" else 0
        assert counts["forward", stage] == busy + again
        assert counts["backward", stage] == busy


@pytest.mark.parametrize("sizes", [(4, 1, 5), (3, 3, 6)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_the_compiled_program_has_the_ticks_of_the_table(name, sizes):
    toy = Toy(*sizes)
    trips = re.findall(r'known_trip_count":\{"n":"(\d+)"', toy.program(name).as_text())
    ticks = build_schedule(name, **toy.sizes).ticks
    # One loop for 1F1B, two where jax differentiates; the others are the layers of a piece.
    assert trips.count(str(ticks)) == (1 if name == "1f1b" else 2)


def test_memory_of_1f1b_does_not_grow_with_the_microbatches_and_that_of_circular_does():
    temporary = {
        name: [Toy(4, 1, m).program(name).memory_analysis().temp_size_in_bytes for m in (8, 32)]
        for name in NAMES
    }
    of_one_input = ROWS * WIDTH * 8
    assert temporary["1f1b"][1] - temporary["1f1b"][0] < of_one_input
    assert temporary["circular"][1] - temporary["circular"][0] > 20 * of_one_input


def test_control_a_swapped_stage_is_seen():
    toy = Toy(4, 2, 8)
    order = toy.order.reshape(4, -1)[[1, 0, 2, 3]].reshape(-1)
    assert worst(toy.found(order=order)[1:], toy.expected()[1:]) > 1e-2


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_bfloat16_parameters_are_summed_in_float32(name):
    toy = Toy(2, 1, 32)
    found = toy.found(name, dtype=jnp.bfloat16)[1:]
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype(jnp.float32)}
    assert worst(found, toy.expected()[1:]) < 0.1


def test_work_with_a_permute_inside_is_computed_by_idle_stages_too():
    def ring(x):
        return (x + jax.lax.ppermute(x, "context", [(0, 1), (1, 0)])) / 2

    def permuting(stacked, held, x, part, piece):
        inner = jax.shard_map(
            ring,
            mesh=jax.sharding.get_abstract_mesh(),
            in_specs=PartitionSpec(),
            out_specs=PartitionSpec(),
            axis_names={"context"},
            check_vma=False,
        )
        return repeat(stacked, held, inner(x), part, piece)

    toy = Toy(2, 1, 4)
    found = toy.found(repeat=permuting, mesh=MeshConfig(stage=2, context=2))
    assert worst(found[1:], toy.expected()[1:]) < 1e-13


@pytest.mark.parametrize("name", NAMES)
def test_replicas_add_their_gradients_once_after_all_ticks(name):
    toy = Toy(2, 2, 4)
    mesh = MeshConfig(data=3, stage=2)
    found, expected = toy.found(name, mesh=mesh), toy.expected()
    assert worst((found[0][0], *found[1:]), (expected[0][0], *expected[1:])) < 1e-13
    shapes = jax.eval_shape(lambda: (*toy.parameters(), toy.batch()))
    text = toy.compiled(name, mesh=mesh).lower(*shapes).compile().as_text()
    sizes = MeshShape(sizes={"data": 3, "stage": 2})
    over_data = [c for c in collectives(text, mesh=sizes) if "data" in c.axes]
    assert over_data
    assert not [c for c in over_data if c.loops]
