"""What activations move between devices; see traffic.py, and traffic_step.py for the letters.

Imports neither jax nor flax.
"""

import math
from collections.abc import Iterator

from models.decoder_config import has_experts
from models.experts_config import sent_rows
from partitioning.traffic_step import STAGE, Step, Uses
from partitioning.transfers import Transfer

_PLACE = 8
"""Bytes that say where a token stands: position and segment."""


def activations(step: Step) -> Iterator[Transfer]:
    """Yields what moves over ``stage``, ``expert``, ``context`` and ``tensor``."""
    yield from _stages(step)
    if step.sizes["tensor"] > 1:
        yield from _ends(step)
    for part, kinds, times in step.blocks:
        for kind in kinds:
            yield from _block(step, kind, uses=step.uses(part), times=times)


def _block(step: Step, kind: str, *, uses: Uses, times: float) -> Iterator[Transfer]:
    """One block of a device, ``times`` over."""
    count = uses.runs * times
    if step.sizes["tensor"] > 1:
        yield from _tensor(step, kind, forward=uses.forward, count=count)
    if step.sizes["context"] > 1:
        yield from _context(step, forward=uses.forward, count=count)
    if has_experts(kind) and step.sizes["expert"] > 1:
        yield from _experts(step, forward=uses.forward, count=count)


def _stages(step: Step) -> Iterator[Transfer]:
    """Pipelines: every stage sends on what it computed, idle or not.

    Each tick sends the residual stream of one microbatch to the next stage, and each tick of the
    backward pass its gradient to the one before: permutations, payload ``a`` (``a / t`` under
    sequence parallelism), ``2 x ticks`` times. 1F1B does both in one tick; "circular" runs its
    ticks a second time, backwards.
    """
    if step.schedule is None:
        return
    each = step.residual / (step.sizes["tensor"] if step.sequence_parallel else 1)
    yield step.move(
        "collective-permute",
        axes={STAGE},
        payload=2 * step.schedule.ticks * each,
        why="stages: activations and gradients",
    )


def _tensor(step: Step, kind: str, *, forward: int, count: float) -> Iterator[Transfer]:
    """Tensor parallelism (Shoeybi et al., 2019; Korthikanti et al., 2022).

    A block has two pairs of column- and row-split products. Without sequence parallelism the
    output of each pair is a sum over ``tensor``, and so is the gradient of its input: all-reduce,
    ``a`` each: 2 per forward pass, 2 backward, and 1 more where the backward pass computes the
    attention sublayer's output again (it does unless "attention_out" is saved).

    With sequence parallelism each of these is a reduce-scatter, and each pair's input (and each
    output's gradient) is gathered, all ``a``: 2 + 2 per forward pass, and backward. Where anything
    is recomputed the inputs are gathered once more (2), because they are not saved.

    Keys and values whose heads ``tensor`` does not divide are computed whole by every device of
    the group. Their gradients are gathered, ``2 a kv_heads head_dim / embed_dim``, and make the
    sum that the queries' gradient needs an all-reduce. Over ``context`` heads are repeated instead
    (context_attention.py).

    Experts take their tokens whole and scatter their sum like a feed-forward layer; the sum of the
    gradients of their inputs is an all-reduce, since the code that runs per device ends there.
    """
    model = step.model
    each = count * step.residual
    again = int(step.recomputes_value("attention_out"))
    replicated = int(model.kv_heads % step.sizes["tensor"] and step.sizes["context"] == 1)
    whole = replicated + has_experts(kind)
    assert model.head_dim is not None
    share = 2 * model.kv_heads * model.head_dim / model.embed_dim
    yield _over_tensor(
        step,
        "all-gather",
        replicated * share * each,
        why="blocks: gradients of keys and values",
        per_block=True,
    )
    sums = 2 * forward + 2 + again
    if not step.sequence_parallel:
        yield _over_tensor(step, "all-reduce", sums * each, why="blocks: sums", per_block=True)
        return
    inputs = 2 * forward + 2 + 2 * step.recomputes
    yield _over_tensor(
        step, "all-gather", inputs * each, why="blocks: inputs of products", per_block=True
    )
    yield _over_tensor(
        step, "reduce-scatter", (sums - whole) * each, why="blocks: sums", per_block=True
    )
    yield _over_tensor(step, "all-reduce", whole * each, why="blocks: sums", per_block=True)


