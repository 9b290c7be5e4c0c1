"""Seconds that one device computes in a step, by kind of work.

Products are limited by arithmetic or by memory, whichever takes longer; small matrices fill the
arithmetic units less. Elementwise work is limited by memory. The busiest device is meant; of a
pipeline the stage's own work without the bubble. Standard library only.
"""

import dataclasses

from partitioning.planner.cost_model.block_memory import fused_attention, kept_values
from partitioning.planner.cost_model.block_work import (
    BlockWork,
    Product,
    adapter_products,
    attended,
    block_work,
)
from partitioning.planner.cost_model.layout import leaves, trained
from partitioning.planner.cost_model.optimizer_state import state_elements, state_width
from partitioning.planner.cost_model.step_flops import passes
from partitioning.planner.hardware import ChipConfig
from partitioning.planner.plan import Plan
from partitioning.traffic_step import Step, Uses

TILE = 128
"""Side of the blocks in which chips multiply: a dimension d fills ``d / (d + TILE)`` of them."""

ATTENTION_BACKWARD = 2.5
"""Of a fused kernel, in forward passes: scores are computed once more (Dao, 2023)."""

LOSS_PASSES = 6
"""Times that logits in float32 are read or written: maximum, sum, target, gradient."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compute:
    """Seconds of one device and step.

    Attributes:
      products: with parameters, forward and backward.
      attention: between activations.
      elementwise: norms, rotary positions, activation functions, additions.
      recomputed: everything that is computed a second time.
      loss: of the logits, products apart.
      optimizer: the update.
      offloaded: bytes that activations send to the host and bring back.
      state_offloaded: the same of the optimizer's state.
      backward_ratio: a backward pass in forward passes, for the pipeline's table.
    """

    products: float
    attention: float
    elementwise: float
    recomputed: float
    loss: float
    optimizer: float
    offloaded: float
    state_offloaded: float
    backward_ratio: float

    @property
    def seconds(self) -> float:
        """All but the update."""
        return self.products + self.attention + self.elementwise + self.recomputed + self.loss


@dataclasses.dataclass(kw_only=True)
class _Sums:
    products: float = 0.0
    attention: float = 0.0
    elementwise: float = 0.0
    recomputed: float = 0.0
    forward: float = 0.0
    backward: float = 0.0


def compute(plan: Plan, *, chip: ChipConfig) -> Compute:
    """Returns what one device computes."""
    step, sums = plan.step, _Sums()
    for part, kinds, times in step.blocks:
        for kind in kinds:
            _add_block(sums, step, kind, chip=chip, uses=step.uses(part), times=times)
    sums.products += _adapters(step, chip)
    head, again, loss = _head(step, chip)
    sums.products += head
    sums.recomputed += again
    optimizer, moved = _optimizer(plan, chip)
    return Compute(
        products=sums.products,
        attention=sums.attention,
        elementwise=sums.elementwise,
        recomputed=sums.recomputed,
        loss=loss,
        optimizer=optimizer,
        offloaded=2 * kept_values(step)[1] * plan.work.microbatches,
        state_offloaded=moved,
        backward_ratio=sums.backward / sums.forward if sums.forward else 2.0,
    )


def _add_block(
    sums: _Sums, step: Step, kind: str, *, chip: ChipConfig, uses: Uses, times: float
) -> None:
    """Adds a block that a device has ``times`` over."""
    work, remat = block_work(step.model, kind), step.model.remat_choices
    fused = fused_attention(step.model, sizes=step.sizes, chip=chip)
    each = [(p.value, product_seconds(step, p, chip=chip)) for p in work.products]
    products = sum(seconds for _, seconds in each)
    attention = _attention(step, work, chip=chip, fused=fused)
    elementwise = _elementwise(step, work) / (chip.memory_bandwidth * chip.bandwidth_efficiency)
    again = 0.0
    if remat is not None:
        again = sum(seconds for value, seconds in each if value and value not in remat.kept)
        again += elementwise
        # XLA's own attention and cuDNN's lose their statistics; kernels for TPU keep them, too.
        keeps = fused and chip.vendor == "google" and "attention" in remat.kept
        again += 0.0 if keeps else attention
    count, forward = uses.runs * times, products + attention + elementwise
    # A pipeline computes forward passes once more for their backward pass.
    again += (uses.forward - 1) * forward
    sums.products += passes(step.model) * products * count
    ratio = ATTENTION_BACKWARD if fused else 2.0
    sums.attention += (1 + ratio) * attention * count
    sums.elementwise += 3 * elementwise * count
    sums.recomputed += again * count
    sums.forward += forward * count
    backward = (passes(step.model) - 1) * products + ratio * attention + 2 * elementwise + again
    sums.backward += backward * count


def _adapters(step: Step, chip: ChipConfig) -> float:
    """Seconds of the products with adapters' matrices, which reading activations limits."""
    each = (
        layers * product_seconds(step, product, chip=chip)
        for product, layers in adapter_products(step.model)
    )
    return 3 * sum(each) * step.uses("pattern").runs / step.sizes["stage"]


