"""How long a run stands still after a fault: ``python -m benchmarks.recovery``.

Trains a small model in two processes, strikes one of them from outside, and measures from the
strike to the first step that is done afterwards: under Lockstep's supervisor, and under a loop that
does what ``torchrun`` or ``srun --kill-on-bad-exit`` in a script do: when a process ends badly, end
the others and start all again. Both run the same trainer with the same checkpoints.

  crash   SIGKILL of a process
  hang    SIGSTOP of a process: alive to every other one, and it does nothing
  host    the agent of a host and its process are gone at once (bare loop: the process alone)

Rounds alternate between the two. --json prints one object; --rounds, --faults and --patience_s
limit the time it takes. Times are of this machine; what can be compared are the two columns.
"""

import dataclasses
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator

from absl import app, flags

from benchmarks.output import JSON
from launch.contract import Environment
from launch.journal import Journal
from launch.spec import (
    Checkpoint,
    Job,
    JobSpec,
    Owner,
    Recovery,
    Resources,
    Seconds,
    Watchdog,
    Workload,
)

flags.declare_key_flag("json")  # listed by --help
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Strikes of each kind on each side.", lower_bound=1)
_FAULTS = flags.DEFINE_list("faults", ["crash", "hang", "host"], "Which faults.")
_PATIENCE = flags.DEFINE_float("patience_s", 60.0, "After this a run has not come back.")

REPOSITORY = pathlib.Path(__file__).parents[1]
RANKS = 2
BINDINGS = (
    "TrainConfig.steps=100000",
    "DataConfig.sequence_length=32",
    "DataConfig.global_batch=4",
    "EvaluationConfig.every=0",
    "CheckpointConfig.every=20",
    "LoggingConfig.tensorboard=False",
)
WATCHDOG = Watchdog(step_min_s=Seconds(5.0), step_max_s=Seconds(30.0), beat_s=Seconds(0.5))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strike:
    """One strike.

    Attributes:
      total_s: from the strike to the first new step; None where there was none in time.
      parts: where it went, by the supervisor's own account; empty for the bare loop.
    """

    total_s: float | None
    parts: dict[str, float] = dataclasses.field(default_factory=dict)


class Lockstep:
    """The run under a supervisor."""

    name = "lockstep"

    def __init__(self, folder: pathlib.Path, cache: pathlib.Path) -> None:
        """Starts the run."""
        self.folder = folder
        job = Job(
            run_id=folder.name,
            spec=JobSpec(
                name="recovery",
                owner=Owner(team="benchmarks"),
                workload=Workload(
                    gin_files=("configs/runs/quickstart.gin",),
                    gin_bindings=BINDINGS,
                    flags=(f"--cache_dir={cache}",),
                ),
                resources=Resources(accelerator="cpu", hosts=RANKS),
                checkpoint=Checkpoint(root=str(folder)),
                recovery=Recovery(watchdog=WATCHDOG),
            ),
            engine="local",
            job_dir=str(folder),
            code_dir=str(REPOSITORY),
            python=sys.executable,
        )
        (folder / "job.json").write_text(job.to_json())
        self._keeper = _start(
            [sys.executable, "-m", "launch.keeper", "--job_dir", str(folder)],
            folder,
            {"LOCKSTEP_HOME": str(folder), "LOCKSTEP_STATE": str(folder)},
        )

    def ranks(self) -> list[int]:
        """Process ids of the processes, by host."""
        paths = sorted(self.folder.glob("lockstep-*/*/*/pids"))
        return [int(path.read_text().split()[0]) for path in paths]

    def lose_host(self) -> None:
        """The last host is gone, with all that ran on it."""
        agents = (self.folder / "agents.pids").read_text().splitlines()
        os.kill(int(agents[-1].split()[0]), signal.SIGKILL)

    def parts(self) -> dict[str, float]:
        """What the journal says of the last recovery."""
        entries = Journal(self.folder).entries()
        found = [entry.details["timeline"] for entry in entries if entry.event == "recovered"]
        return dict(found[-1]) if found else {}

    def end(self) -> None:
        """Ends the run."""
        self._keeper.terminate()
        self._keeper.wait()


class Bare:
    """The run under a loop that starts all processes again when one has failed."""

    name = "bare loop"

    def __init__(self, folder: pathlib.Path, cache: pathlib.Path) -> None:
        """Starts the run."""
        self.folder = folder
        command = [
            sys.executable,
            "-m",
            "trainer.main",
            "--gin_file=configs/runs/quickstart.gin",
            *(f"--gin_bindings={binding}" for binding in BINDINGS),
            f"--run_dir={folder}",
            f"--cache_dir={cache}",
        ]
        arguments = [sys.executable, "-m", "benchmarks.recovery", "--bare_loop", str(folder)]
        self._loop = _start([*arguments, *command], folder, {})

    def ranks(self) -> list[int]:
        """Process ids of the processes."""
        return [int(line) for line in (self.folder / "pids").read_text().split()]

    def lose_host(self) -> None:
        """The last process is gone; the loop sees as much of its host."""
        os.kill(self.ranks()[-1], signal.SIGKILL)

    def parts(self) -> dict[str, float]:
        """A bare loop keeps no account."""
        return {}

    def end(self) -> None:
        """Ends the run."""
        self._loop.kill()
        self._loop.wait()
        for pid in self.ranks():
            _kill(pid)


Side = Lockstep | Bare


