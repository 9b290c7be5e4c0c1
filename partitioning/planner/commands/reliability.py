"""``failures``, ``interval``, ``spares``, ``downtime``: what stops a run, and what helps."""

import argparse
import math
from typing import Any

from partitioning.planner.answers import Answer, Quantity, Section, shown
from partitioning.planner.calculators import reliability, running_terms, spares
from partitioning.planner.calculators.reliability import DAY, PRESETS, Saving
from partitioning.planner.command import Given, add, positive, seconds, several, share

_PERIODS = (("day", DAY), ("30_days", 30 * DAY), ("year", 365 * DAY))


def rate(text: str) -> float:
    """Reads interruptions per device and week: a preset, or a share.

    Raises:
      ArgumentTypeError: it is neither.
    """
    if text in PRESETS:
        return PRESETS[text]
    value = share(text)
    if not value:
        raise argparse.ArgumentTypeError("A rate of 0 means that nothing fails; leave this out.")
    return value


def register(commands: Any) -> None:
    """Adds the commands."""
    _add_failures(commands)
    _add_interval(commands)
    _add_spares(commands)
    _add_downtime(commands)


def _add_failures(commands: Any) -> None:
    one = add(
        commands,
        "failures",
        "How often a job is interrupted, how often it should save, and what both cost, for any "
        "number of devices. One section for each.",
        ["failures", "failures --devices=4096 --rate=meta --save=8", "failures --rate=0.5%"],
        run=_failures,
    )
    _add_counts(one)


def _failures(given: Given) -> Answer:
    sections = []
    for devices in given.devices:
        saving = saving_of(given, devices)
        interval = reliability.young(saving.save, mtbf=saving.mtbf)
        quantities = (
            *running_terms.failures(devices, rate=given.rate),
            *running_terms.intervals(saving),
            *running_terms.losses(saving, interval=interval),
            Quantity(
                name="per_failure",
                value=devices * (interval / 2 + saving.recovery) / 3600,
                unit="device-hours",
                formula=f"{devices:,} x ({interval:,.5g} / 2 + {saving.recovery:g}) s",
            ),
        )
        sections.append(
            Section(name=str(devices), title=f"{devices:,} devices", quantities=quantities)
        )
    return Answer(
        title=f"Interrupted {100 * given.rate:.4g}% per device and week",
        sections=tuple(sections),
    )


def _add_interval(commands: Any) -> None:
    one = add(
        commands,
        "interval",
        "The checkpoint interval to choose, within bounds, and what it costs. Young's and Daly's "
        "formulas on the time between failures; not shorter than the background write or the "
        "budget for standing still allow, not longer than the work that a failure may cost.",
        [
            "interval --devices=4096 --save=8 --recovery=5min",
            "interval --devices=1000 --save=8 --progress=10min",
            "interval --devices=512 --save=90 --write=0 --budget=100%",
        ],
        run=_interval,
    )
    one.add_argument("--devices", type=positive, default=512, help="How many. (512)")
    add_failures(one)
    one.add_argument("--write", type=seconds, default=90.0, help="Background write. (90s)")
    one.add_argument("--budget", type=share, default=0.02, help="For standing still. (2%%)")
    one.add_argument("--progress", type=seconds, default=math.inf, help="Most work lost. (any)")
    one.add_argument("--step", type=seconds, default=2.0, help="Seconds of a step. (2s)")


def _interval(given: Given) -> Answer:
    if not given.step:
        raise ValueError("--step=0: a step takes some time; give it, such as 2s.")
    if not given.budget:
        raise ValueError("--budget=0 leaves no time to save at all; give a share, such as 2%.")
    saving = saving_of(
        given, given.devices, write=given.write, budget=given.budget, progress=given.progress
    )
    chosen, by = saving.interval()
    book = reliability.by_the_book(saving.save, recovery=saving.recovery)
    most = "" if math.isinf(saving.progress) else f", at most {saving.progress:,.5g} s"
    ours = Quantity(
        name="interval",
        value=chosen,
        unit="s",
        book=book,
        book_formula=f"sqrt(2 x {saving.save:g} s x {saving.recovery:g} s)",
        note="E17: the book looks at neither the write nor a budget",
        formula=f"{by} decides; at least {saving.least:,.5g} s{most}",
    )
    steps = Quantity(
        name="steps",
        value=math.floor(chosen / given.step),
        unit="steps",
        formula=f"floor({chosen:,.5g} s / {given.step:g} s)",
        book=math.floor(book / given.step),
        book_formula=f"floor({book:.5g} s / {given.step:g} s)",
    )
    formulas = (
        *running_terms.failures(given.devices, rate=given.rate),
        *running_terms.intervals(saving, step=given.step),
    )
    notes = (
        (f"E17: the book's {book:.4g} s is shorter than the write of {saving.write:g} s.",)
        if book < saving.write
        else ()
    )
    return Answer(
        title=f"Saving on {given.devices:,} devices",
        sections=(
            Section(name="formulas", title="By formula", quantities=formulas),
            Section(name="chosen", title="Chosen", quantities=(ours, steps)),
            Section(
                name="cost",
                title="What it costs",
                quantities=running_terms.losses(saving, interval=chosen),
            ),
            Section(
                name="book",
                title=f"What the book's {book:.4g} s would cost",
                quantities=running_terms.losses(saving, interval=book),
            ),
        ),
        notes=notes,
    )


