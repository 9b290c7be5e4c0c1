"""What one device must hold while a step runs, part by part.

A step is fullest at one of three moments: at the loss, when all activations are kept; in the
backward pass of the last block, when gradients stand beside them; or at the update. The parts are
those of the fullest. Formulas are held against compiled programs (docs/calibration.md). The busiest
device is meant: of a pipeline the first stage. Standard library only.
"""

import dataclasses

from partitioning.planner.answers import Quantity
from partitioning.planner.cost_model.block_memory import (
    WIDE,
    block,
    held,
    kept_values,
    ring_masks,
    stash,
)
from partitioning.planner.cost_model.layout import Leaf, leaves, trained
from partitioning.planner.cost_model.optimizer_state import state_elements, state_width
from partitioning.planner.hardware import ChipConfig
from partitioning.planner.plan import Plan
from partitioning.traffic_step import REPLICAS, STAGE, WIDTH, Step

_PLACES = 20
"""Bytes of a token in a batch: input, target, weight, position and segment."""


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
        held("optimizer_state", 0.0 if offload else state.value, state.formula),
        held("batch", plan.tokens / step.ways(step.token_axes) * _PLACES),
        held("reserved", chip.reserved, "what the runtime and its libraries take"),
    )
    one, sums = _gradients(plan, trained(tree), chip)
    scattered = _scattered(plan, trained(tree))
    copies = _frozen_copies(plan, tree)
    between = (kept, stash(step), _casts(plan, tree, chip), sums, copies, _shared(plan, tree))
    loss, (masks, masks_backward) = _loss(step, tree), ring_masks(step)
    # TPU's compiler does not lay a loop's buffers over those of another, nor what comes after.
    beside = (*loss, _summed(plan, sums), scattered) if chip.vendor == "google" else ()
    moments = {
        "loss": (*between, masks, *loss),
        "backward": (
            *between,
            masks_backward,
            *beside,
            one,
            *block(step, chip),
            _gathered(plan, tree),
        ),
        "update": (
            sums if sums.value else one,
            scattered,
            _moved_state(state.value if offload else 0.0),
        ),
    }
    name = max(moments, key=lambda moment: sum(part.value for part in moments[moment]))
    return MemoryUse(
        parts=tuple(part for part in (*always, *moments[name]) if part.value),
        moment=name,
        host=host + (state.value if offload else 0.0),
        limit=chip.memory,
    )


def _parameters(plan: Plan, tree: tuple[Leaf, ...]) -> Quantity:
    sizes: dict[int, float] = {}
    for leaf in tree:
        sizes[leaf.width] = sizes.get(leaf.width, 0.0) + leaf.elements / leaf.ways
    formula = " + ".join(f"{width} B x {own:,.0f}" for width, own in sizes.items())
    return held("parameters", sum(width * own for width, own in sizes.items()), formula)


def _state(plan: Plan, tree: tuple[Leaf, ...]) -> Quantity:
    width = state_width(plan.optimizer, param_dtype=plan.model.param_dtype)
    own = sum(state_elements(plan.optimizer, leaf) / leaf.state_ways for leaf in trained(tree))
    return held("optimizer_state", own * width, f"{width} B x {own:,.0f}")


def _moved_state(size: float) -> Quantity:
    return held("state_for_update", size, "comes from the host for the update")


def _gradients(plan: Plan, tree: tuple[Leaf, ...], chip: ChipConfig) -> tuple[Quantity, Quantity]:
    """A microbatch's gradients, and the sums over microbatches.

    They live with the optimizer's state (ZeRO-1 and -3 alike), except that each replica adds up
    several microbatches on its own, whose sums are scattered over replicas after the last. TPU's
    compiler scatters those of a single one after its backward pass, too. A pipeline adds up where
    the parameters are; a tick's gradients are in the compute dtype, but those of one of several
    pieces become wide, and whole on each shard, before they are added to their part.
    """
    width = max(leaf.width for leaf in tree)
    wide = max(WIDE, width)
    if plan.sizes[STAGE] > 1:
        own = sum(leaf.elements / leaf.ways for leaf in tree)
        stage = sum(leaf.elements / leaf.ways for leaf in tree if leaf.in_blocks)
        narrow, chunks = plan.step.width, plan.work.pipeline.chunks
        one = held("gradients", stage * narrow, f"{narrow} B x {stage:,.0f} of a stage")
        piece = sum(leaf.elements / leaf.computing_ways for leaf in tree if leaf.in_blocks) / chunks
        if chunks > 1 and piece * wide > one.value:
            one = held("gradients", piece * wide, f"{wide} B x {piece:,.0f} of a piece")
        return one, held("gradient_sums", own * wide, f"{wide} B x {own:,.0f}")
    several = plan.work.microbatches > 1
    apart = several or chip.vendor == "google"
    own = sum(
        leaf.elements / max(leaf.ways, leaf.summing_ways if apart else leaf.state_ways)
        for leaf in tree
    )
    sums = held("gradient_sums", own * wide if several else 0.0, f"{wide} B x {own:,.0f}")
    return held("gradients", own * width, f"{width} B x {own:,.0f}"), sums


