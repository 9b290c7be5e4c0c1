"""A step compiled for a dry run, and what is read off it: memory, traffic, FLOPs, findings."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax

from launch.contract import Finding, Verdict
from partitioning import table
from partitioning.planner.answers import shown
from partitioning.planner.cost_model import memory_verdict
from partitioning.planner.cost_model.memory import MemoryUse
from partitioning.planner.cost_model.step_flops import step_flops as planned_flops
from partitioning.planner.hardware import ChipConfig, ClusterConfig
from partitioning.traffic import expected
from partitioning.traffic_check import AxisVerdict, verdicts
from trainer.collectives import compare, work_of
from trainer.compile_errors import OutOfMemory, explain, out_of_memory
from trainer.deviceless import CompiledStep, Memory, compile_train_step, mesh_shape
from trainer.dry_run_report import Flops, MemoryTable, Tier
from trainer.flops import step_flops
from trainer.paths import leaves
from trainer.program import Program
from trainer.run_config import LanguageModel, RunConfig
from trainer.state import abstract_batch, abstract_state, saved

_STATE = {"parameters": "parameters", "optimizer": "optimizer_state", "average": "average"}
_OTHER = "other"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
    """What a compiler says of a step.

    Attributes:
      memory: who takes it.
      traffic: by mesh axes, against the formulas; empty where the task has none.
      counted: whether the compiled program's is in it.
      flops: of the step.
      findings: what is wrong or worth knowing.
    """

    memory: MemoryTable
    traffic: tuple[AxisVerdict, ...]
    counted: bool
    flops: Flops
    findings: tuple[Finding, ...]


def compiled(
    program: Program,
    *,
    run: RunConfig,
    cluster: ClusterConfig,
    tier: Tier,
    quick: bool,
    formula: MemoryUse | None,
) -> Compiled:
    """Compiles the step of ``program`` and reads the result; a refusal becomes a finding.

    Args:
      program: on devices of the tier; for CPU from ``for_cpu``.
      run: the run itself.
      cluster: whose chip it is for.
      tier: whose compiler compiles.
      quick: see ``compile_train_step``.
      formula: what the planner says of memory.
    """
    step, refusal, found = None, None, []
    try:
        step = compile_train_step(program, run=run, quick=quick)
    except (ValueError, NotImplementedError, jax.errors.JaxRuntimeError) as error:
        refusal = out_of_memory(error)
        if refusal is None:
            message = explain(error, chip=cluster.chip.name)
            found.append(Finding(about="compiler", verdict=Verdict.ERROR, message=message))
    own = step if tier != "cpu" else None
    memory = _memory(
        program,
        run=run,
        chip=cluster.chip,
        measured=own.memory if own is not None else None,
        refusal=refusal,
        formula=formula,
    )
    traffic: tuple[AxisVerdict, ...] = ()
    if isinstance(run.task, LanguageModel):
        traffic = _traffic(program, run=run, step=own, platform=tier)
    if not found:
        found.append(_fits(memory, refusal=refusal, cluster=cluster, tier=tier))
        found += _preallocated(memory, tier=tier)
    host = memory_verdict.host_verdict(memory.host, cluster=cluster)
    found += [host] if host is not None else []
    found += _disagreements(traffic)
    found += [_complaint(line) for line in step.complaints] if step is not None else []
    return Compiled(
        memory=memory,
        traffic=traffic,
        counted=own is not None,
        flops=_flops(program, run=run, quick=quick),
        findings=tuple(found),
    )


def for_cpu(run: RunConfig) -> tuple[RunConfig, tuple[Finding, ...]]:
    """Returns a run that CPU's compiler takes, and what was left out of it."""
    left_out = []
    if run.optimizer.offload:
        left_out.append(f"{type(run.optimizer).__name__}.offload")
        optimizer = dataclasses.replace(run.optimizer, offload=False)
        run = dataclasses.replace(run, optimizer=optimizer)
    if isinstance(run.task, LanguageModel):
        model = run.task.model
        remat = model.remat_choices
        if remat is not None and remat.offload:
            left_out.append("'offload:' of DecoderConfig.remat")
            model = dataclasses.replace(model, remat=f"save:{','.join(remat.kept)}")
        if model.attention == "cudnn":
            left_out.append("DecoderConfig.attention='cudnn'")
            model = dataclasses.replace(model, attention="auto")
        if model.experts is not None and model.experts.exchange == "ragged_all_to_all":
            left_out.append("ExpertsConfig.exchange='ragged_all_to_all'")
            experts = dataclasses.replace(model.experts, exchange="all_to_all")
            model = dataclasses.replace(model, experts=experts)
        run = dataclasses.replace(run, task=dataclasses.replace(run.task, model=model))
    if not left_out:
        return run, ()
    message = f"left out, because CPU has no such thing: {', '.join(left_out)}."
    return run, (Finding(about="compiler", verdict=Verdict.INFO, message=message),)


def checkpoint_bytes(program: Program) -> int:
    """Returns the bytes of the saved state, as a checkpoint holds it uncompressed."""
    state = saved(abstract_state(program), program)
    return sum(leaf.dtype.itemsize * math.prod(leaf.shape) for leaf in jax.tree.leaves(state))


