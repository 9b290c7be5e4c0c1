"""Quantities with their terms: failures and saving, model FLOPs, time and money.

The twins of the formulas in reliability.py, spares.py, mfu.py and cost.py: the same inputs, and an
answer that says how it came about and what the chapter's own rule gives.
"""

from partitioning.planner.answers import Quantity, amount, shown
from partitioning.planner.calculators import cost, reliability, spares
from partitioning.planner.calculators.mfu import Machine
from partitioning.planner.calculators.reliability import Saving

Quantities = tuple[Quantity, ...]


def failures(devices: int, *, rate: float) -> Quantities:
    """Returns failures per week and the time between them."""
    weekly = Quantity(
        name="failures_per_week",
        value=reliability.per_week(devices, rate=rate),
        formula=f"{devices:,} x {100 * rate:.4g}%",
    )
    between = Quantity(
        name="mtbf",
        value=reliability.mtbf(devices, rate=rate),
        unit="s",
        formula=f"168 h / {weekly.value:.5g}",
    )
    return weekly, between


def intervals(saving: Saving, *, step: float = 0.0) -> Quantities:
    """Returns Young's and Daly's interval, in steps too if one step's time is given."""
    save, mtbf = saving.save, saving.mtbf
    book = reliability.by_the_book(save, recovery=saving.recovery)
    young = Quantity(
        name="young",
        value=reliability.young(save, mtbf=mtbf),
        unit="s",
        formula=f"sqrt(2 x {save:g} s x {mtbf:,.6g} s)",
        book=book,
        book_formula=f"sqrt(2 x {save:g} s x {saving.recovery:g} s)",
        note="E16: the optimum depends on the time between failures, not on the recovery",
    )
    daly = Quantity(
        name="daly",
        value=reliability.daly(save, mtbf=mtbf),
        unit="s",
        formula="Young x (1 + sqrt(x)/3 + x/9) - Tc, x = Tc / (2 MTBF)",
    )
    if not step:
        return young, daly
    in_steps = Quantity(
        name="young_steps",
        value=young.value / step,
        unit="steps",
        formula=f"{young.value:,.5g} s / {step:g} s",
        book=book / step,
        book_formula=f"{book:.5g} s / {step:g} s",
    )
    return young, in_steps, daly


def losses(saving: Saving, *, interval: float) -> Quantities:
    """Returns what saving and failing cost at an interval, by part."""
    loss, mtbf = saving.loss(interval), f"{saving.mtbf:,.6g} s"
    parts = (
        (
            "checkpoint",
            loss.checkpoint,
            f"{saving.save:g} s / ({interval:,.5g} + {saving.save:g}) s",
        ),
        ("rework", loss.rework, f"{interval:,.5g} s / 2 / {mtbf}"),
        ("restart", loss.restart, f"{saving.recovery:g} s / {mtbf}"),
        ("lost", loss.total, "checkpoint + rework + restart"),
        ("effective", loss.effective, "1 - lost"),
    )
    return tuple(Quantity(name=n, value=v, unit="share", formula=f) for n, v, f in parts)


def saving_share(interval: float, *, save: float, name: str) -> Quantity:
    """Returns the share of time in which a run stands still to save."""
    return Quantity(
        name=name,
        value=reliability.save_share(interval, save=save),
        unit="share",
        formula=f"{save:g} s / ({interval:,.5g} + {save:g}) s",
    )


def recovery_needed(mtbf: float, *, availability: float) -> Quantity:
    """Returns the longest recovery that an availability permits."""
    return Quantity(
        name="recovery_needed",
        value=reliability.recovery_for(mtbf, availability=availability),
        unit="s",
        formula=f"{mtbf:,.6g} s x {1 - availability:.4g} / {availability:g}",
    )


def available(mtbf: float, *, recovery: float, name: str = "availability") -> Quantity:
    """Returns the availability that a recovery gives."""
    return Quantity(
        name=name,
        value=reliability.availability(mtbf, recovery=recovery),
        unit="share",
        formula=f"{mtbf:,.6g} s / ({mtbf:,.6g} + {recovery:g}) s",
    )


def spare_hosts(mtbf: float, *, repair: float, confidence: float, name: str = "spares") -> Quantity:
    """Returns how many spare hosts suffice."""
    return Quantity(
        name=name,
        value=spares.spares(mtbf, repair=repair, confidence=confidence),
        unit="hosts",
        formula=f"least k with P(Poisson({repair / mtbf:.4g}) <= k) >= {confidence:.4g}; "
        f"repair in {shown(repair, 's')}",
    )


def utilisation(machine: Machine, *, tokens_per_second: float, name: str = "mfu") -> Quantity:
    """Returns the model FLOPs utilisation of so many tokens/s."""
    token = f"6 x {amount(machine.parameters)}"
    if machine.attention:
        token = f"({token} + {amount(machine.attention)})"
    return Quantity(
        name=name,
        value=machine.mfu(tokens_per_second),
        unit="share",
        formula=f"{amount(tokens_per_second)} x {token} / "
        f"({machine.devices:,} x {amount(machine.peak)})",
    )


def throughput(machine: Machine, *, mfu: float = 1.0, name: str = "ceiling") -> Quantity:
    """Returns tokens/s at a share of the peak."""
    of = "" if mfu == 1 else f"{mfu:g} x "
    token = f"6 x {amount(machine.parameters)}"
    token += f" + {amount(machine.attention)}" if machine.attention else ""
    return Quantity(
        name=name,
        value=machine.tokens_per_second(mfu),
        unit="tokens/s",
        formula=f"{of}{machine.devices:,} x {amount(machine.peak)} / ({token})",
    )


def run_time(tokens: float, *, tokens_per_second: float, name: str = "duration") -> Quantity:
    """Returns how long a run computes."""
    return Quantity(
        name=name,
        value=cost.duration(tokens, tokens_per_second=tokens_per_second),
        unit="s",
        formula=f"{amount(tokens)} / {amount(tokens_per_second)} per s",
    )