def product_seconds(step: Step, product: Product, *, chip: ChipConfig) -> float:
    """Returns the time of one product of one microbatch on one device, one pass."""
    t = min(step.sizes["tensor"], product.whole)
    m = step.tokens * product.rows * product.padding
    k = product.inputs / (1 if product.columns else t)
    n = product.outputs / (t if product.columns else 1)
    narrow = product.narrow and step.model.matmul != "default" and chip.peak_flops_8bit
    peak = chip.peak_flops_8bit if narrow else chip.peak_flops
    filled = m / (m + TILE) * (k / (k + TILE)) * (n / (n + TILE))
    arithmetic = 2 * m * k * n / (peak * chip.matmul_efficiency * filled)
    memory = (m * k + k * n + m * n) * step.width / chip.memory_bandwidth
    return max(arithmetic, memory)


def _attention(step: Step, work: BlockWork, *, chip: ChipConfig, fused: bool) -> float:
    """Seconds of a forward pass of attention of one microbatch on one device.

    Fused kernels and rings skip what the causal mask hides, and kernels what is outside of a
    window; XLA computes the whole square, and so does any kernel that gets gathered keys. Without
    fusion scores pass through memory.
    """
    spread = step.sizes["context"] > 1
    ring = spread and step.model.context_attention == "ring"
    skips = fused and not spread
    keys = attended(step.work.length, window=work.window if skips else 0, causal=ring or skips)
    heads = work.heads / min(step.sizes["tensor"], step.model.heads)
    flops = 4 * step.tokens * heads * keys
    if fused:
        return flops / (chip.peak_flops * chip.attention_efficiency)
    assert step.model.head_dim is not None
    moved = step.tokens * heads / step.model.head_dim * keys * (3 * 4 + step.width)
    arithmetic = flops / (chip.peak_flops * chip.matmul_efficiency)
    return arithmetic + moved / (chip.memory_bandwidth * chip.bandwidth_efficiency)


def _elementwise(step: Step, work: BlockWork) -> float:
    """Bytes that a forward pass reads and writes between products."""
    t = step.sizes["tensor"]
    around = t if step.sequence_parallel else 1
    return step.tokens * step.width * (work.residual / around + (work.inside + work.casts) / t)


def _head(step: Step, chip: ChipConfig) -> tuple[float, float, float]:
    """Seconds of the head's products, of those computed again, and of the loss."""
    model, uses = step.model, step.uses("head")
    product = Product(
        value="",
        inputs=model.embed_dim,
        outputs=model.vocab_size,
        columns=True,
        whole=model.vocab_size,
        narrow=False,
    )
    each = product_seconds(step, product, chip=chip)
    again = (int(model.loss_chunks > 1) + uses.forward - 1) * each
    logits = step.tokens * model.vocab_size / step.sizes["tensor"] * 4
    read = logits * LOSS_PASSES / (chip.memory_bandwidth * chip.bandwidth_efficiency)
    return passes(model) * each * uses.runs, again * uses.runs, read * uses.runs


def _optimizer(plan: Plan, chip: ChipConfig) -> tuple[float, float]:
    """Seconds of update and accumulation, and bytes of state that cross to the host and back."""
    tree = trained(leaves(plan))
    width = max(leaf.width for leaf in tree)
    state = sum(state_elements(plan.optimizer, leaf) / leaf.state_ways for leaf in tree)
    state *= state_width(plan.optimizer, param_dtype=plan.model.param_dtype)
    own = sum(leaf.elements / leaf.state_ways for leaf in tree)
    moved = own * 3 * width + 2 * state
    if plan.work.microbatches > 1:
        added = sum(leaf.elements / leaf.summing_ways for leaf in tree)
        moved += added * plan.work.microbatches * (width + 8)
    seconds = moved / (chip.memory_bandwidth * chip.bandwidth_efficiency)
    return seconds, 2 * state if plan.optimizer.offload else 0.0
