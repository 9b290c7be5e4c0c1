"""Floating-point operations of a step, counted from the traced program.

Training costs three forward passes: one forward, two for the gradients of both factors of every
product. Where only adapters are trained, the other parameters have no gradient, and their products
cost two. What rematerialisation computes again is not counted, as is usual for model FLOPs
utilisation (MFU; Chowdhery et al., 2022, appendix B). A multiplication and an addition are two
operations; only matrix products are counted. Of a mixture of experts the chosen experts count, by
formula, whatever is computed besides to fill buffers.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Literal

import jax
from flax import nnx
from jax.extend import core

from models.context import Context
from trainer.hardware import peak_flops
from trainer.paths import leaves, split_adapters
from trainer.program import Program
from trainer.state import abstract_batch, abstract_state, whole

Convention = Literal["causal", "full"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepFlops:
    """Operations of one optimizer step on all devices.

    Attributes:
      products: matrix products with parameters, of experts only the chosen ones.
      attention_full: products between activations, with the whole attention square (of a window's
        width where attention is windowed).
      attention_causal: the same, with only the pairs that a causal mask lets through.
    """

    products: float
    attention_full: float
    attention_causal: float

    def total(self, convention: Convention) -> float:
        """Returns all operations under one convention."""
        full = convention == "full"
        return self.products + (self.attention_full if full else self.attention_causal)


def step_flops(program: Program, *, rows: int, length: int) -> StepFlops:
    """Counts a training step on ``rows`` rows of ``length`` tokens; traces, compiles nothing."""
    batch = abstract_batch(program, rows=rows, length=length)
    group = whole(abstract_state(program), program)

    def forward(parameters: Any, variables: Any, batch: Any) -> jax.Array:
        model = nnx.merge(program.graph, parameters, variables)
        return program.task.loss(model, batch, ctx=Context())[0]

    traced = jax.make_jaxpr(forward)(group.parameters, group.variables, batch)
    products = sum(flops for flops, batched in _products(traced.jaxpr, 1) if not batched)
    products += program.task.routed_flops(rows=rows, length=length)
    full, causal = (
        program.task.attention_flops(rows=rows, length=length, causal=causal)
        for causal in (False, True)
    )
    adapters = leaves(split_adapters(group.parameters)[0]).values()
    # What adapters leave as it is has no gradient of its own: two passes, not three.
    trained = 2.0 * rows * length * sum(leaf.size for leaf in adapters) if adapters else products
    return StepFlops(
        products=2 * products + trained, attention_full=3 * full, attention_causal=3 * causal
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Utilization:
    """Turns a step's duration into MFU.

    Attributes:
      flops: operations of a step on all devices.
      peak: FLOP/s of all devices, or None where the hardware is not in the table.
      reason: why there is no peak.
    """

    flops: float
    peak: float | None
    reason: str

    def mfu(self, seconds: float) -> float | None:
        """Returns the share of the peak that a step of ``seconds`` reached, or None."""
        return None if self.peak is None else self.flops / seconds / self.peak

    def teraflops(self, seconds: float) -> float:
        """Returns TFLOP/s of all devices together."""
        return self.flops / seconds / 1e12


def utilization(flops: StepFlops, *, program: Program, convention: Convention) -> Utilization:
    """Returns how durations of ``program``'s step become MFU."""
    kind = program.mesh.devices.flat[0].device_kind
    peak = peak_flops(kind)
    return Utilization(
        flops=flops.total(convention),
        peak=None if peak is None else peak * program.mesh.size,
        reason="" if peak is not None else f"no peak rate known for {kind!r}",
    )


def traced_products(jaxpr: core.Jaxpr) -> float:
    """Returns operations of all matrix products of a traced program, recomputed ones included."""
    return sum(flops for flops, _ in _products(jaxpr, 1))


def _products(jaxpr: core.Jaxpr, times: int) -> Iterator[tuple[float, bool]]:
    """Yields (operations, whether it has batch dimensions) of every product, inner programs too.

    Loops of unknown length are left out: they run over what tokens chose, which has its formula.
    """
    for equation in jaxpr.eqns:
        if equation.primitive.name == "while":
            continue
        if equation.primitive.name == "dot_general":
            (contract, _), (batch, _) = equation.params["dimension_numbers"]
            lhs, out = (_shape(equation.invars[0]), _shape(equation.outvars[0]))
            depth = math.prod(lhs[i] for i in contract)
            yield 2.0 * times * depth * math.prod(out), bool(batch)
        inner = times * (equation.params["length"] if equation.primitive.name == "scan" else 1)
        for value in equation.params.values():
            for program in _programs(value):
                yield from _products(program, inner)


def _programs(value: Any) -> Iterator[core.Jaxpr]:
    if isinstance(value, core.ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, core.Jaxpr):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _programs(item)


def _shape(variable: Any) -> tuple[int, ...]:
    return tuple(variable.aval.shape)
