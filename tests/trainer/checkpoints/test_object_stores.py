"""Whole runs on gs:// (emulator) and s3:// (SeaweedFS), both on loopback."""

import pathlib
import threading
import uuid

import pytest
from jax.sharding import PartitionSpec as P

from tests.trainer.checkpoints import states
from trainer.checkpoints import fencing
from trainer.checkpoints.layout import StepName
from trainer.checkpoints.parameters import load_params
from trainer.checkpoints.root import Root, open_root
from trainer.checkpoints.store import CheckpointStore
from trainer.run_config import CheckpointConfig

pytestmark = pytest.mark.slow


def run_on(url: str) -> Root:
    return open_root(f"{url}/runs/{uuid.uuid4().hex}")


def store(run: Root, attempt: int | None, staging: pathlib.Path) -> CheckpointStore:
    config = CheckpointConfig(keep_latest=1)
    return CheckpointStore(run, attempt=attempt, config=config, staging=staging)


def test_steps_are_saved_listed_kept_and_restored_onto_another_mesh(
    bucket_url: str, tmp_path: pathlib.Path
) -> None:
    run = run_on(bucket_url)
    writer = store(run, 1, tmp_path)
    for step in (10, 20, 30):
        writer.save(step, states.make(step), data={"step": step}, metrics={"loss": 1.0})
    writer.close()
    assert writer.steps() == (StepName(20, 1), StepName(30, 1))
    assert not any(key.startswith("checkpoints/10.a1/") for key in run.list())
    target = states.abstract(states.make(), over=states.mesh(2, 4), spec=P("b", "a"))
    second = store(run, 2, tmp_path)
    restored = second.restore(target)
    second.close()
    assert restored is not None
    assert states.equal(restored.state, states.make(30))
    assert restored.data == {"step": 30}
    assert list(tmp_path.iterdir()) == [], "nothing stays in the staging directory"


def test_damage_in_the_bucket_is_named_set_aside_and_walked_past(
    bucket_url: str, tmp_path: pathlib.Path
) -> None:
    run = run_on(bucket_url)
    writer = store(run, 1, tmp_path)
    for step in (10, 20, 30):
        writer.save(step, states.make(step), data={})
    writer.close()
    checkpoints = run.child("checkpoints")
    piece = next(key for key in checkpoints.list("30.a1/") if "parameters.w/c/" in key)
    data = bytearray(checkpoints.read(piece) or b"")
    data[len(data) // 2] ^= 1
    checkpoints.write(piece, bytes(data))
    second = store(run, 2, tmp_path)
    restored = second.restore(states.abstract(states.make()))
    assert restored is not None
    assert restored.step == 20
    assert states.equal(restored.state, states.make(20))
    assert "has changed" in second.aside()[StepName(30, 1)]
    second.close()


def test_parameters_are_loaded_from_a_bucket(bucket_url: str, tmp_path: pathlib.Path) -> None:
    run = run_on(bucket_url)
    writer = store(run, 1, tmp_path)
    writer.save(10, states.make(10), data={})
    writer.close()
    params = states.make(10)["groups"]["model"]["parameters"]  # type: ignore[index]
    loaded = load_params(run.url, states.abstract(params), staging=tmp_path)
    assert states.equal(loaded, params)
    with pytest.raises(ValueError, match="holds no checkpoint"):
        load_params(f"{run.url}-other", states.abstract(params), staging=tmp_path)


def test_one_of_many_contenders_claims_an_attempt_on_s3(s3_url: str) -> None:
    run = run_on(s3_url).child("checkpoints")
    winners: list[int] = []
    ready = threading.Barrier(6)

    def contend(number: int) -> None:
        mine = open_root(run.url)
        ready.wait()
        try:
            fencing.take_over(mine, 1)
        except ValueError:
            return
        winners.append(number)

    contenders = [threading.Thread(target=contend, args=(n,)) for n in range(6)]
    for contender in contenders:
        contender.start()
    for contender in contenders:
        contender.join()
    assert len(winners) == 1


def test_a_cut_off_attempt_on_s3_does_not_count(s3_url: str, tmp_path: pathlib.Path) -> None:
    run = run_on(s3_url)
    old = store(run, 1, tmp_path)
    old.save(10, states.make(10), data={})
    old.wait()
    new = store(run, 2, tmp_path)
    old.save(20, states.make(20), data={})
    with pytest.raises(fencing.FencedError):
        old.wait()
    assert new.steps() == (StepName(10, 1),)
    new.close()


def test_an_empty_and_a_large_object_come_back(bucket_url: str) -> None:
    run = run_on(bucket_url)
    large = bytes(range(256)) * (48 * 2**20 // 256)
    run.write("large", large)
    run.write("empty", b"")
    assert run.read("large") == large
    assert b"".join(run.chunks("empty")) == b""
    assert run.read("absent") is None
    assert run.list() == ("empty", "large")
    run.remove("large")
    assert run.list() == ("empty",)


def test_a_bucket_that_does_not_exist_is_named(s3_url: str) -> None:
    with pytest.raises(OSError, match=r"s3://no-such-bucket/x: could not list"):
        open_root("s3://no-such-bucket/x").list()
