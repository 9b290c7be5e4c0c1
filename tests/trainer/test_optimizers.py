"""Optimizers apart from the model: identical gradients against NumPy and optax's own aliases."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from trainer.optimizer_config import SGD, Adafactor, AdamW, Lion, Muon
from trainer.optimizers import build_optimizer, factors, matrix_dimensions
from trainer.paths import leaves, nest

AXES = {
    "embedding": ("vocab", "embed"),
    "stacks/0/query/kernel": ("layers", "embed", "heads", "head_dim"),
    "stacks/0/out/kernel": ("layers", "heads", "head_dim", "embed"),
    "stacks/0/up/kernel": ("layers", "embed", "mlp"),
    "stacks/0/query/bias": ("layers", "heads", "head_dim"),
    "stacks/0/norm/scale": ("layers", "norm"),
}
SIZES = {"vocab": 24, "embed": 16, "layers": 2, "heads": 4, "head_dim": 6, "mlp": 20, "norm": 16}
STEPS, RATE = 5, 0.03


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def values(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        name: random.standard_normal([SIZES[axis] for axis in axes]) for name, axes in AXES.items()
    }


def flat(tree: Any) -> dict[str, np.ndarray]:
    return {
        "/".join(key.key for key in path): np.asarray(leaf)
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def ours(config) -> list[dict[str, np.ndarray]]:
    """Returns the parameters after each of five steps on given gradients."""
    optimizer = build_optimizer(config, axes=nest(AXES))
    parameters = jax.tree.map(jnp.asarray, nest(values(0)))
    state = optimizer.init(parameters)
    update = jax.jit(optimizer.update)
    after = []
    for step in range(STEPS):
        updates, state = update(nest(values(step + 1)), state, parameters)
        parameters = jax.tree.map(lambda p, u: p - RATE * u, parameters, updates)
        after.append(flat(parameters))
    return after


def by_hand(rule, *, decay=0.0) -> list[dict[str, np.ndarray]]:
    """Runs ``rule(gradient, memory, step) -> direction`` on every parameter."""
    parameters, memory = values(0), {name: {} for name in AXES}
    after = []
    for step in range(STEPS):
        gradients = values(step + 1)
        for name in AXES:
            direction = rule(gradients[name], memory[name], step)
            own = 0.0 if name.endswith(("scale", "bias")) else decay
            parameters[name] = parameters[name] - RATE * (direction + own * parameters[name])
        after.append(dict(parameters))
    return after


def assert_same(found, expected, *, tolerance=1e-12):
    for step, (one, other) in enumerate(zip(found, expected, strict=True)):
        for name in AXES:
            np.testing.assert_allclose(
                one[name], other[name], rtol=0, atol=tolerance, err_msg=f"{name}, step {step}"
            )


def test_adamw_is_the_paper_s():
    def rule(g, memory, step):
        memory["m"] = 0.8 * memory.get("m", 0) + 0.2 * g
        memory["v"] = 0.9 * memory.get("v", 0) + 0.1 * g**2
        m, v = memory["m"] / (1 - 0.8 ** (step + 1)), memory["v"] / (1 - 0.9 ** (step + 1))
        return m / (np.sqrt(v) + 1e-3)

    assert_same(ours(AdamW(b1=0.8, b2=0.9, eps=1e-3, weight_decay=0.1)), by_hand(rule, decay=0.1))


def test_lion_is_the_paper_s():
    def rule(g, memory, step):
        old = memory.get("m", 0)
        memory["m"] = 0.95 * old + 0.05 * g
        return np.sign(0.8 * old + 0.2 * g)

    assert_same(ours(Lion(b1=0.8, b2=0.95, weight_decay=0.5)), by_hand(rule, decay=0.5))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_has_heavy_ball_momentum(momentum):
    def rule(g, memory, step):
        memory["m"] = momentum * memory.get("m", 0) + g
        return memory["m"]

    assert_same(ours(SGD(momentum=momentum)), by_hand(rule))


@pytest.mark.parametrize("smallest", [4, 128])
def test_adafactor_is_the_paper_s(smallest):
    """Shazeer and Stern (2018), algorithms 4 and 5; the two largest dimensions are factored."""

    def rule(g, memory, step):
        decay = 1 - (step + 1) ** -0.8
        square = g**2 + 1e-30
        order = np.argsort(g.shape, kind="stable")
        if g.ndim > 1 and sorted(g.shape)[-2] >= smallest:
            low, high = int(order[-2]), int(order[-1])
            for name, axis in (("rows", high), ("columns", low)):
                mean = square.mean(axis=axis, keepdims=True)
                memory[name] = decay * memory.get(name, 0) + (1 - decay) * mean
            rows, columns = memory["rows"], memory["columns"]
            v = rows * columns / rows.mean(axis=low, keepdims=True)
        else:
            memory["v"] = v = decay * memory.get("v", 0) + (1 - decay) * square
        u = g / np.sqrt(v)
        return u / max(1.0, math.sqrt((u**2).mean()) / 0.9)

    config = Adafactor(min_dim_to_factor=smallest, clip_threshold=0.9)
    assert_same(ours(config), by_hand(rule), tolerance=1e-7)  # optax has its decay in float32


def test_adafactor_keeps_a_row_and_a_column_where_adam_keeps_two_matrices():
    parameters = jax.tree.map(jnp.asarray, nest(values(0)))
    sizes = {
        config.__class__.__name__: sum(
            leaf.size
            for leaf in jax.tree.leaves(build_optimizer(config, axes=nest(AXES)).init(parameters))
        )
        for config in (Adafactor(min_dim_to_factor=4), AdamW())
    }
    assert sizes["Adafactor"] < sizes["AdamW"] / 4


def as_matrices(name: str, u: np.ndarray) -> np.ndarray:
    """Returns [layers, inputs, outputs]."""
    layers = u.shape[0]
    return u.reshape(layers, -1, 16) if "out/" in name else u.reshape(layers, 16, -1)


MATRICES = {"stacks/0/query/kernel": 24, "stacks/0/out/kernel": 24, "stacks/0/up/kernel": 20}


def directions(config, gradients):
    optimizer = build_optimizer(config, axes=nest(AXES))
    parameters = jax.tree.map(jnp.asarray, nest(values(0)))
    updates, _ = jax.jit(optimizer.update)(nest(gradients), optimizer.init(parameters), parameters)
    return flat(updates)


def test_muon_s_update_of_every_matrix_is_orthogonal_and_as_large_as_adam_s():
    updates = directions(Muon(), values(1))
    for name, longest in MATRICES.items():
        for matrix in as_matrices(name, updates[name]):
            singular = np.linalg.svd(matrix, compute_uv=False) / (0.2 * math.sqrt(longest))
            assert singular.min() > 0.6, name
            assert singular.max() < 1.3, name


def test_muon_orthogonalises_each_layer_alone_and_not_across_the_split_dimensions():
    """Newton-Schulz by hand on [embed, heads x head_dim] and [heads x head_dim, embed]."""
    gradients = values(1)
    updates = directions(Muon(), gradients)
    for name, longest in MATRICES.items():
        layers = as_matrices(name, gradients[name])
        for g, found in zip(layers, as_matrices(name, updates[name]), strict=True):
            # The first Nesterov step only scales the gradient, which the iteration undoes.
            x = g / np.linalg.norm(g)
            for _ in range(5):
                square = x @ x.T
                x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
            expected = 0.2 * math.sqrt(longest) * x
            np.testing.assert_allclose(found, expected, atol=2e-5)


def test_muon_leaves_embeddings_norms_and_biases_to_adam():
    others = AXES.keys() - MATRICES.keys()
    muon = ours(Muon(b1=0.8, b2=0.9, weight_decay=0.1))
    adam = ours(AdamW(b1=0.8, b2=0.9, weight_decay=0.1))
    for one, other in zip(muon, adam, strict=True):
        for name in others:
            np.testing.assert_allclose(one[name], other[name], atol=1e-14)


@pytest.mark.parametrize(
    ("axes", "inputs", "outputs"),
    [
        (("embed", "mlp"), (0,), (1,)),
        (("layers", "mlp", "embed"), (1,), (2,)),
        (("layers", "embed", "heads", "head_dim"), (1,), (2, 3)),
        (("layers", "heads", "head_dim", "embed"), (1, 2), (3,)),
        (("layers", "experts", "embed", "mlp"), (2,), (3,)),
    ],
)
def test_a_matrix_s_inputs_and_outputs_go_by_its_logical_axes(axes, inputs, outputs):
    assert matrix_dimensions(axes) == optax.contrib.MuonDimensionNumbers(inputs, outputs)


@pytest.mark.parametrize(
    "axes",
    [("vocab", "embed"), ("embed", "vocab"), ("layers", "norm"), ("layers", "heads", "head_dim")],
)
def test_what_is_no_matrix_has_no_dimensions(axes):
    assert matrix_dimensions(axes) is None


@pytest.mark.parametrize(
    ("config", "alias"),
    [
        (
            AdamW(weight_decay=0.1, decay_exclude=()),
            optax.adamw(RATE, b1=0.9, b2=0.95, weight_decay=0.1),
        ),
        (Lion(weight_decay=0.1, decay_exclude=()), optax.lion(RATE, weight_decay=0.1)),
        (SGD(momentum=0.5), optax.sgd(RATE, momentum=0.5)),
    ],
    ids=["adamw", "lion", "sgd"],
)
def test_it_agrees_with_optax_s_alias(config, alias):
    parameters = jax.tree.map(jnp.asarray, nest(values(0)))
    state, after = alias.init(parameters), []
    for step in range(STEPS):
        updates, state = alias.update(nest(values(step + 1)), state, parameters)
        parameters = optax.apply_updates(parameters, updates)
        after.append(flat(parameters))
    assert_same(ours(config), after, tolerance=1e-12)


def test_norms_and_biases_do_not_decay_and_patterns_say_what_else():
    parameters = nest(values(0))
    _, decay = factors(AdamW(weight_decay=0.1), parameters)
    assert {name for name, d in flat(decay).items() if d == 0.0} == {
        "stacks/0/query/bias",
        "stacks/0/norm/scale",
    }
    _, decay = factors(AdamW(weight_decay=0.1, decay_exclude=("^embedding$",)), parameters)
    assert {name for name, d in flat(decay).items() if d == 0.0} == {"embedding"}


def test_groups_scale_rate_and_decay_and_the_first_match_applies():
    groups = (("query/kernel$", 0.5, 2.0), ("kernel$", 0.25, 0.0), ("query/bias$", 3.0, 1.0))
    found = ours(SGD(weight_decay=0.1, groups=groups))[0]
    parameters, gradients = values(0), values(1)
    expected = {
        "embedding": (1.0, 0.1),
        "stacks/0/query/kernel": (0.5, 0.2),
        "stacks/0/out/kernel": (0.25, 0.0),
        "stacks/0/up/kernel": (0.25, 0.0),
        "stacks/0/query/bias": (3.0, 0.0),
        "stacks/0/norm/scale": (1.0, 0.0),
    }
    for name, (rate, decay) in expected.items():
        moved = parameters[name] - RATE * rate * (gradients[name] + decay * parameters[name])
        np.testing.assert_allclose(found[name], moved, atol=1e-14)


def test_a_group_that_matches_nothing_is_an_error():
    with pytest.raises(ValueError, match=r"AdamW.groups: 'emebdding' matches no trainable"):
        build_optimizer(AdamW(groups=(("emebdding", 0.1, 1.0),)), axes=nest(AXES))


def test_an_optimizer_without_a_transformation_is_named():
    from trainer.optimizer_config import OptimizerConfig

    with pytest.raises(TypeError, match="No optimizer for OptimizerConfig"):
        build_optimizer(OptimizerConfig(), axes=nest(AXES))


def test_an_optimizer_of_another_project_registers_its_direction():
    import dataclasses

    from trainer.optimizer_config import OptimizerConfig
    from trainer.optimizers import direction

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Sign(OptimizerConfig):
        """Follows the sign of the gradient."""

    @direction.register
    def _(config: Sign, axes: Any) -> optax.GradientTransformation:
        return optax.scale_by_sign()

    assert_same(ours(Sign(weight_decay=0.1)), by_hand(lambda g, *_: np.sign(g), decay=0.1))


EVERY = (
    AdamW(weight_decay=0.1),
    Lion(),
    Muon(),
    SGD(momentum=0.9),
    Adafactor(min_dim_to_factor=8),
)


def moments(config, *, parameters: str, steps: int = 0):
    """Returns the state's floating-point leaves, and the parameters, after some steps."""
    optimizer = build_optimizer(config, axes=nest(AXES))
    params = jax.tree.map(lambda x: jnp.asarray(x, parameters), nest(values(0)))
    state = optimizer.init(params)
    for step in range(steps):
        gradients = jax.tree.map(lambda x: jnp.asarray(x, parameters), nest(values(step + 1)))
        updates, state = jax.jit(optimizer.update)(gradients, state, params)
        params = jax.tree.map(lambda p, u: (p - RATE * u).astype(p.dtype), params, updates)
    found = leaves(state)
    floating = [found[path] for path in found if path.endswith(tuple(AXES))]
    assert floating
    return floating, params


