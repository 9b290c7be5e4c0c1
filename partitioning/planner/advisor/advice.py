"""What the advisor says: the best plans, their bottleneck, why others lost, what does not fit.

Imports no jax.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launch.contract import ExitCode
from partitioning.planner.advisor import decision_tree
from partitioning.planner.advisor import search as searching
from partitioning.planner.advisor.search import (
    Candidate,
    Evaluations,
    Outcome,
    Rank,
    Refused,
    families,
)
from partitioning.planner.advisor.search_space import OFFLOADED, Question
from partitioning.planner.answers import Policy, Quantity, aligned, shown
from partitioning.planner.decoder_parameters import count, parameters
from partitioning.planner.plan import Plan

_REFUSED = 6
_LOSERS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constraint:
    """What something that was given costs.

    Attributes:
      name: what was given.
      factor: time (or money) of the best plan with it over that of the best without.
      instead: what the best plan without it has.
    """

    name: str
    factor: float
    instead: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Advice:
    """The answer for one pool of devices; a Report.

    Attributes:
      outcome: what the search found.
      constraints: what was given, and what it costs.
      rank: by what plans are ranked.
      top: how many plans are shown.
      notes: what to mind.
      written: the plan file, if one was written.
    """

    outcome: Outcome
    constraints: tuple[Constraint, ...]
    rank: Rank
    top: int
    notes: tuple[str, ...] = ()
    written: str = ""

    @property
    def exit_code(self) -> int:
        """64 where nothing fits."""
        return 0 if self.outcome.fitting else int(ExitCode.CONFIGURATION)

    def show(self, policy: Policy) -> str:
        """Returns the advice for people; by the book with the chapter's decision tree."""
        tree = ["", decision_tree.answer(self.outcome).show(policy)] if policy == "book" else []
        return "\n".join([*self._lines(), *tree])

    def _lines(self) -> list[str]:
        found = self.outcome
        lines = [_asked(found.asked), self._effort(), ""]
        if not found.fitting:
            lines += ["Nothing fits.", *_impossible(found), *_not_fitting(found.refused)]
            return lines
        best = found.fitting[0]
        lines += [*_table(searching.distinct(found.fitting)[: self.top]), ""]
        lines += ["Of plans that differ only in data x fsdp, the best is shown.", ""]
        lines += ["The best plan, term by term:", *_waterfall(best), ""]
        lines += [f"Bottleneck: {best.prediction.bottleneck}.", ""]
        lines += ["Memory of the busiest device:", *_parts(best.memory.parts), ""]
        if any(c.plan.model.remat == OFFLOADED for c in found.fitting):
            lines += [f"offload all: DecoderConfig.remat = {OFFLOADED!r}", ""]
        lines += ["Why others lost:", *_losers(best, families(found.fitting)), ""]
        if found.refused:
            lines += ["What does not fit:", *_not_fitting(found.refused), ""]
        lines += ["What constraints cost:", *_costs(self.constraints)]
        if self.notes:
            lines += ["", *self.notes]
        if self.written:
            lines += ["", f"Written: {self.written}"]
        return lines

    def as_dict(self, policy: Policy) -> dict[str, Any]:
        """Returns the advice for ``--json``."""
        found = self.outcome
        tree = {"tree": decision_tree.answer(found).as_dict(policy)} if policy == "book" else {}
        return {
            "cluster": found.asked.cluster.name,
            "devices": found.asked.cluster.devices,
            "rows": found.asked.rows,
            "length": found.asked.length,
            "looked_at": found.looked_at,
            "fits": bool(found.fitting),
            "plans": [plain(c) for c in searching.distinct(found.fitting)[: self.top]],
            "families": {name: plain(c) for name, c in families(found.fitting).items()},
            "refused": [_plain_refused(r) for r in found.refused[:_REFUSED]],
            "constraints": [dataclasses.asdict(c) for c in self.constraints],
            "notes": list(self.notes),
            "written": self.written,
            **tree,
        }

    def _effort(self) -> str:
        found = self.outcome
        fitting = f"{len(found.fitting)} layouts fit, {len(found.refused)} do not"
        return f"Looked at {found.looked_at:,} plans: {fitting}."


