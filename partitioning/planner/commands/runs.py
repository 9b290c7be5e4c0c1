"""``checkpoint`` and ``length``: what a run writes, and when it ends."""

import argparse
import math
from typing import Any

from partitioning.planner.answers import Answer, Quantity, Section, amount, shown
from partitioning.planner.calculators import cost, reliability, running_terms, state
from partitioning.planner.calculators.mfu import H100_BF16, Machine
from partitioning.planner.command import Given, add, number, positive, share, some_time, tokens
from partitioning.planner.commands.reliability import add_failures, saving_of
from partitioning.planner.documents.chapter import PARAMETERS


def register(commands: Any) -> None:
    """Adds the commands."""
    _add_checkpoint(commands)
    _add_length(commands)


def _add_checkpoint(commands: Any) -> None:
    one = add(
        commands,
        "checkpoint",
        "Bytes of a checkpoint and how long writing it takes. Float32 master weights and Adam's "
        "moments; gradients are not saved.",
        ["checkpoint", "checkpoint --parameters=200B --devices=2048 --bandwidth=100G"],
        run=_checkpoint,
    )
    one.add_argument("--parameters", type=number, default=70e9, help="Of the model. (70B)")
    one.add_argument("--devices", type=positive, default=512, help="That write. (512)")
    one.add_argument("--bandwidth", type=number, default=100e9, help="Of the store, B/s. (100G)")
    one.add_argument("--within", type=some_time, default=90.0, help="Time wanted. (90s)")


def _checkpoint(given: Given) -> Answer:
    parameters = given.parameters
    size = state.checkpoint_bytes(parameters)
    copied = state.checkpoint_bytes(parameters, copy=True)
    sizes = (
        Quantity(name="size", value=size, unit="B", formula=f"12 B x {amount(parameters)}"),
        Quantity(
            name="with_copy",
            value=copied,
            unit="B",
            formula=f"14 B x {amount(parameters)}, with the bfloat16 weights",
        ),
        Quantity(
            name="weights_only",
            value=state.WEIGHTS * parameters,
            unit="B",
            formula=f"2 B x {amount(parameters)}",
        ),
        Quantity(
            name="per_device",
            value=size / given.devices,
            unit="B",
            formula=f"{amount(size)} B / {given.devices:,}",
        ),
    )
    times = (
        Quantity(
            name="write",
            value=size / given.bandwidth,
            unit="s",
            formula=f"{amount(size)} B / {amount(given.bandwidth)} B/s",
        ),
        Quantity(
            name="bandwidth_needed",
            value=size / given.within,
            unit="B/s",
            formula=f"{amount(size)} B / {given.within:g} s",
        ),
    )
    return Answer(
        title=f"A checkpoint of {amount(parameters)} parameters",
        sections=(
            Section(name="size", title="Size", quantities=sizes),
            Section(name="write", title="Writing", quantities=times),
        ),
    )


def _add_length(commands: Any) -> None:
    one = add(
        commands,
        "length",
        "How long a run computes, how long it takes with its failures and saves, and how many "
        "tokens a model is worth. Chinchilla speaks of about 20 tokens per parameter; it says "
        "nothing of the batch. Waiting in a queue is not in it.",
        [
            "length --tokens=300B --tokens_per_second=700K",
            "length --mfu=40% --devices=4096 --rate=meta --save=8 --recovery=5min",
        ],
        run=_length,
    )
    one.add_argument("--parameters", type=number, default=70e9, help="Of the model. (70B)")
    one.add_argument("--tokens", type=number, help="Of the run. (20 per parameter)")
    one.add_argument("--batch", type=tokens, default=2**20, help="Tokens of a step. (1M)")
    add_speed(one)
    add_failures(one)


def _length(given: Given) -> Answer:
    total = given.tokens or cost.optimal_tokens(given.parameters)
    return Answer(
        title=f"A run of {amount(total)} tokens",
        sections=(_computing(given, total), _schedule(given, total)),
    )


def _computing(given: Given, total: float) -> Section:
    optimal = cost.optimal_tokens(given.parameters)
    quantities = (
        Quantity(
            name="optimal_tokens",
            value=optimal,
            unit="tokens",
            formula=f"20 x {amount(given.parameters)}",
            book=300e9 if given.parameters == PARAMETERS else None,
            note="E31: about 20 tokens per parameter; 300B are 4.3 of 70B",
        ),
        Quantity(name="tokens", value=total, unit="tokens"),
        Quantity(
            name="per_parameter",
            value=total / given.parameters,
            unit="tokens",
            formula=f"{amount(total)} / {amount(given.parameters)}",
        ),
        running_terms.run_time(total, tokens_per_second=speed_of(given)),
    )
    return Section(name="run", title="Computing", quantities=quantities)


def _schedule(given: Given, total: float) -> Section:
    speed = speed_of(given)
    saving = saving_of(given, given.devices)
    interval = reliability.young(saving.save, mtbf=saving.mtbf)
    effective = saving.loss(interval).effective
    if effective <= 0:
        raise ValueError(
            f"At {shown(saving.mtbf, 's')} between failures, saving, rework and recovery take all "
            "of the time; fewer devices, a lower --rate or a shorter --recovery is needed."
        )
    duration = total / speed
    wall = duration / effective
    quantities = (
        Quantity(name="steps", value=math.ceil(total / given.batch), formula="tokens / batch"),
        Quantity(
            name="step",
            value=given.batch / speed,
            unit="s",
            formula=f"{given.batch:,} / {amount(speed)} per s",
        ),
        Quantity(name="interval", value=interval, unit="s", formula="Young's; see `interval`"),
        Quantity(name="effective", value=effective, unit="share", formula="1 - lost"),
        Quantity(
            name="wall",
            value=wall,
            unit="s",
            formula=f"{shown(duration, 's')} / {effective:.4g}",
        ),
        Quantity(name="failures", value=wall / saving.mtbf, formula="wall / MTBF"),
        Quantity(name="checkpoints", value=duration / interval, formula="computing / interval"),
    )
    return Section(name="schedule", title="From start to end", quantities=quantities)


def add_speed(one: argparse.ArgumentParser) -> None:
    """Adds the flags that say how fast a run is."""
    one.add_argument("--devices", type=positive, default=512, help="That compute. (512)")
    one.add_argument("--tokens_per_second", type=number, default=700e3, help="Measured. (700K)")
    one.add_argument("--mfu", type=share, help="Instead: utilisation of the peak.")
    one.add_argument("--peak", type=number, default=H100_BF16, help="FLOP/s. (989T)")


def speed_of(given: Given) -> float:
    """Returns its tokens/s.

    Raises:
      ValueError: it stands still.
    """
    if given.mfu is None:
        return float(given.tokens_per_second)
    if not given.mfu:
        raise ValueError("--mfu=0 trains nothing; give a share, such as 40%.")
    return machine_of(given).tokens_per_second(given.mfu)


def machine_of(given: Given) -> Machine:
    """Returns the devices that it runs on."""
    return Machine(parameters=given.parameters, devices=given.devices, peak=given.peak)
