"""What is possible but unwise in a run's layout, each with the flag that changes it. No jax.

Shown by ``trainer.check``, by the dry run and by ``launch.main validate``. Whoever knows better
leaves the configuration as it is: none of these is an error.
"""

import math
from collections.abc import Iterator

from launch.contract import Finding, Verdict
from models.decoder_config import has_experts
from partitioning.planner.answers import shown
from partitioning.planner.cost_model.layout import leaves
from partitioning.planner.cost_model.run_outlook import RunOutlook
from partitioning.planner.cost_model.step_time import Prediction
from partitioning.planner.hardware import ClusterConfig
from partitioning.planner.plan import Plan
from partitioning.schedules import build_schedule

TILES = {"google": 128, "nvidia": 64, "amd": 64}
"""Sides of the tiles that matrix units work on, by vendor."""

FINEST = 16
"""Kernels for sides that are no multiple of this are slow whatever the tile."""

WASTE = 0.01
BUBBLE = 0.15
EXPOSED = 0.25
LEAST_TOKENS = 1024
FEW_FAILURES = 0.1
"""Failures to expect of a whole run, below which it need not save on their account."""

OFF = 3.0
"""How many times longer or shorter than the best an interval between checkpoints may be."""

_MOST_MICROBATCHES = 1024


def layout_lints(plan: Plan, *, cluster: ClusterConfig) -> list[Finding]:
    """Returns what is unwise in how the model is cut up."""
    return [
        *_tiles(plan, cluster),
        *_tensor_across_hosts(plan, cluster),
        *_bubble(plan),
        *_replicated(plan),
        *_few_tokens(plan),
    ]


def run_lints(prediction: Prediction, outlook: RunOutlook) -> list[Finding]:
    """Returns what a run waits for, what it costs, and whether it saves at the right times."""
    return [*_exposed(prediction), *_interval(outlook), _price(outlook)]


