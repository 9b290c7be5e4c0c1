import logging
import pathlib
import threading
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests.trainer.checkpoints import states
from trainer.checkpoints import arrays, fencing, layout, saving
from trainer.checkpoints.fencing import FencedError
from trainer.checkpoints.layout import StepName
from trainer.checkpoints.root import LocalRoot, Root
from trainer.checkpoints.session import CheckpointError
from trainer.checkpoints.store import CheckpointStore
from trainer.run_config import CheckpointConfig


def test_a_step_comes_back_bit_equal_with_its_data_and_metrics(run_dir: Root) -> None:
    state = states.make(1)
    writer = states.store(run_dir)
    metrics = {"loss": float("nan"), "accuracy": 0.5}
    blocked = writer.save(10, state, data={"position": [1, 2]}, metrics=metrics)
    assert blocked > 0
    writer.close()
    restored = states.store(run_dir, 2).restore(states.abstract(state))
    assert restored is not None
    assert (restored.step, restored.attempt) == (10, 1)
    assert states.equal(restored.state, state)
    assert restored.data == {"position": [1, 2]}
    assert restored.metrics == {"loss": "NaN", "accuracy": 0.5}


def test_a_run_without_steps_restores_none(run_dir: Root) -> None:
    assert states.store(run_dir).restore(states.abstract(states.make())) is None


def test_every_step_is_told_once_it_counts_and_not_before(
    run_dir: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    goes_on = threading.Event()
    commit = saving.commit

    def held(*arguments: Any, **rest: Any) -> Any:
        goes_on.wait(60)
        return commit(*arguments, **rest)

    monkeypatch.setattr(saving, "commit", held)
    store = CheckpointStore(run_dir, attempt=1, config=CheckpointConfig(), committed=told.append)
    store.save(10, states.make(1), data={})
    store.check()
    assert told == []
    goes_on.set()
    store.save(20, states.make(2), data={})
    assert told == [10]
    store.close()
    assert told == [10, 20]


@pytest.mark.parametrize(
    ("sizes", "spec"),
    [((8,), P(None, "a")), ((2, 4), P("b", "a")), ((4, 2), P(("a", "b"))), ((1,), P())],
)
def test_a_step_saved_on_one_mesh_is_restored_on_another(
    run_dir: Root, sizes: tuple[int, ...], spec: P
) -> None:
    states.saved(run_dir, 10)
    target = states.abstract(states.make(), over=states.mesh(*sizes), spec=spec)
    restored = states.store(run_dir, 2).restore(target)
    assert restored is not None
    assert states.equal(restored.state, states.make(10))
    got = jax.tree.map(lambda x: x.sharding, restored.state)
    assert got == jax.tree.map(lambda x: x.sharding, target)


def test_a_step_saved_on_a_mesh_is_read_on_one_device(run_dir: Root) -> None:
    states.saved(run_dir, 10)
    one = jax.sharding.SingleDeviceSharding(jax.devices()[3])
    target = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one), states.make()
    )
    restored = states.store(run_dir, 2).restore(target)
    assert restored is not None
    assert states.equal(restored.state, states.make(10))


def test_resume_in_place_leaves_old_and_new_step_whole(run_dir: Root) -> None:
    states.saved(run_dir, 10)
    second = states.store(run_dir, 2)
    second.restore(states.abstract(states.make()))
    second.save(20, states.make(20), data={})
    second.close()
    third = states.store(run_dir, 3)
    for step in (10, 20):
        restored = third.restore(states.abstract(states.make()), step=step)
        assert restored is not None
        assert states.equal(restored.state, states.make(step))


def test_arrays_may_change_while_the_save_goes_on(run_dir: Root) -> None:
    state = states.make(1)
    wanted = jax.tree.map(np.asarray, state)
    writer = states.store(run_dir)
    writer.save(10, state, data={})
    jax.block_until_ready(
        jax.jit(lambda s: jax.tree.map(lambda x: x * 0, s), donate_argnums=0)(state)
    )
    writer.close()
    restored = states.store(run_dir, 2).restore(states.abstract(states.make()))
    assert restored is not None
    assert states.equal(restored.state, wanted)


