"""Choices follow the softmax; the load-balance loss is 1 when experts share equally."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.experts_config import ExpertsConfig
from models.router import auxiliary, route

N, D = 64, 4


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def config(**changes):
    return ExpertsConfig(**{"count": 4, "chosen": 2, "mlp_dim": 8, **changes})


def routed(logits, *, real=None, **changes):
    """Routes tokens whose scores are given: the router is the identity."""
    settings = config(**changes)
    routing = route(jnp.asarray(logits, jnp.float64), jnp.eye(len(logits[0])), settings)
    real = np.ones(len(logits), bool) if real is None else real
    counts = np.bincount(np.asarray(routing.experts_NK)[real].reshape(-1), minlength=settings.count)
    sums = auxiliary(routing, real_N=jnp.asarray(real), kept_E=jnp.asarray(counts), config=settings)
    return routing, {name: float(value) for name, value in sums.items()}


def test_weights_of_the_chosen_are_their_softmax():
    """Mixtral: a softmax over the chosen scores, which is the renormalized softmax over all."""
    logits = np.random.default_rng(0).standard_normal((N, 4))
    routing, _ = routed(logits)
    order = np.argsort(-logits, axis=-1)[:, :2]
    chosen = np.take_along_axis(logits, order, axis=-1)
    expected = np.exp(chosen) / np.exp(chosen).sum(axis=-1, keepdims=True)
    assert routing.experts_NK.tolist() == order.tolist()
    np.testing.assert_allclose(routing.weights_NK, expected, atol=1e-14)


def test_without_renormalizing_weights_are_shares_of_all():
    logits = np.random.default_rng(0).standard_normal((N, 4))
    routing, _ = routed(logits, renormalize=False)
    shares = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(routing.weights_NK, -np.sort(-shares, axis=-1)[:, :2], atol=1e-14)


def test_the_lower_number_wins_a_tie():
    routing, _ = routed([[1.0, 2.0, 2.0, 2.0]])
    assert routing.experts_NK.tolist() == [[1, 2]]


def test_scores_of_any_size_stay_finite():
    routing, sums = routed([[1e4, -1e4, 0.0, 9e3], [-1e4, -1e4, -1e4, -1e4]])
    assert np.isfinite(routing.weights_NK).all()
    assert np.isfinite(list(sums.values())).all()


@pytest.mark.parametrize("chosen", [1, 2, 4])
def test_the_balance_loss_is_one_when_all_experts_are_used_alike(chosen):
    logits = np.asarray([np.roll([3.0, 2.0, 1.0, 0.0], shift) for shift in range(4)])
    _, sums = routed(logits, chosen=chosen, renormalize=False, balance_weight=0.5)
    assert sums["auxiliary_loss"] == pytest.approx(0.5, abs=1e-12)
    assert sums["peak"] == sums["routed"] == 4 * chosen
    assert sums["balance"] == pytest.approx(sums["routed"])


def test_the_balance_loss_is_the_number_of_experts_when_one_takes_everything():
    _, sums = routed([[90.0, 0.0, 0.0, 0.0]] * 8, chosen=1, renormalize=False, balance_weight=1.0)
    assert sums["auxiliary_loss"] == pytest.approx(4.0)
    assert sums["peak"] == 4 * sums["routed"]


def test_the_z_loss_is_the_mean_squared_log_normaliser():
    logits = np.random.default_rng(1).standard_normal((N, 4))
    _, sums = routed(logits, balance_weight=0.0, z_weight=0.1)
    expected = 0.1 * (np.log(np.exp(logits).sum(axis=-1)) ** 2).mean()
    assert sums["auxiliary_loss"] == pytest.approx(expected)


def test_padding_counts_nowhere():
    logits = np.random.default_rng(2).standard_normal((N, 4))
    real = np.arange(N) < N // 2
    padded = np.where(real[:, None], logits, 50.0 * np.arange(4))
    _, alone = routed(logits[: N // 2], z_weight=0.1)
    _, mixed = routed(padded, real=real, z_weight=0.1)
    assert mixed == pytest.approx(alone)
