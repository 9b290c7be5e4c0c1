"""``checkpoint``, ``length``, ``cost``, ``rlhf``: sizes on storage, time, money, shares."""

import dataclasses
import functools
import math
from typing import Any

from partitioning.planner import cost, running_terms, state
from partitioning.planner.answers import Answer, Quantity, Section, amount
from partitioning.planner.command import Given, add, counted, number, positive, seconds, share
from partitioning.planner.layout_terms import state_bytes
from partitioning.planner.mfu import H100_BF16, Machine
from partitioning.planner.state import Layout

_SPLIT = (("rollout", 0.4), ("reward", 0.15), ("reference", 0.25), ("update", 0.2))


def register(commands: Any) -> None:
    """Adds the commands."""
    _add_checkpoint(commands)
    _add_length(commands)
    _add_cost(commands)
    _add_rlhf(commands)


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
    one.add_argument("--within", type=seconds, default=90.0, help="Time wanted. (90s)")


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
        "How long a run computes, and how many tokens a model is worth. Chinchilla speaks of about "
        "20 tokens per parameter; it says nothing of the batch.",
        ["length --tokens=300B --tokens_per_second=700K", "length --mfu=40%"],
        run=_length,
    )
    one.add_argument("--parameters", type=number, default=70e9, help="Of the model. (70B)")
    one.add_argument("--tokens", type=number, help="Of the run. (20 per parameter)")
    _speed(one)


def _length(given: Given) -> Answer:
    optimal = cost.optimal_tokens(given.parameters)
    total = given.tokens or optimal
    speed = _tokens_per_second(given)
    quantities = (
        Quantity(
            name="optimal_tokens",
            value=optimal,
            unit="tokens",
            formula=f"20 x {amount(given.parameters)}",
            book=300e9,
            note="E31: 300B are 4.3 tokens per parameter of a 70B model",
        ),
        Quantity(name="tokens", value=total, unit="tokens"),
        Quantity(name="per_parameter", value=total / given.parameters, unit="tokens"),
        running_terms.run_time(total, tokens_per_second=speed),
    )
    return Answer(
        title=f"A run of {amount(total)} tokens",
        sections=(Section(name="run", title="Time", quantities=quantities),),
    )


def _add_cost(commands: Any) -> None:
    one = add(
        commands,
        "cost",
        "What a run costs: useful hours, failures, idle devices and storage, and what another "
        "speed would save. The default is 300B tokens of 70B on 512 devices at $2 an hour.",
        [
            "cost",
            "cost --tokens_per_second=700K --slower=400K",
            "cost --tokens=15T --mfu=40% --slower_mfu=35%",
            "cost --devices=4096 --lost=5.3% --idle=2% --spares=26 --kept=20",
        ],
        run=_cost,
    )
    one.add_argument("--parameters", type=number, default=70e9, help="Of the model. (70B)")
    one.add_argument("--tokens", type=number, default=300e9, help="Of the run. (300B)")
    _speed(one)
    one.add_argument("--slower", type=number, default=400e3, help="Compare with. (400K)")
    one.add_argument("--slower_mfu", type=share, help="Instead: its utilisation.")
    one.add_argument("--price", type=number, default=2.0, help="USD per device-hour. (2)")
    one.add_argument("--lost", type=share, default=0.0143, help="Failures, saving. (1.43%%)")
    one.add_argument("--idle", type=share, default=0.0, help="Held without work. (0%%)")
    one.add_argument("--spares", type=counted, default=0, help="Spare devices. (0)")
    one.add_argument("--kept", type=positive, default=3, help="Checkpoints that stay. (3)")
    one.add_argument("--storage", type=number, default=20.0, help="USD per TB-month. (20)")
    one.add_argument("--runs", type=positive, default=4, help="Runs in a quarter. (4)")


def _cost(given: Given) -> Answer:
    speed = _tokens_per_second(given)
    time = running_terms.run_time(given.tokens, tokens_per_second=speed)
    run = cost.Run(
        devices=given.devices,
        hours=time.value / 3600,
        price=given.price,
        lost=given.lost,
        idle=given.idle,
        spares=given.spares,
    )
    storage = cost.Storage(
        size=state.checkpoint_bytes(given.parameters), kept=given.kept, price=given.storage
    )
    bill = run.bill(storage)
    parts = (
        Quantity(
            name="useful",
            value=bill.useful,
            unit="USD",
            formula=f"{given.devices:,} x {run.hours:,.5g} h x ${given.price:g}",
            book=cost.device_cost(given.devices, hours=math.floor(run.hours), price=given.price),
            book_formula=f"{given.devices:,} x {math.floor(run.hours):,} h x ${given.price:g}",
        ),
        Quantity(
            name="failed",
            value=bill.failed,
            unit="USD",
            formula=f"{100 * given.lost:g}% of {run.wall_hours:,.5g} h",
        ),
        Quantity(
            name="idle",
            value=bill.idle,
            unit="USD",
            formula=f"{run.wall_hours:,.5g} h x ({100 * given.idle:g}% of {given.devices:,} + "
            f"{given.spares} spares)",
        ),
        Quantity(
            name="storage",
            value=bill.storage,
            unit="USD",
            formula=f"{given.kept} x {amount(storage.size)} B, ${given.storage:g} per TB-month",
        ),
        Quantity(name="all", value=bill.total, unit="USD"),
    )
    return Answer(
        title=f"{amount(given.tokens)} tokens at {speed:,.0f} per second",
        sections=(
            Section(name="time", title="Time", quantities=(time,)),
            Section(name="cost", title="Cost", quantities=parts),
            _compared(given, speed),
            _levers(run, storage),
        ),
    )


