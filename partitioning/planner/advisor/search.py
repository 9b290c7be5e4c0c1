"""Looks at every plan worth a look, and ranks those that fit by predicted time or money.

Imports no jax.
"""

import dataclasses
from collections.abc import Iterable
from typing import Literal

from partitioning.planner.advisor.search_space import Layout, Question, layouts, plans, remats
from partitioning.planner.answers import shown
from partitioning.planner.cost_model.memory import MemoryUse, device_memory
from partitioning.planner.cost_model.step_time import Prediction, predict
from partitioning.planner.hardware import ClusterConfig
from partitioning.planner.plan import Plan

Rank = Literal["time", "money"]
_TERMS = 3
_Key = tuple[Layout, str, int, str, bool]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A plan that fits, and what is predicted of it.

    Attributes:
      layout: its mesh and rule set.
      plan: the plan.
      memory: of the busiest device.
      prediction: of one step.
      price: USD per device and hour.
    """

    layout: Layout
    plan: Plan
    memory: MemoryUse
    prediction: Prediction
    price: float

    @property
    def seconds(self) -> float:
        """Seconds of one step."""
        return self.prediction.seconds

    @property
    def cost(self) -> float:
        """USD per 1e9 tokens."""
        return self.prediction.cost(self.price)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refused:
    """The plan of a layout that needs least memory, and still too much.

    Attributes:
      layout: its mesh and rule set.
      plan: the plan.
      memory: what it needs.
    """

    layout: Layout
    plan: Plan
    memory: MemoryUse


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a search found.

    Attributes:
      asked: the question.
      fitting: best first; of each layout and rematerialisation the best.
      refused: layouts of which no plan fits, the one that comes nearest first.
      looked_at: how many plans were evaluated.
    """

    asked: Question
    fitting: tuple[Candidate, ...]
    refused: tuple[Refused, ...]
    looked_at: int


class Evaluations:
    """What was predicted so far: searches that differ in what is fixed share most plans."""

    def __init__(self, cluster: ClusterConfig) -> None:
        """Predicts for one cluster, however much memory its devices have."""
        self.cluster = cluster
        self._memory: dict[_Key, MemoryUse] = {}
        self._predictions: dict[_Key, Prediction] = {}

    def memory(self, layout: Layout, plan: Plan) -> MemoryUse:
        """Returns what a plan needs."""
        key = _key(layout, plan)
        if key not in self._memory:
            self._memory[key] = device_memory(plan, chip=self.cluster.chip)
        return self._memory[key]

    def prediction(self, layout: Layout, plan: Plan) -> Prediction:
        """Returns how long its step takes."""
        key = _key(layout, plan)
        if key not in self._predictions:
            self._predictions[key] = predict(plan, cluster=self.cluster)
        return self._predictions[key]


def search(
    asked: Question,
    *,
    evaluations: Evaluations,
    rank: Rank = "time",
    endless_memory: bool = False,
) -> Outcome:
    """Evaluates the plans of a question.

    Args:
      asked: the question.
      evaluations: of its cluster.
      rank: by what plans are ranked.
      endless_memory: take what does not fit, too: what would be best then?

    Raises:
      ValueError: nothing divides, so that there is no plan at all.
    """
    fitting: list[Candidate] = []
    refused: list[Refused] = []
    looked_at = 0
    for layout in layouts(asked):
        tried = _Tried(asked, layout, evaluations, rank, endless_memory)
        for remat in remats(asked, layout):
            if tried.add_best(remat):
                break  # what holds less only computes more
        fitting += tried.fitting
        refused += [tried.least] if tried.least and not tried.fitting else []
        looked_at += tried.looked_at
    if not looked_at:
        raise ValueError(_nothing(asked))
    return Outcome(
        asked=asked,
        fitting=tuple(sorted(fitting, key=lambda c: order(c, rank))),
        refused=tuple(sorted(refused, key=lambda r: r.memory.total)),
        looked_at=looked_at,
    )


