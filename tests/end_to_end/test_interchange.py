"""A model of Hugging Face is fine-tuned, sampled from and given back, through the commands."""

import dataclasses
import json
import math
import pathlib
import pickle
import pickletools
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest

from input_pipeline.tokenizer import ByteTokenizer
from input_pipeline.tokenizer_files import save_tokenizer
from models.decoder_config import DecoderConfig
from models.huggingface.source import open_source
from tests.end_to_end import runs
from tests.end_to_end.runs import REPOSITORY
from tests.models.huggingface.folders import SMALL, write_folder

BASE = dataclasses.replace(SMALL, vocab_size=272)
CONFIG = """
include '{bindings}'
include 'configs/data/conversations.gin'
include 'configs/partitioning/fsdp.gin'
include 'configs/optimizers/adamw.gin'
RunConfig.task = @LanguageModel()
DecoderConfig.dtype = 'float32'
Conversations.root = '{folder}/chats'
Conversations.licence = 'CC0-1.0'
Conversations.template = 'plain'
Conversations.held_out = 0.2
TokenizerFile.path = '{folder}/model'
TrainConfig.init_from = '{base}'
TrainConfig.steps = 30
ScheduleConfig.peak = 3e-2
DataConfig.global_batch = 8
DataConfig.sequence_length = 64
LoggingConfig.tensorboard = False
"""


def run(*arguments: str, module: str = "trainer.main") -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclasses.dataclass(frozen=True)
class Scene:
    """A folder with a model, conversations, and what is made of them."""

    folder: pathlib.Path

    def gin(self, name: str, *, bindings: pathlib.Path, base: pathlib.Path) -> str:
        path = self.folder / f"{name}.gin"
        text = CONFIG.format(folder=self.folder, bindings=bindings, base=base)
        path.write_text(text)
        return f"--gin_file={path}"


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Scene:
    folder = tmp_path_factory.mktemp("interchange")
    write_folder(folder / "model", BASE, dtype="bfloat16", files=2, scale=0.05)
    save_tokenizer(folder / "model", ByteTokenizer())
    (folder / "chats").mkdir()
    lines = [
        {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": "no"}]}
        for n in range(200)
    ]
    (folder / "chats" / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    run("import", folder / "model", folder / "imported", module="models.huggingface")
    (folder / "model.gin").write_text((folder / "imported" / "model.gin").read_text())
    return Scene(folder)


def losses(run_dir: pathlib.Path) -> list[float]:
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row["kind"] == "train"]


def test_a_model_is_tuned_answers_and_goes_back(scene: Scene) -> None:
    folder = scene.folder
    bindings = folder / "imported" / "model.gin"
    gin = scene.gin("tuned", bindings=bindings, base=folder / "imported")
    told = run(gin, f"--run_dir={folder / 'tuned'}", f"--cache_dir={folder / 'cache'}")
    assert f"Starts from the parameters of {folder / 'imported' / 'checkpoints' / '0.a1'}." in told
    assert "Next: ask it with --mode=generate" in told
    found = losses(folder / "tuned")
    assert found[-1] < 0.2 * found[0]

    told = run(
        *(gin, f"--run_dir={folder / 'tuned'}", f"--cache_dir={folder / 'cache'}"),
        *("--mode=generate", "--chat", "--prompt=7?", "--json", "--max_tokens=20"),
    )
    answer = json.loads(told)
    assert (answer["continuation"], answer["stopped"]) == ("no", True)

    exported = folder / "exported"
    run(
        *("export", folder / "tuned", exported, f"--cache_dir={folder / 'cache'}"),
        module="models.huggingface",
    )
    assert open_source(exported).config.layers == BASE.layers
    content = json.loads((exported / "config.json").read_text())
    assert content["eos_token_id"] == [258]
    assert content["max_position_embeddings"] >= 64
    assert "### Assistant" in (exported / "chat_template.jinja").read_text()

    again = scene.gin("again", bindings=bindings, base=exported)
    scores = json.loads(run(again, "--mode=eval", f"--cache_dir={folder / 'cache'}"))
    before = scene.gin("before", bindings=bindings, base=folder / "model")
    first = json.loads(run(before, "--mode=eval", f"--cache_dir={folder / 'cache'}"))
    assert scores["loss"] < 0.2 * first["loss"]
    assert scores["init_from"] == str(exported)


def test_adapters_beside_a_folder_are_merged_when_they_go_back(scene: Scene) -> None:
    """Trained beside the folder as it was downloaded; the export computes what the run computed."""
    folder, cache = scene.folder, f"--cache_dir={scene.folder / 'cache'}"
    base = folder / "base"
    shutil.copytree(folder / "model", base)
    gin = scene.gin("lora", bindings=folder / "model.gin", base=base)
    lora = (
        *("--gin.DecoderConfig.lora=@LoraConfig()", "--gin.LoraConfig.rank=4"),
        *("--gin.LoraConfig.targets=('attention/.*/kernel', 'mlp/.*/kernel')",),
        *("--gin.LoraConfig.alpha=16.0", "--gin.ScheduleConfig.peak=0.1"),
    )
    run(gin, *lora, f"--run_dir={folder / 'lora'}", cache)
    scored = json.loads(run(gin, *lora, f"--run_dir={folder / 'lora'}", cache, "--mode=eval"))
    run("export", folder / "lora", folder / "merged", cache, module="models.huggingface")
    merged = scene.gin("merged", bindings=folder / "model.gin", base=folder / "merged")
    again = json.loads(run(merged, "--mode=eval", cache))
    assert again["loss"] == pytest.approx(scored["loss"], rel=1e-5)
    straight = scene.gin("straight", bindings=folder / "model.gin", base=folder / "lora")
    assert json.loads(run(straight, "--mode=eval", cache))["loss"] == again["loss"]
    before = json.loads(
        run(scene.gin("none", bindings=folder / "model.gin", base=base), "--mode=eval", cache)
    )
    assert scored["loss"] < before["loss"] - 0.02  # the head is frozen: adapters cannot do much

    index = base / "model-00001-of-00002.safetensors"
    content = bytearray(index.read_bytes())
    content[-1] ^= 1
    index.write_bytes(content)
    scoring = ["trainer.main", gin, *lora, f"--run_dir={folder / 'lora'}", cache, "--mode=eval"]
    exporting = ["models.huggingface", "export", str(folder / "lora"), str(folder / "no")]
    for command, words in ((scoring, "another base"), (exporting, "has changed since")):
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=REPOSITORY, capture_output=True, text=True
        )
        assert done.returncode == 64, done.stderr
        assert words in done.stderr
    assert not (folder / "no").exists()