def _ends(step: Step) -> Iterator[Transfer]:
    """Embedding and head, whose vocabulary ``tensor`` splits.

    The embedding is one sum per forward pass. The head's input is gathered, and its gradient is a
    sum: all of the size ``a``. Chunks of the loss do not change that, unless so many that a chunk
    has nothing of a device's part of the sequence; its gradients are then all-reduced.
    """
    embedding, head = step.uses("embedding"), step.uses("head")
    looked_up = embedding.runs * embedding.forward * step.residual
    gradients = head.runs * step.residual
    if not step.sequence_parallel:
        yield _over_tensor(step, "all-reduce", looked_up, why="embedding: sum over the vocabulary")
        yield _over_tensor(step, "all-reduce", gradients, why="head: gradient of its input")
        return
    yield _over_tensor(step, "reduce-scatter", looked_up, why="embedding: sum over the vocabulary")
    yield _over_tensor(
        step,
        "all-gather",
        embedding.runs * step.residual,
        why="embedding: gradient of its output",
    )
    yield _over_tensor(
        step, "all-gather", head.runs * head.forward * step.residual, why="head: its input"
    )
    parts = step.sizes["context"] * step.sizes["tensor"] * step.model.loss_chunks
    scatters = step.model.loss_chunks == 1 or step.work.length % parts == 0
    kind = "reduce-scatter" if scatters else "all-reduce"
    yield _over_tensor(step, kind, gradients, why="head: gradient of its input")


def _over_tensor(
    step: Step, kind: str, payload: float, *, why: str, per_block: bool = False
) -> Transfer:
    return step.move(kind, axes={"tensor"}, payload=payload, why=why, per_block=per_block)


def _context(step: Step, *, forward: int, count: float) -> Iterator[Transfer]:
    """Attention over a split sequence; k is keys and values of a device, ``2 x tokens x heads``.

    The heads are those of one device of ``tensor``; where there are fewer than devices, each
    device has one all the same.

    "all_gather" (Llama Team, 2024, section 3.3.2): keys and values are gathered, ``c k``, once
    per forward pass and again backward unless everything was saved; their gradients are
    reduce-scattered.

    "ring" (Liu et al., 2023): c - 1 hops of k per forward pass (and again where the output of the
    attention is not saved), c - 1 hops backward, and c hops of the gradients, in float32 at least
    but for the last one, which brings them home. Positions and segments go along, 8 bytes per
    token; forward they are the same for all layers, and count once.
    """
    model, c = step.model, step.sizes["context"]
    assert model.head_dim is not None
    heads = math.lcm(model.kv_heads, step.sizes["tensor"]) / step.sizes["tensor"]
    numbers = 2 * step.tokens * heads * model.head_dim
    held = numbers * step.width
    axes = {"context"}
    if model.context_attention == "all_gather":
        times = forward + step.recomputes
        gathered = times * count * c * held
        yield step.move(
            "all-gather", axes=axes, payload=gathered, why="keys and values", per_block=True
        )
        yield step.move(
            "reduce-scatter",
            axes=axes,
            payload=count * c * held,
            why="gradients of keys and values",
            per_block=True,
        )
        return
    rounds = forward + int(step.recomputes_value("attention"))
    places = (c - 1) * step.tokens * _PLACE
    hops = (c - 1) * (rounds + 1) * held + places
    yield step.move(
        "collective-permute", axes=axes, payload=count * hops, why="keys and values", per_block=True
    )
    back = (c - 1) * numbers * max(4, step.width) + held
    yield step.move(
        "collective-permute",
        axes=axes,
        payload=count * back,
        why="gradients of keys and values",
        per_block=True,
    )


def _experts(step: Step, *, forward: int, count: float) -> Iterator[Transfer]:
    """Tokens travel to their experts and back (GShard; Lepikhin et al., 2021).

    All-to-all, payload ``e x rows x embed_dim x b`` with e the size of ``expert`` and ``rows``
    what one device sends to another at most (experts_config.sent_rows): without a capacity or a
    buffer that is the worst case, and most of it padding. Two per forward pass, two backward, and
    two more where anything is recomputed, because the weights of the combination need the results.
    A ragged exchange moves what is in use; this is then a bound.
    """
    experts, devices = step.model.experts, step.sizes["expert"]
    assert experts is not None
    rows = devices * sent_rows(experts, tokens=math.ceil(step.tokens), devices=devices)
    times = 2 * (forward + 1 + step.recomputes)
    kind = experts.exchange.replace("_", "-")
    payload = times * count * rows * step.model.embed_dim * step.width
    yield step.move(
        kind,
        axes={"expert"},
        payload=payload,
        why="experts: tokens and results",
        per_block=True,
        before="product",
    )