def _memory(
    program: Program,
    *,
    run: RunConfig,
    chip: ChipConfig,
    measured: Memory | None,
    refusal: OutOfMemory | None,
    formula: MemoryUse | None,
) -> MemoryTable:
    state, host = _state(program, offload=run.optimizer.offload)
    rows, length = run.data.global_batch, run.data.sequence_length
    inputs = abstract_batch(program, rows=rows, length=length)
    batch = sum(table.row_of(name, leaf).bytes_per_device for name, leaf in inputs.items())
    needed = float(sum(state.values()) + batch)
    if refusal is not None and refusal.needed is not None:
        needed = refusal.needed
    elif measured is not None:
        # TPU's compiler refuses what does not fit, so that its own account is the right one.
        by_itself = chip.vendor == "google" and measured.reported
        needed = measured.reported if by_itself else measured.peak
        host += measured.host
    elif formula is not None:
        needed = formula.total - formula.part("reserved")
        host = max(host, formula.host)
    return MemoryTable(
        state=state,
        batch=batch,
        temporary=measured.temporary if measured is not None else None,
        needed=needed,
        limit=chip.memory,
        reserved=chip.reserved,
        host=host,
        refused=refusal is not None,
        formula=formula,
    )


def _state(program: Program, *, offload: bool) -> tuple[dict[str, int], float]:
    """Returns group -> bytes on one device, and bytes that wait in its host's memory."""
    groups = dict.fromkeys((*_STATE.values(), _OTHER), 0)
    host = 0
    for name, leaf in leaves(abstract_state(program)).items():
        size = table.row_of(name, leaf).bytes_per_device
        part = next((group for key, group in _STATE.items() if f"/{key}/" in f"/{name}/"), _OTHER)
        if offload and part == _STATE["optimizer"] and leaf.shape:  # counters stay
            host += size
        else:
            groups[part] += size
    return {name: size for name, size in groups.items() if size}, host


def _traffic(
    program: Program, *, run: RunConfig, step: CompiledStep | None, platform: Tier
) -> tuple[AxisVerdict, ...]:
    assert isinstance(run.task, LanguageModel)
    if step is not None:
        found, formula = compare(step, run=run)
        return verdicts(found, formula, platform=platform)
    sizes = mesh_shape(program.mesh, run=run).sizes
    known: dict[str, Any] = {"sizes": sizes, "rules": run.rules, "work": work_of(run)}
    formula = expected(run.task.model, parameters=program.axes, **known)
    return tuple(
        dataclasses.replace(verdict, judged=False, notes=())
        for verdict in verdicts((), formula, platform=platform)
    )


def _flops(program: Program, *, run: RunConfig, quick: bool) -> Flops:
    """Counts the traced step; by formula where time matters."""
    rows, length = run.data.global_batch, run.data.sequence_length
    planned = None
    if isinstance(run.task, LanguageModel):
        planned = planned_flops(run.task.model, rows=rows, length=length)
    counted = planned if quick and planned else step_flops(program, rows=rows, length=length)
    return Flops(
        causal=counted.total("causal"),
        full=counted.total("full"),
        hardware=planned.hardware if planned else None,
    )


def _fits(
    memory: MemoryTable, *, refusal: OutOfMemory | None, cluster: ClusterConfig, tier: Tier
) -> Finding:
    chip, formula = cluster.chip.name, memory.formula
    by = "by formula" if tier == "cpu" else "as compiled"
    named = None if refusal is None else refusal.available
    room = memory.room if named is None else named
    needed = f"{shown(memory.needed, 'B')} of {shown(room, 'B')} on each device, {by}"
    if memory.reserved and named is None:
        needed += f"; {shown(memory.reserved, 'B')} more are the runtime's"
    if memory.fits:
        return Finding(about="memory", verdict=Verdict.OK, message=f"{needed}.")
    said = ""
    if formula is not None:
        said += f" Largest: {memory_verdict.largest(formula)}."
    if refusal is not None and refusal.largest:
        said += f" The compiler names {'; '.join(refusal.largest)}."
    advice = "a smaller batch" if formula is None else memory_verdict.advice(formula)
    return Finding(
        about="memory",
        verdict=Verdict.ERROR,
        message=f"does not fit into {chip}: {needed}.{said} To make room: {advice}.",
    )


def _preallocated(memory: MemoryTable, *, tier: Tier) -> Iterator[Finding]:
    """Says where jax's own share of a GPU's memory is smaller than what is needed."""
    share = memory.needed / memory.limit
    enough = memory_verdict.memory_fraction(share) if tier == "cuda" and memory.fits else None
    if enough is None:
        return
    yield Finding(
        about="memory",
        verdict=Verdict.WARNING,
        message=f"jax takes {memory_verdict.PREALLOCATED:.0%} of a GPU's memory, and the step "
        f"needs {share:.0%}: set XLA_PYTHON_CLIENT_MEM_FRACTION={enough:g} (workload.env of a job "
        "file). The rest is for NCCL and cuBLAS.",
    )


def _disagreements(traffic: tuple[AxisVerdict, ...]) -> Iterator[Finding]:
    for verdict in traffic:
        if not verdict.judged or verdict.agrees:
            continue
        axes = "+".join(verdict.axes) or "unknown axes"
        why = f" {' '.join(verdict.notes)}" if verdict.notes else ""
        yield Finding(
            about="traffic",
            verdict=Verdict.WARNING,
            message=f"over {axes} the compiled step sends {shown(verdict.counted, 'B')}, the "
            f"formula {shown(verdict.formula, 'B')}: the partitioner moves what RulesConfig does "
            f"not ask for, or leaves out what it does.{why}",
        )


def _complaint(line: str) -> Finding:
    return Finding(
        about="partitioner",
        verdict=Verdict.WARNING,
        message=f"involuntary rematerialization: {line}. An array is gathered whole to change how "
        "it is split: have RulesConfig.parameters and activations split it alike.",
    )
