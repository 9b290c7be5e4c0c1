"""Runs Slurm's commands: with a limit, again where the controller could not be asked.

"Could not be asked" is never "failed": a controller that restarts answers a minute later. What it
refuses is not asked again. Standard library only.
"""

import os
import random
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from launch.engines.engine import EngineError, EngineRefused

ATTEMPT_S = 30.0
"""How long one command may take; sbatch itself waits about ten seconds for a lost controller."""

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 15.0

# A controller that is away or overloaded, in the words of 20.11 to 25.05.
_UNREACHED = (
    "unable to contact slurm",
    "socket timed out",
    "connection refused",
    "communication connection failure",
    "zero bytes were transmitted",
    "unexpected message received",
    "temporarily unable",
    "temporarily unavailable",
    "no route to host",
    "connection timed out",
    "message receive failure",
    "message send failure",
    "protocol authentication error",
    "munge",
)


class Unreached(EngineError):
    """Slurm could not be asked; nothing is known."""


class Refused(EngineRefused):
    """Slurm has answered, and the answer is no."""


def run(
    command: Sequence[str],
    *,
    patience_s: float,
    always_again: bool = False,
    between: Callable[[], str | None] = lambda: None,
) -> str:
    """Returns what a command prints.

    Args:
      command: program of Slurm and its arguments.
      patience_s: how long to go on asking; 0 asks once.
      always_again: every failure but an unknown job is taken for an unreached controller. Right
        for what only reads; never for what writes.
      between: asked before each further try whether the one before has come through after all;
        what it returns is the command's answer.

    Raises:
      Unreached: the controller was not reached within the patience.
      Refused: it was, and refuses; holds its words.
    """
    until = time.monotonic() + patience_s
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return _once(command, always_again=always_again)
        except Unreached:
            if time.monotonic() + pause > until:
                raise
        # Thousands of runs must not ask in step when a controller comes back.
        time.sleep(pause * random.uniform(0.7, 1.3))
        pause = min(2 * pause, _LONGEST_PAUSE_S)
        if (answer := between()) is not None:
            return answer


def _once(command: Sequence[str], *, always_again: bool) -> str:
    try:
        done = subprocess.run(
            command,
            env=environment(os.environ),
            text=True,
            errors="replace",
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=ATTEMPT_S,
        )
    except subprocess.TimeoutExpired:
        raise Unreached(f"{command[0]} said nothing for {ATTEMPT_S:g} s.") from None
    except FileNotFoundError:
        raise EngineError(
            f"There is no {command[0]} here: submit where Slurm's commands are, or name another "
            "engine with --engine."
        ) from None
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
    message = f"{command[0]}: {said}"
    if "invalid job id" in said.lower():
        raise Refused(message)  # a controller that died before it had saved has forgotten the job
    if always_again or any(words in said.lower() for words in _UNREACHED):
        raise Unreached(message)
    raise Refused(message)


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment in which Slurm's commands do what their arguments say.

    Variables such as SBATCH_PARTITION or SQUEUE_FORMAT stand for arguments; those of a job around
    us describe that job, not what we ask for. Which cluster is meant stays.
    """
    kept = {"SLURM_CONF", "SLURM_CLUSTERS", "SBATCH_CLUSTERS"}
    prefixes = ("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "SCONTROL_", "SACCT_", "SCANCEL_")
    own = {
        name: text
        for name, text in environ.items()
        if name in kept or not name.startswith(prefixes)
    }
    return {**own, "LC_ALL": "C"}
