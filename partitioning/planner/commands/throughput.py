"""``mfu`` and ``data``: what a run computes per second, and what must be fed to it."""

from typing import Any

from partitioning.planner.answers import Answer, Quantity, Section, amount
from partitioning.planner.calculators import data_rate, mfu, running_terms
from partitioning.planner.calculators.mfu import Machine
from partitioning.planner.command import Given, add, number, positive, several, share, tokens


def register(commands: Any) -> None:
    """Adds the commands."""
    _add_mfu(commands)
    _add_data(commands)


def _add_mfu(commands: Any) -> None:
    one = add(
        commands,
        "mfu",
        "Model FLOPs utilisation of a run's tokens/s, with and without attention, and what losses "
        "leave of it. The peak is that of dense bfloat16 products.",
        [
            "mfu --tokens_per_second=500K",
            "mfu --parameters=30B --devices=256 --tokens_per_second=42500",
            "mfu --losses=8.6%,10%,8%,5%",
        ],
        run=_mfu,
    )
    one.add_argument("--tokens_per_second", type=number, default=500e3, help="Measured. (500K)")
    one.add_argument("--parameters", type=number, default=70e9, help="Used by a token. (70B)")
    one.add_argument("--devices", type=positive, default=512, help="How many. (512)")
    one.add_argument("--peak", type=number, default=mfu.H100_BF16, help="FLOP/s. (989T)")
    one.add_argument("--layers", type=positive, default=80, help="For attention. (80)")
    one.add_argument("--width", type=positive, default=8192, help="For attention. (8192)")
    one.add_argument("--length", type=tokens, default=4096, help="Tokens of a row. (4096)")
    one.add_argument(
        "--losses",
        type=several(share),
        default=(0.1, 0.1, 0.09, 0.06, 0.05),
        help="Shares that are lost. (10%%,10%%,9%%,6%%,5%%)",
    )


def _mfu(given: Given) -> Answer:
    plain = Machine(parameters=given.parameters, devices=given.devices, peak=given.peak)
    sizes = {"width": given.width, "length": given.length}
    kinds = {
        "mfu": 0.0,
        "mfu_causal": mfu.attention_flops(given.layers, causal=True, **sizes),
        "mfu_full": mfu.attention_flops(given.layers, **sizes),
    }
    shares = [
        running_terms.utilisation(
            Machine(
                parameters=given.parameters,
                devices=given.devices,
                peak=given.peak,
                attention=attention,
            ),
            tokens_per_second=given.tokens_per_second,
            name=name,
        )
        for name, attention in kinds.items()
    ]
    listed = [f"{100 * loss:g}%" for loss in given.losses]
    left = mfu.multiplied(given.losses)
    waterfall = (
        Quantity(
            name="left",
            value=left,
            unit="share",
            formula=f"(1 - {') x (1 - '.join(listed)})",
            book=mfu.added(given.losses),
            book_formula=" - ".join(["100%", *listed]),
            note="E22: each loss takes its share of what the ones before it left",
        ),
        running_terms.throughput(plain, mfu=left, name="tokens_per_second"),
    )
    at = shares[0].value
    return Answer(
        title=f"{amount(given.parameters)} parameters on {given.devices:,} devices",
        sections=(
            Section(
                name="measured",
                title=f"At {given.tokens_per_second:,.0f} tokens/s: {mfu.label(at)}",
                quantities=(*shares, running_terms.throughput(plain)),
            ),
            Section(name="waterfall", title="What losses leave", quantities=waterfall),
        ),
        notes=("E40: the two attention products add to 6 FLOP per parameter; causal is half.",),
    )


def _add_data(commands: Any) -> None:
    one = add(
        commands,
        "data",
        "Bytes per second and shards opened that the input has to deliver, and what padding "
        "wastes. Tokens are few; opening small files is what saturates a file system.",
        ["data", "data --rows=2048 --shard=1M", "data --document=600 --fill=83.3%"],
        run=_data,
    )
    one.add_argument("--rows", type=positive, default=256, help="Of a batch. (256)")
    one.add_argument("--length", type=tokens, default=4096, help="Tokens of a row. (4096)")
    one.add_argument("--steps", type=number, default=0.5, help="Per second. (0.5)")
    one.add_argument("--width", type=positive, default=2, help="Bytes of a token id. (2)")
    one.add_argument("--shard", type=number, default=100e6, help="Tokens of a file. (100M)")
    one.add_argument("--workers", type=positive, default=10_000, help="Processes. (10000)")
    one.add_argument("--document", type=number, default=600, help="Mean tokens. (600)")
    one.add_argument("--fill", type=share, help="Share of a row that is filled unpacked.")


def _data(given: Given) -> Answer:
    rate = given.rows * given.length * given.steps
    opens = data_rate.opens_per_second(rate, shard=given.shard)
    waste = data_rate.padding(given.document, length=given.length)
    fill = 1 - waste if given.fill is None else given.fill
    if not fill:
        raise ValueError("--fill=0: rows hold at least one token; give their measured fill.")
    reading = (
        Quantity(
            name="tokens_per_second",
            value=rate,
            unit="tokens/s",
            formula=f"{given.rows:,} x {given.length:,} x {given.steps:g} per s",
        ),
        Quantity(
            name="bytes_per_second",
            value=data_rate.bytes_per_second(rate, width=given.width),
            unit="B/s",
            formula=f"{amount(rate)} x {given.width} B",
        ),
        Quantity(
            name="opens_per_second",
            value=opens,
            formula=f"{amount(rate)} / {amount(given.shard)}",
            book=opens * given.workers,
            book_formula=f"{opens:.4g} x {given.workers:,} workers",
            note="E2: workers share the shards; each open is 3 to 5 metadata operations",
        ),
    )
    packing = (
        Quantity(
            name="padding",
            value=waste,
            unit="share",
            formula=f"1 - {amount(given.document)} / {given.length:,}, one document in a row",
        ),
        Quantity(
            name="gain",
            value=data_rate.packing_gain(fill),
            unit="x",
            formula=f"1 / {fill:.4g}",
            book=1.2,
            book_formula="15 to 25%",
            note="E20: a gain of 20% means rows that were 83% full before; measure the fill",
        ),
    )
    return Answer(
        title="What the input delivers",
        sections=(
            Section(name="reading", title="Reading", quantities=reading),
            Section(name="packing", title="Packing documents into rows", quantities=packing),
        ),
    )
