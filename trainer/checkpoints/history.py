"""What a reader sees of a run's steps: which count, in which order, and how restores went.

Standard library only. Promises: the order is newest first along the line of attempts that led here
(steps that a later attempt went back behind come last); a step whose restore was begun and not
finished ``MAX_UNFINISHED`` times is tried after all others (P044).
"""

import dataclasses
import json
from collections.abc import Mapping

from absl import logging

from trainer.checkpoints import fencing, layout, manifest, retention
from trainer.checkpoints.fencing import Seal
from trainer.checkpoints.layout import StepName
from trainer.checkpoints.manifest import Manifest
from trainer.checkpoints.root import Root

MAX_UNFINISHED = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class History:
    """A run's steps at one moment.

    Attributes:
      usable: manifests of the steps that count, are whole as far as their manifest tells, and are
        not set aside, in order.
      abandoned: those of them that a later attempt went back behind.
      aside: steps set aside, with the reason.
      broken: steps that count but have no readable manifest, with the reason.
    """

    usable: Mapping[StepName, Manifest]
    abandoned: frozenset[StepName]
    aside: Mapping[StepName, str]
    broken: Mapping[StepName, str]

    @property
    def newest(self) -> StepName | None:
        """The newest step that is not abandoned."""
        return max(self.usable.keys() - self.abandoned, default=None)

    def of_step(self, step: int) -> list[StepName]:
        """The usable entries of a step number, the newest attempt first."""
        return sorted((n for n in self.usable if n.step == step), reverse=True)

    def in_order(self, unfinished: Mapping[StepName, int]) -> list[StepName]:
        """Steps to try, the best first."""

        def rank(name: StepName) -> tuple[bool, bool, int, int]:
            worn_out = unfinished.get(name, 0) >= MAX_UNFINISHED
            return (worn_out, name in self.abandoned, -name.step, -name.attempt)

        return sorted(self.usable, key=rank)


def look(root: Root, seal: Seal) -> History:
    """Reads the manifests of all steps that count under a sealed list."""
    aside = fencing.aside(root, seal)
    usable, broken = {}, {}
    going = {name for name, by in fencing.intents(root) if by >= seal.attempt}
    here = {name for name in fencing.written(root) if seal.admits(name)}
    for name in sorted(here - aside.keys() - going):
        try:
            found = manifest.read(root, name)
        except ValueError as error:
            broken[name] = str(error)
            continue
        if found:
            usable[name] = found
        elif name in seal.accepted:  # the sealing attempt's own step may not be finished yet
            broken[name] = f"{layout.MANIFEST} is missing"
    parents = {found.name.attempt: found.parent for found in usable.values()}
    gone_back = retention.abandoned(list(usable), parents)
    return History(usable=usable, abandoned=gone_back, aside=aside, broken=broken)


def without_manifest(root: Root, seen: History) -> list[StepName]:
    """Steps newer than the newest usable one that have all but their manifest, in order.

    Their save did not end, or somebody removed the file; which, nobody can tell.
    """
    return [
        name
        for name in fencing.written(root)
        if (seen.newest is None or name > seen.newest)
        and name not in seen.broken
        and name not in seen.aside
        and root.read(name.key(layout.DATA)) is not None
        and root.read(name.key(layout.MANIFEST)) is None
    ]


def unfinished_restores(root: Root) -> dict[StepName, int]:
    """How often a restore of each step was begun and not finished."""
    counts: dict[StepName, int] = {}
    for key in root.list(layout.RESTORES):
        name = layout.parse(key.removeprefix(layout.RESTORES).split("/")[0])
        data = root.read(key)
        if name and data and json.loads(data)["status"] == "begun":
            counts[name] = counts.get(name, 0) + 1
    return counts


def note_restore(root: Root, name: StepName, *, attempt: int, status: str) -> None:
    """Records that an attempt has begun or finished to restore a step."""
    record = json.dumps({"version": 1, "status": status}).encode()
    root.write(f"{layout.RESTORES}{name}/{attempt}.json", record)


def set_aside(root: Root, name: StepName, *, reason: str, attempt: int | None) -> None:
    """Names a bad step in the log and, in the name of an attempt, for all readers."""
    logging.error("%s: step %s is not used: %s", root.url, name, reason)
    if attempt is not None:
        fencing.set_aside(root, name, reason=reason, by_attempt=attempt)
