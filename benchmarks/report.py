"""The tables that ``python -m benchmarks.step`` prints. Imports the standard library only."""

from typing import Any

from benchmarks.work import Subject


def show(result: dict[str, Any]) -> str:
    """Returns the result of benchmarks.step as text."""
    parts = []
    for key, title in (
        ("steps", "float32, unrolled"),
        ("steps_bf16", "bfloat16, unrolled"),
        ("steps_scanned", "float32, scanned"),
        ("steps_bf16_scanned", "bfloat16, scanned"),
    ):
        if key in result:
            parts.append(_steps(result, suffix=key.removeprefix("steps"), title=title))
    if "start" in result:
        parts.append(_start(result["start"]))
    if "run" in result:
        parts.append(_run(result["run"]))
    return "\n\n".join(parts)


def _steps(result: dict[str, Any], *, suffix: str, title: str) -> str:
    lines = [
        f"{title:24}{'tokens/s':>10}{'tokens/CPU s':>14}{'dispatch':>11}{'peak':>10}"
        f"{'GFLOP':>9}{'temporary':>11}   operations"
    ]
    for subject, row in result[f"steps{suffix}"].items():
        operations = " ".join(f"{name} {n}" for name, n in row["operations"].items())
        lines.append(
            f"  {subject:22}{row['tokens_per_second']:10.0f}{row['tokens_per_cpu_second']:14.0f}"
            f"{row['dispatch_s'] * 1e3:8.2f} ms{row['peak_bytes'] / 2**20:6.0f} MiB"
            f"{row['flops'] / 1e9:9.2f}{row['temporary_bytes'] / 2**20:7.0f} MiB   {operations}"
        )
    names = {
        "ratio": f"{Subject.BEST} / ours",
        "ratio_plain": f"{Subject.PLAIN} / ours",
        "ratio_unguarded": f"{Subject.UNGUARDED} / ours",
    }
    for name, meaning in names.items():
        key = f"{name}{suffix}"
        if key in result:
            low, high = result[f"{key}_low"], result[f"{key}_high"]
            lines.append(f"  CPU seconds, {meaning:26} {result[key]:.3f}  [{low:.3f}, {high:.3f}]")
    return "\n".join(lines)


def _start(start: dict[str, Any]) -> str:
    lines = [f"{'start to first step':24}{'total':>8}{'trace':>8}{'compile':>9}   phases"]
    for name in ("hand_written", "cold", "restart"):
        row = start[name]
        phases = ", ".join(f"{k} {v:.1f}" for k, v in row["phases_s"].items())
        lines.append(
            f"  {name.replace('_', ' '):22}{row['total_s']:6.1f} s{row['trace_s']:6.1f} s"
            f"{row['compile_s']:7.1f} s   {phases}"
        )
    lines.append(
        f"  ours over hand-written: {start['over_hand_written_s']:.1f} s; a restart traces and "
        f"compiles in {100 * start['restart_trace_compile_share']:.0f}% of the cold start's time"
    )
    return "\n".join(lines)


def _run(run: dict[str, Any]) -> str:
    names = ("data_wait_share", "metrics_share", "checkpoint_blocked_share")
    shares = ", ".join(
        f"{name.removesuffix('_share').replace('_', ' ')} {100 * run[name]:.2f}%" for name in names
    )
    return f"a real run: {run['tokens_per_second']:.0f} tokens/s; of its time, {shares}"
