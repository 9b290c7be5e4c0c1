"""How fast a training step is, against loops written by hand: ``python -m benchmarks.step``.

Measures, each in a process of its own and in turns, so that a busy machine slows all alike:

  ours    the compiled step of configs/runs/benchmark_step.gin, finite guard and metrics included
  best    the fastest loop that we know to write by hand (projections on [B * T, D])
  plain   the loop that everybody writes (projections on [B, T, D])

All three do the same maths on the same packed rows with the same jax. A ratio is another's CPU
seconds per step divided by ours, in the same round; above 1 ours is faster. ``[low, high]`` holds
the median ratio with 95% confidence. Then the start of ``python -m trainer.main`` is compared with
that of the hand-written loop, and a real run says what share of its time is not the step.

--json prints one object: ``ratio`` (ours to best, float32, unrolled), ``ratio_plain``,
``ratio_bf16``, ``ratio_plain_bf16``, each with ``<name>_low`` and ``<name>_high``, the same for the
scanned form (``ratio_scanned`` ...), ``ratio_unguarded`` (ours without the guard), and everything
else that the table shows. About ten minutes on two cores; --quick takes two and proves nothing.
"""

import contextlib
import dataclasses
import json
import pathlib
import statistics
import sys
import tempfile
from typing import Any

from absl import app, flags

from benchmarks import report
from benchmarks.intervals import median_interval, ratios
from benchmarks.output import JSON
from benchmarks.starting import RealRun, Start, start_hand_written
from benchmarks.step_worker import Worker
from benchmarks.work import SMALL, Subject, Work

