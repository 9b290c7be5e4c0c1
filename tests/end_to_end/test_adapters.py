"""A run that trains adapters: what it saves, how it goes on, and where its result can go."""

import json
import pathlib
import signal

import numpy as np
import pytest

from launch.contract import ExitCode
from tests.end_to_end.runs import Scene, make_scene, wait_for
from trainer.bases import check_chain

pytestmark = pytest.mark.slow

LORA = (
    "--gin.DecoderConfig.lora=@LoraConfig()",
    "--gin.LoraConfig.rank=4",
    "--gin.LoraConfig.targets=('attention/.*/kernel', 'mlp/.*/kernel')",
)


def start_from(url: pathlib.Path | str) -> str:
    return f"--gin.TrainConfig.init_from='{url}'"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Holds ``base``, trained on other data, and ``adapted``: 24 steps with adapters beside it."""
    scene = make_scene(tmp_path_factory.mktemp("adapters"))
    other = make_scene(scene.folder / "other", seed=1)
    base = scene.folder / "base"
    scene.run("base", "--gin.TrainConfig.steps=8", f"--gin.TokenShards.path='{other.folder}/data'")
    scene.run("adapted", *LORA, start_from(base))
    return scene


def tree(step: pathlib.Path) -> dict[str, list[object]]:
    found: dict[str, list[object]] = json.loads((step / "MANIFEST.json").read_text())["tree"]
    return found


def test_a_step_holds_adapters_and_their_moments_and_names_its_base(scene: Scene) -> None:
    step = scene.folder / "adapted/checkpoints/24.a1"
    arrays = [path for path in tree(step) if len(path.split("/")) > 2]
    assert all(path.startswith("groups/adapters/") for path in arrays)
    matrices = [path for path in arrays if "/parameters/" in path]
    assert len(matrices) == 2 * 7
    moments = [path for path in arrays if "/optimizer/" in path and "/adapter/" in path]
    assert len(moments) == 2 * len(matrices)
    base = json.loads((step / "data.json").read_text())["adapters"]["base"]
    assert base["url"] == str(scene.folder / "base/checkpoints/8.a1")
    rows = scene.losses("adapted")
    assert rows[-1][1] < rows[0][1] - 0.1


def test_killed_and_gone_on_it_is_the_same_run_to_the_last_bit(scene: Scene) -> None:
    arguments = (*LORA, start_from(scene.folder / "base"))
    process = scene.start("killed", *arguments)
    wait_for(process, "step 10/")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    scene.run("killed", *arguments)
    given, wanted = (scene.parameters(run, group="adapters") for run in ("killed", "adapted"))
    assert given.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(given[name], array, err_msg=name)
    assert scene.losses("killed") == scene.losses("adapted")
    assert scene.rows("killed", "eval") == scene.rows("adapted", "eval")


def test_a_base_that_went_on_or_moved_is_still_the_base_and_another_is_refused(
    scene: Scene,
) -> None:
    base, longer = scene.copy("base", "base_2"), "--gin.TrainConfig.steps=26"
    scene.run("again", *LORA, start_from(base))
    data = f"--gin.TokenShards.path='{scene.folder}/other/data'"
    scene.run("base_2", data, "--gin.TrainConfig.steps=12")
    scene.run("again", *LORA, start_from(base), longer)
    assert scene.losses("again")[:24] == scene.losses("adapted")
    moved = (*LORA, longer, "--allow_change=TrainConfig.init_from")
    text = scene.run(
        "again", *moved, start_from(f"{base}/checkpoints/12.a2"), expect=ExitCode.CONFIGURATION
    )
    assert f"is {base}/checkpoints/12.a2 (" in text
    assert f"another base than {base}/checkpoints/8.a1 (" in text
    scene.run("again", *moved, start_from(scene.folder / "base/checkpoints/8.a1"))


@pytest.mark.parametrize(
    ("run", "change", "key"),
    [
        ("adapted", (*LORA, "--gin.LoraConfig.rank=8"), "LoraConfig.rank"),
        ("adapted", ("--gin.DecoderConfig.lora=None",), "DecoderConfig.lora"),
        ("base", LORA, "DecoderConfig.lora"),
    ],
    ids=["rank", "without", "with"],
)
def test_a_permitted_change_that_fits_no_step_is_refused_and_never_retried(
    scene: Scene, run: str, change: tuple[str, ...], key: str
) -> None:
    copy = scene.copy(run, f"{run}_{key}_{len(change)}")
    allowed = ("DecoderConfig.lora", "TrainConfig.init_from", "TokenShards.path")
    text = scene.run(
        copy.name,
        "--gin.TrainConfig.steps=30",
        start_from(scene.folder / "base"),
        *change,
        *(f"--allow_change={name}" for name in (key, *allowed)),
        expect=ExitCode.CONFIGURATION,
    )
    assert "does not fit the model:" in text
    assert "Traceback" not in text


def test_the_check_before_a_run_follows_adapters_to_their_base(scene: Scene) -> None:
    adapted, base, away = (scene.folder / name for name in ("adapted", "base", "base_away"))
    check_chain(str(base))
    check_chain(str(adapted))
    base.rename(away)
    try:
        with pytest.raises(ValueError, match=rf"{adapted} holds adapters of {base}/.* any more"):
            check_chain(str(adapted))
    finally:
        away.rename(base)


def test_its_result_is_a_start_for_models_without_adapters(scene: Scene) -> None:
    """An evaluation of a run's step, and one of its merged parameters, say the same."""
    adapted = scene.folder / "adapted"
    own = scene.run("adapted", "--mode=eval", *LORA, start_from(scene.folder / "base"))
    merged, before = (
        evaluation(scene, start_from(url)) for url in (adapted, scene.folder / "base")
    )
    last = json.loads(own.splitlines()[-1])
    assert merged["init_from"] == str(adapted)
    assert merged["loss"] == pytest.approx(last["loss"], abs=1e-5)
    assert before["loss"] > last["loss"] + 0.1
    one = "--gin.TrainConfig.steps=1"
    scene.run("further", one, start_from(adapted))
    scene.run("adapters_on_it", one, *LORA, start_from(adapted))
    first = {run: scene.losses(run)[0][1] for run in ("further", "adapters_on_it")}
    assert first["further"] == pytest.approx(first["adapters_on_it"], abs=1e-5)


def evaluation(scene: Scene, *arguments: str) -> dict[str, object]:
    code, said, errors = scene.run_apart("", "--run_dir=", "--mode=eval", *arguments)
    assert code == 0, errors
    found: dict[str, object] = json.loads(said.splitlines()[-1])
    return found


def test_without_parameters_to_adapt_it_is_refused_before_anything_is_touched(
    scene: Scene,
) -> None:
    text = scene.run("baseless", *LORA, expect=ExitCode.CONFIGURATION)
    assert "TrainConfig.init_from names no parameters that they shall adapt" in text
    assert not (scene.folder / "baseless").exists()


def test_an_evaluation_without_a_run_says_what_it_could_score(scene: Scene) -> None:
    code, _, said = scene.run_apart("", "--run_dir=", "--mode=eval")
    assert code == ExitCode.CONFIGURATION
    assert "or parameters with TrainConfig.init_from" in said
    at = ("--run_dir=", "--mode=eval", "--checkpoint=4")
    code, _, said = scene.run_apart("", *at, start_from(scene.folder / "base"))
    assert code == ExitCode.CONFIGURATION
    assert "--checkpoint=4 is a step of --run_dir, which is missing" in said
