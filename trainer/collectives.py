"""``python -m trainer.collectives``: what a run's step moves between devices, per mesh axis.

Compiles the train step for a target without having its devices, counts the bytes of every
collective, and holds them against the formulas:

    python -m trainer.collectives --gin_file=configs/runs/llama3_8b_8.gin --target=h100

Exit status 1 if an axis differs from its formula by more than a tenth, or if the partitioner
replicates an array in order to move it; 64 if the configuration is not possible.
"""

import dataclasses
import json
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from launch.contract import ExitCode
from partitioning.collectives import Collective, collectives, traffic
from partitioning.targets import TARGETS
from partitioning.traffic import branch_shares, expected
from partitioning.traffic_check import AxisVerdict, Row, rows, verdicts
from partitioning.traffic_step import Work
from partitioning.transfers import Transfer
from trainer import standard_streams
from trainer.config_errors import ConfigError
from trainer.config_parser import rewrite_arguments
from trainer.run_config import LanguageModel, RunConfig

if TYPE_CHECKING:
    from trainer.deviceless import CompiledStep

# Flags of its own: trainer.main defines some of the same names, and both are imported by tests.
FLAGS = flags.FlagValues()
_GIN_FILE = flags.DEFINE_multi_string(
    "gin_file", [], "Gin file of a run; may be repeated.", flag_values=FLAGS
)
_GIN_BINDINGS = flags.DEFINE_multi_string(
    "gin_bindings",
    [],
    "Binding such as MeshConfig.fsdp=8; --gin.MeshConfig.fsdp=8 is short.",
    flag_values=FLAGS,
)
_TARGET = flags.DEFINE_string(
    "target",
    "h100",
    f"Chip to compile for: {', '.join(TARGETS)}; a TPU's torus may follow, as in v5p:8x16x16.",
    flag_values=FLAGS,
)
_DEVICES = flags.DEFINE_integer(
    "devices", None, "How many; default: the product of MeshConfig.", 1, flag_values=FLAGS
)
_SLICES = flags.DEFINE_integer(
    "slices", 1, "TPU slices that the devices are in.", 1, flag_values=FLAGS
)
_HELP = flags.DEFINE_bool("help", False, "Show the flags, and leave.", flag_values=FLAGS)
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object instead.", flag_values=FLAGS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What was found; bytes are per device and step.

    Attributes:
      target: chip.
      mesh: axis -> size, axes of size 1 left out.
      rows: by kind and axes.
      axes: by axes, judged.
      formula: the formulas' terms.
      memory: bytes of one device: arguments, outputs, aliased, temporary and peak.
      device_memory: bytes that the target's devices have; 0 if unknown.
      complaints: arrays that the partitioner replicates in order to move them.
    """

    target: str
    mesh: dict[str, int]
    rows: tuple[Row, ...]
    axes: tuple[AxisVerdict, ...]
    formula: tuple[Transfer, ...]
    memory: dict[str, int]
    device_memory: int
    complaints: tuple[str, ...]

    @property
    def passes(self) -> bool:
        """Whether all axes that count agree, and nothing was complained of."""
        return not self.complaints and all(v.agrees or not v.judged for v in self.axes)


def report(run: RunConfig, *, target: str, devices: int | None = None, slices: int = 1) -> Report:
    """Compiles the step of ``run`` for ``target`` and compares.

    Raises:
      ValueError: the target's compiler is missing, or the configuration is not possible.
    """
    from trainer.deviceless import compile_train_step, target_program

    if not isinstance(run.task, LanguageModel):
        raise ValueError(
            f"There are formulas for LanguageModel, not for {type(run.task).__name__}."
        )
    program = target_program(run, target=target, devices=devices, slices=slices)
    step = compile_train_step(program, run=run)
    found, formula = compare(step, run=run)
    chip = TARGETS[target.partition(":")[0]]
    return Report(
        target=target,
        mesh={axis: size for axis, size in step.mesh.sizes.items() if size > 1},
        rows=rows(traffic(found), formula),
        axes=verdicts(found, formula, platform=chip.platform),
        formula=formula,
        memory={**dataclasses.asdict(step.memory), "peak": step.memory.peak},
        device_memory=chip.memory,
        complaints=step.complaints,
    )


def compare(
    step: "CompiledStep", *, run: RunConfig
) -> tuple[tuple[Collective, ...], tuple[Transfer, ...]]:
    """Returns what the compiled step moves, and what the formulas say that it must."""
    assert isinstance(run.task, LanguageModel)
    plan: dict[str, Any] = {
        "sizes": step.mesh.sizes,
        "rules": run.rules,
        "work": work_of(run),
    }
    taken = branch_shares(run.task.model, **plan)
    found = collectives(step.text, mesh=step.mesh, taken=taken)
    return found, expected(run.task.model, parameters=step.program.axes, **plan)


def work_of(run: RunConfig) -> Work:
    """Returns what one step of a run computes."""
    return Work(
        rows=run.data.global_batch,
        length=run.data.sequence_length,
        microbatches=run.train.microbatches,
        pipeline=run.pipeline,
    )


def show(found: Report) -> str:
    """Returns the report as text."""
    used = " x ".join(f"{axis}={size}" for axis, size in found.mesh.items()) or "one device"
    lines = [f"{used}, compiled for {found.target}; per device and step", ""]
    cells = [("collective", "axes", "runs", "counted MB", "formula MB", "ratio")]
    cells += [
        (
            row.kind,
            "+".join(row.axes),
            str(row.count),
            f"{row.counted / 1e6:.3f}",
            f"{row.formula / 1e6:.3f}",
            f"{row.counted / row.formula:.4f}" if row.formula else "-",
        )
        for row in found.rows
    ]
    lines += _table(cells)
    lines += ["", "Sent per axis, in a ring:"]
    for verdict in found.axes:
        lines += _verdict(verdict)
    lines += ["", "Formula:"]
    lines += _table(
        [(t.kind, "+".join(t.axes), f"{t.payload / 1e6:.3f} MB", t.why) for t in found.formula],
        left=(0, 1, 3),
    )
    memory = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in found.memory.items())
    room = f" of {found.device_memory / 2**30:.1f}" if found.device_memory else ""
    lines += ["", f"Memory, GiB: {memory}{room}"]
    lines += [f"Replicated in order to move: {line}" for line in found.complaints]
    return "\n".join(lines)


def _verdict(verdict: AxisVerdict) -> list[str]:
    state = "agrees" if verdict.agrees else "DIFFERS" if verdict.judged else "too little to judge"
    ratio = f", ratio {verdict.ratio:.4f}" if verdict.formula else ""
    return [
        f"  {'+'.join(verdict.axes) or 'unknown'}: {verdict.counted / 1e6:.3f} MB, formula "
        f"{verdict.formula / 1e6:.3f} MB{ratio}: {state}",
        *(f"    {note}" for note in verdict.notes),
    ]


def _table(cells: Sequence[tuple[str, ...]], *, left: tuple[int, ...] = (0, 1)) -> list[str]:
    if not cells:
        return ["  none"]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def as_json(found: Report) -> str:
    """Returns the report as one JSON object."""
    plain: dict[str, Any] = dataclasses.asdict(found)
    plain["passes"] = found.passes
    return json.dumps(plain, indent=1)


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit status."""
    del argv
    standard_streams.secure()
    from trainer.config import load

    if _HELP.value:
        print(f"{__doc__}\n{FLAGS.main_module_help()}")  # noqa: T201 - what was asked for
        return 0

    try:
        run = load(_GIN_FILE.value, _GIN_BINDINGS.value).run
        _start_jax(run)
        found = report(run, target=_TARGET.value, devices=_DEVICES.value, slices=_SLICES.value)
    except (ConfigError, ValueError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - the console is this program's face
        return int(ExitCode.CONFIGURATION)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)  # noqa: T201 - the console is this program's face
        return 128 + signal.SIGINT
    print(as_json(found) if _JSON.value else show(found))  # noqa: T201 - what was asked for
    return 0 if found.passes else 1


def _start_jax(run: RunConfig) -> None:
    """Keeps jax off real devices, which this command does not need."""
    import jax

    from trainer.deviceless import device_count

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_threefry_partitionable", True)
    if _TARGET.value == "cpu":
        jax.config.update("jax_num_cpu_devices", _DEVICES.value or device_count(run))


def parse_flags(argv: list[str]) -> list[str]:
    """Parses the command line; a mistake is one line and the exit code for configuration."""
    try:
        return FLAGS(rewrite_arguments(argv))
    except flags.Error as error:
        print(f"{error}\nSee python -m trainer.collectives --help.", file=sys.stderr)  # noqa: T201
        raise SystemExit(int(ExitCode.CONFIGURATION)) from None


if __name__ == "__main__":
    sys.exit(main(parse_flags(sys.argv)))
