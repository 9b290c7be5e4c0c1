"""Which steps count: claims, sealed lists, and who may delete. Standard library only.

An attempt first *claims* its number by exclusive creation, then reads which steps count, then
*seals* that list by exclusive creation. The newest sealed list decides for every reader: a step
counts if that list names it, or if the sealing attempt itself wrote it. So nothing that an older
attempt still writes can count. Deleting is fenced by order: a deleter first writes its intent and
then looks for newer claims; a new attempt first writes its claim and then looks for intents.
Whichever comes second sees the other: either the deleter stops or the step is not accepted.
"""

import dataclasses
import json
import uuid
from collections.abc import Mapping
from typing import Any

from absl import logging

from trainer.checkpoints import layout, manifest
from trainer.checkpoints.layout import StepName
from trainer.checkpoints.root import Root


class FencedError(RuntimeError):
    """A newer attempt has taken over; this one must stop."""


@dataclasses.dataclass(frozen=True)
class Seal:
    """A sealed list.

    Attributes:
      attempt: the attempt that sealed it.
      accepted: steps of earlier attempts that count.
      aside: those among them that were set aside at that time.
    """

    attempt: int
    accepted: frozenset[StepName]
    aside: frozenset[StepName]

    def admits(self, name: StepName) -> bool:
        """Whether a step counts under this list."""
        return name.attempt == self.attempt or name in self.accepted

    def to_json(self) -> dict[str, Any]:
        """Returns what `from_json` reads back, but for the attempt."""
        parts = {"accepted": self.accepted, "aside": self.aside}
        return {part: [str(name) for name in sorted(names)] for part, names in parts.items()}

    @classmethod
    def from_json(cls, body: Mapping[str, Any], *, attempt: int) -> "Seal":
        """Returns the list of ``attempt`` that `to_json` gave.

        Raises:
          ValueError: a name is not of the form ``<step>.a<attempt>``.
        """
        accepted, aside = (
            frozenset(map(layout.parse_strictly, body[part])) for part in ("accepted", "aside")
        )
        return cls(attempt, accepted, aside)


NOTHING = Seal(attempt=-1, accepted=frozenset(), aside=frozenset())


def take_over(root: Root, attempt: int) -> Seal:
    """Claims an attempt number and seals the steps that it accepts.

    Raises:
      ValueError: the number was used before.
      FencedError: a newer attempt exists.
    """
    token = uuid.uuid4().hex
    claim = json.dumps({"attempt": attempt, "token": token}).encode()
    if not root.create(f"{layout.SEALED}{attempt}.claim", claim):
        raise ValueError(
            f"Attempt {attempt} was used before in {root.url}; start with a higher number"
            f" (newest claim: {newest_claim(root)})."
        )
    check_newest(root, attempt)
    before = current(root)
    # After the claim: see the module docstring. Deleters older than the list that decides now
    # were refused then, or left out of it.
    doomed = {name for name, by in intents(root) if by >= before.attempt}
    # A step accepted before stays on the list even if its manifest is lost, to be named as damaged.
    steps = (before.accepted & set(written(root)) | set(admitted(root, before))) - doomed
    seal = Seal(attempt, steps, frozenset(aside(root, before)) & steps)
    root.create(f"{layout.SEALED}{attempt}.json", _encode(seal, token))
    return seal


def newest_claim(root: Root) -> int:
    """The highest attempt that was ever claimed; -1 where there is none."""
    return max(claims(root), default=-1)


def claims(root: Root) -> tuple[int, ...]:
    """All attempts that were ever claimed."""
    return tuple(_attempts(root, ".claim"))


def check_newest(root: Root, attempt: int) -> None:
    """Raises FencedError where a newer attempt has claimed the directory."""
    newest = newest_claim(root)
    if newest > attempt:
        raise FencedError(
            f"Attempt {newest} has taken over {root.url}; attempt {attempt} must stop."
            " What it still writes will not be read."
        )


def current(root: Root) -> Seal:
    """The sealed list that decides now; ``NOTHING`` where no attempt has sealed one."""
    for attempt in sorted(_attempts(root, ".json"), reverse=True):
        data = root.read(f"{layout.SEALED}{attempt}.json")
        try:
            return Seal.from_json(manifest.check_signature(data or b""), attempt=attempt)
        except ValueError as error:
            logging.error("%s: sealed/%d.json is damaged: %s", root.url, attempt, error)
            rebuilt = _rebuild(root, attempt)
            if rebuilt:
                return rebuilt
            # No step of this attempt exists, so the list before it still decides.
    return NOTHING


def admitted(root: Root, seal: Seal) -> tuple[StepName, ...]:
    """Steps with a manifest, damaged or not, that count under a sealed list, in order."""
    return tuple(n for n in written(root) if seal.admits(n) and _has_manifest(root, n))


def written(root: Root) -> tuple[StepName, ...]:
    """All directories named like a step, in order, complete or not, counting or not."""
    names = (layout.parse(child) for child in root.children())
    return tuple(sorted(name for name in names if name))


def intents(root: Root) -> tuple[tuple[StepName, int], ...]:
    """Pairs of a step and the attempt that has begun to delete it."""
    found = []
    for child in root.children(layout.DOOMED):
        step, _, by = child.removesuffix(".json").partition(".by")
        name = layout.parse(step)
        if name and by.isdecimal():
            found.append((name, int(by)))
    return tuple(found)


def aside(root: Root, seal: Seal) -> dict[StepName, str]:
    """Steps set aside by the sealing attempt, or before it sealed, with the reason.

    A record that an older attempt writes later does not count, like all that it writes.
    """
    found = {}
    for child in root.children(layout.ASIDE):
        name = layout.parse(child.removesuffix(".json"))
        data = root.read(f"{layout.ASIDE}{child}") if name else None
        if name is None or data is None:
            continue
        record = json.loads(data)
        if name in seal.aside or record["by_attempt"] == seal.attempt:
            found[name] = record["reason"]
    return found


def set_aside(root: Root, name: StepName, *, reason: str, by_attempt: int) -> None:
    """Records that a step must not be used. Its files stay."""
    record = {"version": 1, "step": str(name), "reason": reason, "by_attempt": by_attempt}
    root.write(f"{layout.ASIDE}{name}.json", json.dumps(record, indent=1).encode())


def delete(root: Root, name: StepName, *, attempt: int) -> None:
    """Deletes a step in the name of an attempt, or not at all where a newer attempt exists.

    Raises:
      FencedError: a newer attempt exists; nothing was deleted.
    """
    intent = f"{layout.DOOMED}{name}.by{attempt}.json"
    root.write(intent, b"{}")
    check_newest(root, attempt)
    root.delete(name.key(), first=layout.MANIFEST)
    root.remove(intent)


def _has_manifest(root: Root, name: StepName) -> bool:
    return root.read(name.key(layout.MANIFEST)) is not None


def _attempts(root: Root, suffix: str) -> list[int]:
    stems = (c.removesuffix(suffix) for c in root.children(layout.SEALED) if c.endswith(suffix))
    return [int(stem) for stem in stems if stem.isdecimal()]


def _encode(seal: Seal, token: str) -> bytes:
    return manifest.sign({"version": 1, "attempt": seal.attempt, "token": token, **seal.to_json()})


def _rebuild(root: Root, attempt: int) -> Seal | None:
    """The sealed list as a step of that attempt has copied it."""
    for name in written(root):
        if name.attempt != attempt:
            continue
        try:
            found = manifest.read(root, name)
        except ValueError:
            continue
        if found:
            return Seal(attempt, frozenset(found.accepted), frozenset())
    return None
