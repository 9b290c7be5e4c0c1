"""What blocks hold while a step runs: what they keep, and what their backward pass works on.

Of one microbatch on one device, by names of models/remat.py. Standard library only.
"""

import dataclasses
import math
from collections.abc import Mapping

from models.decoder_config import DecoderConfig, has_experts
from models.experts_config import sent_rows
from partitioning.planner.answers import Quantity
from partitioning.planner.hardware import ChipConfig
from partitioning.traffic_step import Step

WIDE = 4
"""Bytes of what is computed in float32 whatever the activations are."""

RING_QUERIES = 1024
"""QUERY_BLOCK of partitioning/attention_pair.py."""

_OF_ATTENTION = ("query", "key", "value", "attention", "attention_out")


def held(name: str, value: float, formula: str = "") -> Quantity:
    """Returns a part of a device's memory."""
    return Quantity(name=name, value=value, unit="B", formula=formula)


def fused_attention(model: DecoderConfig, *, sizes: Mapping[str, int], chip: ChipConfig) -> bool:
    """Whether attention runs in a kernel that never holds its scores (models/attention_kernels).

    Ring attention has its own, in plain products. "cudnn" stands for any fused kernel.
    """
    if _is_ring(model, sizes=sizes):
        return False
    if model.attention == "auto":
        fits = model.dtype == "bfloat16" and model.attention_soft_cap is None
        return chip.vendor != "google" and fits
    return model.attention == "cudnn"


def _is_ring(model: DecoderConfig, *, sizes: Mapping[str, int]) -> bool:
    return model.context_attention == "ring" and sizes["context"] > 1


def kept_values(step: Step) -> tuple[Quantity, float]:
    """Returns what blocks keep for their backward pass on the device, and bytes on the host.

    Of one microbatch; of a pipeline stage one piece, whose inputs wait in the stash.
    """
    chunks = step.work.pipeline.chunks if step.schedule is not None else 1
    here = away = arriving = 0.0
    for _, kinds, times in step.blocks:
        for number, kind in enumerate(kinds):
            kept, moved = _kept(step, kind, is_first=not number)
            here += kept * times / chunks
            away += moved * times / chunks
            arriving = max(arriving, moved)
    blocks = sum(len(kinds) * times / chunks for _, kinds, times in step.blocks)
    formula = f"remat={step.model.remat!r}: {blocks:g} blocks x {step.tokens:,.0f} tokens"
    # The next block's come back from the host while one is computed.
    return held("activations", here + arriving, formula), away


def _heads(step: Step) -> tuple[float, float]:
    """Elements of a token's queries, and of its keys, on one device."""
    model, t = step.model, step.sizes["tensor"]
    assert model.head_dim is not None
    split = t if model.kv_heads % t == 0 else 1
    return model.heads * model.head_dim / t, model.kv_heads * model.head_dim / split


def _around(step: Step) -> int:
    """Devices that split the residual stream of a tensor group."""
    return step.sizes["tensor"] if step.sequence_parallel else 1


def _rows(step: Step) -> float:
    """Rows that a device's experts get of one microbatch."""
    experts, devices = step.model.experts, step.sizes["expert"]
    assert experts is not None
    if devices == 1:
        return step.tokens * experts.chosen * (experts.capacity or 1.0)
    return devices * sent_rows(experts, tokens=math.ceil(step.tokens), devices=devices)


def _widths(step: Step, kind: str) -> tuple[float, float]:
    """Rows of the feed-forward layer, and elements of each on one device."""
    model, t = step.model, step.sizes["tensor"]
    if has_experts(kind):
        assert model.experts is not None
        return _rows(step), model.experts.mlp_dim / t
    return step.tokens, model.mlp_dim / t


def _values(step: Step, kind: str) -> dict[str, float]:
    """Bytes of each named value of a block (models/remat.py) of one microbatch on one device."""
    model, n, b = step.model, step.tokens, step.width
    query, key = _heads(step)
    rows, width = _widths(step, kind)
    found = {
        "query": n * query * b,
        "key": n * key * b,
        "value": n * key * b,
        "attention": n * query * b,
        "attention_out": n * model.embed_dim / _around(step) * b,
        "mlp_up": rows * width * b,
    }
    if model.activation != "gelu":
        found["mlp_gate"] = rows * width * b
    if has_experts(kind):
        found |= dict.fromkeys(("expert_in", "expert_out"), rows * model.embed_dim * b)
    return found


def _kept(step: Step, kind: str, *, is_first: bool) -> tuple[float, float]:
    """Bytes that one block keeps: on the device, and on the host.

    What is computed again is so from the input of a repeat's first block.
    """
    remat, values = step.model.remat_choices, _values(step, kind)
    own = step.residual / _around(step)
    if remat is not None:
        kept = sum(values.get(name, 0.0) for name in remat.save)
        return own * is_first + kept, sum(values.get(name, 0.0) for name in remat.offload)
    # Besides: what norms read in float32, and what they multiply where they are trained; what they
    # give (of the whole sequence), and what the activation function reads and gives.
    norms = 8 if step.model.lora is None else 4
    rows, width = _widths(step, kind)
    found = sum(values.values()) - values["attention_out"] + 4 * rows * width * step.width
    return found + norms * own + 2 * step.residual, 0.0


