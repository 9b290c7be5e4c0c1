"""Every plan worth a look: meshes, ZeRO stage, pipeline, microbatches, rematerialisation.

A plan is left out where the trainer would refuse it (sizes that do not divide), and where no one
would want it: tensor parallelism across hosts, rows cut shorter than ``_SHORTEST_SHARE`` tokens,
three ways to split a model at once beside experts. What the user fixes is taken, even there.
Imports no jax.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import cast, get_args

from models.decoder_config import ContextAttention, DecoderConfig, has_experts
from models.remat import SELECTIVE
from partitioning.mesh_config import AXES, PipelineConfig, RulesConfig, ScheduleName
from partitioning.planner.hardware import ClusterConfig
from partitioning.planner.plan import Plan
from partitioning.sequence_layout import granularity
from partitioning.traffic_step import Work
from trainer.optimizer_config import OptimizerConfig

RULE_SETS = ("fsdp_tp", "zero1", "pp", "cp", "ep")
"""Files of configs/partitioning that plans are made of."""

FIXABLE = (
    *(*AXES, "microbatches", "schedule", "chunks", "remat", "rules", "context_attention"),
    "offload",
)
"""What the user may fix."""

OFFLOADED = f"offload:{','.join(SELECTIVE)}"
REMATS = ("none", "selective", OFFLOADED, "save:attention_out", "full")
"""Rematerialisation, what holds most first."""

_SHORTEST_SHARE = 2048
_LONG_ROW = 32_768
_MOST_STAGES = 64
_MOST_CHUNKS = 4
_MOST_ROWS = 4
"""Rows of a microbatch in a pipeline: more only make its bubble larger."""
_LOGITS = 2e9
"""Bytes of float32 logits, of one chunk of the loss, that a device should hold at most."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """What is to be trained, where, and what is already decided.

    Attributes:
      model: the decoder; remat and chunks of the loss are chosen anew.
      optimizer: whose state is kept.
      tables: rule set -> tables, of RULE_SETS.
      cluster: the devices; all of them are used.
      rows: of the global batch.
      length: tokens of a row.
      fixed: of FIXABLE -> value.
    """

    model: DecoderConfig
    optimizer: OptimizerConfig
    tables: Mapping[str, RulesConfig]
    cluster: ClusterConfig
    rows: int
    length: int
    fixed: Mapping[str, int | str] = dataclasses.field(default_factory=dict)

    def allows(self, name: str, value: int | str) -> bool:
        """Whether what is fixed leaves a choice open."""
        return self.fixed.get(name, value) == value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """A mesh with the tables that say what it shards, and the pieces of a pipeline.

    Attributes:
      rules: rule set.
      sizes: mesh axis -> devices.
      chunks: pieces of the model on each stage.
      schedule: of the pipeline.
    """

    rules: str
    sizes: tuple[tuple[str, int], ...]
    chunks: int = 1
    schedule: ScheduleName = "1f1b"

    @functools.cached_property
    def mesh(self) -> dict[str, int]:
        """Mesh axis -> devices."""
        return dict(self.sizes)

    @property
    def shards(self) -> int:
        """Parts that the rows are cut into."""
        return self.mesh["data"] * self.mesh["fsdp"] * self.mesh["expert"]


def layouts(asked: Question) -> Iterator[Layout]:
    """Yields every layout of all devices."""
    devices = asked.cluster.devices
    for tensor in _tensors(asked):
        for stage in _stages(asked, devices // tensor):
            for context in _contexts(asked, devices // tensor // stage, tensor=tensor):
                for expert in _experts(asked, devices // tensor // stage // context):
                    inner = {"tensor": tensor, "stage": stage, "context": context, "expert": expert}
                    if _too_many_ways(asked, inner):
                        continue
                    left = devices // math.prod(inner.values())
                    for rules, data in _shardings(asked, inner, left):
                        sizes = {**inner, "data": data, "fsdp": left // data}
                        ordered = tuple((axis, sizes[axis]) for axis in AXES)
                        for schedule, chunks in _pieces(asked, inner):
                            yield Layout(
                                rules=rules, sizes=ordered, chunks=chunks, schedule=schedule
                            )


def plans(asked: Question, layout: Layout, *, remat: str) -> Iterator[Plan]:
    """Yields the plans of a layout that differ in microbatches, fewest first."""
    rows, left = divmod(asked.rows, layout.shards)
    if left or not rows:
        return
    stage = layout.mesh["stage"]
    counts = [
        count
        for count in _divisors(rows)
        if asked.allows("microbatches", count)
        and count >= stage
        and not (layout.chunks > 1 and count % stage)
    ]
    if stage > 1:
        counts = [count for count in counts if rows // count <= _MOST_ROWS] or counts[-1:]
    attention = _attention(asked, layout)
    for count in counts:
        yield _plan(asked, layout, remat=remat, microbatches=count, attention=attention)


def remats(asked: Question, layout: Layout) -> list[str]:
    """Returns the rematerialisations that make sense for a layout, what holds most first."""
    if "remat" in asked.fixed:
        return [str(asked.fixed["remat"])]
    # A stage of a pipeline keeps its inputs only: nothing would wait in host memory.
    return [r for r in REMATS if not (r == OFFLOADED and layout.mesh["stage"] > 1)]


def _plan(
    asked: Question, layout: Layout, *, remat: str, microbatches: int, attention: ContextAttention
) -> Plan:
    tokens = asked.rows // layout.shards // microbatches * asked.length
    model = _model(
        asked.model,
        remat=remat,
        attention=attention,
        chunks=loss_chunks(asked, layout, tokens=tokens),
    )
    work = Work(
        rows=asked.rows,
        length=asked.length,
        microbatches=microbatches,
        pipeline=PipelineConfig(schedule=layout.schedule, chunks=layout.chunks),
    )
    offload = bool(asked.fixed.get("offload", asked.optimizer.offload))
    optimizer = asked.optimizer
    if offload != optimizer.offload:
        optimizer = dataclasses.replace(optimizer, offload=offload)
    return Plan(
        model=model,
        sizes=layout.mesh,
        rules=asked.tables[layout.rules],
        work=work,
        optimizer=optimizer,
    )


@functools.lru_cache(maxsize=4096)
def _model(
    model: DecoderConfig, *, remat: str, attention: ContextAttention, chunks: int
) -> DecoderConfig:
    # An offloading model has to scan, which says nothing of one that does not.
    scan = True if "offload" in remat and not model.scanned else model.scan_layers
    return dataclasses.replace(
        model,
        remat=remat,
        context_attention=attention,
        loss_chunks=chunks,
        scan_layers=scan,
    )


def loss_chunks(asked: Question, layout: Layout, *, tokens: int) -> int:
    """Returns the fewest chunks of the loss whose logits are not large.

    Args:
      asked: the question.
      layout: mesh.
      tokens: of a microbatch in one shard of the rows.
    """
    context, tensor = layout.mesh["context"], layout.mesh["tensor"]
    split = tensor if asked.model.vocab_size % tensor == 0 else 1
    size = 4.0 * tokens / context * asked.model.vocab_size / split
    chunks = 1
    while size / chunks > _LOGITS and asked.length % (2 * chunks * context * tensor) == 0:
        chunks *= 2
    return chunks


def _tensors(asked: Question) -> Iterator[int]:
    model, cluster = asked.model, asked.cluster
    if "tensor" in asked.fixed:
        yield from _fixed(asked, "tensor", cluster.devices)
        return
    inside = cluster.links[0].devices or cluster.per_host
    most = min(inside, cluster.per_host if cluster.chip.vendor != "google" else 16)
    for size in _divisors(cluster.devices):
        whole = model.heads % size == 0 and model.mlp_dim % size == 0
        if size <= most and whole and model.vocab_size % size == 0 and asked.length % size == 0:
            yield size


def _stages(asked: Question, devices: int) -> Iterator[int]:
    if "stage" in asked.fixed:
        yield from _fixed(asked, "stage", devices)
        return
    for size in _divisors(devices):
        if size <= min(_MOST_STAGES, asked.rows) and asked.model.repeats % size == 0:
            yield size


def _contexts(asked: Question, devices: int, *, tensor: int) -> Iterator[int]:
    if "context" in asked.fixed:
        yield from _fixed(asked, "context", devices)
        return
    for size in _divisors(devices):
        if size == 1:
            yield 1
            continue
        useful = asked.length >= _LONG_ROW or devices > asked.rows
        parts = math.lcm(granularity("zigzag", shards=size), 2 * size, size * tensor)
        long_enough = asked.length // size >= _SHORTEST_SHARE
        if useful and long_enough and size.bit_count() == 1 and asked.length % parts == 0:
            yield size


def _experts(asked: Question, devices: int) -> Iterator[int]:
    if "expert" in asked.fixed:
        yield from _fixed(asked, "expert", devices)
        return
    routed = any(has_experts(kind) for kind in asked.model.blocks)
    count = asked.model.experts.count if routed and asked.model.experts else 1
    yield from (size for size in _divisors(math.gcd(count, devices)))


def _too_many_ways(asked: Question, inner: Mapping[str, int]) -> bool:
    split = [axis for axis in inner if inner[axis] > 1]
    return inner["expert"] > 1 and len(split) > 2 and not any(a in asked.fixed for a in split)


def _shardings(asked: Question, inner: Mapping[str, int], left: int) -> Iterator[tuple[str, int]]:
    """Yields (rule set, replicas) for the devices that tensor, stage, context and expert leave.

    Parameters over ``fsdp`` alone (ZeRO-3), in groups (HSDP), or whole with only the optimizer's
    state split over the replicas (ZeRO-1).
    """
    full = _rule_set(inner)
    whole = "pp" if inner["stage"] > 1 else "zero1"
    for data in _divisors(left):
        if not asked.allows("data", data) or not asked.allows("fsdp", left // data):
            continue
        if data == left and data > 1 and inner["context"] == inner["expert"] == 1:
            if whole == "pp" or asked.model.embed_dim % data == 0:
                yield from _allowed(asked, whole, data)
            continue
        if asked.model.embed_dim % (left // data) == 0 and _group(left // data, asked, inner):
            yield from _allowed(asked, full, data)


def _allowed(asked: Question, rules: str, data: int) -> Iterator[tuple[str, int]]:
    if asked.allows("rules", rules):
        yield rules, data


def _group(size: int, asked: Question, inner: Mapping[str, int]) -> bool:
    """Whether a group of ``size`` shards is one of hosts, whole or a power of two of them."""
    if "data" in asked.fixed or "fsdp" in asked.fixed or size == 1:
        return True
    reach = size * inner["expert"] * inner["context"] * inner["tensor"]
    per_host = asked.cluster.per_host
    hosts = reach / per_host
    return (
        reach <= per_host
        or (hosts.is_integer() and int(hosts).bit_count() == 1)
        or (reach * inner["stage"] == asked.cluster.devices)
    )


def _rule_set(inner: Mapping[str, int]) -> str:
    if inner["stage"] > 1:
        return "pp"
    if inner["context"] > 1:
        return "cp"
    return "ep" if inner["expert"] > 1 else "fsdp_tp"


def _pieces(asked: Question, inner: Mapping[str, int]) -> Iterator[tuple[ScheduleName, int]]:
    """Yields (schedule, chunks).

    With one chunk "circular" has the bubble of 1F1B and holds more; beside experts it is left out.
    """
    for schedule in get_args(ScheduleName):
        if not asked.allows("schedule", schedule):
            continue
        for chunks in _chunks(asked, inner["stage"]):
            useful = schedule == "1f1b" or (chunks > 1 and inner["expert"] == 1)
            if useful or "schedule" in asked.fixed:
                yield schedule, chunks


def _chunks(asked: Question, stage: int) -> Iterator[int]:
    if "chunks" in asked.fixed:
        yield int(asked.fixed["chunks"])
        return
    for chunks in range(1, _MOST_CHUNKS + 1):
        if chunks == 1 or (stage > 1 and asked.model.repeats % (stage * chunks) == 0):
            yield chunks


def _attention(asked: Question, layout: Layout) -> ContextAttention:
    """A ring holds less and computes half, except in a pipeline, whose idle ticks it fills."""
    if layout.mesh["context"] == 1:
        return asked.model.context_attention
    best: ContextAttention = "ring" if layout.mesh["stage"] == 1 else "all_gather"
    return cast(ContextAttention, asked.fixed.get("context_attention", best))


def _fixed(asked: Question, axis: str, devices: int) -> Iterator[int]:
    size = int(asked.fixed[axis])
    if devices % size == 0:
        yield size


@functools.lru_cache(maxsize=4096)
def _divisors(number: int) -> tuple[int, ...]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))
