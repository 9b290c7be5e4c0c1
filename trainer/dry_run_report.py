"""What a dry run found, as text for people and as one JSON object."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from launch.contract import ExitCode, Finding, Verdict
from partitioning.planner.answers import aligned, shown
from partitioning.planner.cost_model.memory import MemoryUse
from partitioning.planner.cost_model.run_outlook import RunOutlook
from partitioning.planner.cost_model.step_time import Prediction
from partitioning.planner.plan import shown_mesh
from partitioning.table import Row, show_bytes
from partitioning.table import show as show_rows
from partitioning.traffic_check import AxisVerdict
from trainer.finite_json import dumps

VERSION = 1
Tier = Literal["cuda", "tpu", "cpu"]
"""Whose compiler was asked; "cpu" where there is none for the chip."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryTable:
    """Bytes of one device.

    Attributes:
      state: group of the state -> bytes, exact.
      batch: of the batch, exact.
      temporary: everything between, by the compiler; None where it was not asked or refused.
      needed: the most of all, by the best that is known.
      limit: bytes that the device has.
      reserved: share of them that runtime and libraries take.
      host: bytes in host memory.
      refused: the compiler itself found no room.
      formula: what the planner says; None where it has no formula.
    """

    state: Mapping[str, int]
    batch: int
    temporary: int | None
    needed: float
    limit: int
    reserved: int
    host: float
    refused: bool
    formula: MemoryUse | None

    @property
    def room(self) -> int:
        """Bytes that a step may take."""
        return self.limit - self.reserved

    @property
    def fits(self) -> bool:
        """Whether it does not take more."""
        return not self.refused and self.needed <= self.room


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flops:
    """Operations of a step on all devices.

    Attributes:
      causal: the model's, with attention to earlier tokens only.
      full: the model's, with the whole attention square.
      hardware: causal, with what is computed again; None where there is no formula.
    """

    causal: float
    full: float
    hardware: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DryRun:
    """Everything that a dry run found; what it did not come to is None or empty.

    Attributes:
      cluster: name of the cluster.
      chip: its chip.
      devices: of the run.
      mesh: axis -> size, axes of size 1 left out.
      compiler: whose compiler was asked; None if it did not come to that.
      memory: who takes the memory.
      traffic: bytes by mesh axes, compiled against formula.
      counted: whether a compiled program's are in it; if not, only the formulas'.
      flops: of a step.
      table: where every parameter lives.
      predicted: the step's duration.
      outlook: the run's duration, price and checkpoints.
      findings: what is wrong, unwise or worth knowing.
    """

    cluster: str
    chip: str
    devices: int
    mesh: Mapping[str, int] = dataclasses.field(default_factory=dict)
    compiler: Tier | None = None
    memory: MemoryTable | None = None
    traffic: tuple[AxisVerdict, ...] = ()
    counted: bool = False
    flops: Flops | None = None
    table: tuple[Row, ...] = ()
    predicted: Prediction | None = None
    outlook: RunOutlook | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the run can work: it compiles, and a device has room for it."""
        return self.memory is not None and self.memory.fits and not self.errors

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What keeps it from working."""
        return tuple(f for f in self.findings if f.verdict is Verdict.ERROR)

    @property
    def exit_code(self) -> ExitCode:
        """What the command leaves with."""
        return ExitCode.DONE if self.fits else ExitCode.CONFIGURATION


def as_json(found: DryRun) -> str:
    """Returns the report as one JSON object; sizes are bytes, durations seconds."""
    plain = {
        "version": VERSION,
        "fits": found.fits,
        "exit_code": int(found.exit_code),
        "cluster": found.cluster,
        "chip": found.chip,
        "devices": found.devices,
        "mesh": dict(found.mesh),
        "compiler": found.compiler,
        "memory": _memory_dict(found.memory),
        "traffic": [_axis_dict(verdict, counted=found.counted) for verdict in found.traffic],
        "flops": dataclasses.asdict(found.flops) if found.flops else None,
        "findings": [dataclasses.asdict(finding) for finding in found.findings],
        "predicted": _predicted_dict(found.predicted, found.outlook),
        "checkpoint": _checkpoint_dict(found.outlook),
        "sharding": [dataclasses.asdict(row) for row in found.table],
    }
    return dumps(plain, indent=1)


def show(found: DryRun) -> str:
    """Returns the report for people; the verdict is its last line."""
    by = {"cpu": "traced and compiled for CPU", None: "not compiled"}.get(
        found.compiler, f"compiled for {found.chip}"
    )
    lines = [f"{found.devices} x {found.chip}, {shown_mesh(found.mesh)}: {by}", ""]
    if found.table:
        lines += [show_rows(found.table), ""]
    if found.memory is not None:
        lines += [*_memory_lines(found.memory), ""]
    if found.traffic:
        lines += [*_traffic_lines(found), ""]
    lines += [*_step_lines(found)]
    lines += [f"{f.verdict:7}  {f.about}: {f.message}" for f in found.findings]
    return "\n".join([*lines, _verdict_line(found)])


