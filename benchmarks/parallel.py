"""What each way of spreading a step over eight devices costs: ``python -m benchmarks.parallel``.

Compiles one small model and batch for eight virtual CPU devices in every layout and prints, per
device and step: ticks and bubble of pipelines; operations of matrix products against the ideal
(the model's, an eighth each: what is above 1 is computed again, or by several; of a pipeline, for a
stage that had both embedding and head); temporary memory; and bytes sent per mesh axis against the
formulas of partitioning/traffic.py.

Nothing runs, so that the numbers are the same on every machine. CPU programs all-reduce where
accelerators reduce-scatter: up to twice the formula is what that costs; see
``python -m trainer.collectives`` for programs as accelerators get them.

--json prints one object; --only=REGEX takes some of the layouts.
"""

import dataclasses
import json
import os
import re
import sys
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"  # before jax looks for accelerators

import jax
from absl import app, flags

from benchmarks.output import JSON
from benchmarks.products import product_flops
from models.decoder_config import ContextAttention, DecoderConfig
from models.experts_config import ExpertsConfig
from partitioning.mesh_config import MeshConfig, PipelineConfig
from partitioning.traffic import branch_shares
from partitioning.traffic_check import verdicts

flags.declare_key_flag("json")  # listed by --help
_ONLY = flags.DEFINE_string("only", None, "Take layouts whose names match this expression.")

