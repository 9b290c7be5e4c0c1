import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tests.trainer.checkpoints import states
from trainer.checkpoints import arrays, fencing, history, layout
from trainer.checkpoints.layout import StepName
from trainer.checkpoints.root import Root
from trainer.checkpoints.session import CheckpointError

Damage = Callable[[pathlib.Path], None]


def _data_file(step: pathlib.Path) -> pathlib.Path:
    return max(
        (f for f in (step / "state").rglob("*") if f.is_file()), key=lambda f: f.stat().st_size
    )


def _flip(path: pathlib.Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def _truncate(path: pathlib.Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


DAMAGES: dict[str, tuple[Damage, str]] = {
    "flipped bit": (lambda step: _flip(_data_file(step)), "has changed: SHA-256"),
    "truncated": (lambda step: _truncate(_data_file(step)), "bytes, written were"),
    "deleted": (lambda step: _data_file(step).unlink(), "is missing"),
    "position record": (lambda step: _flip(step / "data.json"), "data.json has changed"),
    "flipped manifest": (lambda step: _flip(step / "MANIFEST.json"), "MANIFEST.json is damaged"),
    "short manifest": (lambda step: _truncate(step / "MANIFEST.json"), "MANIFEST.json is damaged"),
    "no manifest": (lambda step: (step / "MANIFEST.json").unlink(), "MANIFEST.json is missing"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_each_kind_of_damage_is_named_set_aside_and_walked_past(
    kind: str, run_dir: Root, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage, words = DAMAGES[kind]
    states.saved(run_dir, 10, 20)
    states.store(run_dir, 2).close()  # accepts both
    step = tmp_path / "run/checkpoints/20.a1"
    damage(step)
    files = {f for f in step.rglob("*") if f.is_file()}
    store = states.store(run_dir, 3, keep_latest=1)
    restored = store.restore(states.abstract(states.make()))
    assert restored is not None
    assert restored.step == 10
    assert states.equal(restored.state, states.make(10))
    assert restored.data == {"first_example": 80}
    assert "20.a1" in caplog.text
    assert words in caplog.text
    assert words in store.aside()[StepName(20, 1)]
    record = json.loads(run_dir.read("checkpoints/aside/20.a1.json") or b"")
    assert words in record["reason"]
    for new in (20, 30, 40):
        store.save(new, states.make(new), data={})
    store.close()
    assert {f for f in step.rglob("*") if f.is_file()} == files, "never deleted"


def test_a_reader_follows_a_run_that_deletes_what_it_was_about_to_read(
    run_dir: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    states.saved(run_dir, 10)
    writer = states.store(run_dir, 2)
    reader = states.store(run_dir, None)
    load = arrays.load

    def late(path: pathlib.Path, abstract: object, **options: bool) -> object:
        if "10.a1" in str(path):
            writer.save(20, states.make(20), data={"first_example": 160})
            writer.close()
            fencing.delete(run_dir.child(layout.CHECKPOINTS), StepName(10, 1), attempt=2)
        return load(path, abstract, **options)

    monkeypatch.setattr(arrays, "load", late)
    restored = reader.restore(states.abstract(states.make()))
    assert restored is not None
    assert (restored.step, restored.attempt) == (20, 2)
    assert states.equal(restored.state, states.make(20))


def test_a_step_that_lost_its_manifest_before_it_was_accepted_is_named_and_not_deleted(
    run_dir: Root, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    states.saved(run_dir, 10, 20)
    (tmp_path / "run/checkpoints/20.a1/MANIFEST.json").unlink()
    second = states.store(run_dir, 2)
    restored = second.restore(states.abstract(states.make()))
    second.close()
    assert restored is not None
    assert restored.step == 10
    assert (tmp_path / "run/checkpoints/20.a1/data.json").exists()
    assert "step 20.a1 is not used: MANIFEST.json is missing" in caplog.text


def test_two_bad_steps_in_a_row_are_walked_past(run_dir: Root, tmp_path: pathlib.Path) -> None:
    states.saved(run_dir, 10, 20, 30)
    for name in ("20.a1", "30.a1"):
        _flip(_data_file(tmp_path / "run/checkpoints" / name))
    restored = states.store(run_dir, 2).restore(states.abstract(states.make()))
    assert restored is not None
    assert restored.step == 10


def test_a_step_once_set_aside_stays_aside_for_later_attempts(
    run_dir: Root, tmp_path: pathlib.Path
) -> None:
    states.saved(run_dir, 10, 20)
    _flip(_data_file(tmp_path / "run/checkpoints/20.a1"))
    states.store(run_dir, 2).restore(states.abstract(states.make()))
    assert states.store(run_dir, 3).steps() == (StepName(10, 1),)


def test_a_person_can_bring_a_step_back_that_was_set_aside(
    run_dir: Root, tmp_path: pathlib.Path
) -> None:
    states.saved(run_dir, 10, 20)
    damaged = _data_file(tmp_path / "run/checkpoints/20.a1")
    _flip(damaged)
    second = states.store(run_dir, 2, keep_latest=100)
    second.restore(states.abstract(states.make()))
    second.save(15, states.make(15), data={})
    second.close()
    _flip(damaged)  # back to what it was
    run_dir.remove("checkpoints/aside/20.a1.json")
    restored = states.store(run_dir, 3).restore(states.abstract(states.make()), step=20)
    assert restored is not None
    assert states.equal(restored.state, states.make(20))


def test_when_no_step_is_whole_the_run_does_not_start_afresh(
    run_dir: Root, tmp_path: pathlib.Path
) -> None:
    states.saved(run_dir, 10, 20)
    for name in ("10.a1", "20.a1"):
        _flip(_data_file(tmp_path / "run/checkpoints" / name))
    for attempt in (2, 3):
        with pytest.raises(CheckpointError, match=r"(?s)No step .*20\.a1.*10\.a1|10\.a1.*20\.a1"):
            states.store(run_dir, attempt).restore(states.abstract(states.make()))


def test_a_step_that_orbax_cannot_read_is_set_aside(
    run_dir: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    states.saved(run_dir, 10, 20)
    real = arrays.load

    def broken(path: pathlib.Path, *args: object, **kwargs: object) -> object:
        if "20.a1" in str(path):
            raise KeyError("incompatible handler")
        return real(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(arrays, "load", broken)
    store = states.store(run_dir, 2)
    restored = store.restore(states.abstract(states.make()))
    assert restored is not None
    assert restored.step == 10
    assert "incompatible handler" in store.aside()[StepName(20, 1)]


class Death(BaseException):
    """The process dies here."""


def test_a_step_whose_restore_was_twice_not_finished_goes_last(
    run_dir: Root, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    states.saved(run_dir, 10, 20)

    def die(*args: object, **kwargs: object) -> object:
        raise Death

    with monkeypatch.context() as patched:
        patched.setattr(arrays, "load", die)
        for attempt in (2, 3):
            with pytest.raises(Death):
                states.store(run_dir, attempt).restore(states.abstract(states.make()))
    checkpoints = run_dir.child(layout.CHECKPOINTS)
    assert history.unfinished_restores(checkpoints) == {StepName(20, 1): 2}
    restored = states.store(run_dir, 4).restore(states.abstract(states.make()))
    assert restored is not None
    assert restored.step == 10
    assert "2 restores of step 20.a1 were begun and not finished" in caplog.text


def test_one_step_is_tried_again_where_there_is_no_older_one(
    run_dir: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    states.saved(run_dir, 10)
    for attempt in (2, 3):
        checkpoints = run_dir.child(layout.CHECKPOINTS)
        history.note_restore(checkpoints, StepName(10, 1), attempt=attempt, status="begun")
    assert states.store(run_dir, 4).restore(states.abstract(states.make())) is not None


def test_a_step_asked_for_by_number_is_not_walked_past(
    run_dir: Root, tmp_path: pathlib.Path
) -> None:
    states.saved(run_dir, 10, 20)
    _flip(_data_file(tmp_path / "run/checkpoints/20.a1"))
    store = states.store(run_dir, 2)
    with pytest.raises(CheckpointError, match=r"20\.a1.*has changed"):
        store.restore(states.abstract(states.make()), step=20)
    with pytest.raises(ValueError, match=r"has no step 15; .* restored: 10\.a1"):
        store.restore(states.abstract(states.make()), step=15)


def test_with_verification_off_a_missing_file_is_still_named(
    run_dir: Root, tmp_path: pathlib.Path
) -> None:
    states.saved(run_dir, 10, 20)
    _data_file(tmp_path / "run/checkpoints/20.a1").unlink()
    restored = states.store(run_dir, 2, verify=False).restore(states.abstract(states.make()))
    assert restored is not None
    assert restored.step == 10


def _changed(path: str, leaf: object) -> dict[str, object]:
    tree = states.abstract(states.make())
    place: dict[str, object] = tree
    *above, last = path.split("/")
    for name in above:
        place = place[name]  # type: ignore[assignment]
    if leaf is None:
        del place[last]
    else:
        place[last] = leaf
    return tree


def _leaf(shape: tuple[int, ...], dtype: object) -> jax.ShapeDtypeStruct:
    where = NamedSharding(states.mesh(8), PartitionSpec())
    return jax.ShapeDtypeStruct(shape, dtype, sharding=where)


W = "groups/model/parameters/w"


@pytest.mark.parametrize(
    ("path", "leaf", "words"),
    [
        (
            "groups/model/parameters/v",
            ((2,), jnp.float32),
            r"missing: groups/model/parameters/v \(wanted float32\[2\]\)",
        ),
        (W, None, r"extra: groups/model/parameters/w \(stored float32\[16,8\]\)"),
        (
            W,
            ((16, 4), jnp.float32),
            r"shape: .*w is stored as float32\[16,8\], wanted float32\[16,4\]",
        ),
        (
            W,
            ((16, 8), jnp.bfloat16),
            r"dtype: .*w is stored as float32\[16,8\], wanted bfloat16\[16,8\]",
        ),
    ],
)
def test_a_tree_that_does_not_fit_is_an_error_that_names_the_path_and_sets_nothing_aside(
    run_dir: Root, path: str, leaf: tuple[tuple[int, ...], object] | None, words: str
) -> None:
    states.saved(run_dir, 10)
    store = states.store(run_dir, 2)
    with pytest.raises(ValueError, match=words):
        store.restore(_changed(path, leaf and _leaf(*leaf)))
    assert store.aside() == {}
    assert store.restore(states.abstract(states.make())) is not None


def test_another_dtype_is_converted_when_asked_for(run_dir: Root) -> None:
    states.saved(run_dir, 10)
    target = _changed(W, _leaf((16, 8), jnp.bfloat16))
    restored = states.store(run_dir, 2).restore(target, allow_dtype_change=True)
    assert restored is not None
    assert restored.state["groups"]["model"]["parameters"]["w"].dtype == jnp.bfloat16


def test_a_leaf_without_sharding_is_refused(run_dir: Root) -> None:
    states.saved(run_dir, 10)
    bare = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), states.make())
    with pytest.raises(ValueError, match=r"needs a sharding.*groups/model/parameters/b"):
        states.store(run_dir, 2).restore(bare)


def test_a_reader_goes_on_to_the_steps_that_a_live_run_has_put_in_the_place_of_those_it_read(
    run_dir: Root, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = states.store(run_dir, keep_latest=100)
    steps, load, later = run_dir.child(layout.CHECKPOINTS), arrays.load, [40, 30]
    writer.save(20, states.make(20), data={})
    writer.wait()

    def overtaken(path: pathlib.Path, *arguments: Any, **options: Any) -> Any:
        if not later:
            return load(path, *arguments, **options)
        steps.delete(f"{path.parent.name}/", first=layout.MANIFEST)
        step = later.pop()
        writer.save(step, states.make(step), data={})
        writer.wait()
        raise FileNotFoundError("deleted under the reader")

    monkeypatch.setattr(arrays, "load", overtaken)
    restored = states.store(run_dir, None).restore(states.abstract(states.make()))
    assert restored is not None
    assert restored.step == 40
    assert states.equal(restored.state, states.make(40))
    assert "the run deleted step 20.a1 while it was read" in caplog.text
    assert "is not used" not in caplog.text
    monkeypatch.undo()
    writer.close()
