"""``cost`` and ``rlhf``: what a run is paid for, and how its devices divide."""

import dataclasses
import functools
import math
from typing import Any

from partitioning.planner.answers import Answer, Quantity, Section, amount
from partitioning.planner.calculators import cost, running_terms, state
from partitioning.planner.calculators.layout_terms import state_bytes
from partitioning.planner.calculators.state import Layout
from partitioning.planner.command import Given, add, counted, number, positive, share
from partitioning.planner.commands.runs import add_speed, machine_of, speed_of

_SPLIT = (("rollout", 0.4), ("reward", 0.15), ("reference", 0.25), ("update", 0.2))


def register(commands: Any) -> None:
    """Adds the commands."""
    _add_cost(commands)
    _add_rlhf(commands)


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
    add_speed(one)
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
    speed = speed_of(given)
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
        slower = machine_of(given).tokens_per_second(given.slower_mfu)
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
    one.add_argument("--policy_parameters", type=number, default=70e9, help="Its size. (70B)")
    for name, part in _SPLIT:
        one.add_argument(
            f"--{name}", type=share, default=part, help=f"Its share of devices. ({100 * part:g}%%)"
        )
    one.add_argument("--policy_size", type=positive, default=8, help="Devices of one copy. (8)")
    one.add_argument("--reward_size", type=positive, default=4, help="Devices of one copy. (4)")
    one.add_argument("--update_stages", type=positive, default=2, help="Stages of the update. (2)")


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
