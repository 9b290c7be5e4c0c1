"""A continuation is the model's own, whatever the mesh and the batch, and the same for a seed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.experts_config import ExpertsConfig
from partitioning.mesh_config import MeshConfig, PipelineConfig
from tests.models import decoders
from trainer import sampling as sampling_lib
from trainer.certificate import one_step, programs
from trainer.sampling import Sampling, candidates, generate
from trainer.state import init_state

LOCAL = programs.decoder(layers=3, prefix=("global",), pattern=("local",), window=5)
EIGHT = programs.decoder(layers=8)
SPARSE = programs.decoder(
    pattern=("global+experts",),
    experts=ExpertsConfig(count=4, chosen=2, mlp_dim=16),
    qk_norm=True,
)
PROMPTS = [
    np.asarray(prompt, np.int32)
    for prompt in ([3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4], [6, 2, 6])
]


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True), one_step.fast_compilation(True):
        yield


def draw(
    prompts=PROMPTS,
    *,
    model=LOCAL,
    mesh=MeshConfig(),  # noqa: B008 - frozen
    rules="cp",
    pipeline=PipelineConfig(),  # noqa: B008 - frozen
    **options,
):
    program = programs.program(model, mesh=mesh, rules=programs.rules(rules), pipeline=pipeline)
    sampling = Sampling(**{"count": 8, **options})
    return [found.tokens.tolist() for found in generate_all(program, prompts, sampling)]


def generate_all(program, prompts, sampling):
    return list(generate(program, init_state(program), prompts, sampling=sampling))


def likely(model, text: np.ndarray) -> np.ndarray:
    """Returns the most likely token after each one of a text, without a cache."""
    decoder = programs.program(model).task.init(jax.random.key(0))
    positions = np.arange(text.size, dtype=np.int32)[None]
    logits = decoders.forward(decoder, text[None], positions, np.ones_like(positions))
    return logits[0].argmax(axis=-1)


@pytest.mark.parametrize("model", [LOCAL, SPARSE], ids=["local", "experts"])
def test_without_temperature_each_token_is_the_most_likely_one(model):
    for prompt, found in zip(PROMPTS, draw(model=model, temperature=0.0), strict=True):
        text = np.concatenate([prompt, found]).astype(np.int32)
        np.testing.assert_array_equal(found, likely(model, text)[len(prompt) - 1 : -1])


@pytest.mark.parametrize("model", [LOCAL, SPARSE], ids=["local", "experts"])
def test_a_cache_changes_no_logits_at_any_position(model):
    """A row of two prompts with padding before them, read in pieces of unequal length."""
    decoder = programs.program(model).task.init(jax.random.key(0))
    inputs, padding = sampling_lib._aligned(PROMPTS)
    slots = sampling_lib._slots(jnp.asarray(padding), count=inputs.shape[1])
    whole = decoders.forward(decoder, inputs, slots.positions, slots.segments)
    caches, start = decoder.empty_caches(*inputs.shape), 0
    for size in (20, 5, 1, 1, 1, 1, 1, 1, 1):
        part = inputs[:, start : start + size]
        logits, caches = sampling_lib._forward(decoder, part, start, caches, slots=slots)
        start += size
        real = slots.segments[:, start - 1] > 0
        np.testing.assert_allclose(logits[real], whole[real, start - 1], rtol=1e-10, atol=1e-12)
    assert start == inputs.shape[1]


def test_the_batch_of_a_prompt_changes_nothing():
    together = draw(seed=3)
    assert together == draw(seed=3, batch=3) == draw(seed=3, batch=1)
    assert together[:1] == draw(PROMPTS[:1], seed=3)
    assert together == [row[:8] for row in draw(seed=3, count=11)]


def test_one_seed_gives_one_continuation_and_another_seed_another():
    assert draw(seed=1) == draw(seed=1)
    assert draw(seed=1) != draw(seed=2)
    same = [PROMPTS[0]] * 2
    first, second = draw(same, seed=1)
    assert first != second  # a prompt that is asked for twice is answered twice


@pytest.mark.parametrize(
    ("mesh", "rules"),
    [
        (MeshConfig(fsdp=8), "fsdp"),
        (MeshConfig(fsdp=2, tensor=4), "fsdp_tp"),
        (MeshConfig(context=8), "cp"),
        (MeshConfig(data=2, stage=4), "pp"),
        (MeshConfig(stage=2, fsdp=2, tensor=2), "pp"),
    ],
    ids=str,
)
def test_every_mesh_gives_the_same_continuations(mesh, rules):
    chunks = PipelineConfig(chunks=2 if mesh.stage > 1 else 1)
    found = draw(model=EIGHT, mesh=mesh, rules=rules, pipeline=chunks, seed=1)
    assert found == draw(model=EIGHT, seed=1)


def test_experts_on_many_devices_give_the_same_continuations():
    mesh = MeshConfig(expert=4, tensor=2)
    assert draw(model=SPARSE, mesh=mesh, rules="ep", seed=1) == draw(model=SPARSE, seed=1)


def test_a_stop_token_ends_its_row_alone():
    program = programs.program(LOCAL)
    free = generate_all(program, PROMPTS, Sampling(count=8, seed=1))
    assert not any(row.stopped for row in free)
    stop = int(free[2].tokens[3])
    ended = generate_all(program, PROMPTS, Sampling(count=8, seed=1, stop=(stop, 99)))
    for before, after in zip(free, ended, strict=True):
        places = np.flatnonzero(before.tokens == stop)
        length = places[0] if len(places) else 8
        assert after.tokens.tolist() == before.tokens[:length].tolist()
        assert after.stopped == bool(len(places))


def test_a_token_that_stops_at_once_leaves_nothing():
    program = programs.program(LOCAL)
    every = tuple(range(programs.VOCAB))
    found = generate_all(program, PROMPTS, Sampling(count=1000, seed=1, stop=every))
    assert [(row.tokens.size, row.stopped) for row in found] == [(0, True)] * 4


def test_nothing_is_drawn_where_nothing_is_asked_for():
    assert draw(count=0) == [[]] * 4
    assert draw([]) == []


@pytest.mark.parametrize(
    ("prompt", "said"), [([], "Prompt 2 is empty"), ([3, 64], "token 64"), ([-1], "Prompt 2")]
)
def test_prompts_that_the_model_cannot_read_are_named(prompt, said):
    with pytest.raises(ValueError, match=said):
        draw([PROMPTS[0], np.asarray(prompt, np.int32)])


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"count": -1},
        {"seed": -1},
        {"batch": 0},
    ],
    ids=str,
)
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}=.*: it must be"):
        Sampling(**{"count": 1, **wrong})


@given(
    logits=st.lists(st.integers(-40, 40), min_size=2, max_size=12, unique=True),
    top_k=st.none() | st.integers(1, 14),
    top_p=st.floats(0.01, 1.0),
)
def test_candidates_are_those_of_the_definition(logits, top_k, top_p):
    values = np.asarray(logits) / 8
    order = np.argsort(-values)[: top_k or None]
    share = np.exp(values[order]) / np.exp(values[order]).sum()
    before = np.cumsum(share) - share
    wanted = set(order[(before < top_p - 1e-9) | (top_p == 1.0)].tolist())
    allowed = wanted | set(order[before < top_p + 1e-9].tolist())
    found = candidates(jnp.asarray(values)[None], top_k=top_k, top_p=top_p)[0]
    kept = set(np.flatnonzero(np.isfinite(found)).tolist())
    assert wanted <= kept <= allowed
    np.testing.assert_array_equal(np.asarray(found)[sorted(kept)], values[sorted(kept)])


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-38, 1e-46, 5e-324])
@pytest.mark.parametrize("top_p", [0.5, 1.0])
def test_any_low_temperature_takes_the_most_likely_token(temperature, top_p):
    logits = jnp.asarray([[-1e4, 3.5, 40.0, 39.0]] * 8, jnp.float32)
    drawn = sampling_lib._choose(
        logits,
        jnp.int32(0),
        keys_B=jax.random.split(jax.random.key(0), 8),
        sampling=Sampling(count=1, temperature=temperature, top_k=3, top_p=top_p),
    )
    assert drawn.tolist() == [2] * 8


def test_draws_follow_the_probabilities():
    logits = jnp.log(jnp.asarray([[0.5, 0.25, 0.125, 0.125]]))
    keys = jax.random.split(jax.random.key(0), 4000)
    drawn = sampling_lib._choose(
        jnp.tile(logits, (4000, 1)),
        jnp.int32(0),
        keys_B=keys,
        sampling=Sampling(count=1, temperature=0.5, top_p=0.9),
    )
    counts = np.bincount(drawn, minlength=4) / 4000
    np.testing.assert_allclose(counts, [0.8, 0.2, 0.0, 0.0], atol=0.03)
