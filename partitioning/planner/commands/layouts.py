"""``state``, ``bubble``, ``activations``: what a layout takes, and how long its pipeline waits."""

from typing import Any

from partitioning.planner.answers import Answer, Quantity, Section, amount
from partitioning.planner.calculators import activations, layout_terms
from partitioning.planner.calculators import bubble as bubbles
from partitioning.planner.calculators.state import (
    GRADIENTS,
    OPTIMIZER,
    WEIGHTS,
    Layout,
    least_replicas,
)
from partitioning.planner.command import Given, add, number, positive, share, tokens
from partitioning.planner.commands.communication import add_layout, read_layout


def register(commands: Any) -> None:
    """Adds the commands."""
    _add_state(commands)
    _add_bubble(commands)
    _add_activations(commands)


def _add_state(commands: Any) -> None:
    one = add(
        commands,
        "state",
        "Bytes of weights, gradients and optimizer on a device at each stage of ZeRO. Mixed "
        "precision with Adam: 2 + 2 + 12 bytes per parameter; tensor and pipeline parallelism "
        "divide all of it, ZeRO what its stage shards. The default is 70B on 512 devices.",
        ["state", "state --parameters=7B --tensor=1 --stage=1 --data=8", "state --policy=book"],
        run=_state,
    )
    add_layout(one)
    one.add_argument("--room", type=number, default=75e9, help="Bytes free for state. (75e9)")


def _state(given: Given) -> Answer:
    layout, parameters = read_layout(given), given.parameters
    parts = (("weights", WEIGHTS), ("gradients", GRADIENTS), ("optimizer", OPTIMIZER))
    whole = [
        Quantity(name=name, value=b * parameters, unit="B", formula=f"{b} B x {amount(parameters)}")
        for name, b in parts
    ]
    total = layout_terms.state_bytes(parameters, zero=0, layout=Layout(), name="all")
    each = tuple(
        layout_terms.state_bytes(parameters, zero=zero, layout=layout) for zero in (0, 1, 2, 3)
    )
    split = layout.tensor * layout.stage
    least = Quantity(
        name="least_replicas",
        value=least_replicas(parameters, room=given.room, layout=layout),
        formula=f"16 B x {amount(parameters)} / {split} / {amount(given.room)} B, not rounded",
    )
    return Answer(
        title=f"{amount(parameters)} parameters, tensor {layout.tensor} x stage {layout.stage} x "
        f"data {layout.data} x context {layout.context} = {layout.devices:,} devices",
        sections=(
            Section(name="whole", title="Of the model", quantities=(*whole, total)),
            Section(name="device", title="On each device", quantities=(*each, least)),
        ),
        notes=() if min(q.value for q in each) <= given.room else ("Not even ZeRO-3 fits.",),
        exit_code=0 if min(q.value for q in each) <= given.room else 64,
    )


def _add_bubble(commands: Any) -> None:
    one = add(
        commands,
        "bubble",
        "The idle share of a pipeline, and what keeps it under a bound. Microbatches are those of "
        "one replica, that is, the gradient accumulation.",
        [
            "bubble --stage=4 --microbatches=8",
            "bubble --stage=4 --microbatches=8 --chunks=2",
            "bubble --stage=8 --bound=8%",
        ],
        run=_bubble,
    )
    one.add_argument("--stage", type=positive, default=4, help="Pipeline stages. (4)")
    one.add_argument("--microbatches", type=positive, default=8, help="Of a replica. (8)")
    one.add_argument("--chunks", type=positive, default=1, help="Pieces on each stage. (1)")
    one.add_argument("--bound", type=share, default=0.1, help="Keep it below this. (10%%)")
    one.add_argument("--data", type=positive, default=16, help="Replicas, for the batch. (16)")
    one.add_argument("--rows", type=positive, default=2, help="Rows of a microbatch. (2)")
    one.add_argument("--length", type=tokens, default=4096, help="Tokens of a row. (4096)")


