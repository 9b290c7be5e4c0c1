"""The planner's simulation of a run, given what a real run under faults measured of itself."""

import dataclasses
import itertools
import json
import statistics

import pytest

from partitioning.planner.simulation.failure_classes import FailureClass
from partitioning.planner.simulation.run_simulation import Case, Simulated, Tier, simulate
from tests.chaos.harness import FakeRun

STEPS, SAVE_EVERY = 48, 8
FAULTS = ("kill@13:1:1", "kill@22:0:2", "kill@38:1:3", "kill@47:1:4")
TOLERANCE = 0.15


@dataclasses.dataclass(frozen=True)
class Recorded:
    """What a run wrote down.

    Attributes:
      step: mean seconds of a step.
      save: mean seconds of a save.
      wall: seconds from the begin of the first step to the end of the last.
      attempts: steps that each attempt made, in order.
      timelines: of the recoveries, as the supervisor accounts for them.
    """

    step: float
    save: float
    wall: float
    attempts: tuple[tuple[int, ...], ...]
    timelines: tuple[dict[str, float], ...]

    @classmethod
    def of(cls, run: FakeRun) -> "Recorded":
        lines = map(json.loads, (run.folder / "values.jsonl").read_text().splitlines())
        rows = [(row["attempt"], row["step"], row["time"]) for row in lines]
        between: dict[bool, list[float]] = {False: [], True: []}
        for (attempt, step, time), (following, _, later) in itertools.pairwise(rows):
            if attempt == following:
                between[step % SAVE_EVERY == 0].append(later - time)
        step = statistics.mean(between[False])
        return cls(
            step=step,
            save=max(0.0, statistics.mean(between[True]) - step),
            wall=rows[-1][2] - rows[0][2] + step,
            attempts=tuple(
                tuple(made for _, made, _ in group)
                for _, group in itertools.groupby(rows, key=lambda row: row[0])
            ),
            timelines=tuple(entry.details["timeline"] for entry in run.events("recovered")),
        )

    @property
    def still(self) -> float:
        """Mean seconds from a fault to the first step: a timeline ends when that step is done."""
        return statistics.mean(each["total_s"] for each in self.timelines) - self.step

    @property
    def lost(self) -> float:
        """Seconds of steps that were made again."""
        return self.step * (sum(map(len, self.attempts)) - STEPS)

    def mean(self, part: str) -> float:
        return statistics.mean(each[part] for each in self.timelines)


def replayed(run: Recorded) -> Simulated:
    """Simulates the run from its means, failing after the steps after which it failed.

    A step's time varies with what else the machine does, so that the clock of the simulation is
    that of the mean step: it reaches the failures where the run did.
    """
    kill = FailureClass(
        name="kill",
        rate=0.0,
        detection=run.mean("detect_s"),
        restart=run.still - run.mean("detect_s") - run.mean("restore_s"),
    )
    disk = Tier(name="disk", blocked=run.save, written=run.save, restore=run.mean("restore_s"))
    clock, schedule = 0.0, []
    for made in run.attempts[:-1]:
        saves = sum(step % SAVE_EVERY == 0 for step in made)
        clock += len(made) * run.step + saves * run.save
        schedule.append(clock)
        clock += run.still
    case = Case(
        devices=2,
        work=STEPS * run.step,
        interval=SAVE_EVERY * run.step,
        tiers=(disk,),
        classes=(kill,),
        schedule=tuple(schedule),
    )
    return simulate(case, seed=0)


def test_the_simulation_agrees_with_what_a_run_that_was_killed_measured(chaos):
    run = chaos(steps=STEPS, save_every=SAVE_EVERY, step_s=0.1, faults=FAULTS)
    assert run.run() == 0, run.story()
    run.check_end()
    recorded = Recorded.of(run)
    assert len(recorded.timelines) == len(recorded.attempts) - 1 >= 3
    simulated = replayed(recorded)
    assert len(simulated.recoveries) == len(recorded.timelines)
    close = {
        "goodput": (simulated.goodput, STEPS * recorded.step / recorded.wall),
        "lost work": (simulated.lost, recorded.lost),
        "stand-still": (simulated.still, recorded.still * len(recorded.timelines)),
    }
    for name, (here, there) in close.items():
        assert here == pytest.approx(there, rel=TOLERANCE), (name, recorded)
