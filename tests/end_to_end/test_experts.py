"""A mixture of experts trains through the front door and says how evenly experts are used."""

import pathlib

import pytest

from tests.end_to_end.runs import Scene, make_scene

pytestmark = pytest.mark.slow
MESH = ("--gin.MeshConfig.fsdp=2", "--gin.MeshConfig.expert=4")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    made = make_scene(tmp_path_factory.mktemp("experts"))
    text = made.gin.read_text()
    text = text.replace("models/tiny.gin", "models/tiny_moe.gin")
    text = text.replace("partitioning/fsdp.gin", "partitioning/ep.gin")
    made.gin.write_text(text.replace("global_batch = 4", "global_batch = 16"))
    return made


@pytest.fixture(scope="module")
def devices() -> dict[str, str]:
    return {"JAX_NUM_CPU_DEVICES": "8"}


def train(scene: Scene, name: str, *arguments: str, devices: dict[str, str]) -> None:
    process = scene.start(name, *arguments, environ=devices)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output


def test_a_run_reports_loads_losses_and_drops(
    scene: Scene, devices: dict[str, str], tmp_path: pathlib.Path
) -> None:
    train(scene, "dropless", *MESH, devices=devices)
    rows = scene.rows("dropless")
    assert rows[24]["loss"] < 0.8 * rows[1]["loss"]
    for row in (*rows.values(), *scene.rows("dropless", "eval").values()):
        assert row["dropped_fraction"] == 0
        assert 1 <= row["expert_load"] <= 4
        assert 0.9 < row["balance_loss"] < 4
        assert row["router_z_loss"] > 0

    train(scene, "tight", *MESH, "--gin.ExpertsConfig.capacity=0.5", devices=devices)
    for row in scene.rows("tight").values():
        assert 0.4 < row["dropped_fraction"] < 0.9


def test_a_run_goes_on_on_another_expert_axis(scene: Scene, devices: dict[str, str]) -> None:
    train(scene, "moved", *MESH, "--gin.TrainConfig.steps=12", devices=devices)
    train(
        scene,
        "moved",
        "--gin.MeshConfig.fsdp=4",
        "--gin.MeshConfig.expert=2",
        devices=devices,
    )
    whole, moved = dict(scene.losses("dropless")), dict(scene.losses("moved"))
    assert moved.keys() == whole.keys()
    for step, loss in moved.items():
        assert loss == pytest.approx(whole[step], rel=1e-4), step