def stash(step: Step) -> Quantity:
    if step.schedule is None:
        return held("stash", 0.0)
    slots = step.schedule.stash.slots if step.schedule.has_backward else step.schedule.ticks
    own = step.residual / _around(step)
    return held("stash", slots * own, f"{slots} inputs of pieces x {own:,.0f} B")


def block(step: Step, chip: ChipConfig) -> tuple[Quantity, Quantity]:
    """The largest block's backward pass: its values again, their gradients, the residual stream.

    Returns that, and of it what experts hold of rows that were sent to them.
    """
    fused = fused_attention(step.model, sizes=step.sizes, chip=chip)
    repeats = [_repeat(step, kinds, fused=fused) for _, kinds, _ in step.blocks if kinds]
    return max(repeats, key=lambda parts: sum(part.value for part in parts))


def _repeat(step: Step, kinds: tuple[str, ...], *, fused: bool) -> tuple[Quantity, Quantity]:
    """The largest block of a repeat; of the others what was computed again with it."""
    parts = {kind: _block_of(step, kind, fused=fused) for kind in kinds}
    largest = max(kinds, key=lambda kind: sum(part.value for part in parts[kind]))
    block, experts = parts[largest]
    if not step.recomputes or len(kinds) == 1:
        return block, experts
    own = step.residual / _around(step)
    others = list(kinds)
    others.remove(largest)
    more = sum(own + sum(_values(step, kind).values()) for kind in others)
    return dataclasses.replace(block, value=block.value + more), experts


def _block_of(step: Step, kind: str, *, fused: bool) -> tuple[Quantity, Quantity]:
    around, values = _around(step), _values(step, kind)
    # Seven arrays of the stream's size, split or, inside of products, half of them whole.
    stream = (7 / around + 3.5 * (1 - 1 / around)) * step.residual
    attention = sum(values[name] for name in _OF_ATTENTION) + stream
    rows, width = _widths(step, kind)
    feed_forward = sum(values.values()) - sum(values[name] for name in _OF_ATTENTION)
    # Hidden layer, its factors' gradients and its own.
    feed_forward += 4 * rows * width * step.width
    if has_experts(kind):
        feed_forward += 4 * rows * step.model.embed_dim * step.width
    with_scores = attention + (0.0 if fused else _scores(step))
    tokens = f"{step.tokens:,.0f} tokens"
    if with_scores > attention + feed_forward:
        return held("block", with_scores, f"{tokens}, attention scores"), held("experts", 0.0)
    if has_experts(kind):
        experts = held("experts", feed_forward, f"{rows:,.0f} rows, as sent, sorted and returned")
        return held("block", attention, f"{tokens}, attention"), experts
    return held("block", attention + feed_forward, f"{tokens}, feed-forward layer"), held(
        "experts", 0
    )


def _scores(step: Step) -> float:
    """Attention scores as XLA holds them: twice in float32, and as weights.

    In a ring, of a few queries and half of a device's keys: scores, weights and their gradients.
    """
    model, keys = step.model, float(step.work.length)
    heads = max(1.0, model.heads / step.sizes["tensor"])
    if _is_ring(model, sizes=step.sizes):
        return 4 * WIDE * _ring_queries(step) * step.tokens / 2 * heads
    return step.tokens * keys * heads * (WIDE + WIDE + step.width)


def _ring_queries(step: Step) -> int:
    """Queries of a row whose scores a ring holds at once (partitioning/attention_pair.py)."""
    half = step.work.length // step.sizes["context"] // 2
    return half if half % RING_QUERIES else RING_QUERIES


def ring_masks(step: Step) -> tuple[Quantity, Quantity]:
    """Masks of a ring for every head, query and key, and what stands in masked places.

    They depend on positions alone, so that jax computes them once, ahead of the scan over blocks.
    Of both numbers that stand in masked places there is a float32 array for a few queries, for each
    of four pairs of halves and each visit. Two ranks make a loop of one visit, which XLA unrolls:
    backward half of these are left. With more, the masks of the last visit are held twice.

    Returns them at the loss, and in the backward pass.
    """
    model, ranks = step.model, step.sizes["context"]
    if not (_is_ring(model, sizes=step.sizes) and model.scanned):
        return held("ring_masks", 0.0), held("ring_masks", 0.0)
    rows = step.tokens * max(1.0, model.heads / step.sizes["tensor"])
    masks = rows * step.work.length * (1 if ranks == 2 else 1 + 1 / ranks)
    numbers = 2 * 4 * ranks * WIDE * _ring_queries(step) * rows / 2
    formula = f"{masks:,.0f} masks, and "
    forward, backward = numbers, numbers / 2 if ranks == 2 else numbers
    return (
        held("ring_masks", masks + forward, f"{formula}{forward:,.0f} B in masked places"),
        held("ring_masks", masks + backward, f"{formula}{backward:,.0f} B in masked places"),
    )
