"""Quantities with their terms: state, pipelines, collectives, activations.

The twins of the formulas in state.py, bubble.py, communication.py and activations.py: the same
inputs, and an answer that says how it came about and what the chapter's own rule gives.
"""

from partitioning.planner.answers import Quantity, amount
from partitioning.planner.calculators import bubble as bubbles
from partitioning.planner.calculators import communication, state
from partitioning.planner.calculators.communication import Sharded, StepTimes
from partitioning.planner.calculators.state import Layout, Zero

BOOK_NVLINK = 600e9
"""What the chapter takes for NVLink; an H100 sends 450 GB/s one way (E3)."""

NVLINK, INFINIBAND = 450e9, 50e9

_STATE = {
    0: "16 B x {p}",
    1: "(4 + 12 / {n}) B x {p}",
    2: "(2 + 14 / {n}) B x {p}",
    3: "16 B x {p} / {n}",
}


def state_bytes(parameters: float, *, zero: Zero, layout: Layout, name: str = "") -> Quantity:
    """Returns bytes of all state on a device; the book's leaves tensor and pipeline out (E27)."""
    split = layout.tensor * layout.stage
    flat = Layout(data=layout.data, context=layout.context)
    terms = _STATE[zero].format(n=layout.replicas, p=amount(parameters))
    return Quantity(
        name=name or ("no_zero" if zero == 0 else f"zero_{zero}"),
        value=state.per_device(parameters, zero=zero, layout=layout).total,
        unit="B",
        formula=f"{terms} / ({layout.tensor} x {layout.stage})" if split > 1 else terms,
        book=state.per_device(parameters, zero=zero, layout=flat).total if split > 1 else None,
        book_formula=terms,
        note="E27: tensor and pipeline parallelism divide the state before ZeRO does"
        if split > 1
        else "",
    )


def bubble_share(
    stages: int, *, microbatches: int, chunks: int = 1, name: str = "bubble"
) -> Quantity:
    """Returns the idle share of a pipeline."""
    work = f"{chunks} x {microbatches}" if chunks > 1 else f"{microbatches}"
    return Quantity(
        name=name,
        value=bubbles.bubble(stages, microbatches=microbatches, chunks=chunks),
        unit="share",
        formula=f"{stages - 1} / ({stages - 1} + {work})",
    )


def least_microbatches(
    stages: int, *, below: float, chunks: int = 1, name: str = "least_microbatches"
) -> Quantity:
    """Returns the fewest microbatches for a bound; the book's rule is 4 x stages (E7)."""
    reached = bubbles.bubble(stages, microbatches=4 * stages)
    per = f" / {chunks}" if chunks > 1 else ""
    return Quantity(
        name=name,
        value=bubbles.least_microbatches(stages, below=below, chunks=chunks),
        formula=f"floor({stages - 1} x (1 - {below:g}) / {below:g}{per}) + 1",
        book=4 * stages,
        book_formula=f"4 x {stages}",
        note=f"E7: {4 * stages} microbatches leave {reached:.1%}",
    )


def book_microbatches(accumulation: int, *, data: int, stages: int) -> Quantity:
    """Returns the microbatches of a pipeline; the book's rule counts other replicas' (E8)."""
    return Quantity(
        name="microbatches",
        value=accumulation,
        formula=f"accumulation {accumulation}",
        book=bubbles.microbatches_by_the_book(accumulation, data=data, stages=stages),
        book_formula=f"{accumulation} x {data} / {stages}",
        note="E8: every replica has a pipeline of its own, with its own microbatches only",
    )


def all_reduce_time(
    message: float, *, devices: int, bandwidth: float, name: str, book_bandwidth: float = 0.0
) -> Quantity:
    """Returns a ring all-reduce; the book's leaves the ring's factor out (E3)."""
    book_bandwidth = book_bandwidth or bandwidth
    return Quantity(
        name=name,
        value=communication.all_reduce(message, devices=devices, bandwidth=bandwidth),
        unit="s",
        formula=f"2 x {devices - 1}/{devices} x {amount(message)} B / {amount(bandwidth)} B/s",
        book=message / book_bandwidth,
        book_formula=f"{amount(message)} B / {amount(book_bandwidth)} B/s",
        note="E3: a ring sends 2 (n - 1) / n of the message, over what one device sends one way",
    )


def message(rows: int, *, length: int, width: int, name: str = "message") -> Quantity:
    """Returns the residual stream, which tensor parallelism reduces."""
    return Quantity(
        name=name,
        value=communication.residual(rows, length=length, width=width),
        unit="B",
        formula=f"{rows} x {length:,} x {width:,} x 2 B",
    )


def sharded_traffic(
    one: Sharded, *, microbatches: int = 1, scatter_once: bool = True, name: str = "sharded"
) -> Quantity:
    """Returns what ZeRO-3 sends for a device; the book's is the whole model's volume (E12)."""
    n, scatters = one.layout.replicas, 1 if scatter_once else microbatches
    passes = f"({communication.PASSES - 1} x {microbatches} + {scatters})"
    return Quantity(
        name=name,
        value=one.step(microbatches=microbatches, scatter_once=scatter_once),
        unit="B",
        formula=f"{passes} x {amount(one.shard)} B x {n - 1}/{n}",
        book=communication.PASSES * state.WEIGHTS * one.parameters,
        book_formula=f"3 x 2 B x {amount(one.parameters)}",
        note="E12: a device gathers only what tensor and pipeline parallelism leave it",
    )


def step_time(times: StepTimes, *, overlap: float, name: str) -> Quantity:
    """Returns a step's time when a share of the communication hides."""
    parts = (times.forward, times.backward, times.exposed(overlap), times.optimizer)
    return Quantity(
        name=name,
        value=times.total(overlap),
        unit="s",
        formula=" + ".join(f"{1000 * part:g}" for part in parts) + " ms",
    )
