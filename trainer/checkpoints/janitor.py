"""Deletes what no rule keeps, on its own thread, so that no save and no step waits for it (P062).

May import no jax. Promises: only directories named as ours by a claimed attempt are touched (P063);
a step goes only when retention's promises hold; every deletion is fenced.
"""

import queue
import threading
from collections.abc import Callable

from absl import logging

from trainer.checkpoints import fencing, history, layout, manifest, retention
from trainer.checkpoints.fencing import FencedError, Seal
from trainer.checkpoints.history import History
from trainer.checkpoints.layout import StepName
from trainer.checkpoints.root import Root
from trainer.checkpoints.saving import read_metric
from trainer.run_config import CheckpointConfig


class Janitor:
    """The deleting thread of one attempt (rank 0 only)."""

    def __init__(self, root: Root, *, seal: Seal, config: CheckpointConfig) -> None:
        """Starts the thread; its first work is what earlier attempts left unfinished."""
        self._root, self._seal, self._config = root, seal, config
        self._rules = retention.Rules(
            keep_latest=config.keep_latest,
            keep_best=config.keep_best,
            keep_every=config.keep_every,
        )
        self._verified: set[StepName] = set()
        self._metrics: dict[StepName, float | None] = {}
        self._work: queue.Queue[bool] = queue.Queue()
        self.fenced: FencedError | None = None
        self._thread = threading.Thread(target=self._run, name="checkpoint-janitor", daemon=True)
        self._thread.start()

    def verified(self, name: StepName) -> None:
        """Notes that a step's files were read back and are as written."""
        self._verified.add(name)

    def tidy(self) -> None:
        """Asks for one round; returns at once."""
        self._work.put(True)

    def close(self, *, timeout_s: float) -> None:
        """Ends the thread after the rounds that were asked for, waiting at most ``timeout_s``."""
        self._work.put(False)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logging.warning(
                "%s: old steps are still being deleted; the next attempt goes on.", self._root.url
            )

    def _run(self) -> None:
        self._guarded(self._clear_leftovers)
        while self._work.get():
            self._guarded(self._round)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except FencedError as error:
            self.fenced = error
        except Exception:  # noqa: BLE001  costs room, not the run; the next round tries again
            logging.exception("%s: could not delete old steps", self._root.url)

    def _clear_leftovers(self) -> None:
        """Removes unfinished saves and unfinished deletions of earlier attempts (P054)."""
        begun = {name for name, _ in fencing.intents(self._root)}
        claimed = fencing.claims(self._root)
        for name in fencing.written(self._root):
            ours = name.attempt in claimed and name.attempt < self._seal.attempt
            if not ours or name in self._seal.accepted:
                continue
            if name in begun or not self._nearly_committed(name):
                logging.info("%s: removing unfinished step %s", self._root.url, name)
                fencing.delete(self._root, name, attempt=self._seal.attempt)

    def _nearly_committed(self, name: StepName) -> bool:
        """Whether a step has what is written last; then it may have had a manifest, and stays."""
        return any(
            self._root.read(name.key(file)) is not None for file in (layout.MANIFEST, layout.DATA)
        )

    def _round(self) -> None:
        self._verify_two(history.look(self._root, self._seal))
        seen = history.look(self._root, self._seal)  # without what was just set aside
        candidates = [
            retention.Candidate(
                name=name,
                metric=self._metric(name),
                verified=name in self._verified,
                abandoned=name in seen.abandoned,
            )
            for name in seen.usable
        ]
        for name in retention.deletable(candidates, self._rules):
            fencing.delete(self._root, name, attempt=self._seal.attempt)
            logging.info("%s: deleted step %s", self._root.url, name)

    def _verify_two(self, seen: History) -> None:
        """Makes sure of the newest step and of one older, reading back what was not yet."""
        sure = 0
        for name in sorted(seen.usable.keys() - seen.abandoned, reverse=True):
            if name not in self._verified:
                found = seen.usable[name]
                wrong = manifest.faults(
                    self._root, found, sorted(found.files), contents=self._config.verify
                )
                if wrong:
                    self._set_aside(name, wrong)
                    continue
                self._verified.add(name)
            sure += 1
            if sure == 2:
                return

    def _set_aside(self, name: StepName, wrong: list[str]) -> None:
        reason = "; ".join(wrong)
        history.set_aside(self._root, name, reason=reason, attempt=self._seal.attempt)

    def _metric(self, name: StepName) -> float | None:
        if not self._config.keep_best:
            return None
        if name not in self._metrics:
            self._metrics[name] = read_metric(self._root, name, self._config.best_metric)
        return self._metrics[name]