def constraints(
    asked: Question, best: Candidate, *, evaluations: Evaluations, rank: Rank
) -> Iterator[Constraint]:
    """Yields what each fixed value costs, and what memory does.

    Each is a search of its own, without the one constraint and with all others.
    """
    for name in asked.fixed:
        fixed = {key: value for key, value in asked.fixed.items() if key != name}
        freed = dataclasses.replace(asked, fixed=fixed)
        free = searching.search(freed, evaluations=evaluations, rank=rank).fitting[0]
        yield _constraint(f"--fix={name}={asked.fixed[name]}", best, free, rank=rank)
    endless = searching.search(asked, evaluations=evaluations, rank=rank, endless_memory=True)
    memory = shown(asked.cluster.chip.memory, "B")
    yield _constraint(f"{memory} of memory", best, endless.fitting[0], rank=rank)


def _constraint(name: str, best: Candidate, free: Candidate, *, rank: Rank) -> Constraint:
    before, after = (best.seconds, free.seconds) if rank == "time" else (best.cost, free.cost)
    mine = searching.choices(best.plan, rules=best.layout.rules)
    other = searching.choices(free.plan, rules=free.layout.rules)
    instead = ", ".join(f"{key}={value}" for key, value in other.items() if value != mine[key])
    return Constraint(name=name, factor=before / after, instead=instead)


def plain(candidate: Candidate) -> dict[str, Any]:
    """Returns a plan and what is predicted of it, for JSON."""
    predicted = candidate.prediction
    return {
        **searching.choices(candidate.plan, rules=candidate.layout.rules),
        "family": searching.family(candidate.layout),
        "loss_chunks": candidate.plan.model.loss_chunks,
        "seconds": candidate.seconds,
        "tokens_per_second": predicted.tokens_per_second,
        "mfu": predicted.mfu,
        "mfu_full": predicted.mfu_full,
        "hfu": predicted.hfu,
        "usd_per_1e9_tokens": candidate.cost,
        "bottleneck": predicted.bottleneck,
        "memory": {q.name: q.value for q in candidate.memory.parts},
        "memory_total": candidate.memory.total,
        "memory_limit": candidate.memory.limit,
        "waterfall": {q.name: q.value for q in predicted.waterfall},
    }


def _plain_refused(refused: Refused) -> dict[str, Any]:
    return {
        **searching.choices(refused.plan, rules=refused.layout.rules),
        "memory_total": refused.memory.total,
        "memory_limit": refused.memory.limit,
    }


def _asked(asked: Question) -> str:
    total = count(parameters(asked.model))
    return (
        f"{total / 1e9:.2f}e9 parameters, {asked.rows} rows of {asked.length:,} tokens "
        f"({asked.rows * asked.length:,} a step), {asked.cluster.devices} x "
        f"{asked.cluster.chip.name} ({asked.cluster.name})"
    )


def _impossible(found: Outcome) -> list[str]:
    """Says which number breaks, and how many devices would do at least."""
    asked, nearest = found.asked, found.refused[0]
    memory = nearest.memory
    state = [q for q in memory.parts if q.name in ("parameters", "gradients", "optimizer_state")]
    everywhere = sum(q.value for q in state) * asked.cluster.devices
    least = math.ceil(everywhere / memory.limit)
    return [
        f"The plan that comes nearest needs {shown(memory.total, 'B')} on a device that has "
        f"{shown(memory.limit, 'B')} for it: {nearest.plan.mesh}, remat "
        f"{_remat(nearest.plan)}, {nearest.plan.work.microbatches} microbatches.",
        *_parts(memory.parts),
        f"State alone, in that layout, fills {least} devices of {asked.cluster.devices}. Give more "
        "devices, a smaller batch or length, --fix=offload=1 (optimizer state in host memory), "
        "DecoderConfig.param_dtype='bfloat16' or an optimizer with less state.",
        "",
    ]


