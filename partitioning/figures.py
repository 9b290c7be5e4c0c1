"""Draws docs/figures: ``python -m partitioning.figures``. Needs no devices and no jax.

Timelines of pipeline schedules, and where the mesh of a run puts its axes on nodes and racks.
"""

import pathlib
from collections.abc import Iterator

from partitioning.mesh_config import ScheduleName
from partitioning.schedules import build_schedule
from partitioning.timeline import draw_svg

FIGURES = pathlib.Path(__file__).parents[1] / "docs" / "figures"
TIMELINES: tuple[tuple[str, ScheduleName, int, int, int], ...] = (
    ("circular", "circular", 4, 1, 8),
    ("1f1b", "1f1b", 4, 1, 8),
    ("1f1b_interleaved", "1f1b", 4, 2, 8),
)
"""(file, schedule, stages, chunks, microbatches)."""

STAGE_COLORS = ("#dce9f7", "#a9cbee", "#6ea6dd", "#3f7fc1")
GPU, GAP, LINE, LABEL = 15, 2, 16, 96


def figures() -> Iterator[tuple[str, str]]:
    """Yields (file name, SVG)."""
    for file, name, stages, chunks, microbatches in TIMELINES:
        schedule = build_schedule(name, stages=stages, chunks=chunks, microbatches=microbatches)
        title = (
            f"{name}, {stages} stages, {chunks} chunk(s), {microbatches} microbatches: "
            f"bubble {schedule.bubble():.1%}"
        )
        yield f"{file}.svg", draw_svg(schedule, title=title)
    yield "mesh_pipeline.svg", mesh_svg(data=4, stage=4, tensor=8, hosts_per_rack=4)


def mesh_svg(*, data: int, stage: int, tensor: int, hosts_per_rack: int) -> str:
    """Draws data x stage x tensor devices: a square per device, a row per host, a box per rack.

    Devices of ``tensor`` share a host, stages follow each other from host to host, and replicas
    are farthest apart. The colour is the stage.
    """
    hosts = data * stage
    racks = -(-hosts // hosts_per_rack)
    across, down = tensor * (GPU + GAP) + LABEL, hosts_per_rack * (GPU + 6) + LINE + 14
    shapes = [
        f'<text x="8" y="{LINE}" font-weight="bold">data={data} x stage={stage} x '
        f"tensor={tensor}: {tensor} GPUs a host, {hosts_per_rack} hosts a rack</text>"
    ]
    for rack in range(racks):
        left, top = 8 + rack * (across + 26), 28
        shapes.append(
            f'<rect x="{left}" y="{top}" width="{across}" height="{down}" fill="none" '
            f'stroke="#888"/><text x="{left + 4}" y="{top + 13}">rack {rack}</text>'
        )
        for place in range(hosts_per_rack):
            host = rack * hosts_per_rack + place
            if host >= hosts:
                break
            color = STAGE_COLORS[host % stage % len(STAGE_COLORS)]
            y = top + LINE + 4 + place * (GPU + 6)
            shapes += [
                f'<rect x="{left + 6 + gpu * (GPU + GAP)}" y="{y}" width="{GPU}" height="{GPU}" '
                f'fill="{color}"/>'
                for gpu in range(tensor)
            ]
            shapes.append(
                f'<text x="{left + 10 + tensor * (GPU + GAP)}" y="{y + 12}">data {host // stage}, '
                f"stage {host % stage}</text>"
            )
    width, height = 8 + racks * (across + 26), 28 + down + 10
    body = "\n".join(shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11">\n{body}\n</svg>\n'
    )


def main() -> None:
    """Writes the files."""
    FIGURES.mkdir(exist_ok=True)
    for name, svg in figures():
        (FIGURES / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
