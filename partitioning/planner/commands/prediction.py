"""``memory``, ``step``, ``draw``: what a plan holds, how long its step takes, where it lies."""

from typing import Any

from partitioning.planner.advisor.drawing import draw
from partitioning.planner.answers import Answer, Quantity, Section, shown
from partitioning.planner.command import Given, add
from partitioning.planner.cost_model.memory import device_memory
from partitioning.planner.cost_model.memory_verdict import PREALLOCATED, memory_fraction
from partitioning.planner.cost_model.step_time import Prediction, predict
from partitioning.planner.hardware import ClusterConfig
from partitioning.planner.plan import Plan
from partitioning.planner.plan_arguments import add_plan_arguments, read_plan

_RUN = "--gin_file=configs/runs/llama3_70b_512.gin --cluster=h100_512"
_MODEL = (
    "--gin_file=configs/models/llama3_8b.gin --cluster=v5e_256 --mesh=fsdp=256 --batch_tokens=4M "
    "--seq_len=4096"
)
_CAUSAL, _FULL = "what the causal mask lets through", "the whole attention square"


def register(commands: Any) -> None:
    """Adds the commands."""
    memory = add(
        commands,
        "memory",
        "What one device holds when it is fullest, part by part, and whether that fits. Leaves "
        "with 64 if it does not.",
        [f"memory {_RUN}", f"memory {_MODEL} --remat=full"],
        run=_memory,
    )
    step = add(
        commands,
        "step",
        "How long a step takes, where the time goes, and what moves over which link; MFU in both "
        "conventions. docs/calibration.md says how far off it may be.",
        [f"step {_RUN}", f"step {_MODEL}"],
        run=_step,
    )
    picture = add(
        commands,
        "draw",
        "Where a mesh lies: which axis crosses which link, and what each device is.",
        [f"draw {_RUN}"],
        run=_draw,
    )
    for parser in (memory, step, picture):
        add_plan_arguments(parser)


def _draw(given: Given) -> Answer:
    plan, cluster = read_plan(given)
    return Answer(title=draw(plan.sizes, cluster=cluster), sections=())


def _memory(given: Given) -> Answer:
    plan, cluster = read_plan(given)
    use = device_memory(plan, chip=cluster.chip)
    together = (
        Quantity(name="total", value=use.total, unit="B"),
        Quantity(name="limit", value=use.limit, unit="B", formula=cluster.chip.name),
        Quantity(name="used", value=use.total / use.limit, unit="share"),
        Quantity(name="host", value=use.host, unit="B", formula="waits in host memory"),
    )
    notes, needed = [], (use.total - use.part("reserved")) / use.limit
    enough = memory_fraction(needed) if use.fits and cluster.chip.vendor != "google" else None
    if enough is not None:
        notes.append(
            f"jax takes {PREALLOCATED:.0%} of a GPU's memory; this needs {needed:.0%}. Start with "
            f"XLA_PYTHON_CLIENT_MEM_FRACTION={enough:g}."
        )
    largest = max(use.parts, key=lambda part: part.value).name.replace("_", " ")
    verdict = "It fits." if use.fits else f"It does not fit; most takes: {largest}."
    return Answer(
        title=f"Memory of a device: {_shown(plan)} on {cluster.name}",
        sections=(
            Section(name="parts", title=f"Fullest at: {use.moment}", quantities=use.parts),
            Section(name="together", title="Together", quantities=together),
        ),
        notes=(verdict, *notes),
        exit_code=0 if use.fits else 64,
    )


def _step(given: Given) -> Answer:
    plan, cluster = read_plan(given)
    found = predict(plan, cluster=cluster)
    use = device_memory(plan, chip=cluster.chip)
    notes = [f"Bottleneck: {found.bottleneck.replace('_', ' ')}."]
    if not found.fused:
        notes.append("Attention has no fused kernel here: its scores pass through memory.")
    if not use.fits:
        notes.append("It does not fit into memory; `memory` with the same arguments says why.")
    return Answer(
        title=f"Step: {_shown(plan)} on {cluster.name}",
        sections=(
            Section(name="waterfall", title="Where the time goes", quantities=found.waterfall),
            Section(name="step", title="The step", quantities=_totals(found, cluster)),
            *_traffic(found),
        ),
        notes=tuple(notes),
    )


def _totals(found: Prediction, cluster: ClusterConfig) -> tuple[Quantity, ...]:
    flops, rate = found.flops, found.tokens_per_second
    return (
        Quantity(name="seconds", value=found.seconds, unit="s", formula="sum of the above"),
        Quantity(name="tokens", value=found.tokens),
        Quantity(name="tokens_per_second", value=rate, unit="tokens/s"),
        Quantity(name="per_device", value=rate / found.devices, unit="tokens/s"),
        Quantity(name="flops", value=flops.total("causal"), unit="FLOP", formula=_CAUSAL),
        Quantity(name="flops_full", value=flops.total("full"), unit="FLOP"),
        Quantity(name="mfu", value=found.mfu, unit="share", formula=_CAUSAL),
        Quantity(name="mfu_full", value=found.mfu_full, unit="share", formula=_FULL),
        Quantity(name="hfu", value=found.hfu, unit="share", formula="with what is computed again"),
        Quantity(
            name="money_per_1e9_tokens",
            value=found.cost(cluster.price),
            unit="USD",
            formula=f"{found.devices:,} x {cluster.price} USD/h, while it trains",
        ),
    )


def _traffic(found: Prediction) -> tuple[Section, ...]:
    return tuple(
        Section(
            name="_".join(one.axes),
            title=f"Over {' x '.join(one.axes)}, sent by each device per step",
            quantities=(
                *(
                    Quantity(
                        name=level.link,
                        value=level.sent,
                        unit="B",
                        formula=f"in {shown(level.seconds, 's')}",
                    )
                    for level in one.levels
                ),
                Quantity(name="takes", value=one.seconds, unit="s", formula="with latencies"),
                Quantity(name="hidden", value=one.hidden, unit="s"),
                Quantity(name="exposed", value=one.exposed, unit="s"),
            ),
        )
        for one in found.traffic
    )


def _shown(plan: Plan) -> str:
    work = plan.work
    return (
        f"{plan.mesh}, {work.rows} x {work.length} tokens in {work.microbatches} "
        f"microbatch(es), remat={plan.model.remat!r}"
    )
