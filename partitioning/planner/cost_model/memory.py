"""What one device must hold while a step runs, part by part.

A step is fullest at one of three moments: at the loss, when all activations are kept; in the
backward pass of the last block, when gradients stand beside them; or at the update. The parts are
those of the fullest. Formulas are held against compiled programs (docs/calibration.md). The busiest
device is meant: of a pipeline the first stage. Standard library only.
"""

import dataclasses
import math
from collections.abc import Mapping

from models.decoder_config import DecoderConfig, has_experts
from models.experts_config import sent_rows
from partitioning.planner.answers import Quantity
from partitioning.planner.cost_model.layout import Leaf, leaves
from partitioning.planner.cost_model.optimizer_state import state_elements, state_width
from partitioning.planner.hardware import ChipConfig
from partitioning.planner.plan import Plan
from partitioning.traffic_step import STAGE, WIDTH, Step

_PLACES = 20
"""Bytes of a token in a batch: input, target, weight, position and segment."""

_OF_ATTENTION = ("query", "key", "value", "attention", "attention_out")

_WIDE = 4
"""Bytes of what is computed in float32 whatever the activations are."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Bytes of the busiest device.

    Attributes:
      parts: what is held when it is fullest.
      moment: when that is: "loss", "backward" or "update".
      host: bytes that wait in host memory for this device; they count for no other.
      limit: bytes that the device has.
    """

    parts: tuple[Quantity, ...]
    moment: str
    host: float
    limit: float

    @property
    def total(self) -> float:
        """Bytes at the peak."""
        return sum(part.value for part in self.parts)

    @property
    def fits(self) -> bool:
        """Whether there is room."""
        return self.total <= self.limit

    def part(self, name: str) -> float:
        """Returns one part's bytes; 0 for a part that there is not."""
        return next((part.value for part in self.parts if part.name == name), 0.0)


def device_memory(plan: Plan, *, chip: ChipConfig) -> MemoryUse:
    """Returns what a step needs on the busiest device.

    Raises:
      ValueError: rules, mesh and schedule do not fit together.
    """
    step, tree = plan.step, leaves(plan)
    kept, host = kept_values(step)
    state, offload = _state(plan, tree), plan.optimizer.offload
    always = (
        _parameters(plan, tree),
        _b("optimizer_state", 0.0 if offload else state.value, state.formula),
        _b("batch", plan.tokens / step.ways(step.token_axes) * _PLACES),
        _b("reserved", chip.reserved, "what the runtime and its libraries take"),
    )
    one, sums = _gradients(plan, tree)
    between = (kept, _stash(step), _casts(plan, tree, chip), sums, _shared(plan, tree))
    loss = _loss(step, tree)
    # TPU's compiler does not lay a loop's buffers over those of another.
    beside = loss if chip.vendor == "google" else ()
    moments = {
        "loss": (*between, *loss),
        "backward": (*between, *beside, one, *_block(step, chip), _gathered(plan, tree)),
        "update": (sums if sums.value else one, _moved_state(state.value if offload else 0.0)),
    }
    name = max(moments, key=lambda moment: sum(part.value for part in moments[moment]))
    return MemoryUse(
        parts=tuple(part for part in (*always, *moments[name]) if part.value),
        moment=name,
        host=host + (state.value if offload else 0.0),
        limit=chip.memory,
    )


def fused_attention(model: DecoderConfig, *, sizes: Mapping[str, int], chip: ChipConfig) -> bool:
    """Whether attention runs in a kernel that never holds its scores (models/attention_kernels).

    Ring attention has its own, in plain products. "cudnn" stands for any fused kernel.
    """
    if model.context_attention == "ring" and sizes["context"] > 1:
        return False
    if model.attention == "auto":
        fits = model.dtype == "bfloat16" and model.attention_soft_cap is None
        return chip.vendor != "google" and fits
    return model.attention == "cudnn"


def kept_values(step: Step) -> tuple[Quantity, float]:
    """Returns what blocks keep for their backward pass on the device, and bytes on the host.

    Of one microbatch; of a pipeline stage one piece, whose inputs wait in the stash.
    """
    chunks = step.work.pipeline.chunks if step.schedule is not None else 1
    here = away = 0.0
    for _, kinds, times in step.blocks:
        for number, kind in enumerate(kinds):
            kept, moved = _kept(step, kind, is_first=not number)
            here += kept * times / chunks
            away += moved * times / chunks
    blocks = sum(len(kinds) * times / chunks for _, kinds, times in step.blocks)
    formula = f"remat={step.model.remat!r}: {blocks:g} blocks x {step.tokens:,.0f} tokens"
    return _b("activations", here, formula), away


def _b(name: str, value: float, formula: str = "") -> Quantity:
    return Quantity(name=name, value=value, unit="B", formula=formula)


def _parameters(plan: Plan, tree: tuple[Leaf, ...]) -> Quantity:
    width, own = WIDTH[plan.model.param_dtype], sum(leaf.elements / leaf.ways for leaf in tree)
    return _b("parameters", own * width, f"{width} B x {own:,.0f}")


def _state(plan: Plan, tree: tuple[Leaf, ...]) -> Quantity:
    width = state_width(plan.optimizer, param_dtype=plan.model.param_dtype)
    own = sum(state_elements(plan.optimizer, leaf) / leaf.state_ways for leaf in tree)
    return _b("optimizer_state", own * width, f"{width} B x {own:,.0f}")


