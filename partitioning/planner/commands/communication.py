"""``collective`` and ``overlap``: what a step sends, and what of that is exposed."""

import argparse
import math
from typing import Any

from partitioning.planner.answers import Answer, Quantity, Section, amount
from partitioning.planner.calculators import communication, layout_terms
from partitioning.planner.calculators.communication import Ring, Sharded, StepTimes
from partitioning.planner.calculators.layout_terms import BOOK_NVLINK, INFINIBAND, NVLINK
from partitioning.planner.calculators.state import Layout
from partitioning.planner.command import Given, add, number, positive, seconds, share, tokens

_LAYOUT = (
    ("tensor", 8, "Devices that split every weight."),
    ("stage", 4, "Pipeline stages."),
    ("data", 16, "Replicas, over which ZeRO shards."),
    ("context", 1, "Devices that split a row; ZeRO shards over them, too."),
)


def register(commands: Any) -> None:
    """Adds the commands."""
    _add_collective(commands)
    _add_overlap(commands)


def _add_collective(commands: Any) -> None:
    one = add(
        commands,
        "collective",
        "What the collectives of a step move, and how long they take on a fast and a slow link. "
        "Tensor parallelism's all-reduces, ZeRO-3's gathers and scatters, transfers between "
        "stages, ring attention and expert parallelism, in closed form.",
        [
            "collective",
            "collective --rows=4 --policy=book",
            "collective --length=128K --context=8 --data=2",
            "collective --expert=8",
        ],
        run=_collective,
    )
    add_layout(one)
    one.add_argument("--layers", type=positive, default=80, help="Of the model. (80)")
    one.add_argument("--width", type=positive, default=8192, help="Residual stream. (8192)")
    one.add_argument("--rows", type=positive, default=2, help="Rows of a microbatch. (2)")
    one.add_argument("--length", type=tokens, default=4096, help="Tokens of a row. (4096)")
    one.add_argument("--microbatches", type=positive, default=8, help="Of a replica. (8)")
    one.add_argument("--keys", type=positive, default=1024, help="kv heads x head size. (1024)")
    one.add_argument("--expert", type=positive, default=1, help="Expert parallel devices. (1)")
    one.add_argument("--choices", type=positive, default=2, help="Experts of a token. (2)")
    one.add_argument("--bucket", type=number, default=50e6, help="Bytes of a call. (50M)")
    one.add_argument("--inner", type=number, default=NVLINK, help="Bytes/s inside a host. (450e9)")
    one.add_argument(
        "--outer", type=number, default=INFINIBAND, help="Bytes/s between hosts. (50e9)"
    )


def _collective(given: Given) -> Answer:
    layout = read_layout(given)
    sections = (_tensor(given), _sharded(given, layout), _point_to_point(given), _layer(given))
    return Answer(
        title=f"Collectives of a step, {layout.devices:,} devices",
        sections=tuple(section for section in sections if section.quantities),
    )


