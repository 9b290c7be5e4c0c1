"""Training loops as one writes them by hand: what the framework's step is measured against.

The same maths as configs/runs/benchmark_step.gin, and nothing that the maths does not need: no
modules, no mesh, no guard, no metrics beyond the loss and the norm that clipping computes. Imports
jax and optax and no line of Lockstep, so that a fault of ours cannot hide on both sides.

Two ways to write a projection: plain ``x @ w`` on [B, T, D], which everybody writes, and the same
on [B * T, D], whose weight gradient has one contracting dimension instead of two and is therefore
much faster on CPU (docs/speed.md). Three ways to run the layers: a Python loop over a list of
layers, the same over slices of stacked parameters, and a scan.

``python -m benchmarks.hand_written '{"scanned": false, "work": {...}}'`` runs one step from a cold
start and prints when each phase ended.

Shape suffixes: B rows, T length, D embed, H heads, K head_dim, F mlp, V vocab, L layers.
"""

import json
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.work import Form, Layers, Subject, Work, hand_written_form

Parameters = dict[str, Any]
Batch = dict[str, jax.Array]
State = tuple[Parameters, optax.OptState]


def init(work: Work, form: Form) -> State:
    """Creates parameters and AdamW's state; float32 whatever the compute dtype."""

    def matrix(key: jax.Array, *shape: int) -> jax.Array:
        return jax.random.truncated_normal(key, -2.0, 2.0, shape) / shape[-2] ** 0.5

    def layer(key: jax.Array) -> Parameters:
        D, F = work.embed, work.mlp
        shapes = {"q": (D, D), "k": (D, D), "v": (D, D), "o": (D, D)}
        shapes |= {"up": (D, F), "gate": (D, F), "down": (F, D)}
        keys = jax.random.split(key, len(shapes))
        matrices = {name: matrix(k, *shapes[name]) for name, k in zip(shapes, keys)}
        return {**matrices, "norm1": jnp.ones(D), "norm2": jnp.ones(D)}

    def create() -> State:
        keys = jax.random.split(jax.random.key(0), work.layers + 2)
        listed = form.layers is Layers.LISTED
        layers = [layer(key) for key in keys[2:]] if listed else jax.vmap(layer)(keys[2:])
        parameters = {
            "embedding": matrix(keys[0], work.vocab, work.embed),
            "head": matrix(keys[1], work.embed, work.vocab),
            "norm": jnp.ones(work.embed),
            "layers": layers,
        }
        return parameters, optimizer(work).init(parameters)

    return jax.jit(create)()


def build_step(work: Work, form: Form) -> Any:
    """Returns the jitted step ``(state, batch) -> (state, metrics)``; the state is donated."""
    transform = optimizer(work)

    def step(state: State, batch: Batch) -> tuple[State, dict[str, jax.Array]]:
        parameters, optimizer_state = state
        loss, gradients = jax.value_and_grad(lambda p: _loss(p, batch, work=work, form=form))(
            parameters
        )
        updates, optimizer_state = transform.update(gradients, optimizer_state, parameters)
        parameters = optax.apply_updates(parameters, updates)
        metrics = {"loss": loss, "grad_norm": optax.global_norm(gradients)}
        return (parameters, optimizer_state), metrics

    return jax.jit(step, donate_argnums=0)


def optimizer(work: Work) -> optax.GradientTransformation:
    return optax.chain(
        optax.clip_by_global_norm(work.clip),
        optax.adamw(
            work.rate,
            b1=0.9,
            b2=0.95,
            weight_decay=work.decay,
            mask=lambda p: jax.tree_util.tree_map_with_path(
                lambda path, _: not str(path[-1].key).startswith("norm"), p
            ),
        ),
    )


