"""A rank that speaks the launcher's contract and trains something that needs no jax.

Its "parameters" are one number; a step adds what every row of the global batch gives, summed over
the ranks by way of rank 0, so that the result does not depend on how many ranks there are. Its
checkpoints are fenced by the trainer's own code. Faults are planted with ``--fault``:

    KIND@STEP:RANK[:ATTEMPT]     for example kill@7:1, sleep@5:0:1; without ATTEMPT in attempt 1

Kinds: kill, abort, exit=CODE, raise, sleep, stop (SIGSTOP), import, disk, slow=SECONDS (before it
joins), vanish (its agent is killed, too), freeze (waits between its check and its publish until
the file ``thaw`` is in the run directory).
"""

import argparse
import errno
import faulthandler
import hashlib
import json
import os
import pathlib
import re
import signal
import socket
import sys
import time
import traceback

from launch.contract import (
    STACKS_SIGNAL,
    Environment,
    ExitCode,
    Phase,
    Progress,
    RankExit,
    exit_path,
    progress_path,
    replace_file,
    stacks_path,
)
from trainer.checkpoints import fencing, layout, manifest
from trainer.checkpoints.layout import StepName
from trainer.checkpoints.root import open_root

ROWS = 8
MODULUS = 2**53


class PeerLost(Exception):
    """Another rank is gone."""


class Stopped(Exception):
    """All ranks have agreed to stop here."""


class Fault:
    """What is to go wrong, and where."""

    def __init__(self, text: str) -> None:
        match = re.fullmatch(r"(\w+)(?:=([\d.]+))?@(\d+):(\d+)(?::(\d+|any))?", text)
        assert match, text
        self.kind, self.value = match[1], float(match[2] or 0)
        self.step, self.rank = int(match[3]), int(match[4])
        self.attempt = None if match[5] == "any" else int(match[5] or 1)

    def hits(self, environment: Environment, step: int) -> bool:
        return (
            self.step == step
            and self.rank == environment.process_id
            and self.attempt in (None, environment.attempt)
        )

    def strike(self) -> None:
        me = os.getpid()
        if self.kind == "kill":
            os.kill(me, signal.SIGKILL)
        elif self.kind == "vanish":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
        elif self.kind == "abort":
            os.abort()
        elif self.kind == "exit":
            os._exit(int(self.value))
        elif self.kind == "raise":
            raise ArithmeticError("planted")
        elif self.kind == "sleep":
            time.sleep(3600)
        elif self.kind == "stop":
            os.kill(me, signal.SIGSTOP)
        elif self.kind == "disk":
            raise OSError(errno.ENOSPC, "No space left on device")
        elif self.kind == "slow":
            time.sleep(self.value)


class Ring:
    """The ranks' connection to one another, through rank 0."""

    def __init__(self, environment: Environment) -> None:
        self.rank, self.size = environment.process_id, environment.num_processes
        host, _, port = environment.coordinator.rpartition(":")
        if self.rank == 0:
            self.peers: dict[int, socket.socket] = {}
            with socket.create_server((host, int(port))) as server:
                while len(self.peers) < self.size - 1:
                    peer, _ = server.accept()
                    self.peers[int(_receive(peer))] = peer
        else:
            self.root = _connect(host, int(port))
            _send(self.root, str(self.rank))

    def all_reduce(self, values: list[int]) -> list[int]:
        """Returns the sums of all ranks' values."""
        try:
            if self.rank != 0:
                _send(self.root, json.dumps(values))
                return json.loads(_receive(self.root))
            for peer in self.peers.values():
                other = json.loads(_receive(peer))
                values = [a + b for a, b in zip(values, other, strict=True)]
            for peer in self.peers.values():
                _send(peer, json.dumps(values))
            return values
        except (OSError, ValueError) as error:
            raise PeerLost(f"connection closed by peer: {error}") from error


