"""The checkpoints of one run, as the training loop sees them.

Promises: ``save`` blocks only until the arrays may be changed; a failed save is raised at the next
``check``, ``save``, ``wait`` or ``close`` and names its step (P045, P046); no wait is without limit
(P047); ``restore`` returns only what was verified. See docs/checkpoints.md.
"""

import concurrent.futures
import faulthandler
import pathlib
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from trainer.checkpoints import arrays, fencing, history, layout, restoring, saving, structure
from trainer.checkpoints.fencing import Seal
from trainer.checkpoints.janitor import Janitor
from trainer.checkpoints.layout import StepName
from trainer.checkpoints.manifest import Manifest
from trainer.checkpoints.restoring import Restored, Wanted
from trainer.checkpoints.root import Root
from trainer.checkpoints.session import CheckpointError, Session, join_hosts
from trainer.coordination import Alone, Coordination, agree
from trainer.run_config import CheckpointConfig

_CLOSE_TIMEOUT_S = 60.0


class _Pending:
    """A save whose background part may still run."""

    def __init__(self, name: StepName, work: Callable[[threading.Event], None]) -> None:
        self.name = name
        self.started = time.monotonic()
        self.stop = threading.Event()
        self.outcome: concurrent.futures.Future[None] = concurrent.futures.Future()
        # A daemon: a save that hangs must not keep a process alive that wants to end.
        threading.Thread(target=self._run, args=(work,), name=f"save-{name}", daemon=True).start()

    def _run(self, work: Callable[[threading.Event], None]) -> None:
        try:
            work(self.stop)
        except Exception as error:  # noqa: BLE001  raised by the store, in the caller's thread
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(None)


class CheckpointStore:
    """Saves and restores the steps of one run on behalf of one attempt.

    All processes of the run construct one and call the same methods in the same order.
    """

    def __init__(
        self,
        root: Root,
        *,
        attempt: int | None,
        config: CheckpointConfig,
        coordination: Coordination | None = None,
        dataset_digest: str = "",
        staging: pathlib.Path | None = None,
        committed: Callable[[int], None] | None = None,
    ) -> None:
        """Takes the run over: claims the attempt and seals the steps that it accepts.

        Args:
          root: the run directory; steps are below ``checkpoints/`` in it.
          attempt: this attempt's number, not used before; None opens the run for reading only.
          config: when and what to save, keep and verify.
          coordination: the other processes; None for a single one.
          dataset_digest: digest of the dataset's manifest, kept in each step.
          staging: directory of this machine for steps on their way to or from an object store;
            the same on all processes. None takes the system's temporary directory.
          committed: is told the step of every save that counts from now on.

        Raises:
          ValueError: the attempt number was used before.
          FencedError: a newer attempt exists.
        """
        self._config, self._dataset_digest = config, dataset_digest
        self._committed = committed
        peers = coordination or Alone()
        session = Session(
            root=root.child(layout.CHECKPOINTS), attempt=attempt, config=config, peers=peers
        )
        self._seal = _take_over(session)
        if session.root.local_path("state") is None:
            base = staging or pathlib.Path(tempfile.gettempdir())
            session = join_hosts(session, base=base)
        self._session = session
        self._janitor: Janitor | None = None
        if attempt is not None and session.rank == 0:
            self._janitor = Janitor(session.root, seal=self._seal, config=config)
        self._pending: _Pending | None = None
        self._newest: StepName | None = None
        self._parent: StepName | None = None
        self._calls = 0

    def steps(self) -> tuple[StepName, ...]:
        """The steps that can be restored, oldest first, without those set aside or abandoned."""
        seen = history.look(self._session.root, self._reading_seal())
        return tuple(sorted(seen.usable.keys() - seen.abandoned))

    def aside(self) -> dict[StepName, str]:
        """The steps that were set aside, with the reason."""
        return fencing.aside(self._session.root, self._reading_seal())

    def save(
        self,
        step: int,
        state: Any,
        *,
        data: Mapping[str, Any],
        metrics: Mapping[str, Any] | None = None,
    ) -> float:
        """Starts to save a step; an earlier save still in the background is waited for first.

        Args:
          step: optimizer steps done.
          state: nested dict of jax arrays.
          data: JSON that is needed to go on: the position record and whatever the caller adds.
          metrics: JSON numbers of this step, for ``keep_best``.

        Returns:
          Seconds for which the caller was blocked. A step that this attempt has saved or is
          saving already costs nothing.

        Raises:
          CheckpointError: the earlier save failed or did not end in time.
          ValueError: the step is older than one that counts (P053); something is not JSON.
        """
        begin = time.monotonic()
        if self._session.attempt is None:
            raise ValueError(f"{self._session.root.url} was opened for reading only.")
        name = StepName(step, self._session.attempt)
        if name == self._newest or (self._pending and name == self._pending.name):
            return 0.0
        self.wait()
        self._check_order(step)
        documents = {layout.DATA: saving.document(data)}
        if metrics is not None:
            documents[layout.METRICS] = saving.document(metrics)
        job = saving.Job(draft=self._draft(name, state), documents=documents)
        writing = self._begin(name, state)
        self._pending = _Pending(name, lambda stop: self._finish(job, writing, stop))
        return time.monotonic() - begin

    def check(self) -> None:
        """Raises what went wrong in the background; call it at every step.

        Raises:
          CheckpointError: a save failed; names the step.
          FencedError: a newer attempt has taken the run over.
        """
        if self._janitor and self._janitor.fenced:
            raise self._janitor.fenced
        if self._pending and self._pending.outcome.done():
            self.wait()

    def wait(self) -> None:
        """Waits for the save in the background, at most ``save_timeout_s`` since it began.

        Raises:
          CheckpointError: it failed or did not end in time; names the step.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        left = pending.started + self._config.save_timeout_s - time.monotonic()
        finished, _ = concurrent.futures.wait([pending.outcome], timeout=max(0.0, left))
        if not finished:
            pending.stop.set()
            faulthandler.dump_traceback(all_threads=True)
            raise CheckpointError(
                f"Step {pending.name} was not written: the save did not end within"
                f" {self._config.save_timeout_s:g} s (CheckpointConfig.save_timeout_s); the stacks"
                " of all threads are in the error output."
            )
        error = pending.outcome.exception()
        if isinstance(error, CheckpointError | fencing.FencedError):
            raise error
        if error is not None:
            path = self._session.directory(pending.name)
            reason = saving.explain(error, path)
            raise saving.not_written(pending.name, reason) from error
        self._newest = pending.name
        if self._committed is not None:
            self._committed(pending.name.step)

    def close(self) -> None:
        """Waits for the last save and the deletions; raises like ``wait``."""
        try:
            self.wait()
        finally:
            if self._janitor:
                self._janitor.close(timeout_s=_CLOSE_TIMEOUT_S)
                self._janitor = None
            self._session.drop_all_staged()

    def restore(
        self,
        abstract_state: Any,
        *,
        step: int | None = None,
        allow_dtype_change: bool = False,
        partial: bool = False,
    ) -> Restored | None:
        """Restores the newest whole step, walking back past damaged ones.

        Args:
          abstract_state: nested dict of ``jax.ShapeDtypeStruct`` with shardings, which decide where
            the arrays go whatever mesh and process count had saved them.
          step: only this step.
          allow_dtype_change: convert arrays saved with another dtype.
          partial: the abstract state is a part of the saved one.

        Returns:
          The restored step; None where the run has none.

        Raises:
          ValueError: the tree does not fit (names each path), or there is no such step.
          CheckpointError: there are steps, but none is whole.
        """
        wanted = Wanted(
            state=abstract_state,
            step=step,
            allow_dtype_change=allow_dtype_change,
            partial=partial,
        )
        self._calls += 1
        tag = f"{self._session.attempt}/restore/{self._calls}"
        restored = restoring.restore(self._session, wanted, tag=tag)
        self._parent = restored.name if restored else None
        if restored and self._janitor:
            self._janitor.verified(restored.name)
        return restored

    def _begin(self, name: StepName, state: Any) -> arrays.Writing:
        directory = self._session.directory(name)
        try:
            return arrays.save_async(
                directory / layout.STATE,
                state,
                compress=self._config.compress,
                timeout_s=self._config.save_timeout_s,
                primary=self._session.leader,
                portable=self._session.staging is not None,
            )
        except (OSError, ValueError) as error:
            reason = saving.explain(error, directory)
            raise saving.not_written(name, reason) from error

    def _finish(self, job: saving.Job, writing: arrays.Writing, stop: threading.Event) -> None:
        """In the background: commits one step, then lets the janitor look."""
        saving.commit(self._session, job, writing, stop=stop)
        logging.info("%s: saved step %s", self._session.root.url, job.name)
        if self._janitor:
            self._janitor.verified(job.name)
            self._janitor.tidy()

    def _draft(self, name: StepName, state: Any) -> Manifest:
        return Manifest(
            name=name,
            parent=self._parent,
            dataset_digest=self._dataset_digest,
            accepted=tuple(sorted(self._seal.accepted)),
            files={},
            tree=structure.describe(state),
        )

    def _check_order(self, step: int) -> None:
        if self._newest:
            newest: StepName | None = self._newest
        elif self._parent:
            newest = self._parent
            if step == newest.step:
                return
        else:
            newest = max(self._seal.accepted - self._seal.aside, default=None)
        if newest and step <= newest.step:
            raise ValueError(
                f"Step {step} cannot be saved: {self._session.root.url} holds step {newest}."
                " Resume from it, or start in another run directory."
            )

    def _reading_seal(self) -> Seal:
        return (
            self._seal if self._session.attempt is not None else fencing.current(self._session.root)
        )


def _take_over(session: Session) -> Seal:
    """Rank 0 seals; all learn the list. A reader takes the list that decides now."""
    if session.attempt is None:
        return fencing.current(session.root)
    seal = fencing.take_over(session.root, session.attempt) if session.rank == 0 else None
    body = agree(
        session.peers,
        f"{session.attempt}/seal",
        seal and seal.to_json(),
        timeout_s=session.config.save_timeout_s,
    )
    return Seal.from_json(body, attempt=session.attempt)
