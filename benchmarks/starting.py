"""How long it takes from starting the program to its first step; part of benchmarks.step.

Ours is ``python -m trainer.main`` as a user starts it, with data, directories, checkpoints and
writers; its own record of the start (``attempts/<n>/startup.json``) says where the time went. The
hand-written loop starts with a batch in memory and nothing else. Imports no jax.
"""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from typing import Any

from benchmarks.work import GIN_FILE, Work, bindings

_TIMEOUT_S = 1800


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """One start.

    Attributes:
      total_s: from the start of the process to the end of the first step.
      phases_s: consecutive phases; they add up to the total, but for the interpreter's own start.
      trace_s: of the step, beside the phases where it ran on another thread.
      compile_s: likewise.
    """

    total_s: float
    phases_s: dict[str, float]
    trace_s: float
    compile_s: float


def start_hand_written(work: Work, *, scanned: bool) -> Start:
    """Starts the best hand-written loop once, without a compilation cache."""
    given = json.dumps({"scanned": scanned, "work": dataclasses.asdict(work)})
    began = time.monotonic()
    ended: dict[str, float] = json.loads(_python("-m", "benchmarks.hand_written", given))
    phases = {
        name: end - begin
        for begin, (name, end) in zip([began, *ended.values()], ended.items(), strict=False)
    }
    return Start(
        total_s=ended["first_step"] - began,
        phases_s=phases,
        trace_s=phases["trace"],
        compile_s=phases["compile"],
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RealRun:
    """Runs of ``python -m trainer.main`` in one folder.

    Attributes:
      folder: holds ``run`` and ``cache``.
      work: sizes.
      scanned: form of the step.
    """

    folder: pathlib.Path
    work: Work
    scanned: bool

    def train(self, *, steps: int) -> dict[str, Any]:
        """Trains up to ``steps`` and returns ``summary.json``; goes on where it is."""
        sizes = [f"--gin.{binding}" for binding in bindings(self.work, scanned=self.scanned)]
        _python(
            "-m",
            "trainer.main",
            f"--gin_file={GIN_FILE}",
            f"--run_dir={self.folder / 'run'}",
            f"--cache_dir={self.folder / 'cache'}",
            f"--gin.TrainConfig.steps={steps}",
            "--gin.EvaluationConfig.max_batches=1",
            "--allow_change=TrainConfig.steps",
            *sizes,
        )
        summary: dict[str, Any] = json.loads((self.folder / "run" / "summary.json").read_text())
        return summary

    def newest_start(self) -> Start:
        """Returns what the newest attempt recorded about its start."""
        newest = max((self.folder / "run" / "attempts").iterdir(), key=lambda p: int(p.name))
        record = json.loads((newest / "startup.json").read_text())
        beside = record["beside_s"]
        return Start(
            total_s=record["total_s"],
            phases_s=record["phases_s"],
            trace_s=beside["trace"],
            compile_s=beside["compile"],
        )

    def forget_run(self) -> None:
        """Deletes the run, and keeps prepared data and compiled programs."""
        shutil.rmtree(self.folder / "run")

    def forget_programs(self) -> None:
        """Deletes compiled programs."""
        shutil.rmtree(self.folder / "cache" / "programs", ignore_errors=True)


def _python(*arguments: str) -> str:
    # The measured programs choose their own compilation cache.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION")}
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=_TIMEOUT_S,
        check=True,
    )
    return done.stdout