def _add_spares(commands: Any) -> None:
    one = add(
        commands,
        "spares",
        "Spare hosts, restart budget and recovery that an availability asks for, for any number of "
        "devices. Spares make a host ready; they do not make a recovery shorter than detection, "
        "restore and start.",
        ["spares --devices=8192 --availability=99.5%", "spares --devices=512 --repair=24h"],
        run=_spares,
    )
    _add_counts(one)
    one.add_argument("--availability", type=share, default=0.995, help="Wanted. (99.5%%)")
    one.add_argument(
        "--repair", type=several(seconds), default=(14_400.0,), help="Until a host is back. (4h)"
    )
    one.add_argument("--days", type=positive, default=30, help="Of the run. (30)")
    one.add_argument("--per_host", type=positive, default=8, help="Devices of a host. (8)")
    one.add_argument("--share", type=share, default=0.05, help="Rule of thumb. (5%%)")


def _spares(given: Given) -> Answer:
    wanted = _availability(given.availability)
    sections = tuple(
        Section(
            name=str(devices),
            title=f"{devices:,} devices",
            quantities=(*_kept(given, devices), *_up(given, devices)),
        )
        for devices in given.devices
    )
    short = [
        f"{devices:,}"
        for devices in given.devices
        if reliability.availability(_between(given, devices), recovery=given.recovery) < wanted
    ]
    note = (
        f"E37: with a recovery of {shown(given.recovery, 's')} no number of spares gives "
        f"{', '.join(short)} devices {100 * wanted:g}%."
    )
    return Answer(title=f"For {100 * wanted:g}%", sections=sections, notes=(note,) if short else ())


def _between(given: Given, devices: int) -> float:
    return reliability.mtbf(devices, rate=given.rate)


def _kept(given: Given, devices: int) -> tuple[Quantity, ...]:
    between, hosts = _between(given, devices), math.ceil(devices / given.per_host)
    duration = given.days * DAY
    return (
        *(
            running_terms.spare_hosts(
                between,
                repair=repair,
                confidence=given.availability,
                name=f"repair_{shown(repair, 's').replace(' ', '_')}",
            )
            for repair in given.repair
        ),
        Quantity(
            name="by_share",
            value=spares.by_share(hosts, share=given.share),
            unit="hosts",
            formula=f"ceil({100 * given.share:g}% x {hosts:,} hosts)",
        ),
        Quantity(
            name="restarts",
            value=spares.restarts(between, duration=duration, confidence=given.availability),
            formula=f"{duration / between:.5g} expected in {given.days} days",
        ),
    )


def _up(given: Given, devices: int) -> tuple[Quantity, ...]:
    between, wanted = _between(given, devices), given.availability
    return (
        running_terms.available(between, recovery=given.recovery),
        running_terms.recovery_needed(between, availability=wanted),
        Quantity(
            name="mtbf_needed",
            value=reliability.mtbf_for(given.recovery, availability=wanted),
            unit="s",
            formula=f"{given.recovery:g} s x {wanted:g} / {1 - wanted:.4g}",
        ),
    )


def _add_downtime(commands: Any) -> None:
    one = add(
        commands,
        "downtime",
        "How long a service may be down at an availability.",
        ["downtime --availability=99.95%", "downtime --availability=99%,99.9%"],
        run=_downtime,
    )
    one.add_argument(
        "--availability",
        type=several(share),
        default=(0.995, 0.9995),
        help="One or several. (99.5%%,99.95%%)",
    )


def _downtime(given: Given) -> Answer:
    sections = tuple(
        Section(
            name=f"{100 * _availability(wanted):g}",
            title=f"{100 * wanted:g}%",
            quantities=tuple(
                Quantity(
                    name=name,
                    value=reliability.downtime(wanted, period=period) / 60,
                    unit="min",
                    formula=f"{100 * (1 - wanted):.4g}% of {period / DAY:g} days",
                )
                for name, period in _PERIODS
            ),
        )
        for wanted in given.availability
    )
    return Answer(title="Allowed downtime", sections=sections)


def _availability(wanted: float) -> float:
    if not 0 < wanted < 1:
        raise ValueError("--availability lies between 0 and 100%, exclusive, such as 99.5%.")
    return wanted


def add_failures(one: argparse.ArgumentParser) -> None:
    """Adds the flags that say how often a job fails, and what saving and failing take."""
    one.add_argument(
        "--rate",
        type=rate,
        default=PRESETS["1%"],
        help="Interruptions per device and week: a share, or meta for Meta's 419 in 54 days. (1%%)",
    )
    one.add_argument("--save", type=seconds, default=5.0, help="Standing still to save. (5s)")
    one.add_argument("--recovery", type=seconds, default=600.0, help="Until steps run. (10min)")


def saving_of(given: Given, devices: int, **bounds: float) -> Saving:
    """Returns a job on so many devices, with what those flags say.

    Raises:
      ValueError: saving or recovering takes no time.
    """
    for name in ("save", "recovery"):
        if not getattr(given, name):
            raise ValueError(f"--{name}=0: it takes some time; give what was measured, or 1s.")
    return Saving(save=given.save, mtbf=_between(given, devices), recovery=given.recovery, **bounds)


def _add_counts(one: argparse.ArgumentParser) -> None:
    counts = (512, 1024, 4096, 16_384)
    shown_counts = ",".join(map(str, counts))
    one.add_argument(
        "--devices",
        type=several(positive),
        default=counts,
        help=f"How many; several with commas. ({shown_counts})",
    )
    add_failures(one)
