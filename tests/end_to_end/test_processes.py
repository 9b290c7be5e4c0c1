"""Several processes train as one, stop as one and fail as one, through the front door."""

import json
import signal

import numpy as np
import pytest

from launch.contract import ExitCode
from tests.end_to_end.runs import Scene, make_scene, outputs, wait_for

LONG = ("--gin.TrainConfig.steps=100000", "--gin.CheckpointConfig.every=0")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return make_scene(tmp_path_factory.mktemp("processes"))


def _reason(scene: Scene, run_dir: str, attempt: int = 1) -> dict[str, object]:
    found: dict[str, object] = json.loads(
        (scene.folder / run_dir / "attempts" / str(attempt) / "reason.json").read_text()
    )
    return found


def _saved_steps(scene: Scene, run_dir: str) -> list[int]:
    manifests = (scene.folder / run_dir).glob("checkpoints/*/MANIFEST.json")
    return sorted(int(path.parent.name.split(".")[0]) for path in manifests)


@pytest.mark.slow
def test_two_processes_equal_one_with_two_devices_bit_for_bit(scene: Scene) -> None:
    gang = scene.gang("two", processes=2)
    assert [p.returncode for p in gang if outputs([p])] == [0, 0]
    scene.run("one", "--cpu_devices=2")
    assert scene.losses("two") == scene.losses("one")
    assert scene.rows("two", "eval") == scene.rows("one", "eval")
    two, one = scene.parameters("two"), scene.parameters("one")
    for name, array in one.items():
        np.testing.assert_array_equal(two[name], array, err_msg=name)


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes(scene: Scene) -> None:
    """2 -> 1 processes: the same rows of data, the same numbers to rounding (P026)."""
    straight = scene.run("straight", "--cpu_devices=2")
    half = "--gin.TrainConfig.steps=12"
    assert [p.returncode for p in scene.gang("moved", half, processes=2) if outputs([p])] == [0, 0]
    scene.run("moved", "--cpu_devices=1")
    assert "attempt 1" in straight
    moved, wanted = scene.losses("moved"), scene.losses("straight")
    assert [step for step, _ in moved] == [step for step, _ in wanted]
    np.testing.assert_allclose([x for _, x in moved], [x for _, x in wanted], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_sigterm_to_any_rank_saves_one_step_in_all(scene: Scene, rank: int) -> None:
    name = f"stopped{rank}"
    gang = scene.gang(name, *LONG, processes=2)
    wait_for(gang[0], "step 3/")
    gang[rank].send_signal(signal.SIGTERM)
    texts = outputs(gang)
    assert [p.returncode for p in gang] == [ExitCode.PREEMPTED] * 2, texts
    saved = _saved_steps(scene, name)
    assert len(saved) == 1
    assert saved[0] == max(scene.rows(name)), "the newest step is the saved one"
    assert _reason(scene, name)["code"] == ExitCode.PREEMPTED


@pytest.mark.slow
def test_sigterm_during_an_evaluation_saves_and_the_evaluation_is_made_up(scene: Scene) -> None:
    slow = ("--gin.EvaluationConfig.every=2", "--gin.DataConfig.packing='pad'")
    process = scene.start("evaluating", *slow, "--gin.TrainConfig.steps=4")
    wait_for(process, "step 2/")
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == ExitCode.PREEMPTED, text
    scene.run("evaluating", *slow, "--gin.TrainConfig.steps=4")
    assert sorted(scene.rows("evaluating", "eval")) == [2, 4]
    assert sorted(scene.rows("evaluating")) == [1, 2, 3, 4]


@pytest.mark.slow
def test_sigterm_to_a_single_process_saves_and_the_run_goes_on(scene: Scene) -> None:
    process = scene.start("single", *LONG)
    wait_for(process, "step 3/")
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == ExitCode.PREEMPTED, text
    (saved,) = _saved_steps(scene, "single")
    scene.run("single", f"--gin.TrainConfig.steps={saved + 2}")
    assert sorted(scene.rows("single")) == list(range(1, saved + 3))


@pytest.mark.slow
def test_an_error_in_one_rank_ends_all_with_its_cause_on_disk(scene: Scene) -> None:
    nowhere = f"--gin.TokenShards.path='{scene.folder / 'nowhere'}'"
    gang = scene.gang("broken", *LONG, processes=2, last_rank=[nowhere])
    texts = outputs(gang)
    assert [p.returncode for p in gang] == [ExitCode.INFRASTRUCTURE, ExitCode.DATA], texts
    reason = _reason(scene, "broken")
    assert reason["code"] == ExitCode.DATA
    assert reason["rank"] == 1
    assert "nowhere" in str(reason["message"])


@pytest.mark.slow
def test_a_killed_rank_ends_the_other_as_a_cascade(scene: Scene) -> None:
    gang = scene.gang("orphaned", *LONG, processes=2)
    wait_for(gang[0], "step 3/")
    gang[1].send_signal(signal.SIGKILL)
    texts = outputs(gang)
    assert gang[0].returncode == ExitCode.INFRASTRUCTURE, texts
    ending = json.loads((scene.folder / "orphaned/attempts/1/ranks/0.json").read_text())
    assert ending["cascade"] is True


@pytest.mark.slow
def test_sigterm_before_the_first_step_leaves_at_once_without_a_save(scene: Scene) -> None:
    process = scene.start("early", *LONG)
    wait_for(process, "parameter ")
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == ExitCode.PREEMPTED, text
    assert "nothing to save" in text
    assert _saved_steps(scene, "early") == []
