"""A decoder in NumPy, float64, written from the papers: what models/ is compared with.

No batching of any kind is shared with models/: rows, heads and query positions are loops.

Shape suffixes: T tokens of one row, D embed, K head_dim, F mlp, V vocab.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from models.decoder_config import DecoderConfig

Parameters = Mapping[str, np.ndarray]


def logits(
    config: DecoderConfig, parameters: Parameters, inputs, positions, segments
) -> np.ndarray:
    """Returns [B, T, V] for inputs, positions and segments [B, T]."""
    rows = zip(np.asarray(inputs), np.asarray(positions), np.asarray(segments), strict=True)
    return np.stack([_row(config, parameters, *row) for row in rows])


def cross_entropy(logits_BTV, targets_BT, weights_BT, *, z_loss: float) -> dict[str, float]:
    """Returns the sums that models.losses.cross_entropy returns."""
    sums = dict.fromkeys(("loss", "nll", "correct", "weight"), 0.0)
    for row, targets, weights in zip(logits_BTV, targets_BT, weights_BT, strict=True):
        for scores, target, weight in zip(row, targets, weights, strict=True):
            log_z = math.log(sum(math.exp(score) for score in scores))
            nll = log_z - scores[target]
            sums["nll"] += weight * nll
            sums["loss"] += weight * (nll + z_loss * log_z**2)
            sums["correct"] += weight * (scores[target] == max(scores))
            sums["weight"] += weight
    return sums


def block_parameters(config: DecoderConfig, parameters: Parameters) -> list[dict[str, np.ndarray]]:
    """Returns the parameters of every block, in the order in which activations pass them."""
    blocks = []
    parts = (("prefix", config.prefix, 1), ("pattern", config.pattern, config.repeats))
    for part, kinds, repeats in (*parts, ("suffix", config.suffix, 1)):
        for repeat in range(repeats):
            for position in range(len(kinds)):
                start = f"stacks/{part}/blocks/{position}/"
                own = {k: v for k, v in parameters.items() if k.startswith(start)}
                blocks.append({k.removeprefix(start): v[repeat] for k, v in own.items()})
    return blocks


def _row(config: DecoderConfig, parameters: Parameters, inputs, positions, segments) -> np.ndarray:
    x_TD = parameters["embedding"][inputs]
    if config.embed_scale:
        x_TD = x_TD * config.embed_dim**0.5
    kinds = config.prefix + config.pattern * config.repeats + config.suffix
    for kind, block in zip(kinds, block_parameters(config, parameters), strict=True):
        h = _norm(config, block["attention_norm/scale"], x_TD)
        window = config.window if kind == "local" else None
        h = _attention(config, block, h, positions, segments, window)
        if config.post_norms:
            h = _norm(config, block["attention_post_norm/scale"], h)
        x_TD = x_TD + h
        h = _feed_forward(config, block, _norm(config, block["mlp_norm/scale"], x_TD))
        if config.post_norms:
            h = _norm(config, block["mlp_post_norm/scale"], h)
        x_TD = x_TD + h
    x_TD = _norm(config, parameters["final_norm/scale"], x_TD)
    tied = config.tied_embedding
    head_DV = parameters["embedding"].T if tied else parameters["head/kernel"]
    return _cap(np.einsum("td,dv->tv", x_TD, head_DV), config.logits_soft_cap)


def _norm(config: DecoderConfig, scale: np.ndarray, x: np.ndarray) -> np.ndarray:
    gain = 1.0 + scale if config.norm_plus_one else scale
    root = np.sqrt((x**2).sum(axis=-1, keepdims=True) / x.shape[-1] + config.norm_eps)
    return x / root * gain


def _attention(
    config: DecoderConfig, block: Parameters, x_TD, positions, segments, window
) -> np.ndarray:
    tokens = range(len(x_TD))
    share = config.heads // config.kv_heads
    out_TD = np.zeros_like(x_TD)
    for head in range(config.heads):
        q_TK, k_TK, v_TK = (
            _project(config, block, name, x_TD, head if name == "query" else head // share)
            for name in ("query", "key", "value")
        )
        own = config.local_rope_base if window is not None else None
        q_TK, k_TK = (_rotate(config, each, positions, own) for each in (q_TK, k_TK))
        mixed_TK = np.zeros_like(q_TK)
        for t in tokens:
            seen = [
                s
                for s in tokens
                if segments[s] == segments[t] != 0
                and positions[s] <= positions[t]
                and (window is None or positions[t] - positions[s] < window)
            ]
            if seen:
                scale = config.attention_scale or 1 / math.sqrt(q_TK.shape[-1])
                scores = k_TK[seen] @ q_TK[t] * scale
                scores = np.exp(_cap(scores, config.attention_soft_cap))
                mixed_TK[t] = (scores / scores.sum()) @ v_TK[seen]
        out_TD += mixed_TK @ block["attention/out/kernel"][head]
    return out_TD


def _project(config: DecoderConfig, block: Parameters, name: str, x_TD, head: int) -> np.ndarray:
    y_TK = x_TD @ block[f"attention/{name}/kernel"][:, head]
    if config.qkv_bias:
        y_TK = y_TK + block[f"attention/{name}/bias"][head]
    if config.qk_norm and name != "value":
        y_TK = _norm(config, block[f"attention/{name}_norm/scale"], y_TK)
    return y_TK


def _rotate(config: DecoderConfig, x_TK: np.ndarray, positions, own_base) -> np.ndarray:
    """Turns the pair (i, i + K/2) as one complex number; a base of its own is not scaled."""
    half = x_TK.shape[-1] // 2
    turned = np.empty_like(x_TK)
    for i in range(half):
        frequency = own_base ** (-i / half) if own_base else _frequency(config, i / half)
        pair = (x_TK[:, i] + 1j * x_TK[:, i + half]) * np.exp(1j * frequency * positions)
        turned[:, i], turned[:, i + half] = pair.real, pair.imag
    return turned


def _frequency(config: DecoderConfig, exponent: float) -> float:
    frequency = 1.0 / config.rope_base**exponent
    scaling = config.rope_scaling
    if scaling is None:
        return frequency
    if scaling.original_length is None:
        return frequency / scaling.factor
    turns = scaling.original_length * frequency / (2 * math.pi)
    if turns > scaling.high_frequency_factor:
        return frequency
    if turns < scaling.low_frequency_factor:
        return frequency / scaling.factor
    span = scaling.high_frequency_factor - scaling.low_frequency_factor
    smooth = (turns - scaling.low_frequency_factor) / span
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency


def _feed_forward(config: DecoderConfig, block: Parameters, x_TD: np.ndarray) -> np.ndarray:
    hidden_TF = x_TD @ block["mlp/up/kernel"]
    if config.activation == "gelu":
        hidden_TF = _gelu(hidden_TF)
    else:
        gate_TF = x_TD @ block["mlp/gate/kernel"]
        gate_TF = (
            _gelu(gate_TF) if config.activation == "geglu" else gate_TF / (1 + np.exp(-gate_TF))
        )
        hidden_TF = hidden_TF * gate_TF
    return hidden_TF @ block["mlp/down/kernel"]


def _gelu(x: np.ndarray) -> np.ndarray:
    """The tanh form of Hendrycks and Gimpel (2016), which Gemma uses."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _cap(x: Any, cap: float | None) -> Any:
    return x if cap is None else cap * np.tanh(x / cap)
