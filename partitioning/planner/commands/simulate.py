"""``simulate``: weeks of a run under failures, or of a shared cluster, in seconds."""

import argparse
import dataclasses
import statistics
from typing import Any

from partitioning.planner.answers import Answer, Quantity, Section
from partitioning.planner.calculators.reliability import DAY, WEEK
from partitioning.planner.command import (
    Given,
    add,
    amount,
    counted,
    group,
    number,
    positive,
    seconds,
    share,
    some_time,
)
from partitioning.planner.commands import simulate_cluster
from partitioning.planner.simulation.failure_classes import FailureClass, meta, uniform
from partitioning.planner.simulation.run_simulation import (
    Case,
    Simulated,
    Stragglers,
    Tier,
    percentiles,
    simulate_many,
)

_MEMORY_S = 2.0
"""Seconds that a save into peers' memory blocks; until it counts, and to read it, twice that."""

_MOST_EVENTS = 2e7
"""A minute or two."""


def register(commands: Any) -> None:
    """Adds the commands."""
    inner = group(
        commands,
        "simulate",
        "Simulates a run under failures, or many jobs on a shared cluster",
    )
    simulate_cluster.register(inner)
    one = add(
        inner,
        "run",
        "Simulates a run under failures: checkpoints in two tiers, spares, repairs, stragglers. "
        "Says what share of the time is progress, what is lost, and how long recoveries take.",
        [
            "simulate run --devices=16384 --failures=meta --days=54 --interval=600",
            "simulate run --devices=512 --failures=1% --interval=18min --blocked=5s --spares=4",
        ],
        run=_simulate,
    )
    one.add_argument("--devices", type=positive, default=512, help="How many. (512)")
    one.add_argument("--per_host", type=positive, default=8, help="Devices of a host. (8)")
    one.add_argument("--days", type=number, default=54.0, help="Wall time to look at. (54)")
    one.add_argument(
        "--failures",
        default="0.01",
        help="Per device and week; or meta, the classes of the Llama 3 405B run. (1%%)",
    )
    one.add_argument("--interval", type=some_time, default=600.0, help="Between saves. (10min)")
    one.add_argument("--blocked", type=seconds, default=5.0, help="Standing still to save. (5s)")
    one.add_argument("--written", type=seconds, default=90.0, help="Until a save counts. (90s)")
    one.add_argument("--restore", type=seconds, default=60.0, help="To read a checkpoint. (60s)")
    one.add_argument(
        "--memory_tier",
        type=positive,
        metavar="N",
        help="Save to peers' memory every interval, and to the store every Nth time.",
    )
    one.add_argument(
        "--detection", type=seconds, default=30.0, help="Until a failure is noticed. (30s)"
    )
    one.add_argument(
        "--restart", type=seconds, default=300.0, help="From then until it can restore. (5min)"
    )
    one.add_argument("--spares", type=counted, default=4, help="Hosts that wait. (4)")
    one.add_argument(
        "--repair", type=seconds, default=4 * 3600.0, help="Until a failed host is back. (4h)"
    )
    one.add_argument(
        "--stragglers",
        type=amount,
        default=0.0,
        help="That become slow, per device and week. (0)",
    )
    one.add_argument("--slowdown", type=number, default=1.3, help="Of all by a slow one. (1.3)")
    one.add_argument("--noticed", type=seconds, default=600.0, help="Until it is told. (10min)")
    one.add_argument("--trials", type=positive, default=20, help="Simulations. (20)")
    one.add_argument("--seed", type=counted, default=0, help="Of the first. (0)")


def _simulate(given: Given) -> Answer:
    case = _case(given)
    _check_length(case, trials=given.trials)
    runs = simulate_many(case, trials=given.trials, seed=given.seed)
    recoveries = [recovery for run in runs for recovery in run.recoveries]
    still = percentiles([recovery.still for recovery in recoveries])
    lost = percentiles([recovery.lost for recovery in recoveries])
    counts = [float(sum(r.faults for r in run.recoveries)) for run in runs]
    return Answer(
        title=f"{given.devices} devices for {given.days:g} days, {given.trials} times, seed "
        f"{given.seed}",
        sections=(
            Section(name="time", title="Where the time goes", quantities=_shares(runs)),
            Section(
                name="failures",
                title="Interruptions",
                quantities=(
                    Quantity(name="count", value=statistics.mean(counts), formula=_spread(counts)),
                    *(_s(f"still_p{100 * q:.0f}", value) for q, value in still.items()),
                    *(_s(f"lost_p{100 * q:.0f}", value) for q, value in lost.items()),
                ),
            ),
            Section(name="expected", title="Closed forms", quantities=_expected(case)),
        ),
    )


