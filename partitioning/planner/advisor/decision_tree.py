"""The chapter's decision tree for a mesh (10.2.7), followed to the letter, beside what is best.

The tree looks at memory only, by a formula that leaves tensor and pipeline parallelism out (E27),
and its running example does not follow it (E10). Where it says nothing, we read: a length on a
border takes the smaller context; stages are the most that divide layers and devices and keep ten
layers each. Imports no jax.
"""

import dataclasses
from collections.abc import Mapping

from partitioning.planner.advisor.search import Candidate, Outcome, why_slower
from partitioning.planner.advisor.search_space import Layout as Mesh
from partitioning.planner.advisor.search_space import Question
from partitioning.planner.answers import Answer, Quantity, Section, amount, shown
from partitioning.planner.calculators import layout_terms, state
from partitioning.planner.calculators.state import Layout
from partitioning.planner.decoder_parameters import count, parameters

ROOM = 75e9
"""Bytes that the chapter leaves for the state on a device of 80 GiB."""

_DEVICE = 80 * 2**30
_CONTEXTS = ((32_768, 1), (65_536, 2), (131_072, 4))
_LAYERS = 10
_EXAMPLE = 4
"""Stages of the chapter's example, whatever its tree says."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What the tree asks for.

    Attributes:
      parameters: of the model.
      layers: of the model.
      length: tokens of a row.
      devices: all that there are.
      host: devices that the fastest link joins.
      room: bytes of a device that state may take.
      fixed: "tensor", "stage" or "context" -> size that is already decided.
    """

    parameters: float
    layers: int
    length: int
    devices: int
    host: int = 8
    room: float = ROOM
    fixed: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, asked: Question) -> "Job":
        """Returns the question of the advisor as the tree sees it."""
        cluster, model = asked.cluster, asked.model
        axes = ("tensor", "stage", "context")
        return cls(
            parameters=count(parameters(model)),
            layers=model.layers,
            length=asked.length,
            devices=cluster.devices,
            host=cluster.per_host,
            room=ROOM * cluster.chip.memory / _DEVICE,
            fixed={axis: int(asked.fixed[axis]) for axis in axes if axis in asked.fixed},
        )

    def layout(self, *, tensor: int, stage: int, context: int) -> Layout:
        """Returns a mesh whose replicas are the devices that are left, at least one."""
        data = max(1, self.devices // (tensor * stage * context))
        return Layout(tensor=tensor, stage=stage, context=context, data=data)

    def by_the_book(self, layout: Layout) -> float:
        """Returns bytes of state on a device as the chapter counts them: 16 P / N_DP."""
        return state.per_device(self.parameters, zero=3, layout=Layout(data=layout.data)).total


def context_of(length: int) -> int:
    """Returns the tree's step 4: over how many devices a row of ``length`` tokens is split."""
    return next((size for most, size in _CONTEXTS if length <= most), 8)


def decide(job: Job) -> Layout:
    """Returns the tree's mesh; its own check may refuse it (``by_the_book``)."""
    tensor = job.fixed.get("tensor", job.host)
    context = job.fixed.get("context", context_of(job.length))
    flat = job.layout(tensor=tensor, stage=1, context=context)
    fits = job.by_the_book(flat) <= job.room
    stage = job.fixed.get("stage", 1 if fits else _stages(job, flat.data))
    return job.layout(tensor=tensor, stage=stage, context=context)


def example(job: Job) -> Layout | None:
    """Returns the mesh in the style of the chapter's examples; None where it takes more devices."""
    tree = decide(job)
    used = tree.tensor * tree.context * _EXAMPLE
    if tree.stage == _EXAMPLE or job.layers % _EXAMPLE or job.devices % used:
        return None
    return job.layout(tensor=tree.tensor, stage=_EXAMPLE, context=tree.context)


def answer(outcome: Outcome) -> Answer:
    """Returns the tree's plan and the example's, each beside the best plan of a search."""
    job = Job.of(outcome.asked)
    tree, other = decide(job), example(job)
    sections = [_section("tree", "The chapter's decision tree", job, tree, outcome)]
    if other:
        title = f"The chapter's example, which has {_EXAMPLE} stages"
        sections.append(_section("example", title, job, other, outcome))
    notes = []
    if other and tree.stage == 1:
        notes = ["E10: the tree adds stages only where state does not fit; the example has four."]
    return Answer(title="By the book", sections=tuple(sections), notes=tuple(notes))


def terms(job: Job, layout: Layout) -> tuple[Quantity, ...]:
    """Returns the sizes of a mesh, and its state by the chapter's formula and by the right one."""
    split = f"{layout.tensor} x {layout.stage} x {layout.context}"
    quantities = [
        Quantity(name="tensor", value=layout.tensor, formula=f"a host has {job.host} devices"),
        Quantity(name="context", value=layout.context, formula=f"rows of {job.length:,} tokens"),
        Quantity(name="stage", value=layout.stage, formula=f"{job.layers} layers"),
        Quantity(name="data", value=layout.data, formula=f"{job.devices:,} / ({split}), ZeRO-3"),
        Quantity(
            name="state",
            value=state.per_device(job.parameters, zero=3, layout=layout).total,
            unit="B",
            formula=f"16 B x {amount(job.parameters)} / {layout.devices:,}",
            book=job.by_the_book(layout),
            book_formula=f"16 B x {amount(job.parameters)} / {layout.data}",
            note="E27: tensor and pipeline parallelism divide the state, too",
        ),
    ]
    if layout.stage > 1:
        quantities.append(layout_terms.least_microbatches(layout.stage, below=0.1))
    return tuple(quantities)


def _section(name: str, title: str, job: Job, layout: Layout, outcome: Outcome) -> Section:
    return Section(
        name=name,
        title=title,
        text=(_verdict(job, layout), _beside(layout, outcome)),
        quantities=terms(job, layout),
    )


def _stages(job: Job, devices: int) -> int:
    most = job.layers // _LAYERS
    sizes = (n for n in range(1, most + 1) if job.layers % n == 0 and devices % n == 0)
    return max(sizes, default=1)


def _verdict(job: Job, layout: Layout) -> str:
    needs, has = job.by_the_book(layout), shown(job.room, "B")
    if layout.devices > job.devices:
        return f"It takes {layout.devices:,} devices; there are {job.devices:,}."
    if needs <= job.room:
        return f"Its check of memory passes: {shown(needs, 'B')} of {has}."
    more = job.by_the_book(dataclasses.replace(layout, stage=1, data=layout.data * layout.stage))
    worse = f" Its own stages made it so: without them {shown(more, 'B')}." if more < needs else ""
    return f"Its check of memory refuses this: {shown(needs, 'B')} of {has}.{worse}"


def _beside(layout: Layout, outcome: Outcome) -> str:
    """Says what the search found of a mesh, and why it is not the best."""
    same = next((c for c in outcome.fitting if _is(c.layout, layout)), None)
    if same is not None:
        return _compared(same, outcome.fitting[0])
    refused = next((r for r in outcome.refused if _is(r.layout, layout)), None)
    if refused is not None:
        total, limit = shown(refused.memory.total, "B"), shown(refused.memory.limit, "B")
        return f"It does not fit: at least {total} of {limit}."
    return "Not among the plans looked at: it does not divide, or --fix bars it."


def _compared(one: Candidate, best: Candidate) -> str:
    held = f"It holds {shown(one.memory.total, 'B')} on a device"
    if one is best:
        return f"{held}, and is the best plan."
    return f"{held}, and takes {one.seconds / best.seconds:.2f}x the time of the best plan: " + (
        f"{why_slower(best, one)}."
    )


def _is(mesh: Mesh, layout: Layout) -> bool:
    """Whether a mesh is the tree's, with everything else fully sharded."""
    sizes = mesh.mesh
    axes = ("tensor", "stage", "context")
    return sizes["data"] == sizes["expert"] == 1 and all(
        sizes[axis] == getattr(layout, axis) for axis in axes
    )
