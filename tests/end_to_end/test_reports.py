"""What a run reports: every step once, the right numbers, and messages where they change."""

import json
import pathlib
import re

import numpy as np
import pytest

from launch.contract import ExitCode
from tests.end_to_end.runs import Scene, make_scene

pytestmark = pytest.mark.slow

SHORT = "--gin.TrainConfig.steps=8"
TEXT = """
DataConfig.source = @TextFiles()
DataConfig.tokenizer = @Bytes()
TextFiles.root = '{root}'
TextFiles.licence = 'CC0-1.0'
TextFiles.held_out = 0.3
"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Holds ``done``, a run of eight steps."""
    scene = make_scene(tmp_path_factory.mktemp("reports"))
    scene.run("done", SHORT)
    return scene


def test_a_learning_rate_that_is_too_high_skips_steps_counts_them_and_ends_with_97(
    scene: Scene,
) -> None:
    arguments = ("--gin.ScheduleConfig.peak=1e30", "--gin.TrainConfig.max_nonfinite=3")
    for _ in range(2):
        text = scene.run("hot", *arguments, expect=ExitCode.NUMERICS)
        assert "Gradients were not finite for 3 steps up to step" in text
        assert "Traceback" not in text
        rows = scene.rows("hot")
        counts = [rows[step]["nonfinite"] for step in sorted(rows)]
        assert counts[-3:] == [1, 2, 3]
        assert counts[:-3] == [0] * (len(counts) - 3)
    assert json.loads((scene.folder / "hot/attempts/2/reason.json").read_text())["code"] == 97


def test_a_short_run_leaves_every_row(scene: Scene) -> None:
    scene.run("three", "--gin.TrainConfig.steps=3", "--gin.LoggingConfig.every=10")
    assert sorted(scene.rows("three")) == [1, 2, 3]
    assert sorted(scene.rows("three", "eval")) == [3]


def test_console_rows_fall_on_multiples_also_after_a_restart_at_an_odd_step(scene: Scene) -> None:
    every = "--gin.LoggingConfig.every=5"
    scene.run("odd", "--gin.TrainConfig.steps=7", every)
    text = scene.run("odd", "--gin.TrainConfig.steps=16", every)
    assert re.findall(r"^step (\d+)/16", text, re.MULTILINE) == ["10", "15", "16"]
    assert sorted(scene.rows("odd")) == list(range(1, 17))


def test_tokens_are_counted_alike_for_any_number_of_microbatches(scene: Scene) -> None:
    scene.run("parts", SHORT, "--gin.TrainConfig.microbatches=4")
    whole, parts = scene.rows("done"), scene.rows("parts")
    assert [parts[s]["tokens"] for s in parts] == [whole[s]["tokens"] for s in whole]
    for row in parts.values():
        assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["step_time_s"])
    np.testing.assert_allclose(
        [loss for _, loss in scene.losses("parts")],
        [loss for _, loss in scene.losses("done")],
        rtol=1e-5,
    )


def test_an_evaluation_that_was_missed_before_a_restart_is_made_up(scene: Scene) -> None:
    folder = scene.copy("done", "missed")
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["kind"] == "train"]
    assert len(kept) == len(lines) - 1
    path.write_text("".join(kept))
    scene.run("missed", "--gin.TrainConfig.steps=9")
    assert scene.rows("missed", "eval")[8] == scene.rows("done", "eval")[8]
    assert sorted(scene.rows("missed", "eval")) == [8, 9]


def test_a_longer_run_says_how_the_learning_rate_moves_and_how_to_keep_it(scene: Scene) -> None:
    open_end = "--gin.ScheduleConfig.decay_steps=None"
    scene.run("longer", SHORT, open_end)
    scene.copy("longer", "kept")
    text = scene.run("longer", "--gin.TrainConfig.steps=12", open_end)
    (told,) = [line for line in text.splitlines() if "TrainConfig.steps went from 8 to 12" in line]
    found = re.search(r"learning rate at step 8 from (\S+) to (\S+?)\.? Schedule", told)
    assert found, told
    assert float(found[1]) < float(found[2])
    rows = scene.rows("longer")
    assert rows[9]["learning_rate"] == pytest.approx(float(found[2]), rel=1e-5)
    keep = ("--gin.ScheduleConfig.decay_steps=8", "--allow_change=ScheduleConfig.decay_steps")
    text = scene.run("kept", "--gin.TrainConfig.steps=12", *keep)
    assert "which moves the learning rate" not in text
    assert scene.rows("kept")[9]["learning_rate"] == pytest.approx(float(found[1]), rel=1e-5)


def test_the_learning_rate_goes_on_where_it_was(scene: Scene) -> None:
    scene.copy("done", "resumed")
    scene.run("resumed", "--gin.TrainConfig.steps=12")
    scene.run("straight", "--gin.TrainConfig.steps=12")
    resumed, straight = scene.rows("resumed"), scene.rows("straight")
    timed = ("_s", "_per_second")
    for step, row in straight.items():
        for name, value in row.items():
            if not name.endswith(timed):
                assert resumed[step][name] == value, (step, name)
    assert len({row["learning_rate"] for row in straight.values()}) == 12


def test_text_is_sampled_at_the_end_and_the_steps_asked_for_are_profiled(
    scene: Scene, tmp_path: pathlib.Path
) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(20):
        (texts / f"{number}.txt").write_text(f"def f{number}(x):\n    return x + {number}\n" * 9)
    gin = tmp_path / "text.gin"
    start, _, _ = scene.gin.read_text().partition("DataConfig.source")
    gin.write_text(start + TEXT.format(root=texts))
    text_scene = Scene(tmp_path, gin)
    arguments = ("--gin.TrainConfig.steps=3", "--gin.EvaluationConfig.sample_tokens=8")
    text = text_scene.run("run", *arguments, "--profile_steps=1:2")
    sample = text.partition("Sample:\n")[2]
    assert sample.startswith("def ")
    assert (tmp_path / "run/summary.json").exists()
    assert len(list((tmp_path / "run/profiles").rglob("*.xplane.pb"))) == 1
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert {"eval_bits_per_byte", "unigram_bits_per_byte", "bigram_bits_per_byte"} <= set(summary)
    (tmp_path / "blocked").write_text("")
    text = text_scene.run(
        "blocked_run", *arguments, f"--cache_dir={tmp_path / 'blocked'}", expect=ExitCode.DATA
    )
    assert str(tmp_path / "blocked") in text
    assert "Traceback" not in text