def _moved_state(size: float) -> Quantity:
    return _b("state_for_update", size, "comes from the host for the update")


def _gradients(plan: Plan, tree: tuple[Leaf, ...]) -> tuple[Quantity, Quantity]:
    """A microbatch's gradients, and the sums over microbatches.

    They live with the optimizer's state (ZeRO-1 and -3 alike). A pipeline adds up where the
    parameters are and scatters at the end; a tick's gradients are in the compute dtype.
    """
    width = WIDTH[plan.model.param_dtype]
    wide = max(_WIDE, width)
    if plan.sizes[STAGE] > 1:
        own = sum(leaf.elements / leaf.ways for leaf in tree)
        stage = sum(leaf.elements / leaf.ways for leaf in tree if leaf.in_blocks)
        narrow = plan.step.width
        return (
            _b("gradients", stage * narrow, f"{narrow} B x {stage:,.0f} of a stage"),
            _b("gradient_sums", own * wide, f"{wide} B x {own:,.0f}"),
        )
    own = sum(leaf.elements / max(leaf.state_ways, leaf.ways) for leaf in tree)
    sums = own * wide if plan.work.microbatches > 1 else 0.0
    return (
        _b("gradients", own * width, f"{width} B x {own:,.0f}"),
        _b("gradient_sums", sums, f"{wide} B x {own:,.0f} over microbatches"),
    )


def _shared(plan: Plan, tree: tuple[Leaf, ...]) -> Quantity:
    """What all stages read, gathered over them, and the sums of its gradients."""
    if plan.sizes[STAGE] == 1:
        return _b("shared_weights", 0.0)
    width = WIDTH[plan.model.param_dtype] + max(_WIDE, WIDTH[plan.model.param_dtype])
    whole = sum(leaf.elements / leaf.computing_ways for leaf in tree if not leaf.in_blocks)
    return _b("shared_weights", whole * width, f"{width} B x {whole:,.0f}")


def _casts(plan: Plan, tree: tuple[Leaf, ...], chip: ChipConfig) -> Quantity:
    """Parameters in the compute dtype, where the compiler casts them ahead of the loop.

    TPU's does so always, and all do ahead of a pipeline's ticks.
    """
    step = plan.step
    hoists = chip.vendor == "google" or step.schedule is not None
    narrow = step.width < WIDTH[plan.model.param_dtype]
    own = sum(leaf.elements / leaf.ways for leaf in tree if leaf.in_blocks)
    formula = f"{step.width} B x {own:,.0f}"
    return _b("cast_weights", own * step.width if hoists and narrow else 0.0, formula)


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
    # Besides: what norms read in float32 and give, what the activation function reads and gives.
    rows, width = _widths(step, kind)
    return own + sum(values.values()) + (4 * rows * width * step.width + 8 * own), 0.0


def _stash(step: Step) -> Quantity:
    if step.schedule is None:
        return _b("stash", 0.0)
    slots = step.schedule.stash.slots if step.schedule.has_backward else step.schedule.ticks
    own = step.residual / _around(step)
    return _b("stash", slots * own, f"{slots} inputs of pieces x {own:,.0f} B")


def _block(step: Step, chip: ChipConfig) -> tuple[Quantity, Quantity]:
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
        return _b("block", with_scores, f"{tokens}, attention scores"), _b("experts", 0.0)
    if has_experts(kind):
        experts = _b("experts", feed_forward, f"{rows:,.0f} rows, as sent, sorted and returned")
        return _b("block", attention, f"{tokens}, attention"), experts
    return _b("block", attention + feed_forward, f"{tokens}, feed-forward layer"), _b("experts", 0)


def _scores(step: Step) -> float:
    """Attention scores as XLA holds them: twice in float32, and as weights."""
    model, keys = step.model, float(step.work.length)
    each = _WIDE + _WIDE + step.width
    if model.context_attention == "ring" and step.sizes["context"] > 1:
        keys, each = keys / step.sizes["context"], _WIDE + _WIDE
    return step.tokens * keys * max(1.0, model.heads / step.sizes["tensor"]) * each


def _gathered(plan: Plan, tree: tuple[Leaf, ...]) -> Quantity:
    """Weights of two blocks, one in use and one on its way, and a matrix's gradient."""
    width, blocks = plan.step.width, plan.model.repeats
    here = [
        leaf.elements / blocks / leaf.computing_ways * plan.sizes[STAGE]
        for leaf in tree
        if leaf.in_blocks and leaf.computing_ways < leaf.ways
    ]
    size = 2 * sum(here) + max(here, default=0.0)
    return _b("gathered_weights", size * width, f"{width} B x {size:,.0f}")


def _loss(step: Step, tree: tuple[Leaf, ...]) -> tuple[Quantity, Quantity]:
    """Logits of one chunk in float32, and beside them their gradient or the gathered head."""
    model, t = step.model, step.sizes["tensor"]
    chunk = step.tokens / model.loss_chunks
    logits = chunk * model.vocab_size / t
    head = max((leaf for leaf in tree if "vocab" in leaf.axes), key=lambda leaf: leaf.name)
    beside = max(logits, head.elements / head.computing_ways)
    return (
        _b("logits", logits * _WIDE, f"4 B x {chunk:,.0f} tokens x {model.vocab_size:,} / {t}"),
        _b("gradient_of_logits", beside * step.width, f"{step.width} B x {beside:,.0f}"),
    )
