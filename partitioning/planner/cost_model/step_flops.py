"""Floating-point operations of a step, by formula: what trainer.flops counts from the trace.

A multiplication and an addition are two operations; only matrix products count. Of experts the
chosen ones count, and attention sees no further than its window. Model FLOPs are three forward
passes (Chowdhery et al., 2022, appendix B); beside adapters, which alone have gradients of their
own, two. What rematerialisation computes again is hardware FLOPs beside them.

Standard library only.
"""

import dataclasses
import functools
from typing import Literal

from models.decoder_config import DecoderConfig
from partitioning.planner.cost_model.block_work import (
    BlockWork,
    adapter_products,
    attended,
    block_work,
)

Convention = Literal["causal", "full"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepFlops:
    """Operations of one optimizer step on all devices.

    Attributes:
      products: matrix products with parameters.
      attention_full: products between activations, with the whole attention square.
      attention_causal: the same, with only the pairs that a causal mask lets through.
      recomputed: products with parameters that the backward pass computes again.
      recomputed_attention: attention that it computes again, causal.
    """

    products: float
    attention_full: float
    attention_causal: float
    recomputed: float
    recomputed_attention: float

    def total(self, convention: Convention) -> float:
        """Returns the model's operations under one convention."""
        full = convention == "full"
        return self.products + (self.attention_full if full else self.attention_causal)

    @property
    def hardware(self) -> float:
        """Operations that devices really do, causal."""
        return self.total("causal") + self.recomputed + self.recomputed_attention


def step_flops(model: DecoderConfig, *, rows: int, length: int) -> StepFlops:
    """Returns the operations of a step on ``rows`` rows of ``length`` tokens."""
    each = per_token(model, length)
    tokens = rows * length
    return StepFlops(
        **{field.name: tokens * getattr(each, field.name) for field in dataclasses.fields(each)}
    )


@functools.cache
def per_token(model: DecoderConfig, length: int) -> StepFlops:
    """Returns the operations of a step per token."""
    works = [block_work(model, kind) for kind in model.blocks]
    head = 2.0 * model.embed_dim * model.vocab_size
    full, causal = (
        sum(4.0 * w.heads * attended(length, window=w.window, causal=causal) for w in works)
        for causal in (False, True)
    )
    shared_gate = model.experts is not None and model.experts.shared_gate
    gates = sum(2.0 * model.embed_dim for w in works if w.routed) if shared_gate else 0.0
    products = sum(p.flops for w in works for p in w.products) + head + gates
    adapters = sum(p.flops * layers for p, layers in adapter_products(model))
    again = sum(recomputed_products(model, w) for w in works)
    again += head if model.loss_chunks > 1 else 0.0
    return StepFlops(
        products=passes(model) * products + 3 * adapters,
        attention_full=3 * full,
        attention_causal=3 * causal,
        recomputed=again,
        recomputed_attention=causal if model.remat_choices is not None else 0.0,
    )


def passes(model: DecoderConfig) -> int:
    """Returns how many products a step computes for one: beside adapters no gradient of its own."""
    return 3 if model.lora is None else 2


def recomputed_products(model: DecoderConfig, work: BlockWork) -> float:
    """Returns the operations per token of products that a block's backward pass does again."""
    remat = model.remat_choices
    if remat is None:
        return 0.0
    return sum(p.flops for p in work.products if p.value and p.value not in remat.kept)