def test_saving_the_same_step_again_costs_nothing(run_dir: Root) -> None:
    writer = states.store(run_dir)
    writer.save(10, states.make(), data={})
    assert writer.save(10, states.make(), data={}) == 0.0
    writer.wait()
    assert writer.save(10, states.make(), data={}) == 0.0
    writer.close()


def test_a_step_below_the_newest_is_refused_and_named(run_dir: Root) -> None:
    states.saved(run_dir, 100)
    fresh = states.store(run_dir, 2)
    with pytest.raises(ValueError, match=r"Step 50 cannot be saved.*holds step 100\.a1"):
        fresh.save(50, states.make(), data={})


def test_after_going_back_the_new_line_counts_and_the_old_one_is_abandoned(run_dir: Root) -> None:
    states.saved(run_dir, 10, 20, 30)
    second = states.store(run_dir, 2, keep_latest=100)
    second.restore(states.abstract(states.make()), step=10)
    second.save(20, states.make(200), data={})
    second.close()
    third = states.store(run_dir, 3, keep_latest=100)
    assert third.steps() == (StepName(10, 1), StepName(20, 2))
    restored = third.restore(states.abstract(states.make()))
    assert restored is not None
    assert restored.name == StepName(20, 2)
    third.close()


def test_retention_keeps_what_the_rules_say(run_dir: Root) -> None:
    writer = states.store(run_dir, keep_latest=2, keep_best=1, keep_every=50)
    for step in range(10, 100, 10):
        writer.save(step, states.make(), data={}, metrics={"loss": abs(step - 20) / 10})
    writer.close()
    assert [name.step for name in writer.steps()] == [20, 50, 80, 90]
    left = {n.step for n in fencing.written(run_dir.child(layout.CHECKPOINTS))}
    assert left == {20, 50, 80, 90}