def strike(side: Side, fault: str) -> Strike:
    """Strikes a run that trains, and waits until it trains again."""
    # Long enough for a typical step to be known: until then a step may take step_max_s.
    before = _wait_for(side, lambda: len(_rows(side.folder)) > 60)
    assert before is not None, f"{side.name} does not train; see {side.folder}"
    known = side.parts()
    began = time.time()
    victim = side.ranks()[-1]
    if fault == "crash":
        os.kill(victim, signal.SIGKILL)
    elif fault == "hang":
        os.kill(victim, signal.SIGSTOP)
    else:
        side.lose_host()
    attempts = _attempts(side.folder)
    back = _wait_for(side, lambda: _attempts(side.folder) > attempts and _fresh(side.folder, began))
    _wait_for(side, lambda: side.parts() != known, patience_s=5.0)
    _kill(victim)
    parts = side.parts()
    return Strike(
        total_s=None if back is None else back - began, parts=parts if parts != known else {}
    )


def bare_loop(folder: pathlib.Path, command: list[str]) -> None:
    """What a script around ``torchrun`` or ``srun`` does; never returns."""
    attempt = 0
    while True:
        attempt += 1
        processes = [
            subprocess.Popen(command, env={**os.environ, **_place(folder, attempt, rank)})
            for rank in range(RANKS)
        ]
        (folder / "pids").write_text(" ".join(str(process.pid) for process in processes))
        while all(process.poll() is None for process in processes):
            time.sleep(0.1)
        for process in processes:
            process.kill()
            process.wait()


def show(results: dict[str, dict[str, list[Strike]]]) -> str:
    """Returns a table of medians."""
    lines = [f"{'':8}{'lockstep':>12}{'bare loop':>12}   where lockstep's time went (medians)"]
    for fault, sides in results.items():
        cells = [_median([each.total_s for each in sides[name]]) for name in sides]
        parts = _parts(sides[Lockstep.name])
        told = "  ".join(f"{name.removesuffix('_s')} {value:.1f}" for name, value in parts.items())
        lines.append(f"{fault:8}" + "".join(f"{cell:>12}" for cell in cells) + f"   {told}")
    return "\n".join(lines)


def main(argv: list[str]) -> None:
    """Strikes in alternation and prints what was measured."""
    del argv
    results: dict[str, dict[str, list[Strike]]] = {
        fault: {Lockstep.name: [], Bare.name: []} for fault in _FAULTS.value
    }
    with tempfile.TemporaryDirectory() as temporary:
        base = pathlib.Path(temporary)
        for number, (fault, kind) in enumerate(_plan()):
            folder = base / f"run{number}"
            folder.mkdir()
            side = kind(folder, base / "cache")
            try:
                recovery = strike(side, fault)
            finally:
                side.end()
            results[fault][side.name].append(recovery)
            if not JSON.value:
                print(f"{fault} {side.name}: {_median([recovery.total_s])}", file=sys.stderr)
    if JSON.value:
        print(json.dumps({f: _plain(sides) for f, sides in results.items()}))
    else:
        print(show(results))


def _plan() -> Iterator[tuple[str, type[Lockstep] | type[Bare]]]:
    for turn in range(_ROUNDS.value):
        for fault in _FAULTS.value:
            sides: list[type[Lockstep] | type[Bare]] = [Lockstep, Bare]
            for kind in sides if turn % 2 == 0 else reversed(sides):
                yield fault, kind


def _place(folder: pathlib.Path, attempt: int, rank: int) -> dict[str, str]:
    return Environment(
        run_id=folder.name,
        attempt=attempt,
        coordinator=f"127.0.0.1:{_port(folder, attempt)}",
        num_processes=RANKS,
        process_id=rank,
        state_dir=str(folder / "state"),
    ).variables()


def _port(folder: pathlib.Path, attempt: int) -> int:
    return 15000 + zlib.crc32(folder.name.encode()) % 1000 + attempt


def _start(
    command: list[str], folder: pathlib.Path, environ: dict[str, str]
) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(REPOSITORY), **environ}
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=REPOSITORY, env=environ, stdout=log, stderr=log, start_new_session=True
        )


def _rows(folder: pathlib.Path) -> list[str]:
    path = folder / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def _attempts(folder: pathlib.Path) -> int:
    return len(list((folder / "attempts").glob("*/owner.json")))


def _fresh(folder: pathlib.Path, began: float) -> bool:
    """Whether a step was reported by an attempt that began after the strike."""
    newest = max((folder / "attempts").glob("*/owner.json"), key=lambda p: p.stat().st_mtime)
    claimed = newest.stat().st_ctime
    path = folder / "metrics.jsonl"
    return claimed > began and (newest.parent / "startup.json").exists() and path.exists()


def _wait_for(
    side: Side, what: Callable[[], object], *, patience_s: float | None = None
) -> float | None:
    """Returns when something was so, in seconds since 1970; None if not in time."""
    until = time.monotonic() + (_PATIENCE.value if patience_s is None else patience_s)
    while time.monotonic() < until:
        if what():
            return time.time()
        time.sleep(0.02)
    return None


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _median(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return f"> {_PATIENCE.value:.0f} s"
    return f"{statistics.median(known):.1f} s"


def _parts(recoveries: list[Strike]) -> dict[str, float]:
    names = recoveries[0].parts
    return {
        name: statistics.median([each.parts[name] for each in recoveries if name in each.parts])
        for name in names
    }


def _plain(sides: dict[str, list[Strike]]) -> dict[str, list[dict[str, object]]]:
    return {name: [dataclasses.asdict(each) for each in found] for name, found in sides.items()}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bare_loop"]:
        bare_loop(pathlib.Path(sys.argv[2]), sys.argv[3:])
    app.run(main)
