"""``parameters``: what a model consists of."""

import math
from typing import Any

from partitioning.planner.answers import Answer, Quantity, Section
from partitioning.planner.command import Given, add
from partitioning.planner.decoder_parameters import active, count, parameters
from partitioning.planner.inputs import load_model


def register(commands: Any) -> None:
    """Adds the command."""
    one = add(
        commands,
        "parameters",
        "Every parameter of a model with its shape and logical axes, and how many there are.",
        ["parameters --gin_file=configs/models/llama3_70b.gin"],
        run=_parameters,
    )
    one.add_argument("--gin_file", action="append", required=True, help="Of a model or a run.")


def _parameters(given: Given) -> Answer:
    model = load_model(given.gin_file)
    tree = parameters(model)
    each = tuple(
        Quantity(
            name=path,
            value=math.prod(shape),
            formula=" x ".join(f"{a} {n:,}" for a, n in zip(axes, shape, strict=True)),
        )
        for path, (axes, shape) in tree.items()
    )
    totals = (
        Quantity(name="all", value=count(tree)),
        Quantity(name="used_by_a_token", value=active(model)),
    )
    return Answer(
        title=f"Parameters of {', '.join(given.gin_file)}",
        sections=(
            Section(name="parameters", title="Each", quantities=each),
            Section(name="total", title="Together", quantities=totals),
        ),
    )
