"""A file of conversations is fine-tuned on through the front door."""

import json
import pathlib
import random

import pytest

from launch.exit_codes import ExitCode
from tests.end_to_end.runs import Scene

pytestmark = pytest.mark.slow
CONFIG = """
TrainConfig.steps = 40
DataConfig.global_batch = 4
DataConfig.sequence_length = 96
ScheduleConfig.peak = 1e-2
CheckpointConfig.every = 10
EvaluationConfig.every = 20
LoggingConfig.every = 1
RunConfig.task = @LanguageModel()
include 'configs/models/tiny.gin'
include 'configs/optimizers/adamw.gin'
include 'configs/partitioning/fsdp.gin'
include 'configs/data/conversations.gin'
DataConfig.tokenizer = @Bytes()
Conversations.root = '{lines}'
Conversations.licence = 'CC0-1.0'
Conversations.template = 'plain'
Conversations.held_out = 0.2
"""
ANSWER = "yes"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder = tmp_path_factory.mktemp("conversations")
    draw = random.Random(0)
    (folder / "lines").mkdir()
    with (folder / "lines" / "a.jsonl").open("w") as file:
        for _ in range(60):
            noise = "".join(draw.choices("abcdefgh", k=draw.randint(3, 30)))
            file.write(json.dumps({"prompt": noise, "completion": ANSWER}) + "\n")
    gin = folder / "run.gin"
    gin.write_text(CONFIG.format(lines=folder / "lines"))
    return Scene(folder, gin)


def test_answers_are_learned_and_questions_are_not(scene: Scene) -> None:
    output = scene.run("whole")
    assert "tokens are to be learned" in output
    rows = scene.rows("whole")
    each = len(ANSWER) + 1  # with the end token
    assert all(row["tokens"] % each == 0 and row["tokens"] >= 4 * each for row in rows.values())
    # Random letters take two nats each; a fixed answer takes none.
    assert rows[40]["loss"] < 0.1
    assert scene.rows("whole", "eval")[40]["loss"] < 0.1
    scene.run("all", "--gin.Conversations.train_on='all'")
    assert scene.rows("all")[40]["loss"] > 0.5


def test_a_run_that_goes_on_has_the_same_losses(scene: Scene) -> None:
    scene.run("parts", "--gin.TrainConfig.steps=20", "--gin.ScheduleConfig.decay_steps=40")
    scene.run("parts", "--gin.ScheduleConfig.decay_steps=40")
    scene.run("once", "--gin.ScheduleConfig.decay_steps=40")
    assert scene.losses("parts") == scene.losses("once")


def test_a_bad_line_is_named_before_anything_is_compiled(
    scene: Scene, tmp_path: pathlib.Path
) -> None:
    good = json.dumps({"prompt": "a", "completion": "b"})
    (tmp_path / "bad.jsonl").write_text(f"{good}\n" + '{"messages": [{"role": "user"}]}\n')
    code, _, errors = scene.run_apart("bad", f"--gin.Conversations.root='{tmp_path}'")
    assert code == ExitCode.DATA, errors
    assert "bad.jsonl:2: message 1 has no 'content'" in errors
