"""Training more than once in one process leaves nothing behind that the next run would meet."""

import pytest

from launch.contract import Phase
from tests.end_to_end.runs import Scene, make_scene
from trainer import modes, run
from trainer.assembly import Options
from trainer.config import load
from trainer.distributed import Participant
from trainer.endings import PreemptedError
from trainer.run_directory import Request

pytestmark = pytest.mark.slow
BINDINGS = ("TrainConfig.steps=6", "DataConfig.global_batch=8")


class StopsAt(Participant):
    """Hears a SIGTERM when a step is done."""

    def __init__(self, step: int | None) -> None:
        super().__init__(None)
        self._at = step

    def progress(self, phase: Phase, *, step: int | None = None, loss: float | None = None) -> None:
        """See Participant.progress."""
        super().progress(phase, step=step, loss=loss)
        if step is not None and step == self._at:
            self.preemption.received()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return make_scene(tmp_path_factory.mktemp("one_process"))


def _train(scene: Scene, name: str, *bindings: str, stop_at: int | None = None) -> None:
    participant = StopsAt(stop_at)
    participant.join()
    options = Options(
        run_dir=str(scene.folder / name), cache_dir=scene.folder / "cache", request=Request()
    )
    loaded = load([str(scene.gin)], [*BINDINGS, *bindings])
    prepared = run.prepare(loaded, options=options, participant=participant)
    try:
        modes.train_run(prepared)
    finally:
        prepared.directory.close()


def test_a_second_run_in_the_same_process_is_the_same_run(scene: Scene) -> None:
    for name in ("first", "second"):
        _train(scene, name)
    assert scene.losses("second") == scene.losses("first")
    assert scene.rows("second", "eval") == scene.rows("first", "eval")


def test_stopping_works_again_after_it_has_worked_and_the_run_goes_on(
    scene: Scene,
) -> None:
    long = "TrainConfig.steps=100000"
    for number, name in enumerate(("stopped", "stopped_too", "stopped")):
        with pytest.raises(PreemptedError, match=r"SIGTERM: saved step"):
            _train(scene, name, long, stop_at=3 + 200 * (number // 2))
    steps = sorted(scene.rows("stopped"))
    assert steps == list(range(1, steps[-1] + 1))
    assert steps[-1] >= 203
