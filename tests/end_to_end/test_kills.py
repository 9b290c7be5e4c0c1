"""Promise 2: a run that is killed comes back as the same run, bit for bit."""

import pathlib
import random
import signal
import subprocess

import numpy as np
import pytest

from tests.end_to_end.runs import Scene, make_scene

STEPS = "--gin.TrainConfig.steps=160"
KILLS = 10


@pytest.mark.slow
def test_ten_kills_at_random_instants_change_nothing(tmp_path: pathlib.Path) -> None:
    scene = make_scene(tmp_path)
    scene.run("unbroken", STEPS)
    dice = random.Random(0)
    kills = in_saves = 0
    for number in range(KILLS):
        process = scene.start("killed", STEPS)
        target = _reported(scene) + dice.randint(5, 13)
        if number % 2:
            _wait_for_step(process, target)
        else:
            in_saves += _wait_for_open_save(scene, process, after=target)
        kills += _kill(process)
    scene.run("killed", STEPS)
    assert kills == KILLS
    assert in_saves >= 3
    assert scene.losses("killed") == scene.losses("unbroken")
    assert scene.rows("killed", "eval") == scene.rows("unbroken", "eval")
    _assert_equal(scene.parameters("killed"), scene.parameters("unbroken"))


def _assert_equal(given: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert given.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(given[name], array, err_msg=name)


def _reported(scene: Scene) -> int:
    """Last step that counts: the newest committed one, from which the next attempt starts."""
    found = (tmp.parent.name for tmp in scene.folder.glob("killed/checkpoints/*/MANIFEST.json"))
    return max((int(name.split(".")[0]) for name in found), default=0)


def _wait_for_step(process: subprocess.Popen[str], step: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step ") and int(line.split()[1].split("/")[0]) >= step:
            return
    pytest.fail("the run ended before it could be killed")


def _wait_for_open_save(scene: Scene, process: subprocess.Popen[str], *, after: int) -> bool:
    """Returns when a save is half done; True if it still is at the last look."""
    _wait_for_step(process, after)
    while process.poll() is None:
        for step in (scene.folder / "killed" / "checkpoints").glob("*.a*"):
            if not (step / "MANIFEST.json").exists():
                return True
    return False


def _kill(process: subprocess.Popen[str]) -> bool:
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL
