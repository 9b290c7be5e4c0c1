"""The fencing argument, checked on every interleaving that hypothesis can think of.

Each attempt runs the real code in a thread that stops before every operation on the root; the test
decides who goes on, and kills attempts in the middle of anything.
"""

import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.checkpoints.memory_root import MemoryRoot
from trainer.checkpoints import fencing, layout, manifest
from trainer.checkpoints.fencing import FencedError
from trainer.checkpoints.layout import StepName
from trainer.checkpoints.manifest import Manifest


def write_step(root: MemoryRoot, name: StepName, seal: fencing.Seal) -> None:
    root.write(name.key("state/x"), b"x")
    accepted = tuple(sorted(seal.accepted))
    found = Manifest(
        name=name, parent=None, dataset_digest="", accepted=accepted, files={}, tree={}
    )
    root.write(name.key(layout.MANIFEST), manifest.encode(found))


class Killed(BaseException):
    """Raised in the middle of whatever an attempt does."""


class Attempt:
    """One attempt: seals, then saves steps and deletes all but the newest; never looks back."""

    def __init__(self, number: int, files: dict[str, bytes], saves: int) -> None:
        self.number = number
        self._root = MemoryRoot(files, before=self._stop_here)
        self._saves = saves
        self.confirmed: set[StepName] = set()
        self.deleting: set[StepName] = set()
        self._go, self._waiting = threading.Semaphore(0), threading.Semaphore(0)
        self._killed = False
        self.finished = False
        threading.Thread(target=self._run, daemon=True).start()
        self._waiting.acquire()

    def advance(self, *, kill: bool = False) -> None:
        """Lets it do one operation, or makes it die before that."""
        if not self.finished:
            self._killed = kill
            self._go.release()
            self._waiting.acquire()

    def _stop_here(self) -> None:
        self._waiting.release()
        self._go.acquire()
        if self._killed:
            raise Killed

    def _run(self) -> None:
        try:
            self._work()
        except (Killed, FencedError):
            pass
        finally:
            self.finished = True
            self._waiting.release()

    def _work(self) -> None:
        seal = fencing.take_over(self._root, self.number)
        seen = fencing.admitted(self._root, seal)
        newest = max((name.step for name in seen), default=0)
        for count in range(1, self._saves + 1):
            name = StepName(newest + 10 * count, self.number)
            write_step(self._root, name, seal)
            fencing.check_newest(self._root, self.number)
            self.confirmed.add(name)
            for old in fencing.admitted(self._root, seal)[:-1]:
                self.deleting.add(old)
                fencing.delete(self._root, old, attempt=self.number)


def counting(files: dict[str, bytes]) -> tuple[int, tuple[StepName, ...]]:
    root = MemoryRoot(files)
    seal = fencing.current(root)
    return seal.attempt, fencing.admitted(root, seal)


@settings(max_examples=300, deadline=None)
@given(
    saves=st.lists(st.integers(1, 3), min_size=2, max_size=4),
    turns=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), min_size=5, max_size=40),
)
def test_what_a_cut_off_attempt_does_never_counts_and_nothing_committed_is_lost(
    saves: list[int], turns: list[tuple[int, int]]
) -> None:
    files: dict[str, bytes] = {}
    attempts = [Attempt(number, files, count) for number, count in enumerate(saves)]
    operations = (who for who, count in turns for who in [who] * count or [-who - 1])
    for who in operations:  # a negative number kills
        attempt = attempts[abs(who) % len(attempts)]
        sealed, before = counting(files)
        attempt.advance(kill=who < 0)
        now, after = counting(files)
        assert now >= sealed
        if attempt.number < sealed:
            assert after == before
        confirmed = set().union(*(a.confirmed for a in attempts))
        deleting = set().union(*(a.deleting for a in attempts))
        assert confirmed - deleting <= set(after), "a committed step was lost"
        assert not confirmed or after, "whoever takes over finds something"
    for attempt in attempts:
        attempt.advance(kill=True)


def test_an_attempt_number_is_used_once(run_dir: MemoryRoot) -> None:
    fencing.take_over(run_dir, 3)
    with pytest.raises(ValueError, match=r"Attempt 3 was used before.*newest claim: 3"):
        fencing.take_over(run_dir, 3)