def _tiles(plan: Plan, cluster: ClusterConfig) -> Iterator[Finding]:
    tile = TILES[cluster.chip.vendor]
    model, t = plan.model, plan.sizes["tensor"]
    assert model.head_dim is not None
    sides = [
        ("DecoderConfig.embed_dim", model.embed_dim, 1),
        ("DecoderConfig.head_dim", model.head_dim, 1),
        ("DecoderConfig.vocab_size", model.vocab_size, t),
    ]
    if any(not has_experts(kind) for kind in model.blocks):
        sides.append(("DecoderConfig.mlp_dim", model.mlp_dim, t))
    if model.experts is not None and any(map(has_experts, model.blocks)):
        sides.append(("ExpertsConfig.mlp_dim", model.experts.mlp_dim, t))
    for flag, size, ways in sides:
        own = size / ways
        waste = 1.0 - own / (tile * math.ceil(own / tile))
        if waste <= WASTE and own % FINEST == 0:
            continue
        whole = tile * ways
        near = sorted({whole * max(1, size // whole), whole * math.ceil(size / whole)})
        over = f" / MeshConfig.tensor={ways} = {own:g}" if ways > 1 else ""
        yield _warn(
            "dimensions",
            f"{flag}={size}{over} is no multiple of {tile}: {waste:.1%} of the tiles of "
            f"{cluster.chip.name}'s matrix unit stay empty, and kernels are slower. Take "
            f"{' or '.join(map(str, near))}.",
        )


def _tensor_across_hosts(plan: Plan, cluster: ClusterConfig) -> Iterator[Finding]:
    inner, tensor = cluster.links[0], plan.sizes["tensor"]
    if not inner.devices or len(cluster.links) < 2 or tensor <= inner.devices:
        return
    outer = cluster.links[1]
    yield _warn(
        "mesh",
        f"MeshConfig.tensor={tensor} is more than the {inner.devices} devices that {inner.name} "
        f"joins: every block then waits for {outer.name}, {inner.bandwidth / outer.bandwidth:.0f} "
        f"times slower. Take MeshConfig.tensor={inner.devices} at most, and more fsdp or stage.",
    )


def _bubble(plan: Plan) -> Iterator[Finding]:
    schedule = plan.step.schedule
    if schedule is None or schedule.bubble() <= BUBBLE:
        return
    least = _least_microbatches(plan)
    enough = (
        f"TrainConfig.microbatches={least} would do"
        if least
        else "no number of microbatches does that with this batch: raise DataConfig.global_batch"
    )
    yield _warn(
        "pipeline",
        f"stages are idle {schedule.bubble():.0%} of the time; {BUBBLE:.0%} is a usual bound. With "
        f"TrainConfig.microbatches={plan.work.microbatches} on MeshConfig.stage="
        f"{schedule.stages}, {enough}; a larger PipelineConfig.chunks helps, too.",
    )


def _least_microbatches(plan: Plan) -> int | None:
    """Returns the fewest microbatches under the bound that the rows divide into, or None."""
    ways = plan.sizes["data"] * plan.sizes["fsdp"] * plan.sizes["expert"]
    rows, pipeline, stages = plan.work.rows // ways, plan.work.pipeline, plan.sizes["stage"]
    for count in range(plan.work.microbatches, min(rows, _MOST_MICROBATCHES) + 1):
        if rows % count or (pipeline.chunks > 1 and count % stages):
            continue
        schedule = build_schedule(
            pipeline.schedule, stages=stages, chunks=pipeline.chunks, microbatches=count
        )
        if schedule.bubble() <= BUBBLE:
            return count
    return None


def _replicated(plan: Plan) -> Iterator[Finding]:
    if plan.devices == 1:
        return
    tree = leaves(plan)
    share = sum(leaf.elements for leaf in tree if leaf.ways == 1) / sum(x.elements for x in tree)
    bound = plan.rules.max_replicated
    if share <= bound:
        return
    largest = max((leaf for leaf in tree if leaf.ways == 1), key=lambda leaf: leaf.elements)
    yield _warn(
        "sharding",
        f"every device holds {share:.0%} of the parameters whole, more than "
        f"RulesConfig.max_replicated={bound:g}; the largest is {largest.name}. Split them with "
        "MeshConfig.fsdp or tensor, or raise the bound if that is meant, as with plain data "
        "parallelism.",
    )


def _few_tokens(plan: Plan) -> Iterator[Finding]:
    tokens = plan.step.tokens
    if tokens >= LEAST_TOKENS:
        return
    parts = plan.work.microbatches
    fewer = f"fewer than TrainConfig.microbatches={parts}, " if parts > 1 else ""
    yield _warn(
        "batch",
        f"a microbatch has {tokens:,.0f} tokens on each device; products are too small to fill "
        f"it below about {LEAST_TOKENS:,}. Take {fewer}a larger DataConfig.global_batch "
        f"({plan.work.rows}), or fewer devices along data, fsdp, expert or context.",
    )


_LESS = {
    "tensor": "a smaller MeshConfig.tensor with more fsdp",
    "fsdp": "a larger DataConfig.global_batch, fewer TrainConfig.microbatches, or part of fsdp as "
    "MeshConfig.tensor or stage",
    "data": "a larger DataConfig.global_batch",
    "context": "a smaller MeshConfig.context, or DecoderConfig.context_attention='ring'",
    "expert": "a smaller MeshConfig.expert, or experts within one host",
    "stage": "fewer PipelineConfig.chunks",
}


def _exposed(prediction: Prediction) -> Iterator[Finding]:
    for axis in prediction.traffic:
        share = axis.exposed / prediction.seconds
        if share > EXPOSED:
            advice = "; ".join(_LESS[name] for name in axis.axes if name in _LESS)
            yield _warn(
                "communication",
                f"{share:.0%} of the step is predicted to wait for transfers over "
                f"{'+'.join(axis.axes)} ({axis.slowest.link}). Try {advice}.",
            )


def _interval(outlook: RunOutlook) -> Iterator[Finding]:
    """Says whether a failure costs too much work, or saving too much time."""
    if math.isinf(outlook.mtbf):
        return
    best, every = outlook.interval_steps, outlook.every or outlook.steps
    fails = outlook.hours * 3600 > FEW_FAILURES * outlook.mtbf
    if not fails and outlook.every == 0:
        return
    about = (
        f"a checkpoint of {shown(outlook.checkpoint, 'B')} takes "
        f"{shown(outlook.write_seconds, 's')} to write and one interruption in "
        f"{shown(outlook.mtbf, 's')} is expected: CheckpointConfig.every={best} loses least"
    )
    given = f"CheckpointConfig.every={outlook.every}"
    if fails and every > OFF * best:
        lost = min(every, outlook.steps) * outlook.step_seconds / 2
        yield _warn("interval", f"{given} loses {shown(lost, 's')} of work per failure; {about}.")
    elif every * outlook.step_seconds < outlook.interval / OFF:
        yield _warn("interval", f"{given} saves more often than pays; {about}.")
    else:
        yield Finding(about="interval", verdict=Verdict.OK, message=f"{given}: {about}.")


def _price(outlook: RunOutlook) -> Finding:
    return Finding(
        about="price",
        verdict=Verdict.INFO,
        message=f"TrainConfig.steps={outlook.steps} of {shown(outlook.step_seconds, 's')} take "
        f"{shown(outlook.hours * 3600, 's')} without failures: {outlook.devices} devices at "
        f"{shown(outlook.price, 'USD')} an hour are {shown(outlook.cost, 'USD')}.",
    )


def _warn(about: str, message: str) -> Finding:
    return Finding(about=about, verdict=Verdict.WARNING, message=message)