@dataclasses.dataclass
class _Tried:
    """What was found of one layout."""

    asked: Question
    layout: Layout
    evaluations: Evaluations
    rank: Rank
    endless_memory: bool
    fitting: list[Candidate] = dataclasses.field(default_factory=list)
    least: Refused | None = None
    looked_at: int = 0

    def add_best(self, remat: str) -> bool:
        """Adds the best plan with a rematerialisation; returns whether all of its plans fit."""
        found: list[Candidate] = []
        refused = False
        for plan in plans(self.asked, self.layout, remat=remat):
            memory = self.evaluations.memory(self.layout, plan)
            self.looked_at += 1
            if not memory.fits and not self.endless_memory:
                refused = True
                if self.least is None or memory.total < self.least.memory.total:
                    self.least = Refused(layout=self.layout, plan=plan, memory=memory)
                continue
            found.append(
                Candidate(
                    layout=self.layout,
                    plan=plan,
                    memory=memory,
                    prediction=self.evaluations.prediction(self.layout, plan),
                    price=self.asked.cluster.price,
                )
            )
            if self.layout.mesh["stage"] == 1:
                break  # there is no bubble that more microbatches would fill
        if found:
            self.fitting.append(min(found, key=lambda candidate: order(candidate, self.rank)))
        return bool(found) and not refused


def choices(plan: Plan, *, rules: str) -> dict[str, int | str]:
    """Returns what a plan chose of everything that can be fixed."""
    return {
        **plan.sizes,
        "microbatches": plan.work.microbatches,
        "schedule": plan.work.pipeline.schedule,
        "chunks": plan.work.pipeline.chunks,
        "remat": plan.model.remat,
        "rules": rules,
        "context_attention": plan.model.context_attention,
        "offload": int(plan.optimizer.offload),
    }


def order(candidate: Candidate, rank: Rank) -> tuple[float, bool, float]:
    """Returns what plans are sorted by.

    Of about equally fast ones, what leaves host memory alone comes first, then what holds less.
    """
    first = candidate.seconds if rank == "time" else candidate.cost
    offloads = "offload" in candidate.plan.model.remat
    return (float(f"{first:.3g}"), offloads, candidate.memory.total)


def distinct(found: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Returns the best of those that differ only in how replicas and shards divide the devices."""
    best: dict[tuple[object, ...], Candidate] = {}
    for candidate in found:
        mesh = candidate.layout.mesh
        inner = tuple(mesh[axis] for axis in ("stage", "expert", "context", "tensor"))
        layout, remat = candidate.layout, candidate.plan.model.remat
        key = (inner, layout.chunks, layout.schedule, remat, layout.rules)
        best.setdefault(key, candidate)
    return tuple(best.values())


def _key(layout: Layout, plan: Plan) -> _Key:
    model = plan.model
    offload = plan.optimizer.offload
    return layout, model.remat, plan.work.microbatches, model.context_attention, offload


def _nothing(asked: Question) -> str:
    given = ", ".join(f"{name}={value}" for name, value in asked.fixed.items())
    model = asked.model
    return (
        f"No plan divides: {asked.cluster.devices} devices, {asked.rows} rows of {asked.length} "
        f"tokens, {model.repeats} repeated layers, {model.heads} heads"
        f"{f', with {given} fixed' if given else ''}. The rows must divide over data x fsdp x "
        "expert, layers over stage, heads, mlp_dim and vocab_size over tensor. Give other devices, "
        "another batch, or fix less."
    )


def families(found: Iterable[Candidate]) -> dict[str, Candidate]:
    """Returns the best plan of each way to use parallelism, best first."""
    best: dict[str, Candidate] = {}
    for candidate in found:
        best.setdefault(family(candidate.layout), candidate)
    return best


def family(layout: Layout) -> str:
    """Returns how a layout would be called: "FSDP + tensor", "ZeRO-1 + stage + tensor", ..."""
    mesh = layout.mesh
    whole = layout.rules in ("zero1", "pp") and mesh["fsdp"] == 1 and mesh["data"] > 1
    names = ["ZeRO-1"] if whole else []
    if not whole and mesh["fsdp"] > 1:
        names = ["HSDP"] if mesh["data"] > 1 else ["FSDP"]
    elif not whole and mesh["data"] > 1:
        names = ["DP"]
    names += [axis for axis in ("stage", "expert", "context", "tensor") if mesh[axis] > 1]
    return " + ".join(names) or "one device"


def why_slower(best: Candidate, other: Candidate) -> str:
    """Returns the terms in which a plan's step takes longer than the best one's, largest first."""
    mine, theirs = ({q.name: q.value for q in c.prediction.waterfall} for c in (best, other))
    more = {key: theirs.get(key, 0.0) - mine.get(key, 0.0) for key in {*mine, *theirs}}
    worst = sorted(((v, k) for k, v in more.items() if v > 0), reverse=True)[:_TERMS]
    return ", ".join(f"{key.replace('_', ' ')} +{shown(v, 's')}" for v, key in worst)