DEVICES, ROWS, LENGTH = 8, 64, 64
DENSE = DecoderConfig(
    vocab_size=512,
    embed_dim=64,
    layers=8,
    heads=8,
    kv_heads=8,
    mlp_dim=256,
    dtype="float32",
    scan_layers=True,
)
EXPERTS = dataclasses.replace(
    DENSE,
    pattern=("global+experts",),
    # With a capacity every loop has a length that the program says.
    experts=ExpertsConfig(count=8, chosen=2, mlp_dim=128, capacity=1.25),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """One way to spread the step.

    Attributes:
      name: in the table.
      rules: of configs/partitioning.
      mesh: sizes of the axes.
      model: what is trained.
      microbatches: parts of the batch.
      pipeline: how they pass through stages.
    """

    name: str
    rules: str
    mesh: MeshConfig
    model: DecoderConfig = DENSE
    microbatches: int = 1
    pipeline: PipelineConfig = PipelineConfig()  # noqa: RUF009 - frozen


def _pipeline(name: str, *, mesh: MeshConfig, rules: str = "pp", **pipeline: Any) -> Layout:
    return Layout(
        name=name,
        rules=rules,
        mesh=mesh,
        microbatches=8,
        pipeline=PipelineConfig(**pipeline),
    )


def _context(name: str, *, mesh: MeshConfig, way: ContextAttention) -> Layout:
    model = dataclasses.replace(DENSE, context_attention=way)
    return Layout(name=name, rules="cp", mesh=mesh, model=model)


_STAGES = MeshConfig(data=2, stage=4)
LAYOUTS = (
    Layout(name="ddp", rules="ddp", mesh=MeshConfig(data=8)),
    Layout(name="fsdp", rules="fsdp", mesh=MeshConfig(fsdp=8)),
    Layout(name="tp", rules="tp", mesh=MeshConfig(tensor=8)),
    Layout(name="fsdp_tp", rules="fsdp_tp", mesh=MeshConfig(fsdp=4, tensor=2)),
    _pipeline("pp 1f1b", mesh=_STAGES),
    _pipeline("pp 1f1b, 2 chunks", mesh=_STAGES, chunks=2),
    _pipeline("pp circular", mesh=_STAGES, schedule="circular"),
    _pipeline("pp x tp", mesh=MeshConfig(data=2, stage=2, tensor=2)),
    _pipeline("pp x fsdp x tp", mesh=MeshConfig(stage=2, fsdp=2, tensor=2), rules="fsdp_tp"),
    Layout(name="ep", rules="ep", mesh=MeshConfig(fsdp=2, expert=4), model=EXPERTS),
    Layout(
        name="fsdp x ep x tp",
        rules="fsdp_ep_tp",
        mesh=MeshConfig(fsdp=2, expert=2, tensor=2),
        model=EXPERTS,
    ),
    _context("cp ring", mesh=MeshConfig(fsdp=2, context=4), way="ring"),
    _context("cp all_gather", mesh=MeshConfig(fsdp=2, context=4), way="all_gather"),
    _context("fsdp x cp x tp", mesh=MeshConfig(fsdp=2, context=2, tensor=2), way="ring"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axis:
    """Bytes that one device sends over some mesh axes per step."""

    axes: tuple[str, ...]
    sent: float
    formula: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """What one layout costs, per device and step.

    Attributes:
      name: of the layout.
      ticks: of its pipeline; None without one.
      bubble: idle share of a stage's time; None without one.
      flops: operations of the compiled program's matrix products.
      ideal_flops: the model's, shared evenly.
      temporary_bytes: what the program needs besides state and batch.
      axes: bytes sent, most first.
    """

    name: str
    ticks: int | None
    bubble: float | None
    flops: float
    ideal_flops: float
    temporary_bytes: int
    axes: tuple[Axis, ...]


def measure(layout: Layout) -> Measured:
    """Compiles one layout."""
    from trainer.certificate import programs
    from trainer.collectives import compare, work_of
    from trainer.deviceless import compile_train_step, target_program
    from trainer.flops import step_flops
    from trainer.pipeline import schedule_of

    run = programs.run(
        layout.model,
        rules=layout.rules,
        mesh=layout.mesh,
        rows=ROWS,
        length=LENGTH,
        microbatches=layout.microbatches,
        pipeline=layout.pipeline,
    )
    program = target_program(run, target="cpu")
    step = compile_train_step(program, run=run)
    found, formula = compare(step, run=run)
    taken = branch_shares(layout.model, sizes=step.mesh.sizes, rules=run.rules, work=work_of(run))
    schedule = schedule_of(program) if program.stages > 1 else None
    axes = verdicts(found, formula, platform="cpu")
    model = step_flops(program, rows=ROWS, length=LENGTH).total("full")
    return Measured(
        name=layout.name,
        ticks=schedule.ticks if schedule else None,
        bubble=schedule.bubble() if schedule else None,
        flops=product_flops(step.text, taken=taken),
        ideal_flops=model / DEVICES,
        temporary_bytes=step.memory.temporary,
        axes=tuple(Axis(axes=v.axes, sent=v.counted, formula=v.formula) for v in axes if v.judged),
    )


def show(found: list[Measured]) -> str:
    """Returns the table."""
    head = (
        "layout",
        "ticks",
        "bubble",
        "MFLOP",
        "of ideal",
        "temporary",
        "sent per axis, of formula",
    )
    lines = ["{:18}{:>6}{:>8}{:>9}{:>10}{:>11}   {}".format(*head)]
    for row in found:
        ticks = "-" if row.ticks is None else str(row.ticks)
        bubble = "-" if row.bubble is None else f"{row.bubble:.1%}"
        sent = ", ".join(
            f"{'+'.join(axis.axes)} {axis.sent / 1e6:.2f} MB"
            + (f" ({axis.sent / axis.formula:.2f})" if axis.formula else " (-)")
            for axis in row.axes
        )
        lines.append(
            f"{row.name:18}{ticks:>6}{bubble:>8}{row.flops / 1e6:9.1f}"
            f"{row.flops / row.ideal_flops:10.2f}{row.temporary_bytes / 2**20:7.2f} MiB   {sent}"
        )
    return "\n".join(lines)


def main(argv: list[str]) -> None:
    """Measures and prints."""
    if len(argv) > 1:
        raise app.UsageError(f"Unknown argument {argv[1]!r}.")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    jax.config.update("jax_threefry_partitionable", True)
    wanted = [layout for layout in LAYOUTS if re.search(_ONLY.value or "", layout.name)]
    if not wanted:
        raise app.UsageError(f"--only={_ONLY.value!r} matches no layout.")
    found = []
    for layout in wanted:
        found.append(measure(layout))
        print(layout.name, file=sys.stderr, flush=True)
    if JSON.value:
        print(json.dumps({"layouts": [dataclasses.asdict(row) for row in found]}))
    else:
        print(show(found))


if __name__ == "__main__":
    app.run(main)
