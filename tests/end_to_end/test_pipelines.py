"""Pipelines through the front door: one run whose stages and chunks change between attempts."""

import numpy as np
import pytest

from tests.end_to_end.runs import Scene, make_scene

pytestmark = pytest.mark.slow
DEVICES = {"JAX_NUM_CPU_DEVICES": "8"}
FILL = ("--gin.TrainConfig.microbatches=8",)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    made = make_scene(tmp_path_factory.mktemp("pipelines"))
    text = made.gin.read_text().replace("global_batch = 4", "global_batch = 64")
    text = text.replace("partitioning/fsdp.gin", "partitioning/pp.gin")
    made.gin.write_text(
        f"{text}\nTENSOR = 1\nDecoderConfig.layers = 8\nTrainConfig.ema_decay = 0.9\n"
    )
    return made


def train(scene: Scene, name: str, *arguments: str) -> str:
    process = scene.start(name, *FILL, *arguments, environ=DEVICES)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def stages(count: int, *, chunks: int = 1, steps: int, schedule: str = "1f1b") -> tuple[str, ...]:
    return (
        f"--gin.STAGES={count}",
        f"--gin.PipelineConfig.chunks={chunks}",
        f"--gin.PipelineConfig.schedule='{schedule}'",
        f"--gin.TrainConfig.steps={steps}",
    )


def test_a_run_goes_on_with_other_stages_and_chunks(scene: Scene) -> None:
    said = train(scene, "changing", *stages(4, chunks=2, steps=6))
    assert "pipeline 1f1b: 4 stages x 2 chunks, 8 microbatches, bubble 15.8%" in said
    train(scene, "changing", *stages(1, steps=12))
    train(scene, "changing", *stages(2, steps=16, schedule="circular"))
    train(scene, "changing", *stages(8, steps=20))
    train(scene, "changing", *stages(2, chunks=4, steps=24))
    train(scene, "whole", *stages(1, steps=24))
    changing, whole = scene.losses("changing"), scene.losses("whole")
    assert [step for step, _ in changing] == [step for step, _ in whole] == list(range(1, 25))
    np.testing.assert_allclose(*zip(*((a[1], b[1]) for a, b in zip(changing, whole))), rtol=2e-4)
    evaluated = [scene.rows(name, "eval")[24]["loss"] for name in ("changing", "whole")]
    assert evaluated[0] == pytest.approx(evaluated[1], rel=2e-4)
    # In a checkpoint the layers stand in their own order, whatever wrote it.
    one, other = scene.parameters("changing"), scene.parameters("whole")
    for name, value in other.items():
        np.testing.assert_allclose(one[name], value, atol=5e-3, err_msg=name)


def test_stages_on_two_processes_report_the_losses_of_one_process(scene: Scene) -> None:
    plan = ("--gin.MeshConfig.data=2", *FILL, *stages(2, chunks=2, steps=8))
    gang = scene.gang("apart", *plan, processes=2, environ={"JAX_NUM_CPU_DEVICES": "2"})
    for process in gang:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        assert "Traceback" not in output
    one = scene.start("beside", *plan, environ={"JAX_NUM_CPU_DEVICES": "4"})
    output, _ = one.communicate(timeout=300)
    assert one.returncode == 0, output
    assert scene.losses("apart") == scene.losses("beside")
