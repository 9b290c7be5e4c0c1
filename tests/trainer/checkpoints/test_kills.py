"""A save that dies at any instant leaves a run that goes on from a whole step."""

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.trainer.checkpoints import states
from trainer.checkpoints import fencing, janitor, layout, manifest
from trainer.checkpoints import store as store_module
from trainer.checkpoints.root import LocalRoot, Root, open_root
from trainer.checkpoints.session import CheckpointError

REPOSITORY = pathlib.Path(__file__).parents[3]


class Death(BaseException):
    """kill -9: nothing above handles it."""


class Countdown:
    """Dies before the n-th operation on the root, counted from when it is armed."""

    def __init__(self) -> None:
        self.left = -1

    def tick(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Death

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.tick()
            return function(*args, **kwargs)

        return counted


@pytest.fixture
def countdown(monkeypatch: pytest.MonkeyPatch) -> Countdown:
    clock = Countdown()
    for name in ("write", "create", "remove", "delete", "read"):
        monkeypatch.setattr(LocalRoot, name, clock.wrap(getattr(LocalRoot, name)))
    monkeypatch.setattr(manifest, "digest", clock.wrap(manifest.digest))
    monkeypatch.setattr(os, "replace", clock.wrap(os.replace))

    class Inline(store_module._Pending):
        """Runs the background part in the caller's thread, where a death is seen."""

        def __init__(self, name: Any, work: Callable[..., None]) -> None:
            super().__init__(name, lambda stop: None)
            self.outcome.result(60)
            work(self.stop)

    class InlineJanitor(janitor.Janitor):
        def tidy(self) -> None:
            self._round()

    monkeypatch.setattr(store_module, "_Pending", Inline)
    monkeypatch.setattr(store_module, "Janitor", InlineJanitor)
    return clock


def test_a_death_before_any_operation_of_a_save_leaves_a_whole_newest_step(
    countdown: Countdown, tmp_path: pathlib.Path
) -> None:
    outcomes = set()
    for fatal in range(1, 200):
        run = open_root(tmp_path / str(fatal))
        states.saved(run, 10, 20)
        second = states.store(run, 2, keep_latest=1)
        second.restore(states.abstract(states.make()))
        countdown.left = fatal
        try:
            second.save(30, states.make(30), data={"x": 1})
            survived = countdown.left > 0
        except Death:
            survived = False
        countdown.left = -1
        restored = states.store(run, 3).restore(states.abstract(states.make()))
        assert restored is not None
        assert restored.step in ((30,) if survived else (20, 30))
        assert states.equal(restored.state, states.make(restored.step))
        outcomes.add(restored.step)
        if survived:
            break
    else:
        pytest.fail("the save never came to its end")
    assert fatal > 15
    assert outcomes == {20, 30}


CHILD = """
import sys
from tests import conftest
from tests.trainer.checkpoints import states
from trainer.checkpoints.root import open_root
store = states.store(open_root(sys.argv[1]), int(sys.argv[2]), keep_latest=1)
restored = store.restore(states.abstract(states.make()))
step = restored.step if restored else 0
assert restored is None or states.equal(restored.state, states.make(step))
for step in range(step + 10, 10000, 10):
    store.save(step, states.make(step), data={"step": step})
    print(step, flush=True)
"""


@pytest.mark.slow
def test_kill_9_during_saves_never_loses_a_committed_step(tmp_path: pathlib.Path) -> None:
    run = open_root(tmp_path / "run")
    committed = 0
    for attempt in range(1, 5):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, run.url, str(attempt)],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        begun = [int(child.stdout.readline()) for _ in range(attempt + 1)]
        child.send_signal(signal.SIGKILL)  # a save has begun and the one before has ended
        begun += [int(line) for line in child.stdout]
        child.wait()
        assert begun[0] in (committed + 10, committed + 20)
        reader = states.store(run, None)
        newest = reader.steps()[-1].step
        assert newest >= begun[-2] > committed
        committed = newest
    restored = states.store(run, 9).restore(states.abstract(states.make()))
    assert restored is not None
    assert states.equal(restored.state, states.make(restored.step))


@pytest.fixture
def small_disk(tmp_path: pathlib.Path) -> Any:
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_full_disk_is_named_and_the_partial_step_is_removed(small_disk: pathlib.Path) -> None:
    run = open_root(small_disk / "run")
    states.saved(run, 10)
    second = states.store(run, 2)
    second.restore(states.abstract(states.make()))
    large = states.make(20) | {
        "more": jax.random.normal(jax.random.key(0), (1 << 20,), jnp.float32)
    }
    second.save(20, large, data={})
    with pytest.raises(CheckpointError, match=r"Step 20\.a2 was not written: .*disk of .* is full"):
        second.wait()
    checkpoints = run.child(layout.CHECKPOINTS)
    assert [name.step for name in fencing.written(checkpoints)] == [10]
    assert second.aside() == {}
    second.save(20, states.make(20), data={})
    second.close()
    assert [name.step for name in second.steps()] == [10, 20]


def test_a_disk_full_by_report_of_any_write_is_named(
    run_dir: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: LocalRoot, key: str, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    writer = states.store(run_dir)
    monkeypatch.setattr(LocalRoot, "write", full)
    writer.save(10, states.make(), data={})
    with pytest.raises(CheckpointError, match=r"disk of .* is full \([\d,]+ bytes free\)"):
        writer.close()
    assert run_dir.list("checkpoints/10.a1/") == ()
