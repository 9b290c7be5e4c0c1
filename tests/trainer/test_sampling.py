"""A continuation is the model's own, whatever the mesh, and the same for the same seed."""

import jax
import numpy as np
import pytest

from partitioning.mesh_config import MeshConfig
from tests.models import decoders
from trainer.certificate import one_step, programs
from trainer.sampling import sample
from trainer.state import init_state

MODEL_64 = programs.decoder(layers=3, prefix=("global",), pattern=("local",), window=5)
PROMPT = np.asarray([3, 1, 4, 1, 5], np.int32)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True), one_step.fast_compilation(True):
        yield


def draw(mesh=MeshConfig(), count=8, **options):  # noqa: B008 - frozen
    program = programs.program(MODEL_64, mesh=mesh, rules=programs.rules("cp"))
    return sample(program, init_state(program), prompt=PROMPT, count=count, **options)


def test_without_temperature_each_token_is_the_most_likely_one():
    found = draw(temperature=0.0)
    model = programs.program(MODEL_64).task.init(jax.random.key(0))
    text = np.concatenate([PROMPT, found])[None]
    positions = np.arange(text.size, dtype=np.int32)[None]
    logits = decoders.forward(model, text, positions, np.ones_like(text))
    likely = logits[0].argmax(axis=-1)
    np.testing.assert_array_equal(found, likely[len(PROMPT) - 1 : -1])


def test_one_seed_gives_one_continuation_and_another_seed_another():
    np.testing.assert_array_equal(draw(seed=1), draw(seed=1))
    assert (draw(seed=1) != draw(seed=2)).any()


@pytest.mark.parametrize(
    "mesh", [MeshConfig(fsdp=8), MeshConfig(fsdp=2, tensor=4), MeshConfig(context=8)], ids=str
)
def test_a_run_on_many_devices_can_sample_one_row(mesh):
    np.testing.assert_array_equal(draw(mesh, seed=1), draw(seed=1))


def test_nothing_is_drawn_where_nothing_is_asked_for():
    assert draw(count=0).shape == (0,)
