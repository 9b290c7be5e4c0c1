"""The command line of ``python -m launch.main``: commands, their flags, and help that teaches."""

import argparse
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from launch.engines.engine import ENGINES
from launch.exit_codes import ExitCode

PROGRAM = "python -m launch.main"
PLAN = "plan"
"""What follows is for the planner, whose --help it is."""

DESCRIPTION = """\
Submits jobs to this machine, to Slurm or to Kubernetes, watches them, and brings them back when
something dies.

  validate JOB.yaml   would it run? everything that is wrong, at once; submits nothing
  render JOB.yaml     exactly what would be submitted
  submit JOB.yaml     runs it; again: goes on where it stopped
  status [RUN]        where it stands; without RUN: all runs
  logs RUN            what its processes print, the one that failed first in front
  explain RUN         what happened to it, and why, in plain words
  drain RUN           save and stop, to go on later
  resume RUN          go on after drain, hold or failure
  cancel RUN          save and end
  plan ...            what a run would take, move and cost: memory, time, money (plan --help)
  admin ...           for those who own a cluster: shares of teams, what the cluster runs

The smallest job file:

  version: 1
  name: quickstart
  owner: {team: research}
  workload: {gin_files: [configs/runs/quickstart.gin]}
  resources: {accelerator: cpu}
  checkpoint: {root: runs/quickstart}

RUN is a run id, or a folder that holds job.json. More job files: configs/jobs/. All keys:
docs/launch.md. Exit codes: 64 the job file or the command line is wrong, 69 the engine cannot be
reached, 130 interrupted; submit --wait leaves with the run's own code.
"""


class _Parser(argparse.ArgumentParser):
    """One whose mistakes leave with the code for configuration."""

    def error(self, message: str) -> NoReturn:
        self.exit(int(ExitCode.CONFIGURATION), f"{message}\nSee {self.prog} --help.\n")


def parser() -> argparse.ArgumentParser:
    """Returns the parser; ``command`` of what it gives is the command's name."""
    top = _Parser(
        prog=PROGRAM, description=DESCRIPTION, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _job_commands(commands)
    _run_commands(commands)
    _admin_commands(commands)
    return top


def _job_commands(commands: Any) -> None:
    one = _add(
        commands,
        "validate",
        "Says everything that would keep a job from running, or cut it short, before it costs "
        "anything: keys, engine, code, configuration on the job's devices, memory, data and "
        "licence, checkpoint root, secrets, times. If a compiler for the devices is here, the "
        "trainer's step is compiled for them. Leaves with 64 if there is an error.",
        ["validate configs/jobs/quickstart.yaml", "validate job.yaml --engine=slurm --json"],
    )
    _job(one)
    one.add_argument(
        "--no_compile",
        action="store_true",
        help="Leave the compiler out; memory is the planner's formula then.",
    )
    one = _add(
        commands,
        "render",
        "Prints exactly what would be submitted, without asking the engine anything.",
        ["render configs/jobs/pretrain_512.yaml --engine=slurm --run_id=big"],
    )
    _job(one)
    one = _add(
        commands,
        "submit",
        "Validates and submits. A run that is queued or running is not submitted twice; one that "
        "was stopped, held or has failed goes on, with the job file as it is now.",
        [
            "submit configs/jobs/quickstart.yaml --wait",
            "submit job.yaml --engine=slurm --run_id=ablation-3",
        ],
    )
    _job(one)
    one.add_argument(
        "--wait", action="store_true", help="Stay until the run ends, and leave with its code."
    )
    one.add_argument(
        "--no_validate", action="store_true", help="Skip the checks that start other programs."
    )


def _run_commands(commands: Any) -> None:
    one = _add(
        commands,
        "status",
        "Shows where a run stands: phase, step, loss, attempts, why the last ones ended, what "
        "happens next. Without RUN it lists the newest runs of this account.",
        ["status", "status quickstart-x7k2mn --watch", "status runs/quickstart --json"],
    )
    _run(one, optional=True)
    one.add_argument("--watch", action="store_true", help="Show it again until the run ends.")
    one.add_argument("--most", type=int, default=20, metavar="N", help="List so many runs.")
    one = _add(
        commands,
        "logs",
        "Prints what the processes of an attempt printed, each line with its rank in front; the "
        "process that failed first comes first.",
        ["logs quickstart-x7k2mn --follow", "logs RUN --attempt=2 --rank=5 --lines=50"],
    )
    _run(one)
    one.add_argument("--attempt", type=int, metavar="N", help="Default: the newest.")
    one.add_argument("--rank", type=int, metavar="R", help="Only this process.")
    one.add_argument("--lines", type=int, metavar="N", help="Only the last lines of each.")
    one.add_argument("--follow", action="store_true", help="Go on until the run ends.")
    one = _add(
        commands,
        "explain",
        "Tells the story of a run: attempts, first causes with host and rank, what was decided "
        "and why, how long every recovery took, and what happens next.",
        ["explain quickstart-x7k2mn"],
    )
    _run(one)
    for name, text in {
        "drain": "Asks a run to save and stop. It may go on later, with resume.",
        "resume": "Has a run go on that was drained, held, has failed or has lost its supervisor. "
        "Its budgets start afresh.",
        "cancel": "Asks a run to save and ends it.",
    }.items():
        _run(_add(commands, name, text, [f"{name} quickstart-x7k2mn"]))


def _admin_commands(commands: Any) -> None:
    one = _add(
        commands,
        "admin",
        "For those who own a cluster. render prints what a file of teams comes to: Kueue's queues, "
        "quotas, flavors and topology, or Slurm's accounts, qualities of service and "
        "configuration; nothing is applied. preflight says what a Kubernetes cluster runs, and "
        "which of it is known not to work.",
        [
            "admin render configs/clusters/teams.yaml --engine=kubernetes",
            "admin render configs/clusters/teams.yaml --engine=slurm --into=slurm",
            "admin preflight --namespace=research",
        ],
    )
    one.add_argument("action", choices=("render", "preflight"), help="What to do.")
    one.add_argument("teams", metavar="TEAMS.yaml", nargs="?", help="The file of teams (render).")
    one.add_argument(
        "--engine", choices=("kubernetes", "slurm"), default="kubernetes", help="What owns it."
    )
    one.add_argument("--into", metavar="FOLDER", help="Write files there instead (render).")
    one.add_argument(
        "--namespace", default="default", help="A namespace that may be looked at (preflight)."
    )


def _add(commands: Any, name: str, text: str, examples: Sequence[str]) -> argparse.ArgumentParser:
    shown = "\n".join(f"  {PROGRAM} {example}" for example in examples)
    one: argparse.ArgumentParser = commands.add_parser(
        name,
        description=f"{textwrap.fill(text, 96)}\n\nFor example:\n{shown}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument("--json", action="store_true", help="Print one JSON object instead.")
    return one


def _job(one: argparse.ArgumentParser) -> None:
    one.add_argument("job", metavar="JOB.yaml", help="The job file.")
    one.add_argument(
        "--engine",
        choices=sorted(ENGINES),
        default="local",
        help="Where it runs; default: local, this machine.",
    )
    one.add_argument(
        "--run_id", help="Name of the run; default: the one that the root holds, or a new one."
    )
    one.add_argument(
        "--job_dir",
        help="Folder for the launcher's own files, which all hosts share; default: the run's "
        "directory, or for object stores one in ~/.lockstep/runs.",
    )


def _run(one: argparse.ArgumentParser, *, optional: bool = False) -> None:
    one.add_argument(
        "run",
        metavar="RUN",
        nargs="?" if optional else None,
        help="Run id, or a folder that holds job.json.",
    )