def _compared(given: Given, speed: float) -> Section:
    slower = given.slower
    if given.slower_mfu:
        slower = _machine(given).tokens_per_second(given.slower_mfu)
    hours = [given.tokens / one / 3600 for one in (slower, speed)]
    whole = math.floor(hours[0]) - math.floor(hours[1])
    saved, book = (
        cost.device_cost(given.devices, hours=difference, price=given.price)
        for difference in (hours[0] - hours[1], whole)
    )
    runs = given.runs
    rows = (
        ("per_run", 1, 1, f"{given.devices:,} x {hours[0] - hours[1]:,.5g} h x ${given.price:g}"),
        ("per_quarter", runs, runs, f"{runs} x ${saved:,.0f}"),
        ("per_year", cost.QUARTERS * runs, runs, f"4 x {runs} x ${saved:,.0f}"),
    )
    quantities = tuple(
        Quantity(
            name=name,
            value=times * saved,
            unit="USD",
            formula=formula,
            book=book_times * book,
            book_formula=f"{book_times} x {given.devices:,} x {whole:,} h x ${given.price:g}",
            note="E30: so many runs in a quarter are a quarter's saving"
            if name == "per_year"
            else "",
        )
        for name, times, book_times, formula in rows
    )
    ratio = Quantity(
        name="ratio", value=speed / slower, unit="x", formula=f"{speed:,.0f} / {slower:,.0f}"
    )
    title = f"Saved against {slower:,.0f} tokens/s"
    return Section(name="saved", title=title, quantities=(ratio, *quantities))


def _levers(run: cost.Run, storage: cost.Storage) -> Section:
    change = functools.partial(dataclasses.replace, run)
    changed = (
        ("packing_20_percent", change(hours=run.hours / 1.2), "rows 83% full become full"),
        ("mfu_10_percent", change(hours=run.hours / 1.1), "40% become 44%"),
        ("lost_halved", change(lost=run.lost / 2), "the interval, faster recoveries"),
        ("nothing_idle", change(idle=0.0, spares=0), "what waits, and spares"),
        ("price_10_percent", change(price=0.9 * run.price), "reserved or interruptible devices"),
    )
    now = run.bill(storage).total
    quantities = tuple(
        Quantity(name=name, value=now - other.bill(storage).total, unit="USD", formula=words)
        for name, other, words in changed
    )
    return Section(name="levers", title="What each lever would save", quantities=quantities)


def _add_rlhf(commands: Any) -> None:
    one = add(
        commands,
        "rlhf",
        "How the devices of a PPO run divide, and how many copies of each model they hold. "
        "Arithmetic only: Lockstep does not train with PPO, and the chapter's split has no critic.",
        ["rlhf", "rlhf --devices=1024 --policy_parameters=30B"],
        run=_rlhf,
    )
    one.add_argument("--devices", type=positive, default=512, help="All. (512)")
    one.add_argument("--policy_parameters", type=number, default=70e9, help="(70B)")
    for name, part in _SPLIT:
        one.add_argument(
            f"--{name}", type=share, default=part, help=f"({part:.0%})".replace("%", "%%")
        )
    one.add_argument("--policy_size", type=positive, default=8, help="Devices of a copy. (8)")
    one.add_argument("--reward_size", type=positive, default=4, help="Devices of a copy. (4)")
    one.add_argument("--update_stages", type=positive, default=2, help="Of the update. (2)")


def _rlhf(given: Given) -> Answer:
    shares = {name: getattr(given, name) for name, _ in _SPLIT}
    if abs(sum(shares.values()) - 1) > 1e-9:
        raise ValueError(f"The four shares add to {sum(shares.values()):.0%}; they must be 100%.")
    parts = cost.divided(given.devices, shares)
    size = given.policy_size
    update = Layout(
        tensor=size,
        stage=given.update_stages,
        data=max(1, cost.replicas(parts["update"], size=size * given.update_stages)),
    )
    copies = (("rollout", size), ("reward", given.reward_size), ("reference", size))
    counted = tuple(
        Quantity(
            name=f"{name}_replicas",
            value=cost.replicas(parts[name], size=each),
            formula=f"floor({parts[name]:g} / {each})",
        )
        for name, each in copies
    )
    updating = (
        Quantity(name="update_replicas", value=update.data),
        Quantity(
            name="update_devices",
            value=update.devices,
            formula=f"{size} x {given.update_stages} x {update.data}; {parts['update']:g} are held",
            note="E21: only whole replicas can use devices; the critic has none at all",
        ),
        state_bytes(given.policy_parameters, zero=3, layout=update, name="update_state"),
    )
    split = tuple(
        Quantity(name=n, value=v, formula=f"{given.devices} x {shares[n]:.0%}")
        for n, v in parts.items()
    )
    return Answer(
        title=f"PPO on {given.devices:,} devices",
        sections=(
            Section(name="devices", title="Devices", quantities=split),
            Section(name="replicas", title="Copies", quantities=(*counted, *updating)),
        ),
    )


def _speed(one: Any) -> None:
    one.add_argument("--devices", type=positive, default=512, help="That compute. (512)")
    one.add_argument("--tokens_per_second", type=number, default=700e3, help="Measured. (700K)")
    one.add_argument("--mfu", type=share, help="Instead: utilisation of the peak.")
    one.add_argument("--peak", type=number, default=H100_BF16, help="FLOP/s. (989T)")


def _tokens_per_second(given: Given) -> float:
    if given.mfu is None:
        return float(given.tokens_per_second)
    if not given.mfu:
        raise ValueError("--mfu=0 trains nothing; give a share, such as 40%.")
    return _machine(given).tokens_per_second(given.mfu)


def _machine(given: Given) -> Machine:
    return Machine(parameters=given.parameters, devices=given.devices, peak=given.peak)