def _loss(parameters: Parameters, batch: Batch, *, work: Work, form: Form) -> jax.Array:
    dtype = jnp.dtype(work.dtype)
    matmul = _flat if form.flat else _plain
    mask_BTS = _mask(batch)
    rope = _rope_tables(batch["positions"], work.embed // work.heads)

    def block(x_BTD: jax.Array, layer: Parameters) -> tuple[jax.Array, None]:
        h_BTD = _norm(x_BTD, layer["norm1"])
        q, k, v = (_heads(matmul(h_BTD, layer[n].astype(dtype)), work.heads) for n in "qkv")
        y_BTD = _attend(_rotate(q, rope), _rotate(k, rope), v, mask_BTS).reshape(x_BTD.shape)
        x_BTD = x_BTD + matmul(y_BTD, layer["o"].astype(dtype))
        h_BTD = _norm(x_BTD, layer["norm2"])
        gate, up = (matmul(h_BTD, layer[n].astype(dtype)) for n in ("gate", "up"))
        return x_BTD + matmul(jax.nn.silu(gate) * up, layer["down"].astype(dtype)), None

    x_BTD = parameters["embedding"].astype(dtype)[batch["inputs"]]
    layers = parameters["layers"]
    if form.layers is Layers.SCANNED:
        x_BTD, _ = jax.lax.scan(block, x_BTD, layers)
    else:
        if form.layers is Layers.STACKED:
            layers = _unstack(layers, work.layers)
        for layer in layers:
            x_BTD, _ = block(x_BTD, layer)
    hidden_BTD = _norm(x_BTD, parameters["norm"])
    logits_BTV = matmul(hidden_BTD, parameters["head"].astype(dtype)).astype(jnp.float32)
    target_BT = jnp.take_along_axis(logits_BTV, batch["targets"][..., None], axis=-1)[..., 0]
    nll_BT = jax.nn.logsumexp(logits_BTV, axis=-1) - target_BT
    weights_BT = batch["loss_weights"]
    return (nll_BT * weights_BT).sum() / weights_BT.sum()


def _unstack(layers: Parameters, count: int) -> list[Parameters]:
    cut = {name: jnp.split(stacked, count) for name, stacked in layers.items()}
    return [{name: parts[i][0] for name, parts in cut.items()} for i in range(count)]


def _plain(x_BTI: jax.Array, w_IO: jax.Array) -> jax.Array:
    return x_BTI @ w_IO


def _flat(x_BTI: jax.Array, w_IO: jax.Array) -> jax.Array:
    return (x_BTI.reshape(-1, x_BTI.shape[-1]) @ w_IO).reshape(*x_BTI.shape[:-1], -1)


def _heads(x_BTD: jax.Array, heads: int) -> jax.Array:
    return x_BTD.reshape(*x_BTD.shape[:-1], heads, -1)


def _norm(x_BTD: jax.Array, scale_D: jax.Array) -> jax.Array:
    x32 = x_BTD.astype(jnp.float32)
    normed = x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + 1e-5)
    return (normed * scale_D).astype(x_BTD.dtype)


def _mask(batch: Batch) -> jax.Array:
    positions, segments = batch["positions"], batch["segment_ids"]
    same = segments[:, :, None] == segments[:, None, :]
    visible = same & (segments[:, None, :] != 0)
    return visible & (positions[:, :, None] >= positions[:, None, :])


def _rope_tables(positions_BT: jax.Array, width: int) -> tuple[jax.Array, jax.Array]:
    frequencies = 10_000.0 ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angles = positions_BT[..., None].astype(jnp.float32) * frequencies
    return jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]


def _rotate(x_BTHK: jax.Array, tables: tuple[jax.Array, jax.Array]) -> jax.Array:
    cos, sin = tables
    first, second = jnp.split(x_BTHK.astype(jnp.float32), 2, axis=-1)
    rotated = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(rotated, axis=-1).astype(x_BTHK.dtype)


def _attend(q: jax.Array, k: jax.Array, v: jax.Array, mask_BTS: jax.Array) -> jax.Array:
    scores_BHTS = jnp.einsum("bthk,bshk->bhts", q * q.shape[-1] ** -0.5, k).astype(jnp.float32)
    visible = mask_BTS[:, None]
    scores_BHTS = jnp.where(visible, scores_BHTS, jnp.finfo(jnp.float32).min)
    # A row of padding sees nothing and gets zeros.
    weights_BHTS = jnp.where(visible, jax.nn.softmax(scores_BHTS, axis=-1), 0).astype(v.dtype)
    return jnp.einsum("bhts,bshk->bthk", weights_BHTS, v)


def start(work: Work, form: Form) -> dict[str, float]:
    """Runs one step from nothing; returns when each phase ended, on ``time.monotonic``'s scale."""
    ended = {"imports": time.monotonic()}
    state = jax.block_until_ready(init(work, form))
    ended["initialize"] = time.monotonic()
    zeros = np.zeros((work.rows, work.length), np.int32)
    batch = dict.fromkeys(("inputs", "targets", "positions"), zeros)
    batch |= {"segment_ids": zeros + 1, "loss_weights": np.ones(zeros.shape, np.float32)}
    step = build_step(work, form)
    lowered = step.lower(state, batch)
    ended["trace"] = time.monotonic()
    lowered.compile()
    ended["compile"] = time.monotonic()
    jax.block_until_ready(step(state, batch))
    ended["first_step"] = time.monotonic()
    return ended


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    form_of_start = hand_written_form(Subject.BEST, scanned=given["scanned"])
    print(json.dumps(start(Work(**given["work"]), form_of_start)))
