"""Models of Hugging Face in and out through the commands."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest
from safetensors import safe_open

from models.huggingface.safetensors_files import TensorFolder
from models.huggingface.source import open_source
from tests.end_to_end.runs import mounted
from tests.models.huggingface.folders import SMALL, SPARSE, write_folder
from trainer.checkpoints.reading import open_step
from trainer.exporting import export_step
from trainer.importing import import_folder
from trainer.stored_config import stored_config


def command(*arguments: str | pathlib.Path, code: int = 0) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [sys.executable, "-m", "models.huggingface", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
    )
    assert done.returncode == code, done.stderr
    return done


def bits(folder: pathlib.Path) -> dict[str, tuple[str, bytes]]:
    """Name -> type and bytes of every tensor of a folder."""
    opened = TensorFolder(folder)
    return {
        name: (stored.dtype, opened.read(name, (slice(None),) * len(stored.shape)).tobytes())
        for name, stored in opened.tensors.items()
    }


NARROW = dataclasses.replace(SMALL, embed_dim=15, heads=3, kv_heads=3, head_dim=2, layers=1)


@pytest.mark.parametrize("config", [SMALL, SPARSE, NARROW], ids=["dense", "sparse", "narrow"])
def test_what_was_imported_is_exported_bit_by_bit(tmp_path: pathlib.Path, config) -> None:
    write_folder(tmp_path / "model", config, dtype="bfloat16", files=2)
    import_folder(tmp_path / "model", tmp_path / "imported")
    export_step(
        str(tmp_path / "imported"),
        tmp_path / "back",
        cache_dir=tmp_path,
        dtype="bfloat16",
        shard_bytes=4000,
    )
    assert bits(tmp_path / "back") == bits(tmp_path / "model")
    assert len(list((tmp_path / "back").glob("*.safetensors"))) > 2
    assert open_source(tmp_path / "back").config == open_source(tmp_path / "model").config
    assert stored_config(str(tmp_path / "imported"))[0] == config


def test_the_commands_go_there_and_back_and_say_what_they_did(tmp_path: pathlib.Path) -> None:
    write_folder(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    told = command("inspect", tmp_path / "model")
    assert "DecoderConfig.embed_dim = 16" in told.stdout
    assert "lm_head.weight" in told.stdout
    told = command("import", tmp_path / "model", tmp_path / "imported", "--json")
    numbers = json.loads(told.stdout)
    assert numbers["parameters"] == sum(x.size for x in write_folder(tmp_path / "b").values())
    assert numbers["peak_bytes"] > 0
    assert (tmp_path / "imported" / "tokenizer.json").read_text() == "{}"
    assert f"init_from=\"'{tmp_path}" not in told.stdout
    told = command("export", tmp_path / "imported" / "checkpoints" / "0.a1", tmp_path / "back")
    assert "0.a1" in told.stdout
    with safe_open(tmp_path / "back" / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    assert bits(tmp_path / "back") == bits(tmp_path / "model")


def test_the_parameters_may_be_kept_in_sixteen_bits(tmp_path: pathlib.Path) -> None:
    write_folder(tmp_path / "model", dtype="bfloat16")
    import_folder(tmp_path / "model", tmp_path / "imported", param_dtype="bfloat16")
    with open_step(str(tmp_path / "imported")) as step:
        assert {leaf.dtype for leaf in step.tree.values()} == {"bfloat16"}
    assert "param_dtype = 'bfloat16'" in (tmp_path / "imported" / "model.gin").read_text()
    export_step(str(tmp_path / "imported"), tmp_path / "back", cache_dir=tmp_path)
    assert bits(tmp_path / "back") == bits(tmp_path / "model")


def test_all_that_a_tokenizer_is_read_from_comes_along(tmp_path: pathlib.Path) -> None:
    write_folder(tmp_path / "model")
    beside = ["spiece.model", "tokenizer_config.json", "additional_chat_templates/rag.jinja"]
    for name in beside:
        (tmp_path / "model" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "model" / name).write_text(name)
    import_folder(tmp_path / "model", tmp_path / "imported")
    export_step(str(tmp_path / "imported"), tmp_path / "back", cache_dir=tmp_path)
    for name in beside:
        assert (tmp_path / "imported" / name).read_text() == name
        assert (tmp_path / "back" / name).read_text() == name


@pytest.mark.parametrize("arguments", [["import", "IN", "OUT"], ["export", "IN", "OUT"]])
def test_nothing_is_written_over(tmp_path: pathlib.Path, arguments: list[str]) -> None:
    write_folder(tmp_path / "IN")
    (tmp_path / "OUT").mkdir()
    where = [str(tmp_path / each) if each.isupper() else each for each in arguments]
    assert "exists already" in command(*where, code=64).stderr


def test_what_is_wrong_is_said_without_a_traceback(tmp_path: pathlib.Path) -> None:
    write_folder(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": {}}))
    told = command("import", tmp_path / "model", tmp_path / "imported", code=64).stderr
    assert "quantization_config" in told
    assert "Traceback" not in told
    assert not (tmp_path / "imported").exists()
    told = command("export", tmp_path / "nowhere", tmp_path / "out", code=64).stderr
    assert "Traceback" not in told
    assert "nowhere" in told


def test_a_damaged_step_is_not_exported(tmp_path: pathlib.Path) -> None:
    write_folder(tmp_path / "model")
    import_folder(tmp_path / "model", tmp_path / "imported")
    (data,) = (tmp_path / "imported" / "checkpoints").rglob("ocdbt.process_0/d/*")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    told = command("export", tmp_path / "imported", tmp_path / "out", code=64).stderr
    assert "has changed: SHA-256" in told
    assert not (tmp_path / "out").exists()


def test_a_link_to_nothing_is_not_written_over(tmp_path: pathlib.Path) -> None:
    write_folder(tmp_path / "model")
    (tmp_path / "out").symlink_to("nowhere")
    with pytest.raises(ValueError, match="exists already"):
        import_folder(tmp_path / "model", tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "holds list instead of an object"),
        ("{", "is no JSON"),
        (None, "has no config.json"),
        ('{"eos_token_id": "</s>"}', "eos_token_id='</s>' must be a number or a list"),
        ('{"bos_token_id": 1.5}', "bos_token_id=1.5 must be a number"),
    ],
)
def test_a_changed_import_is_refused_before_a_model_is_written(
    tmp_path: pathlib.Path, content, said, monkeypatch
) -> None:
    write_folder(tmp_path / "model")
    import_folder(tmp_path / "model", tmp_path / "imported")
    path = tmp_path / "imported" / "config.json"
    path.unlink() if content is None else path.write_text(content)
    monkeypatch.setattr("trainer.exporting.FolderWriter", None)
    with pytest.raises(ValueError, match=said):
        export_step(str(tmp_path / "imported"), tmp_path / "out", cache_dir=tmp_path)
    assert not (tmp_path / "out").exists()


def test_an_import_is_not_imported_again(tmp_path: pathlib.Path) -> None:
    write_folder(tmp_path / "model")
    import_folder(tmp_path / "model", tmp_path / "imported")
    with pytest.raises(ValueError, match="imported already"):
        open_source(tmp_path / "imported")


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: pathlib.Path) -> None:
    write_folder(tmp_path / "model", dataclasses.replace(SMALL, vocab_size=80_000))
    small = tmp_path / "small"
    with mounted(small, "-t", "tmpfs", "-o", "size=5m", "tmpfs"):
        told = command("import", tmp_path / "model", small / "out", code=86).stderr
        assert "is full" in told
        assert "Traceback" not in told
        assert [p.name for p in small.iterdir()] == [".out.lock"]


def test_an_interrupted_import_leaves_nothing(tmp_path: pathlib.Path) -> None:
    write_folder(tmp_path / "model", dtype="bfloat16")
    stop = (
        "import os, signal\n"
        "from trainer import importing\n"
        "importing.loading.load = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)\n"
        "import sys\n"
        "from models.huggingface.__main__ import main\n"
        f"sys.exit(main(['import', {str(tmp_path / 'model')!r}, {str(tmp_path / 'out')!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", stop], capture_output=True, text=True)
    assert done.returncode == 128 + signal.SIGINT
    assert "Traceback" not in done.stderr
    assert [p.name for p in tmp_path.iterdir() if p.name != "model" and ".lock" not in p.name] == []


def test_a_run_of_any_mesh_is_exported(tmp_path: pathlib.Path) -> None:
    """Trained on two stages of two chunks, whose layers stand in another order on devices."""
    run = tmp_path / "run"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trainer.main", "--gin_file=configs/runs/quickstart.gin"),
            *(f"--run_dir={run}", "--cpu_devices=4", "--gin.TrainConfig.steps=1"),
            *("--gin.MeshConfig.stage=2", "--gin.PipelineConfig.chunks=2"),
            *("--gin.TrainConfig.microbatches=4", "--gin.DecoderConfig.layers=8"),
            *("--gin.DecoderConfig.embed_dim=24", "--gin.TrainConfig.ema_decay=0.5"),
            *("--gin.EvaluationConfig.max_batches=1", "--gin.EvaluationConfig.sample_tokens=0"),
            "--gin.DecoderConfig.mlp_dim=32",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    exported = export_step(str(run), tmp_path / "out", cache_dir=tmp_path)
    assert exported.averaged
    assert (exported.step, exported.architecture) == ("1.a1", "LlamaForCausalLM")
    source = open_source(tmp_path / "out")
    with open_step(str(run)) as step:
        up = step.read("groups/model/average/stacks/pattern/blocks/0/mlp/up/kernel")
    for layer in range(8):
        name = f"model.layers.{layer}.mlp.up_proj.weight"
        np.testing.assert_array_equal(source.stored.read(name, (slice(None),) * 2), up[layer].T)