@pytest.mark.parametrize("mesh", [("fsdp=4",), ("stage=2", "tensor=2")], ids=str)
def test_a_folder_starts_a_run_on_any_mesh_as_its_import_does(scene: Scene, mesh) -> None:
    folder = scene.folder
    found = {}
    for base in ("model", "imported"):
        name = f"{base}-{'-'.join(mesh)}"
        gin = scene.gin(name, bindings=folder / "model.gin", base=folder / base)
        run(
            *(gin, f"--run_dir={folder / name}", f"--cache_dir={folder / 'cache'}"),
            *("--cpu_devices=4", "--gin.TrainConfig.steps=2", "--gin.MeshConfig.fsdp=1"),
            *("--gin.TrainConfig.microbatches=2", "--gin.EvaluationConfig.max_batches=1"),
            *(f"--gin.MeshConfig.{size}" for size in mesh),
        )
        found[base] = losses(folder / name)
    assert found["model"] == found["imported"]
    assert math.isfinite(found["model"][0])


def test_two_processes_start_from_a_folder_as_one_does(tmp_path: pathlib.Path) -> None:
    """Each reads its own devices' half: of two stages one layer each."""
    small = runs.make_scene(tmp_path)
    tiny = DecoderConfig(
        vocab_size=320, embed_dim=32, layers=2, heads=4, kv_heads=2, mlp_dim=64, dtype="float32"
    )
    write_folder(tmp_path / "model", tiny, dtype="bfloat16", scale=0.05)
    plan = (
        f"--gin.TrainConfig.init_from='{tmp_path / 'model'}'",
        *("--gin.MeshConfig.stage=2", "--gin.TrainConfig.microbatches=2"),
        *("--gin.MeshConfig.fsdp=1", "--gin.TrainConfig.steps=3"),
    )
    small.run("together", *plan, "--cpu_devices=2")
    gang = small.gang("apart", *plan, processes=2)
    told = runs.outputs(gang)
    assert [process.returncode for process in gang] == [0, 0], told
    assert small.losses("apart") == small.losses("together")


def test_another_model_than_the_folders_is_refused_by_its_fields(scene: Scene) -> None:
    gin = scene.gin("wrong", bindings=scene.folder / "model.gin", base=scene.folder / "model")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trainer.main", gin, "--mode=eval"),
            *("--gin.DecoderConfig.rope_base=5e5", f"--cache_dir={scene.folder / 'cache'}"),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 64
    assert "rope_base" in done.stderr
    assert "Traceback" not in done.stderr


def pickles(path: pathlib.Path) -> bool:
    """Whether a file is a pickle of any protocol: opcodes from its first byte to a STOP.

    Text may be opcodes of protocol 0 by chance, so that such a file must also build something.
    """
    data = path.read_bytes()
    try:
        with warnings.catch_warnings(action="ignore"):  # of text that is taken for opcodes
            names = {operation.name for operation, _, _ in pickletools.genops(data)}
    except (ValueError, IndexError, UnicodeDecodeError):
        return False
    return bool(names & {"PROTO", "REDUCE", "BUILD", "GLOBAL", "INST", "OBJ"})


def test_no_file_of_a_run_an_import_or_an_export_is_a_pickle(scene: Scene) -> None:
    control = scene.folder / "control"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        control.write_bytes(pickle.dumps(np.zeros(3), protocol))
        assert pickles(control)
    control.unlink()
    files = [path for path in scene.folder.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert [path for path in files if pickles(path)] == []