def test_of_many_contenders_for_one_attempt_one_wins(run_dir: MemoryRoot) -> None:
    winners: list[int] = []
    ready = threading.Barrier(8)

    def contend(number: int) -> None:
        ready.wait()
        try:
            fencing.take_over(run_dir, 1)
        except ValueError:
            return
        winners.append(number)

    contenders = [threading.Thread(target=contend, args=(n,)) for n in range(8)]
    for contender in contenders:
        contender.start()
    for contender in contenders:
        contender.join()
    assert len(winners) == 1


def test_a_lower_attempt_than_the_newest_is_refused() -> None:
    root = MemoryRoot()
    fencing.take_over(root, 2)
    with pytest.raises(FencedError, match="Attempt 2 has taken over"):
        fencing.take_over(root, 1)


def test_a_late_step_of_the_attempt_before_is_not_admitted() -> None:
    root = MemoryRoot()
    first = fencing.take_over(root, 1)
    write_step(root, StepName(10, 1), first)
    second = fencing.take_over(root, 2)
    write_step(root, StepName(20, 1), first)
    write_step(root, StepName(15, 2), second)
    assert fencing.admitted(root, fencing.current(root)) == (StepName(10, 1), StepName(15, 2))


def test_a_step_that_the_attempt_before_may_yet_delete_is_not_accepted() -> None:
    root = MemoryRoot()
    first = fencing.take_over(root, 1)
    for step in (10, 20):
        write_step(root, StepName(step, 1), first)
    root.write("doomed/10.a1.by1.json", b"{}")  # it has looked for claims and will go on
    assert fencing.take_over(root, 2).accepted == {StepName(20, 1)}


def test_a_step_that_a_cut_off_attempt_wants_to_delete_is_accepted() -> None:
    root = MemoryRoot()
    first = fencing.take_over(root, 1)
    write_step(root, StepName(10, 1), first)
    fencing.take_over(root, 2)
    with pytest.raises(FencedError):
        fencing.delete(root, StepName(10, 1), attempt=1)
    assert fencing.take_over(root, 3).accepted == {StepName(10, 1)}


def _flip(data: bytes) -> bytes:
    return data[:20] + bytes([data[20] ^ 1]) + data[21:]


@pytest.mark.parametrize("damage", [lambda data: data[:7], lambda data: b"", _flip])
def test_a_damaged_sealed_list_is_rebuilt_from_a_step_of_its_attempt(
    damage: Callable[[bytes], bytes],
) -> None:
    root = MemoryRoot()
    first = fencing.take_over(root, 1)
    write_step(root, StepName(10, 1), first)
    second = fencing.take_over(root, 2)
    write_step(root, StepName(20, 2), second)
    write_step(root, StepName(30, 1), first)
    root.files["sealed/2.json"] = damage(root.files["sealed/2.json"])
    seal = fencing.current(root)
    assert fencing.admitted(root, seal) == (StepName(10, 1), StepName(20, 2))


def test_a_torn_sealed_list_of_an_attempt_without_steps_leaves_the_one_before_in_force() -> None:
    root = MemoryRoot()
    first = fencing.take_over(root, 1)
    write_step(root, StepName(10, 1), first)
    root.files["sealed/2.json"] = b"{"
    assert fencing.current(root) == first


def test_a_late_aside_record_of_a_cut_off_attempt_does_not_count() -> None:
    root = MemoryRoot()
    first = fencing.take_over(root, 1)
    write_step(root, StepName(10, 1), first)
    write_step(root, StepName(20, 1), first)
    fencing.set_aside(root, StepName(20, 1), reason="bad", by_attempt=1)
    second = fencing.take_over(root, 2)
    fencing.set_aside(root, StepName(10, 1), reason="so says a zombie", by_attempt=1)
    assert fencing.aside(root, second) == {StepName(20, 1): "bad"}


def test_a_foreign_directory_is_no_step() -> None:
    root = MemoryRoot({"100/x": b"", "5.a01/x": b"", "-1.a0/x": b"", "7.a2/x": b"", "x.a1/y": b""})
    assert fencing.written(root) == (StepName(7, 2),)