def _verdict_line(found: DryRun) -> str:
    if found.errors:
        return f"It cannot work: {len(found.errors)} error(s), above."
    assert found.memory is not None
    needed, room = show_bytes(found.memory.needed), show_bytes(found.memory.room)
    return f"It fits: {needed} of {room} on each device."


def _memory_lines(memory: MemoryTable) -> list[str]:
    formula = {} if memory.formula is None else {p.name: p.value for p in memory.formula.parts}
    rows = [("per device", "exact or compiled", "by formula")]
    for name, size in memory.state.items():
        rows.append((name, show_bytes(size), _maybe(formula.pop(name, None))))
    rows.append(("batch", show_bytes(memory.batch), _maybe(formula.pop("batch", None))))
    reserved = formula.pop("reserved", None)
    between = sum(formula.values()) if memory.formula else None
    rows.append(("temporaries", _maybe(memory.temporary), _maybe(between)))
    rows += [
        (f"  {name.replace('_', ' ')}", "", show_bytes(size))
        for name, size in sorted(formula.items(), key=lambda part: -part[1])
    ]
    rows.append(("reserved", show_bytes(memory.reserved), _maybe(reserved)))
    total = None if memory.formula is None else memory.formula.total
    needed = memory.needed + memory.reserved
    rows.append((f"in all, of {show_bytes(memory.limit)}", show_bytes(needed), _maybe(total)))
    if memory.host:
        rows.append(("in host memory", show_bytes(memory.host), ""))
    return aligned(rows)


def _maybe(size: float | None) -> str:
    return "-" if size is None else show_bytes(size)


def _traffic_lines(found: DryRun) -> list[str]:
    rows = [("sent per device and step, over", "compiled", "by formula", "")]
    for verdict in found.traffic:
        rows.append(
            (
                "+".join(verdict.axes) or "unknown axes",
                shown(verdict.counted, "B") if found.counted else "-",
                shown(verdict.formula, "B"),
                f"x {verdict.ratio:.3f}" if found.counted and verdict.formula else "",
            )
        )
    return aligned(rows)


def _step_lines(found: DryRun) -> Iterator[str]:
    if found.flops is not None:
        flops = found.flops
        again = "" if flops.hardware is None else f", {shown(flops.hardware, 'FLOP')} with what is"
        again += "" if flops.hardware is None else " computed again"
        yield (
            f"Step: {shown(flops.causal, 'FLOP')} (causal), {shown(flops.full, 'FLOP')} (full "
            f"attention){again}."
        )
    if found.predicted is not None:
        step = found.predicted
        yield (
            f"Predicted: {shown(step.seconds, 's')} a step, {step.tokens_per_second:,.0f} "
            f"tokens/s, MFU {step.mfu:.1%} (causal) or {step.mfu_full:.1%} (full), "
            f"HFU {step.hfu:.1%}."
        )
        parts = ", ".join(
            f"{part.name.replace('_', ' ')} {part.value / step.seconds:.0%}"
            for part in sorted(step.waterfall, key=lambda part: -part.value)
            if part.value / step.seconds >= 0.005
        )
        yield f"Time goes to: {parts}."
    if found.flops is not None or found.predicted is not None:
        yield ""


def _memory_dict(memory: MemoryTable | None) -> dict[str, Any] | None:
    if memory is None:
        return None
    formula = memory.formula
    return {
        "state": dict(memory.state),
        "batch": memory.batch,
        "temporary": memory.temporary,
        "needed": memory.needed,
        "limit": memory.limit,
        "reserved": memory.reserved,
        "host": memory.host,
        "fits": memory.fits,
        "formula": None
        if formula is None
        else {"total": formula.total, "parts": {p.name: p.value for p in formula.parts}},
    }


def _axis_dict(verdict: AxisVerdict, *, counted: bool) -> dict[str, Any]:
    plain = dataclasses.asdict(verdict)
    if not counted:
        return {**plain, "counted": None, "judged": False, "agrees": None, "ratio": None}
    return {**plain, "ratio": verdict.ratio if verdict.formula else None}


def _predicted_dict(step: Prediction | None, run: RunOutlook | None) -> dict[str, Any] | None:
    if step is None:
        return None
    plain: dict[str, Any] = {
        "seconds": step.seconds,
        "tokens_per_second": step.tokens_per_second,
        "mfu": step.mfu,
        "mfu_full": step.mfu_full,
        "hfu": step.hfu,
        "bottleneck": step.bottleneck,
        "waterfall": {part.name: part.value for part in step.waterfall},
    }
    if run is not None:
        plain |= {"steps": run.steps, "run_seconds": run.hours * 3600, "cost": run.cost}
    return plain


def _checkpoint_dict(run: RunOutlook | None) -> dict[str, Any] | None:
    if run is None:
        return None
    return {
        "bytes": run.checkpoint,
        "write_seconds": run.write_seconds,
        "interval_seconds": run.interval,
        "interval_steps": run.interval_steps,
        "every": run.every,
    }