def _check_length(case: Case, *, trials: int) -> None:
    """Raises ValueError if there is more to simulate than anyone waits for."""
    rate = sum(kind.rate for kind in case.classes) + case.stragglers.rate
    events = trials * case.work * (rate * case.devices / WEEK + 1 / case.interval)
    if events > _MOST_EVENTS:
        raise ValueError(
            f"{events:.3g} failures and saves are too many to simulate; at most "
            f"{_MOST_EVENTS:.0e}. Take fewer --days or --trials, a longer --interval or fewer "
            "--failures."
        )


def _case(given: Given) -> Case:
    store = Tier(name="store", blocked=given.blocked, written=given.written, restore=given.restore)
    tiers: tuple[Tier, ...] = (store,)
    if given.memory_tier:
        memory = Tier(
            name="peer memory",
            blocked=_MEMORY_S,
            written=2 * _MEMORY_S,
            restore=2 * _MEMORY_S,
            survives=1,
        )
        tiers = (memory, dataclasses.replace(store, every=given.memory_tier))
    wall = given.days * DAY
    return Case(
        devices=given.devices,
        per_host=given.per_host,
        work=wall,
        horizon=wall,
        interval=given.interval,
        tiers=tiers,
        classes=_classes(given),
        stragglers=Stragglers(rate=given.stragglers, factor=given.slowdown, noticed=given.noticed),
        spares=given.spares,
        repair=given.repair,
    )


def _classes(given: Given) -> tuple[FailureClass, ...]:
    costs = {"detection": given.detection, "restart": given.restart}
    if given.failures == "meta":
        return meta(**costs)
    try:
        rate = (share if given.failures.endswith("%") else amount)(given.failures)
    except argparse.ArgumentTypeError:
        raise ValueError(
            f"--failures={given.failures}: per device and week, such as 0.01 or 1%, or meta."
        ) from None
    return uniform(rate, **costs) if rate else ()


def _shares(runs: tuple[Simulated, ...]) -> tuple[Quantity, ...]:
    parts = {
        "goodput": [run.goodput for run in runs],
        "saving": [run.saving / run.wall for run in runs],
        "made_twice": [run.lost / run.wall for run in runs],
        "standing_still": [run.still / run.wall for run in runs],
        "slowed_down": [run.slow / run.wall for run in runs],
    }
    return tuple(
        Quantity(
            name=name,
            value=statistics.mean(values),
            unit="share",
            formula=f"of the wall time; {100 * min(values):.2f}% to {100 * max(values):.2f}%",
        )
        for name, values in parts.items()
    )


def _expected(case: Case) -> tuple[Quantity, ...]:
    """What formulas to the first order say, for one tier and spares enough."""
    rate = sum(kind.rate for kind in case.classes) * case.devices / WEEK
    tier = case.tiers[-1]
    stop = max((kind.detection + kind.restart for kind in case.classes), default=0.0)
    saving = sum(t.blocked / t.every for t in case.tiers) / case.interval
    again = (case.interval / 2 + case.tiers[0].written) * rate
    still = (stop + tier.restore) * rate
    return (
        Quantity(name="mtbf", value=1 / rate if rate else float("inf"), unit="s"),
        Quantity(
            name="goodput",
            value=1 / (1 + saving + again + still),
            unit="share",
            formula=f"1 / (1 + {saving:.4f} saving + {again:.4f} made twice + {still:.4f} still)",
        ),
    )


def _s(name: str, value: float) -> Quantity:
    return Quantity(name=name, value=value, unit="s")


def _spread(values: list[float]) -> str:
    return f"mean of {len(values)}: {min(values):.0f} to {max(values):.0f}"
