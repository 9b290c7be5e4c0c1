"""What happens to files behind a run's back is named, walked past where it can be, or refused."""

import contextlib
import json
import pathlib
from collections.abc import Callable

import numpy as np
import pytest

from input_pipeline.position import PositionRecord
from launch.contract import ExitCode
from tests.end_to_end.runs import Scene, make_scene, mounted

pytestmark = pytest.mark.slow

SHORT = "--gin.TrainConfig.steps=8"
WHOLE = "--gin.TrainConfig.steps=12"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Holds ``short``, with steps 4 and 8 saved, and ``whole``, the same run to step 12."""
    scene = make_scene(tmp_path_factory.mktemp("damage"))
    scene.run("short", SHORT)
    scene.copy("short", "whole")
    scene.run("whole", WHOLE)
    return scene


def _array_file(step: pathlib.Path) -> pathlib.Path:
    files = (path for path in (step / "state").rglob("*") if path.is_file())
    return max(files, key=lambda path: path.stat().st_size)


def _flip_a_bit(step: pathlib.Path) -> None:
    path = _array_file(step)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _truncate(step: pathlib.Path) -> None:
    path = _array_file(step)
    path.write_bytes(path.read_bytes()[:-100])


def _delete_a_file(step: pathlib.Path) -> None:
    _array_file(step).unlink()


def _delete_the_manifest(step: pathlib.Path) -> None:
    (step / "MANIFEST.json").unlink()


DAMAGES = {
    "flipped bit": (_flip_a_bit, "has changed: SHA-256"),
    "truncated": (_truncate, "bytes, written were"),
    "deleted file": (_delete_a_file, "is missing"),
    "deleted manifest": (_delete_the_manifest, "MANIFEST.json is missing"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_step_is_named_and_walked_past_with_the_same_losses(
    scene: Scene, damage: str
) -> None:
    name = damage.replace(" ", "_")
    step = scene.copy("short", name) / "checkpoints/8.a1"
    act: Callable[[pathlib.Path], None]
    act, reason = DAMAGES[damage]
    act(step)
    text = scene.run(name, WHOLE)
    (told,) = [line for line in text.splitlines() if "step 8.a1 is not used" in line]
    assert reason in told
    assert "attempt 2 from step 4" in text
    assert step.exists(), "what is set aside is kept for a person to look at"
    assert scene.losses(name) == scene.losses("whole")
    assert scene.rows(name, "eval") == scene.rows("whole", "eval")


def test_when_every_step_is_damaged_the_run_stops_for_a_person(scene: Scene) -> None:
    folder = scene.copy("short", "all_damaged")
    for step in (folder / "checkpoints").glob("*.a1"):
        _flip_a_bit(step)
    rows = (folder / "metrics.jsonl").read_bytes()
    for _ in range(2):
        text = scene.run("all_damaged", WHOLE, expect=ExitCode.HOLD)
        assert "No step of" in text
        assert "4.a1" in text
        assert "8.a1" in text
        assert "Traceback" not in text
    assert (folder / "metrics.jsonl").read_bytes() == rows


def test_a_disk_that_fills_up_during_a_save_is_named_and_the_run_goes_on_when_there_is_room(
    scene: Scene,
) -> None:
    disk = scene.folder / "disk"
    with mounted(disk, "-t", "tmpfs", "-o", "size=4m", "tmpfs"):
        scene.run("disk/run", SHORT)
        kept = sorted(p.name for p in (disk / "run/checkpoints").glob("*.a1"))
        filler = disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        with filler.open("r+b") as file:
            file.truncate(filler.stat().st_size - 100 * 1024)
        text = scene.run("disk/run", WHOLE, expect=ExitCode.HOLD)
        assert "Step 12.a2 was not written" in text
        assert "is full" in text
        assert sorted(p.name for p in (disk / "run/checkpoints").glob("*.a*")) == kept
        filler.unlink()
        scene.run("disk/run", WHOLE)
        assert scene.losses("disk/run") == scene.losses("whole")


def test_a_changed_dataset_is_refused(scene: Scene, tmp_path: pathlib.Path) -> None:
    scene.copy("short", "other_data")
    other = make_scene(tmp_path, seed=1)
    path = f"--gin.TokenShards.path='{other.folder / 'data'}'"
    text = scene.run("other_data", WHOLE, path, expect=ExitCode.DATA)
    assert "Step 8 was trained on dataset" in text
    assert "Traceback" not in text
    moved = scene.copy("data", "moved_data")
    scene.run("other_data", WHOLE, f"--gin.TokenShards.path='{moved}'")
    assert scene.losses("other_data") == scene.losses("whole")


def test_a_changed_batch_is_refused_by_key_and_flag_and_permitted_loses_and_repeats_no_row(
    scene: Scene,
) -> None:
    folder = scene.copy("short", "batch")
    larger = "--gin.DataConfig.global_batch=8"
    text = scene.run("batch", WHOLE, larger, expect=ExitCode.CONFIGURATION)
    assert "DataConfig.global_batch: 4 -> 8" in text
    assert "--allow_change=DataConfig.global_batch" in text
    assert not (folder / "attempts/2").exists()
    scene.run("batch", WHOLE, larger, "--allow_change=DataConfig.global_batch")
    data = json.loads((folder / "checkpoints/12.a2/data.json").read_text())
    position = PositionRecord.from_json(data["position"])
    assert [entry.global_batch for entry in position.entries] == [4, 8]
    read = np.concatenate([position.examples(step) for step in range(12)])
    np.testing.assert_array_equal(read, np.arange(8 * 4 + 4 * 8))
    again = scene.run("batch", "--gin.TrainConfig.steps=13", larger)
    assert "step 13/13" in again


def test_a_torn_last_row_and_rows_of_lost_steps_are_replaced(scene: Scene) -> None:
    folder = scene.copy("short", "torn")
    rows = folder / "metrics.jsonl"
    beyond = json.dumps({"step": 9, "kind": "train", "loss": 1.0})
    rows.write_text(rows.read_text() + beyond + '\n{"step": 10, "ki')
    scene.run("torn", WHOLE)
    assert scene.losses("torn") == scene.losses("whole")
    superseded = (folder / "attempts/2/superseded.jsonl").read_text()
    assert superseded == f"{beyond}\n"