def _summed(plan: Plan, sums: Quantity) -> Quantity:
    """What the sum over replicas gives."""
    replicated = plan.sizes[REPLICAS] > 1
    return held("summed_gradients", sums.value if replicated else 0.0, sums.formula)


def _scattered(plan: Plan, tree: tuple[Leaf, ...]) -> Quantity:
    """Gradients where the optimizer's state lives, beside sums that replicas hold whole."""
    own = sum(leaf.elements / leaf.state_ways for leaf in tree if leaf.state_ways > leaf.ways)
    apart = plan.sizes[REPLICAS] > 1 and plan.work.microbatches > 1
    return held("scattered_gradients", own * WIDE if apart else 0.0, f"{WIDE} B x {own:,.0f}")


def _shared(plan: Plan, tree: tuple[Leaf, ...]) -> Quantity:
    """What all stages read, gathered over them, and the sums of its gradients."""
    if plan.sizes[STAGE] == 1:
        return held("shared_weights", 0.0)
    width = WIDTH[plan.model.param_dtype]
    # Beside adapters they have no gradient.
    width += max(WIDE, width) if plan.model.lora is None else 0
    whole = sum(leaf.elements / leaf.stage_ways for leaf in tree if not leaf.in_blocks)
    return held("shared_weights", whole * width, f"{width} B x {whole:,.0f}")


def _casts(plan: Plan, tree: tuple[Leaf, ...], chip: ChipConfig) -> Quantity:
    """Parameters in the compute dtype, where they are held beside the others.

    TPU's compiler casts them ahead of the loop over blocks, and all do ahead of a pipeline's ticks.
    Blocks that compute nothing again keep what they were cast to.
    """
    step = plan.step
    hoists = chip.vendor == "google" or step.schedule is not None or not step.recomputes
    narrow = step.width < WIDTH[plan.model.param_dtype]
    own = sum(leaf.elements / leaf.ways for leaf in tree if leaf.in_blocks)
    formula = f"{step.width} B x {own:,.0f}"
    return held("cast_weights", own * step.width if hoists and narrow else 0.0, formula)


def _frozen_copies(plan: Plan, tree: tuple[Leaf, ...]) -> Quantity:
    """What is copied of parameters that no step changes, where they need no cast.

    Compilers turn matrices whose last dimension is gathered ahead of the loop over blocks, and hold
    them so; and of several pieces of a pipeline the one that runs.
    """
    frozen = [leaf for leaf in tree if not leaf.trained and leaf.width == plan.step.width]
    chunks = plan.work.pipeline.chunks
    turned = sum(
        leaf.elements / leaf.ways
        for leaf in frozen
        if leaf.axes[-1] == "embed" and leaf.computing_ways < leaf.ways
    )
    piece = sum(leaf.elements / leaf.ways for leaf in frozen if leaf.in_blocks) / chunks
    own = turned + (piece if chunks > 1 else 0.0)
    return held("copied_weights", own * plan.step.width, f"{plan.step.width} B x {own:,.0f}")


def _gathered(plan: Plan, tree: tuple[Leaf, ...]) -> Quantity:
    """Weights of two blocks, one in use and one on its way, and a matrix's gradient.

    Gradients of experts are summed over shards all at once, where their shard_map ends.
    """
    width, blocks = plan.step.width, plan.model.repeats
    here = {
        leaf: leaf.elements / blocks / leaf.computing_ways * plan.sizes[STAGE]
        for leaf in tree
        if leaf.in_blocks and leaf.computing_ways < leaf.ways
    }
    gradients = {leaf: size for leaf, size in here.items() if leaf.trained}
    experts = sum(size for leaf, size in gradients.items() if "experts" in leaf.axes)
    size = 2 * sum(here.values()) + max(experts, *gradients.values(), 0.0)
    return held("gathered_weights", size * width, f"{width} B x {size:,.0f}")


def _loss(step: Step, tree: tuple[Leaf, ...]) -> tuple[Quantity, Quantity]:
    """Logits of one chunk in float32, and beside them their gradient or the gathered head."""
    model, t = step.model, step.sizes["tensor"]
    chunk = step.tokens / model.loss_chunks
    logits = chunk * model.vocab_size / t
    head = max((leaf for leaf in tree if "vocab" in leaf.axes), key=lambda leaf: leaf.name)
    whole = head.elements / head.computing_ways
    # A head without a gradient stays gathered beside that of the logits.
    gathered = not head.trained and head.computing_ways < head.ways
    beside = logits + whole if gathered else max(logits, whole)
    return (
        held("logits", logits * WIDE, f"4 B x {chunk:,.0f} tokens x {model.vocab_size:,} / {t}"),
        held("gradient_of_logits", beside * step.width, f"{step.width} B x {beside:,.0f}"),
    )
