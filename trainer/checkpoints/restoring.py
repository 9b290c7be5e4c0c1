"""One restore: from the newest step back to the first that is whole, alike on all processes.

May import jax through ``structure``. Promises: no array is used before every file of its step was
compared with the manifest on some process and all agreed; a tree that does not fit is the caller's
error and is raised, not walked past; a run that has steps but no usable one is an error.
"""

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Iterator
from typing import Any

from absl import logging

from trainer.checkpoints import arrays, fencing, history, layout, manifest, structure
from trainer.checkpoints.history import History
from trainer.checkpoints.layout import StepName
from trainer.checkpoints.manifest import Manifest
from trainer.checkpoints.session import CheckpointError, Deadline, NoWholeStepError, Session
from trainer.coordination import agree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restored:
    """A restored step.

    Attributes:
      step: optimizer steps done.
      attempt: the attempt that had saved it.
      state: the arrays, on the shardings that were asked for.
      data: what was saved as ``data``: the position record and the caller's JSON.
      metrics: what was saved as ``metrics``; None where nothing was.
      dataset_digest: digest of the dataset that the run had read.
    """

    step: int
    attempt: int
    state: Any
    data: dict[str, Any]
    metrics: dict[str, Any] | None
    dataset_digest: str

    @property
    def name(self) -> StepName:
        """The step's full name."""
        return StepName(self.step, self.attempt)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to restore.

    Attributes:
      state: the abstract state, or a part of it.
      step: only this step; None walks back from the newest.
      allow_dtype_change: convert arrays that were saved with another dtype.
      partial: the abstract state is a part of the stored one.
    """

    state: Any
    step: int | None = None
    allow_dtype_change: bool = False
    partial: bool = False


def restore(session: Session, wanted: Wanted, *, tag: str) -> Restored | None:
    """Restores the newest whole step, or the one asked for; None where the run has no step.

    Args:
      session: this process's part.
      wanted: what to restore.
      tag: a fresh name for this call, the same on all processes.

    Raises:
      ValueError: a leaf without a sharding, or a tree that does not fit; no such step.
      NoWholeStepError: the step asked for, or each one there is, is damaged.
    """
    structure.check_shardings(wanted.state)
    offers = _offers(session, wanted.step) if session.rank == 0 else iter(())
    failures: list[str] = []
    for turn in itertools.count():
        deadline = Deadline(session.config.save_timeout_s)
        here = f"{tag}/{turn}"
        offer = next(offers, {"end": ""})
        message = agree(session.peers, f"{here}/offer", offer, timeout_s=deadline.left())
        if "error" in message:
            raise ValueError(message["error"])
        if "end" in message:
            break
        if "broken" in message:
            failures.append(message["broken"])
            continue
        found = manifest.decode(message["manifest"].encode())
        outcome = _try_step(session, found, wanted, tag=here, deadline=deadline)
        if isinstance(outcome, Restored):
            return outcome
        failures.append(f"{found.name}: {outcome}")
        if session.rank == 0:
            history.set_aside(session.root, found.name, reason=outcome, attempt=session.attempt)
    if failures:
        lines = "\n  ".join(failures)
        raise NoWholeStepError(f"No step of {session.root.url} can be restored:\n  {lines}")
    return None


def restore_one(session: Session, found: Manifest, wanted: Wanted, *, tag: str) -> Restored:
    """Restores one step whose manifest is known.

    Raises:
      ValueError: the tree does not fit.
      CheckpointError: the step is damaged.
    """
    deadline = Deadline(session.config.save_timeout_s)
    outcome = _try_step(session, found, wanted, tag=tag, deadline=deadline)
    if isinstance(outcome, Restored):
        return outcome
    raise CheckpointError(f"{session.root.url}/{found.name} cannot be read: {outcome}")


def _offers(session: Session, step: int | None) -> Iterator[dict[str, str]]:
    """Rank 0: what to try, in order; also what was found broken on the way, and errors."""
    seal = fencing.current(session.root)
    if session.attempt is not None:
        fencing.check_newest(session.root, session.attempt)
    seen = history.look(session.root, seal)
    for name in history.without_manifest(session.root, seen):
        logging.warning(
            "%s: step %s is not used: %s is missing, because its save did not end or the file was "
            "removed since.",
            session.root.url,
            name,
            layout.MANIFEST,
        )
    for name, reason in seen.broken.items():
        if step in (None, name.step):
            history.set_aside(session.root, name, reason=reason, attempt=session.attempt)
            yield {"broken": f"{name}: {reason}"}
    for name, reason in seen.aside.items():
        if step in (None, name.step):
            logging.warning("%s: step %s was set aside: %s", session.root.url, name, reason)
            yield {"broken": f"{name}: set aside: {reason}"}
    if step is not None and not any(
        n.step == step for n in [*seen.usable, *seen.broken, *seen.aside]
    ):
        yield {"error": _no_such_step(session, step, list(seen.usable))}
    for found in _to_try(session, seen, step=step):
        yield {"manifest": manifest.encode(found).decode()}


def _to_try(session: Session, seen: History, *, step: int | None) -> Iterator[Manifest]:
    """Rank 0: the usable steps, the best first."""
    unfinished = history.unfinished_restores(session.root)
    if step is None:
        _say_worn_out(session, seen.in_order(unfinished), unfinished)
    tried: set[StepName] = set()
    while True:
        names = seen.in_order(unfinished) if step is None else seen.of_step(step)
        left = [name for name in names if name not in tried]
        if not left:
            return
        tried.add(left[0])
        yield seen.usable[left[0]]
        if session.attempt is None:
            # A reader's run goes on meanwhile, and may have deleted what the reader saw.
            seen = history.look(session.root, fencing.current(session.root))


def _no_such_step(session: Session, step: int, names: list[StepName]) -> str:
    there = ", ".join(map(str, names)) or "none"
    return f"{session.root.url} has no step {step}; steps that can be restored: {there}."


def _say_worn_out(session: Session, names: list[StepName], counts: dict[StepName, int]) -> None:
    for name in names:
        if counts.get(name, 0) >= history.MAX_UNFINISHED:
            logging.error(
                "%s: %d restores of step %s were begun and not finished; older steps go first.",
                session.root.url,
                counts[name],
                name,
            )


def _try_step(
    session: Session, found: Manifest, wanted: Wanted, *, tag: str, deadline: Deadline
) -> Restored | str:
    """Verifies and loads one step; returns it, or what is wrong with it."""
    name = found.name
    try:
        wrong = session.fetch(found, tag=tag, deadline=deadline)
        if wrong:
            return "; ".join(wrong)
        tree = found.tree
        if wanted.partial:
            inside = structure.describe(wanted.state)
            tree = {path: leaf for path, leaf in tree.items() if path in inside}
        structure.check_fits(
            tree,
            structure.describe(wanted.state),
            where=f"{session.root.url}/{name}",
            allow_dtype_change=wanted.allow_dtype_change,
        )
        return _load(session, found, wanted, tag=tag, deadline=deadline)
    finally:
        session.drop_staged(name)


def _load(
    session: Session, found: Manifest, wanted: Wanted, *, tag: str, deadline: Deadline
) -> Restored | str:
    name, directory = found.name, session.directory(found.name)
    _note(session, name, "begun")
    state, wrong = None, []
    try:
        state = arrays.load(directory / layout.STATE, wanted.state, partial=wanted.partial)
        documents = {f: _document(directory / f) for f in (layout.DATA, layout.METRICS)}
    except Exception as error:  # noqa: BLE001  told to all processes; the step is set aside
        logging.exception("Step %s: verified, but not readable", name)
        wrong = [f"rank {session.rank}: {type(error).__name__}: {error}"]
    wrong = session.agree(f"{tag}/loaded", wrong, deadline=deadline)
    _note(session, name, "failed" if wrong else "finished")
    if wrong:
        return "; ".join(wrong)
    return Restored(
        step=name.step,
        attempt=name.attempt,
        state=state,
        data=documents[layout.DATA] or {},
        metrics=documents[layout.METRICS],
        dataset_digest=found.dataset_digest,
    )


def _note(session: Session, name: StepName, status: str) -> None:
    if session.rank == 0 and session.attempt is not None:
        history.note_restore(session.root, name, attempt=session.attempt, status=status)


def _document(path: pathlib.Path) -> dict[str, Any] | None:
    contents: dict[str, Any] | None = None
    if path.exists():
        contents = json.loads(path.read_bytes())
    return contents
