"""What one device must hold while a step runs, part by part.

Formulas; a table of compiled programs (tests/partitioning/planner/golden) says how close they
come. The busiest device is meant: of a pipeline the first stage. Standard library only.
"""

import dataclasses

from models.decoder_config import DecoderConfig
from models.experts_config import sent_rows
from partitioning.planner.answers import Quantity
from partitioning.planner.block_work import BlockWork, block_work
from partitioning.planner.hardware import ChipConfig
from partitioning.planner.layout import Leaf, leaves
from partitioning.planner.optimizer_state import state_elements, state_width
from partitioning.planner.plan import Plan
from partitioning.traffic_step import WIDTH, Step

_BATCH = 4 * 5
"""Bytes of a token in a batch: input, target, weight, position, segment."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Bytes of the busiest device.

    Attributes:
      parts: what is held, in the order in which it comes about.
      host: bytes that wait in host memory for this device; they count for no other.
      limit: bytes that the device has.
    """

    parts: tuple[Quantity, ...]
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
    saved, host = _saved(step)
    state = _state(plan, tree)
    host += state if plan.optimizer.offload else 0.0
    parts = (
        _b("parameters", sum(l.elements / l.ways for l in tree) * WIDTH[plan.model.param_dtype]),
        _b("optimizer_state", 0.0 if plan.optimizer.offload else state),
        _b("gradients", _gradients(plan, tree)),
        _b("batch", plan.tokens / step.ways(step.token_axes) * _BATCH),
        _b("activations", saved),
        _b("stash", _stash(step)),
        _b("block", _block(step, fused=fused_attention(plan.model, chip))),
        _b("gathered_weights", _gathered(plan, tree)),
        _b("loss", _loss(step)),
        _b("reserved", chip.reserved),
    )
    return MemoryUse(parts=parts, host=host, limit=chip.memory)


def fused_attention(model: DecoderConfig, chip: ChipConfig) -> bool:
    """Whether attention runs in a kernel that never holds its scores."""
    if model.attention == "auto":
        fits = model.dtype == "bfloat16" and model.attention_soft_cap is None
        return chip.vendor != "google" and fits
    return model.attention == "cudnn"


def _b(name: str, value: float, formula: str = "") -> Quantity:
    return Quantity(name=name, value=value, unit="B", formula=formula)


def _state(plan: Plan, tree: tuple[Leaf, ...]) -> float:
    width = state_width(plan.optimizer, param_dtype=plan.model.param_dtype)
    return sum(state_elements(plan.optimizer, leaf) / leaf.state_ways for leaf in tree) * width


def _gradients(plan: Plan, tree: tuple[Leaf, ...]) -> float:
    width = WIDTH[plan.model.param_dtype]
    once = sum(leaf.elements / max(leaf.state_ways, leaf.ways) for leaf in tree)
    sums = max(4, width) if plan.work.microbatches > 1 else 0
    return once * (width + sums)


def _heads(step: Step) -> tuple[float, float]:
    """Elements of a token's query, and of its key, on one device."""
    model, t = step.model, step.sizes["tensor"]
    assert model.head_dim is not None
    whole = 1 if model.kv_heads % t else t
    return model.heads * model.head_dim / t, model.kv_heads * model.head_dim / whole


def _value_bytes(step: Step, work: BlockWork) -> dict[str, float]:
    """Bytes of each named value of a block for one microbatch, on one device."""
    model, t = step.model, step.sizes["tensor"]
    query, key = _heads(step)
    around = t if step.sequence_parallel else 1
    n, b = step.tokens, step.width
    width = model.mlp_dim
    rows = n
    if work.routed and model.experts is not None:
        devices = step.sizes["expert"]
        rows = (
            devices * sent_rows(model.experts, tokens=round(n), devices=devices)
            if devices > 1
            else n * model.experts.chosen
        )
        width = model.experts.mlp_dim
    found = {
        "query": n * query * b,
        "key": n * key * b,
        "value": n * key * b,
        "attention": n * query * b,
        "attention_out": n * model.embed_dim / around * b,
        "mlp_up": rows * width / t * b,
        "mlp_gate": rows * width / t * b if model.activation != "gelu" else 0.0,
    }
    if work.routed:
        found |= {"expert_in": rows * model.embed_dim * b, "expert_out": rows * model.embed_dim * b}
    return found


def _input(step: Step) -> float:
    return step.residual / (step.sizes["tensor"] if step.sequence_parallel else 1)


def _saved(step: Step) -> tuple[float, float]:
    """Bytes that blocks keep on the device and on the host between forward and backward pass."""
    here = away = 0.0
    for _, kinds, times in step.blocks:
        chunks = step.work.pipeline.chunks if step.schedule is not None else 1
        for kind in kinds:
            kept, moved = _kept(step, kind)
            here += kept * times / chunks
            away += moved * times / chunks
    return here, away


def _kept(step: Step, kind: str) -> tuple[float, float]:
    remat = step.model.remat_choices
    values = _value_bytes(step, block_work(step.model, kind))
    if remat is None:
        # Everything: inputs of norms in float32, what the activation function reads and gives.
        return _input(step) * 6 + 2.0 * sum(values.values()), 0.0
    here = _input(step) + sum(values.get(name, 0.0) for name in remat.save)
    return here, sum(values.get(name, 0.0) for name in remat.offload)


def _stash(step: Step) -> float:
    if step.schedule is None:
        return 0.0
    slots = step.schedule.stash.slots if step.schedule.has_backward else step.schedule.ticks
    return slots * _input(step)


def _block(step: Step, *, fused: bool) -> float:
    """The largest block's backward pass: values computed again, and their gradients."""
    most = 0.0
    for kind in {kind for _, kinds, times in step.blocks if times for kind in kinds}:
        work = block_work(step.model, kind)
        values = _value_bytes(step, work)
        size = 2.0 * sum(values.values()) + 4.0 * step.residual
        if not fused:
            size += _scores(step)
        most = max(most, size)
    return most


def _scores(step: Step) -> float:
    """Attention scores as XLA holds them: float32 twice, and the weights."""
    model = step.model
    keys = step.work.length / (step.sizes["context"] if model.context_attention == "ring" else 1)
    heads = max(1.0, model.heads / step.sizes["tensor"])
    return step.tokens * keys * heads * (4 + 4 + 2)


def _gathered(plan: Plan, tree: tuple[Leaf, ...]) -> float:
    """The weights of two blocks, one in use and one on its way, and one block's gradients."""
    step = plan.step
    repeats = plan.model.repeats
    block = sum(
        leaf.elements / repeats / (leaf.computing_ways / _stages(step, leaf))
        for leaf in tree
        if leaf.in_blocks and leaf.computing_ways < leaf.ways
    )
    return 3 * block * step.width


def _stages(step: Step, leaf: Leaf) -> int:
    return step.sizes["stage"] if leaf.in_blocks else 1


def _loss(step: Step) -> float:
    """Logits of one chunk in float32, their softmax and their gradient."""
    chunk = step.tokens / step.model.loss_chunks
    return chunk * step.model.vocab_size / step.sizes["tensor"] * (4 + 4 + step.width)


def device_host_values(step: Step) -> float:
    """Returns the bytes of activations that wait in host memory, of one microbatch and device."""
    return _saved(step)[1]