def test_a_slow_deletion_holds_up_no_save(run_dir: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    deleting, release = threading.Event(), threading.Event()
    real = LocalRoot.delete

    def slow(self: LocalRoot, prefix: str, *, first: str) -> None:
        deleting.set()
        assert release.wait(60)
        real(self, prefix, first=first)

    monkeypatch.setattr(LocalRoot, "delete", slow)
    writer = states.store(run_dir, keep_latest=1)
    for step in (10, 20, 30):
        writer.save(step, states.make(), data={})
    writer.wait()
    assert deleting.wait(60)
    writer.save(40, states.make(), data={})
    writer.wait()  # returns although the deletion has not
    assert not release.is_set()
    release.set()
    writer.close()
    assert [name.step for name in writer.steps()] == [30, 40]


def test_a_foreign_file_or_directory_survives_retention(run_dir: Root) -> None:
    foreign = ("5/x", "7.a9/MANIFEST.json", "notes.txt", "10.a1.backup/x", "3.a8/state/x")
    for key in foreign:
        run_dir.write(f"checkpoints/{key}", b"theirs")
    writer = states.store(run_dir, 10, keep_latest=1)
    for step in (10, 20, 30):
        writer.save(step, states.make(), data={})
    writer.close()
    for key in foreign:
        assert run_dir.read(f"checkpoints/{key}") == b"theirs"


def test_leftovers_of_a_killed_save_are_ignored_and_removed(run_dir: Root) -> None:
    states.saved(run_dir, 10)
    torn = "checkpoints/20.a1/state.orbax-checkpoint-tmp/x"
    run_dir.write(torn, b"half")
    second = states.store(run_dir, 2)
    assert second.steps() == (StepName(10, 1),)
    second.close()
    assert run_dir.read(torn) is None


def test_a_failing_background_save_is_raised_at_the_next_check_and_never_listed(
    run_dir: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def result(self, timeout: float | None = None) -> None:
            raise OSError("the commit thread broke")

    writer = states.store(run_dir)
    monkeypatch.setattr(arrays, "save_async", lambda *args, **kwargs: Broken())
    writer.save(10, states.make(), data={})
    assert writer._pending is not None
    writer._pending.outcome.exception(60)
    with pytest.raises(CheckpointError, match=r"Step 10\.a1 was not written.*commit thread broke"):
        writer.check()
    assert writer.steps() == ()
    writer.close()


def test_an_error_in_the_last_save_is_raised_by_close(
    run_dir: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> bytes:
        raise OSError("no manifest today")

    monkeypatch.setattr(saving, "_write_manifest", broken)
    writer = states.store(run_dir)
    writer.save(10, states.make(), data={})
    with pytest.raises(CheckpointError, match=r"Step 10\.a1 was not written.*no manifest today"):
        writer.close()
    assert run_dir.child(layout.CHECKPOINTS).list("10.a1/") == ()


def test_a_save_that_hangs_is_given_up_and_cannot_count_later(
    run_dir: Root, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    release = threading.Event()
    begin = arrays.save_async

    class Hanging:
        def __init__(self, writing: arrays.Writing) -> None:
            self._writing = writing

        def result(self, timeout: float | None = None) -> None:
            assert release.wait(60)
            self._writing.result()

    monkeypatch.setattr(arrays, "save_async", lambda *a, **k: Hanging(begin(*a, **k)))
    writer = states.store(run_dir, save_timeout_s=0.2)
    writer.save(10, states.make(), data={})
    pending = writer._pending
    assert pending is not None
    with pytest.raises(CheckpointError, match=r"Step 10\.a1 .* did not end within 0\.2 s"):
        writer.save(20, states.make(), data={})
    assert "Thread" in capfd.readouterr().err
    release.set()
    assert pending.outcome.exception(60) is not None
    assert writer.steps() == ()
    writer.close()


def test_what_is_not_json_is_refused_before_anything_is_written(run_dir: Root) -> None:
    writer = states.store(run_dir)
    with pytest.raises(ValueError, match="Only JSON can be saved"):
        writer.save(10, states.make(), data={"x": object()})
    assert run_dir.child(layout.CHECKPOINTS).list("10.a1/") == ()


def test_a_cut_off_attempt_learns_it_and_what_it_saved_does_not_count(run_dir: Root) -> None:
    states.saved(run_dir, 10)
    old = states.store(run_dir, 2)
    old.restore(states.abstract(states.make()))
    new = states.store(run_dir, 3)
    old.save(20, states.make(), data={})
    with pytest.raises(FencedError, match="Attempt 3 has taken over"):
        old.wait()
    assert new.steps() == (StepName(10, 1),)
    assert states.store(run_dir, None).steps() == (StepName(10, 1),)


def test_a_reader_claims_nothing_and_cannot_save(run_dir: Root) -> None:
    states.saved(run_dir, 10)
    before = run_dir.list()
    reader = states.store(run_dir, None)
    restored = reader.restore(states.abstract(states.make()))
    assert restored is not None
    with pytest.raises(ValueError, match="opened for reading only"):
        reader.save(20, states.make(), data={})
    assert run_dir.list() == before


def test_a_step_damaged_right_after_it_was_written_is_set_aside(
    run_dir: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = saving._write_manifest

    def then_damage(session: Any, job: Any, files: Any) -> bytes:
        data = real(session, job, files)
        session.root.write("10.a1/data.json", b"{}")
        return data

    monkeypatch.setattr(saving, "_write_manifest", then_damage)
    writer = states.store(run_dir)
    writer.save(10, states.make(), data={"x": 1})
    with pytest.raises(CheckpointError, match=r"10\.a1 is damaged.*data\.json"):
        writer.wait()
    assert writer.steps() == ()
    assert "data.json" in writer.aside()[StepName(10, 1)]


def test_compression_can_be_turned_off(run_dir: Root, tmp_path: pathlib.Path) -> None:
    zeros = jax.tree.map(lambda x: x * 0, states.make())
    zeros["more"] = jax.numpy.zeros(1 << 18)
    sizes = []
    for attempt, compress in enumerate((True, False)):
        writer = states.store(run_dir.child(str(attempt)), compress=compress)
        writer.save(10, zeros, data={})
        writer.close()
        files = (tmp_path / "run" / str(attempt)).rglob("*")
        sizes.append(sum(f.stat().st_size for f in files if f.is_file()))
    assert sizes[0] * 4 < sizes[1]


def test_saving_says_what_it_did(run_dir: Root, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="absl"):
        states.saved(run_dir, 10)
    assert "saved step 10.a1" in caplog.text
