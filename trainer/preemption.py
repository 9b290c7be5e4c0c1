"""Stopping on SIGTERM: every process of the run stops at the same place of the program.

Imports no jax. jax's own preemption service is not used: it does nothing with one process, cannot
tell a second signal from the first, and reports nothing before the first step. A signal is taken
from a file descriptor by a thread, so that it acts while the main thread compiles or waits.
"""

import signal
import socket
import threading
from collections.abc import Callable

from trainer.coordination import Coordination, PeersMissingError

AGREE_S = 30.0
_EVER = 10.0**9


class Agreement:
    """A place of the program that no process has passed yet, found while all of them run.

    Every process calls `reached` at the same places in the same order. Once a stop is wanted,
    `settle` runs in every process: each holds its own count still, tells it, and takes the largest
    count plus one as the place to stop (the protocol of TensorFlow's preemption sync manager).
    """

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._lock = threading.Lock()
        self._count = 0
        self._stop_at: int | None = None

    def reached(self) -> bool:
        """Counts this call, and returns whether it is the agreed place or one behind it."""
        with self._lock:
            self._count += 1
            return self._stop_at is not None and self._count >= self._stop_at

    def settle(self, *, timeout_s: float = AGREE_S) -> bool:
        """Agrees on the place to stop.

        Returns:
          False where some process has not called `reached` at all: there is nothing to save, and
          every process learns the same.

        Raises:
          PeersMissingError: a process did not tell its count in time.
        """
        peers = self._coordination
        with self._lock:
            peers.put(f"stop/count/{peers.process_index}", str(self._count))
            counts = [
                int(peers.get(f"stop/count/{rank}", timeout_s=timeout_s))
                for rank in range(peers.process_count)
            ]
            if min(counts) == 0:
                return False
            self._stop_at = max(counts) + 1
        return True


class Preemption:
    """SIGTERM of this process, and of all others once it has joined them.

    ``leave`` is called, from a thread, where the process must end at once: before the first step,
    at the second signal, or where the others cannot be reached. It does not return.

    Under a launcher that gives a grace every signal but the first is ignored: Slurm sends SIGTERM
    to all processes of a job and the agent sends its own; the agent also ends what is there when
    the grace is over.
    """

    def __init__(self, leave: Callable[[str], None], *, launched: bool = False) -> None:
        self._leave, self._launched = leave, launched
        self._agreement: Agreement | None = None
        self._coordination: Coordination | None = None
        self._lock = threading.Lock()
        self._signals = 0

    def install(self) -> None:
        """Takes SIGTERM over; called once, in the main thread."""
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, _ignore)
        threading.Thread(
            target=self._take_signals, args=(reader, writer), daemon=True, name="signals"
        ).start()

    def connect(self, coordination: Coordination) -> None:
        """From here on a signal stops all processes of the run, not this one alone."""
        with self._lock:
            self._coordination = coordination
            self._agreement = Agreement(coordination)
        threading.Thread(target=self._watch, daemon=True, name="stop-notice").start()

    def reached(self) -> bool:
        """Returns whether to stop here; every process gets the same answer at the same call.

        Called after every step and between batches of an evaluation, by all processes alike.
        """
        if self._agreement is None:
            raise RuntimeError("Preemption.reached() before connect(); join the run first.")
        return self._agreement.reached()

    def received(self) -> None:
        """One SIGTERM has come."""
        with self._lock:
            self._signals += 1
            coordination = self._coordination
            first = self._signals == 1
        if not first and self._launched:
            return
        if not first:
            self._leave("a second SIGTERM came; leaving without a save")
        elif coordination is None:
            self._leave("SIGTERM before the run was joined; nothing to save")
        else:
            coordination.put("stop/notice", str(coordination.process_index))

    def _take_signals(self, reader: socket.socket, writer: socket.socket) -> None:
        del writer  # kept alive by this frame's caller: the descriptor must stay open
        while numbers := reader.recv(64):
            for _ in range(numbers.count(signal.SIGTERM)):
                self.received()

    def _watch(self) -> None:
        assert self._coordination is not None
        assert self._agreement is not None
        try:
            rank = self._coordination.get("stop/notice", timeout_s=_EVER)
        except RuntimeError:
            return  # the service is gone; the main thread's next collective says so with more
        try:
            if not self._agreement.settle():
                self._leave(f"SIGTERM (rank {rank}) before the first step; nothing to save")
        except (PeersMissingError, RuntimeError) as error:
            self._leave(f"SIGTERM (rank {rank}), but no agreement where to save: {error}")


def _ignore(number: int, frame: object) -> None:
    """Python acts on a signal's descriptor only where the signal has a handler."""
    del number, frame