class Rank:
    """One process of the run."""

    def __init__(self, environment: Environment, arguments: argparse.Namespace) -> None:
        self.environment, self.arguments = environment, arguments
        self.rank, self.attempt = environment.process_id, environment.attempt
        self.faults = [Fault(text) for text in arguments.fault]
        self.root = open_root(str(pathlib.Path(arguments.run_dir) / layout.CHECKPOINTS))
        self.step, self.saved, self.loss = None, None, None
        self.wants_stop = False
        signal.signal(signal.SIGTERM, self._on_term)
        folder = environment.state_dir
        self.stacks = stacks_path(folder, rank=self.rank).open("w")
        faulthandler.register(STACKS_SIGNAL, file=self.stacks, all_threads=True)

    def _on_term(self, number: int, frame: object) -> None:
        del number, frame
        self.wants_stop = True

    def run(self) -> None:
        self.progress(Phase.START)
        self.strike(0)
        self.progress(Phase.JOIN)
        self.ring = Ring(self.environment)
        self.progress(Phase.RESTORE)
        first, value = self.restore()
        self.step, self.saved = first or None, first or None
        self.progress(Phase.COMPILE)
        for step in range(first + 1, self.arguments.steps + 1):
            self.strike(step)
            time.sleep(self.arguments.step_s)
            rows = range(self.rank, ROWS, self.ring.size)
            total, stop = self.ring.all_reduce([sum(row(step, r) for r in rows), self.wants_stop])
            value = (value * 31 + total) % MODULUS
            self.step, self.loss = step, 1.0 / step
            self.report(step, value)
            self.progress(Phase.STEP)
            if step % self.arguments.save_every == 0 or step == self.arguments.steps or stop:
                self.progress(Phase.SAVE)
                self.save(step, value)
                self.saved = step
                self.progress(Phase.STEP)
            if stop and step < self.arguments.steps:
                raise Stopped
        self.progress(Phase.EXIT)
        if self.rank == 0:
            record = {"value": value, "steps": self.arguments.steps}
            replace_file(
                pathlib.Path(self.arguments.run_dir) / "final.json", text=json.dumps(record)
            )

    def strike(self, step: int) -> None:
        for fault in self.faults:
            if fault.kind != "freeze" and fault.hits(self.environment, step):
                fault.strike()

    def progress(self, phase: Phase) -> None:
        record = Progress(
            attempt=self.attempt,
            phase=phase,
            step=self.step,
            monotonic_ns=time.monotonic_ns(),
            saved_step=self.saved,
            loss=self.loss,
        )
        path = progress_path(self.environment.state_dir, rank=self.rank)
        replace_file(path, text=record.to_json())

    def restore(self) -> tuple[int, int]:
        """Newest whole step that counts; rank 0 decides."""
        found = [0, 0]
        if self.rank == 0:
            seal = fencing.take_over(self.root, self.attempt)
            self.seal = seal
            for name in reversed(fencing.admitted(self.root, seal)):
                data = self.root.read(name.key(layout.DATA)) or b""
                record = manifest.read(self.root, name)
                if record and record.files[layout.DATA].sha256 == _digest(data):
                    found = [name.step, json.loads(data)["value"]]
                    break
        step, value = self.ring.all_reduce(found)
        return step, value

    def save(self, step: int, value: int) -> None:
        """Rank 0 writes; the step is there for the others when it is published."""
        if self.rank == 0:
            name = StepName(step, self.attempt)
            data = json.dumps({"value": value}).encode()
            self.root.write(name.key(layout.DATA), data)
            self.check_fence()
            self.freeze(step)
            record = manifest.Manifest(
                name=name,
                parent=None,
                dataset_digest="",
                accepted=tuple(self.seal.accepted),
                files={layout.DATA: manifest.FileRecord(len(data), _digest(data))},
                tree={},
            )
            self.root.write(name.key(layout.MANIFEST), manifest.encode(record))
        self.ring.all_reduce([0])

    def check_fence(self) -> None:
        fencing.check_newest(self.root, self.attempt)

    def freeze(self, step: int) -> None:
        if any(f.kind == "freeze" and f.hits(self.environment, step) for f in self.faults):
            folder = pathlib.Path(self.arguments.run_dir)
            (folder / "frozen").write_text(str(os.getpid()))
            while not (folder / "thaw").exists():
                time.sleep(0.02)

    def report(self, step: int, value: int) -> None:
        if self.rank == 0:
            record = {"step": step, "attempt": self.attempt, "value": value, "time": time.time()}
            line = json.dumps(record)
            with (pathlib.Path(self.arguments.run_dir) / "values.jsonl").open("a") as file:
                file.write(line + "\n")

    def leave(self, code: int, *, cause: str, message: str, cascade: bool = False) -> None:
        ended = RankExit(
            attempt=self.attempt,
            rank=self.rank,
            host=self.environment.host_id,
            pid=os.getpid(),
            code=int(code),
            cause=cause,
            message=message,
            time=time.time(),
            cascade=cascade,
            step=self.step,
            saved_step=self.saved,
        )
        replace_file(exit_path(self.environment.state_dir, rank=self.rank), text=ended.to_json())
        sys.stdout.flush()
        os._exit(int(code))


def row(step: int, index: int) -> int:
    """What one row of a step's batch adds."""
    return int.from_bytes(hashlib.sha256(f"{step}/{index}".encode()).digest()[:6], "big")


def final_value(steps: int) -> int:
    """What an unbroken run ends with."""
    value = 0
    for step in range(1, steps + 1):
        value = (value * 31 + sum(row(step, index) for index in range(ROWS))) % MODULUS
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run_dir", required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save_every", type=int, default=5)
    parser.add_argument("--step_s", type=float, default=0.02)
    parser.add_argument("--fault", action="append", default=[])
    arguments = parser.parse_args()
    environment = Environment.read(os.environ)
    assert environment is not None
    for fault in map(Fault, arguments.fault):
        if fault.kind == "import" and fault.hits(environment, 0):
            import a_module_that_is_not_there  # noqa: F401
    rank = Rank(environment, arguments)
    try:
        rank.run()
    except PeerLost as error:
        rank.leave(ExitCode.INFRASTRUCTURE, cause="PeerLost", message=str(error), cascade=True)
    except Stopped:
        message = f"SIGTERM: saved step {rank.saved}"
        rank.leave(ExitCode.PREEMPTED, cause="SIGTERM", message=message)
    except fencing.FencedError as error:
        rank.leave(ExitCode.HOLD, cause="FencedError", message=str(error))
    except OSError as error:
        rank.leave(ExitCode.HOLD, cause="OSError", message=str(error))
    except Exception as error:  # noqa: BLE001 - the contract: every end is told
        traceback.print_exc()
        rank.leave(ExitCode.EXCEPTION, cause=type(error).__name__, message=str(error))
    rank.leave(ExitCode.DONE, cause="done", message="complete")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _connect(host: str, port: int) -> socket.socket:
    until = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection((host, port), timeout=None)
        except OSError:
            if time.monotonic() > until:
                raise PeerLost("rank 0 did not come") from None
            time.sleep(0.02)


def _send(peer: socket.socket, text: str) -> None:
    peer.sendall(text.encode() + b"\n")


def _receive(peer: socket.socket) -> str:
    """One line: the other side sends the next only after an answer, but for its first two."""
    data = b""
    while not data.endswith(b"\n"):
        part = peer.recv(1)
        if not part:
            raise ConnectionError("closed")
        data += part
    return data.decode()


if __name__ == "__main__":
    main()
