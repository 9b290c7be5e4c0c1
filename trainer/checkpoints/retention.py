"""Which steps may go: pure rules over what is known of each. Standard library only.

Promises (each a property test): the newest step stays; so does the newest verified step older than
it; nothing goes while either is not verified (P059); whatever a rule keeps stays.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from trainer.checkpoints.layout import StepName


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """What retention knows of a step that counts and is not set aside.

    Attributes:
      name: the step.
      metric: its metric, lower is better; None or not finite where it has none.
      verified: its files were read back and had the digests of its manifest.
      abandoned: a later attempt went back behind it and saved.
    """

    name: StepName
    metric: float | None = None
    verified: bool = False
    abandoned: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """See the attributes of the same names in ``CheckpointConfig``."""

    keep_latest: int = 2
    keep_best: int = 0
    keep_every: int = 0

    def __post_init__(self) -> None:
        """Refuses negative numbers."""
        for name, value in dataclasses.asdict(self).items():
            if value < 0:
                raise ValueError(f"CheckpointConfig.{name}={value}; it must be 0 or more.")


def abandoned(
    names: Sequence[StepName], parents: Mapping[int, StepName | None]
) -> frozenset[StepName]:
    """Steps that a later attempt has gone back behind.

    Args:
      names: the steps that count.
      parents: the step that each attempt with a step in ``names`` had resumed from; None where it
        started afresh.
    """
    behind = {attempt: parent.step if parent else -1 for attempt, parent in parents.items()}
    return frozenset(
        name
        for name in names
        if any(attempt > name.attempt and step < name.step for attempt, step in behind.items())
    )


def deletable(candidates: Iterable[Candidate], rules: Rules) -> tuple[StepName, ...]:
    """The steps that no rule keeps, oldest first."""
    ordered = sorted(candidates, key=lambda c: c.name)
    live = [c for c in ordered if not c.abandoned]
    fallback = next((c for c in reversed(live[:-1]) if c.verified), None)
    if fallback is None or not live[-1].verified:
        return ()
    kept = {fallback.name, live[-1].name}
    kept |= {c.name for c in live[-max(1, rules.keep_latest) :]}
    kept |= {c.name for c in _best(live, rules.keep_best)}
    if rules.keep_every:
        kept |= {c.name for c in live if c.name.step % rules.keep_every == 0}
    return tuple(c.name for c in ordered if c.name not in kept)


def _best(live: Sequence[Candidate], count: int) -> list[Candidate]:
    scored = [(c.metric, -c.name.step, c) for c in live if _usable(c.metric)]
    return [c for _, _, c in sorted(scored, key=lambda item: item[:2])[:count]]


def _usable(metric: float | None) -> bool:
    return metric is not None and math.isfinite(metric)