@pytest.mark.parametrize("config", EVERY, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("steps", [0, 1])
def test_moments_of_16_bit_parameters_have_32_bits(config, steps):
    found, params = moments(config, parameters="bfloat16", steps=steps)
    assert {leaf.dtype.name for leaf in found} == {"float32"}
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"bfloat16"}


def test_a_second_moment_of_16_bit_parameters_falls_when_gradients_do():
    """In bfloat16 a decay of 0.999 is rounded away, and the moment stays where it was."""
    optimizer = build_optimizer(AdamW(b2=0.999), axes=nest(AXES))
    params = jax.tree.map(lambda x: jnp.ones(x.shape, "bfloat16"), nest(values(0)))
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    _, state = update(params, state, params)
    before = jax.tree.leaves(state[0].nu)
    for _ in range(100):
        _, state = update(jax.tree.map(jnp.zeros_like, params), state, params)
    for old, new in zip(before, jax.tree.leaves(state[0].nu), strict=True):
        np.testing.assert_allclose(new / old, 0.999**100, rtol=1e-4)


@pytest.mark.parametrize("config", EVERY[:4], ids=lambda c: type(c).__name__)
def test_moments_in_16_bits_take_half_and_move_parameters_nearly_the_same(config):
    exact, params = moments(config, parameters="float32", steps=STEPS)
    narrow = dataclasses.replace(config, moment_dtype="bfloat16")
    found, moved = moments(narrow, parameters="float32", steps=STEPS)
    assert {leaf.dtype.name for leaf in found} == {"bfloat16"}
    assert 2 * sum(x.nbytes for x in found) == sum(x.nbytes for x in exact)
    start = flat(nest(values(0)))
    for name, value in flat(params).items():
        error = np.linalg.norm(flat(moved)[name] - value)
        # Lion takes signs, a few of which turn.
        assert error < (0.1 if isinstance(config, Lion) else 0.02) * np.linalg.norm(
            value - start[name]
        )


def test_moments_of_64_bit_parameters_have_64_bits():
    found, _ = moments(AdamW(), parameters="float64", steps=1)
    assert {leaf.dtype.name for leaf in found} == {"float64"}


@pytest.mark.parametrize(
    ("cls", "values", "said"),
    [
        (AdamW, {"b2": 0.999}, "b2=0.999: a step changes that moment by less"),
        (SGD, {"momentum": 0.999}, "momentum=0.999"),
        (Adafactor, {}, "approaches 1"),
    ],
)
def test_a_decay_that_16_bits_would_round_away_is_refused(cls, values, said):
    with pytest.raises(ValueError, match=said):
        cls(**values, moment_dtype="bfloat16")
    cls(**values)
