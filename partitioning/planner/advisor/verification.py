"""Compiles the best plans for the real chip and ranks them again by what the compiler says.

A compilation is a process of its own, ``python -m trainer.main --mode=dry_run``: the planner loads
no jax. Bytes per mesh axis and memory are the compiler's; times stay the planner's, with the
exposed communication of each axis in proportion to the bytes that were counted.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from partitioning.planner.advisor.plan_file import Source, gin_text
from partitioning.planner.advisor.search import Candidate, Outcome, Rank, order
from partitioning.planner.cost_model.step_time import Prediction

_LIMIT_S = 900.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the compiler says of a plan.

    Attributes:
      fits: whether the compiled step fits; None where it could not be compiled.
      prediction: with the traffic that was counted.
      said: for people, in one line.
    """

    fits: bool | None
    prediction: Prediction
    said: str


def verified(
    outcome: Outcome, *, most: int, source: Source, rank: Rank
) -> tuple[Outcome, list[str]]:
    """Returns the outcome with its ``most`` best plans verified, and what was found.

    Plans that turn out not to fit are left out; those that could not be compiled stay behind the
    others.
    """
    kept: list[tuple[bool, tuple[float, bool, float], Candidate]] = []
    said = []
    for number, candidate in enumerate(outcome.fitting[:most], 1):
        print(f"Compiling plan {number} of {most} ...", file=sys.stderr, flush=True)  # noqa: T201
        verdict = _verdict(candidate, source)
        said.append(f"Plan {number}: {verdict.said}")
        if verdict.fits is not False:
            new = dataclasses.replace(candidate, prediction=verdict.prediction)
            kept.append((verdict.fits is None, order(new, rank), new))
    kept.sort(key=lambda item: item[:2])
    best = tuple(candidate for _, _, candidate in kept)
    return dataclasses.replace(outcome, fitting=(*best, *outcome.fitting[most:])), said


def _verdict(candidate: Candidate, source: Source) -> Verdict:
    try:
        found = _dry_run(candidate, source)
    except (subprocess.TimeoutExpired, ValueError) as error:
        said = f"not verified: {str(error).splitlines()[0]}"
        return Verdict(fits=None, prediction=candidate.prediction, said=said)
    peak, fits = float(found["memory"]["needed"]), bool(found["fits"])
    formula = candidate.memory.total - candidate.memory.part("reserved")
    prediction = _counted(candidate, found["traffic"])
    said = (
        f"{candidate.plan.mesh}, remat {candidate.plan.model.remat}: compiled, "
        f"{peak / 1e9:.1f} GB against {formula / 1e9:.1f} by formula, "
        f"{'fits' if fits else 'does NOT fit'}; {prediction.seconds:.3f} s a step with the bytes "
        "that were counted."
    )
    return Verdict(fits=fits, prediction=prediction, said=said)


def _dry_run(candidate: Candidate, source: Source) -> dict[str, Any]:
    """Raises ValueError with the last line of what was said where there is no answer."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "plan.gin"
        path.write_text(gin_text(candidate, source=source))
        command = [
            *(sys.executable, "-m", "trainer.main", "--mode=dry_run", "--json", "--quick"),
            f"--gin_file={path}",
            f"--cluster={source.cluster}",
        ]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_S,
            # What a compiler leaves behind when it is stopped goes with the folder.
            env={**os.environ, "TMPDIR": folder},
        )
    try:
        found: dict[str, Any] = json.loads(done.stdout)
        _ = found["fits"], found["memory"]["needed"], found["traffic"]
    except (KeyError, TypeError, ValueError):
        told = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
        raise ValueError(told) from None
    return found


def _counted(candidate: Candidate, traffic: list[dict[str, Any]]) -> Prediction:
    """Returns the prediction with exposed communication in proportion to counted bytes.

    Nothing is counted where the compiler found no room, or is CPU's.
    """
    ratios = {
        f"exposed_{'_'.join(row['axes'])}": row["counted"] / row["formula"]
        for row in traffic
        if row["formula"] and row["counted"]
    }
    waterfall = tuple(
        dataclasses.replace(part, value=part.value * ratios.get(part.name, 1.0))
        for part in candidate.prediction.waterfall
    )
    return dataclasses.replace(candidate.prediction, waterfall=waterfall)