def _table(found: Sequence[Candidate]) -> list[str]:
    cells = [
        ("", "step", "MFU", "tokens/s", "$/1e9 tokens", "memory", "mesh", "rules", "micro", "remat")
    ]
    for place, c in enumerate(found, 1):
        schedule = "" if c.layout.schedule == "1f1b" else f" {c.layout.schedule}"
        chunks = f" in {c.layout.chunks} chunks{schedule}" if c.layout.chunks > 1 else schedule
        cells.append(
            (
                f"{place}.",
                shown(c.seconds, "s"),
                f"{100 * c.prediction.mfu:.1f}%",
                f"{c.prediction.tokens_per_second:,.0f}",
                f"{c.cost:,.0f}",
                f"{c.memory.total / 1e9:.1f} of {c.memory.limit / 1e9:.1f} GB",
                c.plan.mesh + chunks,
                c.layout.rules,
                str(c.plan.work.microbatches),
                _remat(c.plan),
            )
        )
    return aligned(cells, left=(0, 6, 7, 8, 9))


def compared(pools: Sequence[Advice]) -> list[str]:
    """Returns one line for each pool, with its best plan."""
    cells = [("devices", "step", "tokens/s", "$/1e9 tokens", "the best plan")]
    for pool in pools:
        cluster, fitting = pool.outcome.asked.cluster, pool.outcome.fitting
        devices = f"{cluster.devices} x {cluster.chip.name}"
        if not fitting:
            cells.append((devices, "-", "-", "-", "nothing fits"))
            continue
        best = fitting[0]
        cells.append(
            (
                devices,
                shown(best.seconds, "s"),
                f"{best.prediction.tokens_per_second:,.0f}",
                f"{best.cost:,.0f}",
                f"{best.plan.mesh}, remat {_remat(best.plan)}",
            )
        )
    return aligned(cells, left=(0, 4))


def _waterfall(best: Candidate) -> list[str]:
    return [
        f"  {q.name.replace('_', ' '):<34} {shown(q.value, q.unit):>12}  "
        f"{100 * q.value / best.seconds:5.1f}%  {q.formula}".rstrip()
        for q in best.prediction.waterfall
        if q.value
    ]


def _parts(parts: Sequence[Quantity]) -> list[str]:
    return [
        f"  {q.name.replace('_', ' '):<24} {shown(q.value, 'B'):>24}  {q.formula}".rstrip()
        for q in parts
        if q.value
    ]


def _losers(best: Candidate, ways: Mapping[str, Candidate]) -> list[str]:
    others = [(name, other) for name, other in ways.items() if other is not best]
    lines = []
    for name, other in others[:_LOSERS]:
        lines.append(
            f"  {name} ({other.plan.mesh}, {other.plan.work.microbatches} "
            f"microbatches, remat {_remat(other.plan)}): {other.seconds / best.seconds:.2f}x "
            f"the time: {searching.why_slower(best, other)}"
        )
    if len(others) > _LOSERS:
        lines.append(f"  and {len(others) - _LOSERS} more ways, all slower (--json has them).")
    return lines or ["  There is no other way that fits."]


def _remat(plan: Plan) -> str:
    """Returns the policy, shorter where it moves all that it can to the host."""
    return "offload all" if plan.model.remat == OFFLOADED else plan.model.remat


def _not_fitting(refused: Sequence[Refused]) -> list[str]:
    """One line for each way to use parallelism, its best attempt."""
    ways: dict[str, Refused] = {}
    for one in refused:
        ways.setdefault(searching.family(one.layout), one)
    lines = []
    for name, one in list(ways.items())[:_REFUSED]:
        largest = sorted(one.memory.parts, key=lambda q: -q.value)[:2]
        why = ", ".join(f"{q.name.replace('_', ' ')} {q.value / 1e9:.1f} GB" for q in largest)
        lines.append(
            f"  {name} ({one.plan.mesh}): at least {one.memory.total / 1e9:.1f} of "
            f"{one.memory.limit / 1e9:.1f} GB ({why})"
        )
    return lines


def _costs(found: Sequence[Constraint]) -> list[str]:
    return [
        f"  {one.name}: {one.factor:.3f}x{f', else {one.instead}' if one.instead else ''}"
        for one in found
    ]
