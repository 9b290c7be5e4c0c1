"""One measured process of ``python -m benchmarks.step``: builds a step and runs it when told to.

Started as ``python -m benchmarks.step_worker '{"subject": ..., "work": ..., "scanned": ...}'``.
Speaks lines of JSON: first what its program consists of, then one line per command
``{"steps": n}`` on stdin with what those steps took. Ends with its stdin.
"""

import dataclasses
import json
import resource
import subprocess
import sys
import time
from typing import Any, Self

from benchmarks.work import Subject, Work


def main(arguments: list[str]) -> None:
    """Builds, reports, and serves commands until stdin ends."""
    import jax

    from benchmarks.subjects import build, contents

    given = json.loads(arguments[0])
    jax.config.update("jax_threefry_partitionable", True)  # as trainer.main does
    built = build(Subject(given["subject"]), work=Work(**given["work"]), scanned=given["scanned"])
    batches = [jax.device_put(batch) for batch in built.batches]
    compiled = built.step.lower(built.state, batches[0]).compile()
    state, metrics = built.step(built.state, batches[0])
    _tell(loss=float(metrics["loss"]), contents=contents(compiled))
    for line in sys.stdin:
        steps = json.loads(line)["steps"]
        dispatch, cpu, wall = 0.0, _cpu_seconds(), time.perf_counter()
        for number in range(steps):
            start = time.perf_counter()
            state, metrics = built.step(state, batches[number % len(batches)])
            dispatch += time.perf_counter() - start
            jax.block_until_ready((state, metrics))
        _tell(
            wall_s=time.perf_counter() - wall,
            cpu_s=_cpu_seconds() - cpu,
            dispatch_s=dispatch / steps,
            loss=float(metrics["loss"]),
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )


class Worker:
    """The parent's side: a process that stays alive between its turns."""

    def __init__(self, subject: Subject, *, work: Work, scanned: bool) -> None:
        """Starts the process; ``ready`` waits for it."""
        given = {"subject": subject, "work": dataclasses.asdict(work), "scanned": scanned}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.step_worker", json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> dict[str, Any]:
        """Waits for its first step; returns the loss and ``contents`` of the program."""
        return self._read()

    def run(self, steps: int) -> dict[str, float]:
        """Has it run some steps; returns their wall, CPU and dispatch seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"steps": steps}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"A measured process ended with code {self._process.wait()}.")
        found: dict[str, Any] = json.loads(line)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