flags.declare_key_flag("json")  # listed by --help
_QUICK = flags.DEFINE_bool("quick", False, "A small model and few rounds, to see that it works.")
_ROUNDS = flags.DEFINE_integer("rounds", 12, "Turns of each process.", lower_bound=1)
_STEPS = flags.DEFINE_integer("steps", 2, "Steps per turn.", lower_bound=1)
_REAL_STEPS = flags.DEFINE_integer("real_steps", 50, "Steps of the real run.", lower_bound=2)
_PARTS = flags.DEFINE_multi_enum(
    "part",
    ["steps", "start", "run"],
    ["steps", "start", "run"],
    "What to measure: the compiled steps, the start, the shares of a real run; may be repeated.",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Subjects that are measured against each other.

    Attributes:
      suffix: of the group's fields in the result.
      dtype: of activations.
      scanned: form of all of them.
      subjects: OURS among them.
    """

    suffix: str
    dtype: str
    scanned: bool
    subjects: tuple[Subject, ...]


_THREE = (Subject.OURS, Subject.BEST, Subject.PLAIN)
GROUPS = (
    Group(suffix="", dtype="float32", scanned=False, subjects=(*_THREE, Subject.UNGUARDED)),
    Group(suffix="_bf16", dtype="bfloat16", scanned=False, subjects=_THREE),
    Group(suffix="_scanned", dtype="float32", scanned=True, subjects=_THREE),
    Group(suffix="_bf16_scanned", dtype="bfloat16", scanned=True, subjects=_THREE),
)


def measure_group(group: Group, *, work: Work, rounds: int, steps: int) -> dict[str, Any]:
    """Runs all subjects of a group in turns; returns each one's speeds and what its program is."""
    turns: dict[Subject, list[dict[str, float]]] = {subject: [] for subject in group.subjects}
    with contextlib.ExitStack() as stack:
        workers, contents = {}, {}
        for subject in group.subjects:
            worker = stack.enter_context(Worker(subject, work=work, scanned=group.scanned))
            contents[subject] = worker.ready()["contents"]
            worker.run(1)  # the second step is the first without lazy set-up
            workers[subject] = worker
        for number in range(rounds):
            order = group.subjects if number % 2 else group.subjects[::-1]
            for subject in order:
                turns[subject].append(workers[subject].run(steps))
    return {
        subject: {**_speeds(turns[subject], tokens=steps * work.tokens), **contents[subject]}
        for subject in group.subjects
    }


def _speeds(turns: list[dict[str, float]], *, tokens: int) -> dict[str, Any]:
    return {
        "tokens_per_second": tokens / statistics.median(turn["wall_s"] for turn in turns),
        "tokens_per_cpu_second": tokens / statistics.median(turn["cpu_s"] for turn in turns),
        "dispatch_s": statistics.median(turn["dispatch_s"] for turn in turns),
        "peak_bytes": max(turn["peak_bytes"] for turn in turns),
        "cpu_s": [turn["cpu_s"] for turn in turns],
        "wall_s": [turn["wall_s"] for turn in turns],
    }


def compare(measured: dict[str, Any], *, suffix: str) -> dict[str, float]:
    """Returns the ratios of a group, by name, with their intervals."""
    ours = measured[Subject.OURS]["cpu_s"]
    named = {
        "ratio": ratios(measured[Subject.BEST]["cpu_s"], ours),
        "ratio_plain": ratios(measured[Subject.PLAIN]["cpu_s"], ours),
    }
    if Subject.UNGUARDED in measured:
        named["ratio_unguarded"] = ratios(measured[Subject.UNGUARDED]["cpu_s"], ours)
    found: dict[str, float] = {}
    for name, values in named.items():
        median, low, high = median_interval(values)
        key = f"{name}{suffix}"
        found |= {key: median, f"{key}_low": low, f"{key}_high": high}
    return found


def measure_starts(folder: pathlib.Path, *, work: Work, rounds: int) -> dict[str, Any]:
    """Starts both programs from cold, and ours again after its end, in turns.

    Returns each one's start of median length, and how ours compares.
    """
    ours = RealRun(folder=folder, work=work, scanned=False)
    ours.train(steps=1)  # prepares data and warms the page cache for all that follow
    starts: dict[str, list[Start]] = {"hand_written": [], "cold": [], "restart": []}
    for _ in range(rounds):
        ours.forget_run()
        ours.forget_programs()
        starts["hand_written"].append(start_hand_written(work, scanned=False))
        ours.train(steps=2)
        starts["cold"].append(ours.newest_start())
        ours.train(steps=4)
        starts["restart"].append(ours.newest_start())
    ours.forget_run()
    typical = {name: sorted(s, key=lambda x: x.total_s)[len(s) // 2] for name, s in starts.items()}
    cold, warm = typical["cold"], typical["restart"]
    compiling = cold.trace_s + cold.compile_s
    return {
        **{name: dataclasses.asdict(start) for name, start in typical.items()},
        "totals_s": {name: [start.total_s for start in found] for name, found in starts.items()},
        "over_hand_written_s": cold.total_s - typical["hand_written"].total_s,
        "restart_trace_compile_share": (warm.trace_s + warm.compile_s) / compiling,
    }


def measure_run(folder: pathlib.Path, *, work: Work, steps: int) -> dict[str, Any]:
    """Trains for real; returns the shares of its time that are not the step."""
    summary = RealRun(folder=folder, work=work, scanned=False).train(steps=steps)
    names = ("data_wait_share", "metrics_share", "checkpoint_blocked_share", "tokens_per_second")
    return {name: summary[name] for name in names}


def measure() -> dict[str, Any]:
    """Runs the parts that were asked for."""
    work, rounds, real_steps = Work(), _ROUNDS.value, _REAL_STEPS.value
    if _QUICK.value:
        work, rounds, real_steps = SMALL, min(rounds, 3), min(real_steps, 30)
    result: dict[str, Any] = {"work": dataclasses.asdict(work), "rounds": rounds}
    if "steps" in _PARTS.value:
        for group in GROUPS:
            _say(f"{group.dtype}, {'scanned' if group.scanned else 'unrolled'}")
            sized = dataclasses.replace(work, dtype=group.dtype)
            measured = measure_group(group, work=sized, rounds=rounds, steps=_STEPS.value)
            result |= compare(measured, suffix=group.suffix)
            result[f"steps{group.suffix}"] = measured
    with tempfile.TemporaryDirectory(prefix="benchmark-step-") as folder:
        # A vocabulary smaller than the tokenizer's is for the compiled steps alone.
        real = dataclasses.replace(work, vocab=max(work.vocab, 4096))
        if "start" in _PARTS.value:
            _say("starts")
            result["start"] = measure_starts(
                pathlib.Path(folder), work=real, rounds=1 if _QUICK.value else 3
            )
        if "run" in _PARTS.value:
            _say("a real run")
            result["run"] = measure_run(pathlib.Path(folder), work=real, steps=real_steps)
    return result


def _say(what: str) -> None:
    print(f"measuring: {what}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> None:
    """Measures and prints."""
    if len(arguments) > 1:
        sys.exit(f"Unexpected arguments {arguments[1:]}; see --help.")
    result = measure()
    print(json.dumps(result) if JSON.value else report.show(result))


if __name__ == "__main__":
    app.run(main)