def _bubble(given: Given) -> Answer:
    stages, microbatches, bound = given.stage, given.microbatches, given.bound
    chunks = bubbles.least_chunks(stages, microbatches=microbatches, at_most=bound)
    needed = (
        layout_terms.least_microbatches(stages, below=bound, chunks=given.chunks),
        Quantity(
            name="least_chunks",
            value=chunks,
            formula=f"at most {100 * bound:g}% with {microbatches} microbatches",
        ),
        Quantity(
            name="most_stages",
            value=bubbles.most_stages(microbatches, at_most=bound),
            formula=f"at most {100 * bound:g}% with {microbatches} microbatches, one chunk",
        ),
    )
    rows = bubbles.sequences(given.rows, accumulation=microbatches, layout=Layout(data=given.data))
    batch = (
        layout_terms.book_microbatches(microbatches, data=given.data, stages=stages),
        Quantity(name="rows", value=rows, formula=f"{given.rows} x {microbatches} x {given.data}"),
        Quantity(name="tokens", value=rows * given.length, formula=f"{rows} x {given.length}"),
    )
    now = layout_terms.bubble_share(stages, microbatches=microbatches, chunks=given.chunks)
    return Answer(
        title=f"A pipeline of {stages} stages x {given.chunks} chunks",
        sections=(
            Section(name="pipeline", title="As it is", quantities=(now,)),
            Section(name="bound", title=f"For {100 * bound:g}%", quantities=needed),
            Section(name="batch", title="The batch", quantities=batch),
        ),
    )


def _add_activations(commands: Any) -> None:
    one = add(
        commands,
        "activations",
        "Bytes of activations that wait for the backward pass on the fullest device, by what is "
        "computed again. Closed forms for layers of the GPT kind.",
        ["activations", "activations --layers=96 --width=12288 --heads=96 --rows=4"],
        run=_activations,
    )
    counts = (
        ("layers", 80, "Of the model."),
        ("width", 8192, "Of the residual stream."),
        ("heads", 64, "Of queries."),
        ("rows", 2, "Of a microbatch on a device."),
        ("tensor", 8, "Devices that split a layer."),
        ("stage", 4, "Pipeline stages."),
        ("microbatches", 8, "Of a replica."),
    )
    for name, default, meaning in counts:
        one.add_argument(f"--{name}", type=positive, default=default, help=f"{meaning} ({default})")
    one.add_argument("--length", type=tokens, default=4096, help="Tokens on a device. (4096)")
    one.add_argument(
        "--no_sequence_parallel",
        dest="sequence_parallel",
        action="store_false",
        help="Keep what is between the products whole on every device.",
    )


def _activations(given: Given) -> Answer:
    layer = activations.Layer(
        rows=given.rows,
        length=given.length,
        width=given.width,
        tensor=given.tensor,
        sequence_parallel=given.sequence_parallel,
    )
    count = activations.layers_in_flight(
        given.layers, stages=given.stage, microbatches=given.microbatches
    )
    selective = "34 s b h / t" if layer.sequence_parallel else "s b h (10 + 24 / t)"
    kept = (
        ("nothing", layer.nothing_recomputed(heads=given.heads), f"{selective} + 5 a s s b / t"),
        ("selective", layer.selective(), selective),
        ("full", layer.full(), "2 s b h / t" if layer.sequence_parallel else "2 s b h"),
    )
    each = tuple(Quantity(name=n, value=v, unit="B", formula=f) for n, v, f in kept)
    every = tuple(
        Quantity(name=n, value=v * count, unit="B", formula=f"{count} x {amount(v)} B")
        for n, v, _ in kept
    )
    flight = Quantity(
        name="layers_in_flight",
        value=count,
        formula=f"{given.layers} / {given.stage} x min({given.stage}, {given.microbatches})",
    )
    return Answer(
        title="Activations by what is computed again",
        sections=(
            Section(name="layer", title="One layer, one microbatch", quantities=each),
            Section(name="stage", title="The first stage of 1F1B", quantities=(flight, *every)),
        ),
        notes=("Our schedule runs its stages in lockstep and keeps up to twice as many inputs.",),
    )