def _local(given: Given) -> int:
    if given.length % given.context:
        raise ValueError(
            f"--length={given.length} does not divide by --context={given.context}; every device "
            "holds an equal part of a row."
        )
    return int(given.length // given.context)


def _tensor(given: Given) -> Section:
    size = layout_terms.message(given.rows, length=_local(given), width=given.width)
    layers = math.ceil(given.layers / given.stage)
    calls = Quantity(
        name="calls",
        value=communication.tensor_calls(layers, microbatches=given.microbatches),
        formula=f"4 x {layers} layers x {given.microbatches} microbatches",
        book=2 * given.layers,
        book_formula=f"2 x {given.layers} layers",
        note="E4: both passes, each microbatch, and only the layers of a device's stage",
    )
    links = (
        ("inner", given.inner, BOOK_NVLINK),
        ("outer", given.outer, given.outer),
    )
    times = []
    for name, bandwidth, book in links:
        one = layout_terms.all_reduce_time(
            size.value,
            devices=given.tensor,
            bandwidth=bandwidth,
            name=f"{name}_call",
            book_bandwidth=book,
        )
        assert one.book is not None
        times += [one, _all_calls(one, calls, name=f"{name}_step")]
    return Section(
        name="tensor",
        title=f"Tensor parallelism over {given.tensor} devices: all-reduce",
        quantities=(size, calls, *times),
    )


def _all_calls(one: Quantity, calls: Quantity, *, name: str) -> Quantity:
    assert one.book is not None
    assert calls.book is not None
    return Quantity(
        name=name,
        value=one.value * calls.value,
        unit="s",
        formula=f"{calls.value:,.0f} x {1000 * one.value:.4g} ms",
        book=one.book * calls.book,
        book_formula=f"{calls.book:,.0f} x {1000 * one.book:.4g} ms",
    )


def _sharded(given: Given, layout: Layout) -> Section:
    one = Sharded(parameters=given.parameters, layout=layout)
    once = layout_terms.sharded_traffic(one, name="one_microbatch")
    each = layout_terms.sharded_traffic(
        one, microbatches=given.microbatches, name="each_microbatch"
    )
    buckets = Quantity(
        name="buckets",
        value=communication.buckets(one.shard, size=given.bucket),
        formula=f"{amount(one.shard)} B / {amount(given.bucket)} B",
        book=communication.buckets(2 * given.parameters, size=given.bucket),
        book_formula=f"2 B x {amount(given.parameters)} / {amount(given.bucket)} B",
    )
    time = Quantity(
        name="each_microbatch_time",
        value=each.value / given.outer,
        unit="s",
        formula=f"{amount(each.value)} B / {amount(given.outer)} B/s",
    )
    title = f"ZeRO-3 over {layout.replicas} replicas: gathered for each pass, scattered once"
    return Section(name="zero_3", title=title, quantities=(once, each, time, buckets))


def _point_to_point(given: Given) -> Section:
    whole = layout_terms.message(
        given.rows, length=_local(given), width=given.width, name="activation"
    )
    time = whole.value / given.tensor / given.outer
    quantities = (
        whole,
        Quantity(
            name="transfer",
            value=time,
            unit="s",
            formula=f"{amount(whole.value)} B / {given.tensor} / {amount(given.outer)} B/s",
            book=whole.value / given.outer,
            book_formula=f"{amount(whole.value)} B / {amount(given.outer)} B/s",
            note="E28: each of the tensor-parallel devices sends its part over its own link",
        ),
        Quantity(
            name="transfers",
            value=2 * given.microbatches,
            formula=f"2 x {given.microbatches} microbatches, at each boundary",
            book=given.stage - 1,
            book_formula=f"{given.stage} - 1",
        ),
    )
    return Section(name="stages", title="Between neighbouring stages", quantities=quantities)


def _layer(given: Given) -> Section:
    quantities = (*_ring(given), *_experts(given))
    return Section(name="layer", title="In each layer", quantities=quantities)


def _ring(given: Given) -> tuple[Quantity, ...]:
    if given.context == 1:
        return ()
    ring = Ring(length=given.length, keys=given.keys, context=given.context)
    full = Ring(length=given.length, keys=given.width, context=given.context)
    return (
        Quantity(
            name="keys_and_values",
            value=ring.keys_and_values,
            unit="B",
            formula=f"2 x {given.length:,} x {given.keys:,} x 2 B",
            book=full.keys_and_values,
            book_formula=f"2 x {given.length:,} x {given.width:,} x 2 B",
            note="E9: grouped key heads are what is sent, not as many as there are query heads",
        ),
        Quantity(
            name="ring_sent",
            value=ring.sent,
            unit="B",
            formula=f"{given.context - 1}/{given.context} of them",
        ),
    )


def _experts(given: Given) -> tuple[Quantity, ...]:
    if given.expert == 1:
        return ()
    sizes = {"experts": given.expert, "choices": given.choices, "width": given.width}
    tokens = given.rows * _local(given)
    return (
        Quantity(
            name="expert_exchange",
            value=communication.expert_exchange(tokens, **sizes),
            unit="B",
            formula=f"{tokens:,} x {given.expert - 1}/{given.expert} x {given.choices} x "
            f"{given.width:,} x 2 B, once to dispatch and once to combine",
        ),
    )


def _add_overlap(commands: Any) -> None:
    one = add(
        commands,
        "overlap",
        "A step's time when communication runs after, or beside, the backward pass. What counts "
        "against a budget is only what is exposed.",
        ["overlap", "overlap --backward=900ms --communication=480ms --hidden=80%"],
        run=_overlap,
    )
    parts = (("forward", 0.45), ("backward", 1.1), ("communication", 1.05), ("optimizer", 0.08))
    for name, default in parts:
        one.add_argument(f"--{name}", type=seconds, default=default, help=f"Time. ({default:g}s)")
    one.add_argument("--hidden", type=share, default=0.7, help="Share that overlaps. (70%%)")


def _overlap(given: Given) -> Answer:
    times = StepTimes(
        forward=given.forward,
        backward=given.backward,
        communication=given.communication,
        optimizer=given.optimizer,
    )
    if not times.total():
        raise ValueError("A step of no time has no shares; give --forward, --backward and so on.")
    cases = {"sequential": 0.0, "overlapped": given.hidden, "perfect": 1.0}
    sections = []
    for name, overlap in cases.items():
        step = layout_terms.step_time(times, overlap=overlap, name="step")
        exposed = times.exposed(overlap)
        rest = (
            Quantity(name="speed", value=times.total() / step.value, unit="x"),
            Quantity(name="exposed", value=exposed, unit="s"),
            Quantity(
                name="exposed_share",
                value=exposed / step.value,
                unit="share",
                book=given.communication / step.value,
                note="E14: only what is exposed can be held under 10%",
            ),
        )
        title = f"{name.capitalize()}: {overlap:.0%} hidden"
        sections.append(Section(name=name, title=title, quantities=(step, *rest)))
    return Answer(title="Forward + backward + exposed + optimizer", sections=tuple(sections))


def add_layout(one: argparse.ArgumentParser) -> None:
    """Adds the flags of a layout, and the model's size."""
    one.add_argument("--parameters", type=number, default=70e9, help="Of the model. (70B)")
    for name, default, meaning in _LAYOUT:
        one.add_argument(f"--{name}", type=positive, default=default, help=f"{meaning} ({default})")


def read_layout(given: Given) -> Layout:
    """Returns the layout that they say."""
    return Layout(tensor=given.tensor, stage=given.stage, data=given.data, context=given.context)
