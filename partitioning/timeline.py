"""Shows a pipeline schedule: ``python -m partitioning.timeline --stages=4 --microbatches=8``.

Prints who does what at which tick, the bubble, and how many inputs a stage holds at most; draws the
same as SVG. Needs no devices and no jax.
"""

import pathlib
import signal
import string
import sys
from collections.abc import Sequence
from typing import cast

from absl import app, flags

from partitioning.mesh_config import ScheduleName
from partitioning.schedules import IDLE, Schedule, build_schedule

_SCHEDULE = flags.DEFINE_enum("schedule", "1f1b", ["1f1b", "circular"], "PipelineConfig.schedule.")
_STAGES = flags.DEFINE_integer("stages", 4, "MeshConfig.stage.", lower_bound=1)
_CHUNKS = flags.DEFINE_integer("chunks", 1, "PipelineConfig.chunks.", lower_bound=1)
_MICROBATCHES = flags.DEFINE_integer("microbatches", 8, "TrainConfig.microbatches.", lower_bound=1)
_BACKWARD = flags.DEFINE_float(
    "backward", 3.0, "Time of a backward pass, recomputation included, in forward passes.", 0.0
)
_SVG = flags.DEFINE_string("svg", None, "Also draw the timeline into this file.")

CELL, ROW, LEFT = 26, 24, 64
COLORS = ("#dce9f7", "#a9cbee", "#6ea6dd", "#3f7fc1")
BACK_COLORS = ("#d9efd9", "#a8d8a8", "#74ba74", "#459545")


def draw(schedule: Schedule) -> str:
    """Returns the timeline as text, one row per stage.

    A cell is a microbatch, with a letter for the chunk where there are several: ``3`` forward,
    ``3'`` backward, ``5/3'`` both in one tick, ``.`` idle.
    """
    cells = [
        [_cell(schedule, tick, stage) for tick in range(schedule.ticks)]
        for stage in range(schedule.stages)
    ]
    width = max(len(cell) for row in cells for cell in row)
    lines = [
        f"stage {stage:<3} " + " ".join(f"{cell:>{width}}" for cell in row)
        for stage, row in enumerate(cells)
    ]
    return "\n".join(lines)


def summary(schedule: Schedule, *, backward: float) -> str:
    """Returns ticks, bubble and live inputs in words."""
    return (
        f"{schedule.ticks} ticks, bubble {schedule.bubble(backward=backward):.1%}, at most "
        f"{schedule.live().max()} microbatch inputs kept on a stage"
    )


def draw_svg(schedule: Schedule, *, title: str) -> str:
    """Returns the timeline as an SVG image: forward passes blue above, backward passes green."""
    rows = 2 if schedule.has_backward else 1
    width = LEFT + CELL * schedule.ticks + 10
    height = 30 + (rows * ROW + 6) * schedule.stages
    shapes = [f'<text x="8" y="18" font-weight="bold">{title}</text>']
    for stage in range(schedule.stages):
        top = 30 + stage * (rows * ROW + 6)
        shapes.append(f'<text x="8" y="{top + ROW * rows / 2 + 4}">stage {stage}</text>')
        tables = (schedule.forward, schedule.backward)[:rows]
        for row, (table, colors) in enumerate(zip(tables, (COLORS, BACK_COLORS), strict=False)):
            for tick in range(schedule.ticks):
                entry = int(table[tick, stage])
                x, y = LEFT + tick * CELL, top + row * ROW
                fill = "#f4f4f4" if entry == IDLE else colors[entry % schedule.chunks % len(colors)]
                shapes.append(
                    f'<rect x="{x}" y="{y}" width="{CELL - 2}" height="{ROW - 2}" fill="{fill}"/>'
                )
                if entry != IDLE:
                    label = entry // schedule.chunks
                    shapes.append(
                        f'<text x="{x + CELL / 2 - 1}" y="{y + 15}" '
                        f'text-anchor="middle">{label}</text>'
                    )
    body = "\n".join(shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11">\n{body}\n</svg>\n'
    )


def _cell(schedule: Schedule, tick: int, stage: int) -> str:
    parts = [
        _label(int(table[tick, stage]), schedule.chunks) + mark
        for table, mark in ((schedule.forward, ""), (schedule.backward, "'"))
        if table[tick, stage] != IDLE
    ]
    return "/".join(parts) or "."


def _label(entry: int, chunks: int) -> str:
    microbatch, chunk = divmod(entry, chunks)
    if chunks > len(string.ascii_lowercase):
        return f"{microbatch}.{chunk}"
    return f"{microbatch}{string.ascii_lowercase[chunk]}" if chunks > 1 else str(microbatch)


def main(argv: Sequence[str]) -> None:
    """Prints one schedule."""
    if len(argv) > 1:
        raise app.UsageError(f"Unknown argument {argv[1]!r}.")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` is no fault
    try:
        schedule = build_schedule(
            cast(ScheduleName, _SCHEDULE.value),
            stages=_STAGES.value,
            chunks=_CHUNKS.value,
            microbatches=_MICROBATCHES.value,
        )
    except ValueError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the command's answer
        sys.exit(1)
    words = summary(schedule, backward=_BACKWARD.value)
    print(draw(schedule), words, sep="\n")  # noqa: T201 - the command's answer
    if _SVG.value:
        title = (
            f"{_SCHEDULE.value}: {_STAGES.value} stages, {_CHUNKS.value} chunk(s), "
            f"{_MICROBATCHES.value} microbatches; bubble "
            f"{schedule.bubble(backward=_BACKWARD.value):.1%}"
        )
        try:
            pathlib.Path(_SVG.value).write_text(draw_svg(schedule, title=title), encoding="utf-8")
        except OSError as error:
            print(f"--svg cannot be written: {error}", file=sys.stderr)  # noqa: T201
            sys.exit(1)


if __name__ == "__main__":
    app.run(main)
