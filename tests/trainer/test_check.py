"""``python -m trainer.check`` says before a run is submitted what would stop it."""

import json
import pathlib
import subprocess
import sys
import threading

import jax.numpy as jnp
import numpy as np
import pytest

from input_pipeline.manifest import Manifest
from input_pipeline.token_writer import write_tokens
from launch.contract import Finding, RunRecord, Verdict
from trainer import check, config, config_record, readiness
from trainer.checkpoints.root import open_root
from trainer.checkpoints.store import CheckpointStore
from trainer.fleet import cluster_of
from trainer.readiness import Directory, examine
from trainer.run_config import CheckpointConfig

QUICKSTART = ("configs/runs/quickstart.gin",)
MIXTRAL = ("configs/runs/mixtral_8x7b_64.gin",)
PIPELINE = ("configs/runs/llama3_70b_512_pp.gin",)


def wrong(
    files: tuple[str, ...], *bindings: str, devices: int = 1, processes: int = 1
) -> dict[str, str]:
    """What is wrong with a run, leaving out that its data is not here."""
    found = examine(files, bindings, devices=devices, processes=processes)
    errors = {f.about: f.message for f in found if f.verdict is Verdict.ERROR}
    return {about: message for about, message in errors.items() if "No token" not in message}


def test_the_quickstart_is_ready() -> None:
    found = examine(QUICKSTART, (), devices=1, processes=1)
    assert [f.about for f in found if f.verdict is Verdict.OK] == [
        "configuration",
        "mesh",
        "batch",
        "model",
        "pipeline",
        "data",
    ]
    why = "not checked: name the devices, as in --cluster=h100_512."
    assert found[-1] == Finding(about="memory", verdict=Verdict.INFO, message=why)


@pytest.mark.parametrize(
    ("files", "devices", "hosts"),
    [(MIXTRAL, 64, 8), (PIPELINE, 512, 64), (("configs/runs/llama3_70b_512.gin",), 512, 64)],
)
def test_the_large_runs_fit_their_devices(files: tuple[str, ...], devices: int, hosts: int) -> None:
    assert wrong(files, devices=devices, processes=hosts) == {}


@pytest.mark.parametrize(
    ("files", "bindings", "devices", "processes", "about", "expected"),
    [
        (QUICKSTART, ("TrainConfig.step=1",), 1, 1, "configuration", "steps"),
        (("nowhere.gin",), (), 1, 1, "configuration", "nowhere.gin"),
        (MIXTRAL, (), 48, 6, "mesh", "needs 64 devices, but there are 48"),
        (QUICKSTART, (), 8, 3, "mesh", "8 devices do not divide over 3 processes"),
        (QUICKSTART, ("DataConfig.global_batch=7",), 2, 1, "batch", "multiple of 2"),
        (QUICKSTART, ("DecoderConfig.loss_chunks=7",), 1, 1, "model", "loss_chunks=7"),
        (QUICKSTART, ("MeshConfig.tensor=3", "MeshConfig.fsdp=1"), 3, 1, "model", "multiple of"),
        (MIXTRAL, ("ExpertsConfig.count=9",), 64, 8, "model", "count=9 does not divide"),
        (PIPELINE, ("PipelineConfig.chunks=3",), 512, 64, "pipeline", "do not divide over"),
        (PIPELINE, ("TrainConfig.microbatches=2",), 512, 64, "pipeline", "at least 4"),
    ],
)
def test_what_does_not_fit_is_named_with_its_numbers(
    files: tuple[str, ...],
    bindings: tuple[str, ...],
    devices: int,
    processes: int,
    about: str,
    expected: str,
) -> None:
    assert expected in wrong(files, *bindings, devices=devices, processes=processes)[about]


def test_everything_that_is_wrong_is_told_at_once() -> None:
    bindings = ("DataConfig.global_batch=7", "DecoderConfig.loss_chunks=7")
    assert set(wrong(QUICKSTART, *bindings, devices=2)) == {"batch", "model"}


@pytest.mark.parametrize(
    ("bindings", "expected"),
    [
        (("TokenShards.path='nowhere'",), "No token shards in"),
        (("RunConfig.task=@LanguageModel()", "TokenShards.path='.'"), "no manifest.json"),
    ],
)
def test_missing_shards_are_named(bindings: tuple[str, ...], expected: str) -> None:
    found = examine(MIXTRAL, bindings, devices=64, processes=8)
    (error,) = (f for f in found if f.verdict is Verdict.ERROR)
    assert expected in error.message
    assert check.exit_code(found) == 65


def shards(folder: pathlib.Path) -> str:
    part = np.arange(4000) % 300, np.full(40, 100)
    write_tokens(
        folder,
        manifest=Manifest(name="numbers", source="test", licence="CC0-1.0", files=()),
        vocab_size=300,
        splits={"train": [part], "held_out": [part]},
    )
    return f"TokenShards.path={str(folder)!r}"


def test_shards_are_named_with_their_licence_and_their_vocabulary_must_fit(
    tmp_path: pathlib.Path,
) -> None:
    path = shards(tmp_path / "shards")
    found = examine(MIXTRAL, (path,), devices=64, processes=8)
    (data,) = (f for f in found if f.about == "data")
    assert data.verdict is Verdict.OK
    assert "numbers, licence CC0-1.0" in data.message
    small = (path, "DecoderConfig.vocab_size=256")
    assert "300 tokens, more than" in wrong(MIXTRAL, *small, devices=64, processes=8)["data"]


def test_a_damaged_manifest_is_an_error_and_no_traceback(tmp_path: pathlib.Path) -> None:
    path = shards(tmp_path / "shards")
    for text in ("", "{", "[]", "{}", '{"version": 1}'):
        (tmp_path / "shards" / "manifest.json").write_text(text)
        assert "data" in wrong(MIXTRAL, path, devices=64, processes=8)


def test_text_needs_files_and_a_licence(tmp_path: pathlib.Path) -> None:
    source = ("DataConfig.source=@TextFiles()", f"TextFiles.root={str(tmp_path)!r}")
    assert "matches no file" in wrong(QUICKSTART, *source)["data"]
    (tmp_path / "a.txt").write_text("text")
    assert "names no licence" in wrong(QUICKSTART, *source)["data"]
    assert wrong(QUICKSTART, *source, "TextFiles.licence='CC0-1.0'") == {}


def test_conversations_need_files_and_a_folder_may_hold_the_tokenizer(
    tmp_path: pathlib.Path,
) -> None:
    bindings = (
        "DataConfig.source=@Conversations()",
        f"Conversations.root='{tmp_path}'",
        "Conversations.licence='CC0-1.0'",
        "DataConfig.tokenizer=@TokenizerFile()",
        f"TokenizerFile.path='{tmp_path}'",
    )
    found = examine(QUICKSTART, bindings, devices=1, processes=1)
    errors = [f.message for f in found if f.verdict is Verdict.ERROR]
    assert len(errors) == 2
    assert "Conversations.files: pattern" in errors[0]
    assert "neither tokenizer.json nor a SentencePiece" in errors[1]
    (tmp_path / "a.jsonl").write_text("")
    (tmp_path / "tokenizer.model").write_bytes(b"")
    assert "no chat template" in wrong(QUICKSTART, *bindings)["data"]
    template = tmp_path / "chat_template.jinja"
    template.write_text("{{ strftime_now('%d') }}{% for m in messages %}")
    assert "'default', line 1:" in wrong(QUICKSTART, *bindings)["data"]
    template.write_text("{{ strftime_now('%d') }}")
    assert "Set Conversations.date" in wrong(QUICKSTART, *bindings)["data"]
    assert wrong(QUICKSTART, *bindings, "Conversations.date='2024-07-26'") == {}
    assert wrong(QUICKSTART, *bindings, "Conversations.template='chatml'") == {}


def test_a_tokenizer_that_is_not_there_is_named() -> None:
    tokenizer = (
        "DataConfig.tokenizer=@TokenizerFile()",
        "TokenizerFile.path='nowhere.json'",
        "TokenizerFile.bos='a'",
        "TokenizerFile.eos='a'",
    )
    assert "nowhere.json" in wrong(QUICKSTART, *tokenizer)["data"]


def directory(
    url: pathlib.Path | str, *, run_id: str = "", bindings: tuple[str, ...] = (), allow: str = ""
) -> list[str]:
    """What is said of a run directory."""
    there = Directory(url=str(url), run_id=run_id, allow_change=(allow,) if allow else ())
    found = examine(QUICKSTART, bindings, devices=1, processes=1, directory=there)
    return [f"{f.verdict}: {f.message}" for f in found if f.about == "checkpoint"]


@pytest.fixture
def trained(tmp_path: pathlib.Path) -> pathlib.Path:
    """A run directory with a saved step, as far as `readiness` looks."""
    folder = tmp_path / "run"
    (folder / "attempts" / "1" / "config").mkdir(parents=True)
    record = RunRecord(run_id="mine", created=0.0, identity="")
    (folder / "run.json").write_text(record.to_json())
    resolved = json.dumps(config_record.resolved(config.load(QUICKSTART)))
    (folder / "attempts" / "1" / "config" / "resolved.json").write_text(resolved)
    (folder / "checkpoints" / "10.a1").mkdir(parents=True)
    (folder / "checkpoints" / "10.a1" / "manifest.json").write_text("{}")
    return folder


def test_a_new_directory_is_not_made(tmp_path: pathlib.Path) -> None:
    assert directory(tmp_path / "new") == [f"ok: {tmp_path / 'new'} holds nothing yet."]
    assert list(tmp_path.iterdir()) == []


def test_the_directory_of_another_run_is_refused(trained: pathlib.Path) -> None:
    assert "ok" in directory(trained, run_id="mine")[0]
    assert "holds run 'mine', not 'other'" in directory(trained, run_id="other")[0]
    (trained / "run.json").write_text("{")
    assert directory(trained)[0].startswith("error")
    (trained / "run.json").unlink()
    assert "no run.json" in directory(trained)[0]


def test_a_change_that_the_run_would_refuse_is_told_before(trained: pathlib.Path) -> None:
    changes = ("DataConfig.global_batch=16", "LoggingConfig.every=3")
    assert ["error: DataConfig.global_batch: 8 -> 16" in line for line in
            directory(trained, bindings=changes)] == [False, True]  # fmt: skip
    told = directory(trained, bindings=changes, allow="DataConfig.global_batch")
    assert told[1:] == [
        "info: changes DataConfig.global_batch: 8 -> 16",
        "info: changes LoggingConfig.every: 10 -> 3",
    ]


def test_a_store_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()

    def open_late(url: str) -> None:
        answer.wait(60)
        raise OSError(url)

    monkeypatch.setattr(readiness, "DIRECTORY_S", 0.01)
    monkeypatch.setattr(readiness, "open_root", open_late)
    assert directory("gs://a/b") == [
        "warning: gs://a/b did not answer within 0.01 s; not looked at."
    ]
    answer.set()


def test_a_fault_of_ours_is_not_hidden_behind_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(readiness, "open_root")
    with pytest.raises(NameError, match="open_root"):
        directory("gs://a/b")


def test_a_url_that_is_none_is_refused() -> None:
    assert "scheme 'hdfs'" in directory("hdfs://a/b")[0]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainer.check", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_command_prints_lines_or_one_object() -> None:
    gin = f"--gin_file={QUICKSTART[0]}"
    done = command(gin)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("info     memory: not checked: name the")
    done = command(gin, "--devices=3", "--gin.MeshConfig.fsdp=2", "--json")
    assert done.returncode == 64, done.stderr
    found = json.loads(done.stdout)
    assert found["exit_code"] == 64
    assert {"about": "mesh", "verdict": "error"}.items() <= found["findings"][1].items()


EIGHT = "--gin_file=configs/runs/llama3_8b_8.gin"


def layout(*flags: str) -> dict[str, str]:
    """What is said of memory, layout and price."""
    found = json.loads(command(EIGHT, "--json", *flags).stdout)
    return {f["about"]: f"{f['verdict']}: {f['message']}" for f in found["findings"]}


def test_memory_is_the_planner_s_formula_for_the_devices_that_are_named() -> None:
    found = layout("--cluster=h100_8")
    assert found["memory"].startswith("ok: ")
    assert "by formula, largest: activations" in found["memory"]
    assert "8 devices at $2.00 an hour" in found["price"]
    assert layout("--devices=8", "--accelerator=h100") == found
    assert (
        "error: does not fit into v5e" in layout("--devices=8", "--accelerator=tpu-v5e")["memory"]
    )


@pytest.mark.parametrize(
    ("accelerator", "cluster"),
    [
        ("h100", "h100_16"),
        ("a100", "a100_80gb_16"),
        ("a100-40", "a100_40gb_16"),
        ("tpu-v5p", "v5p_16"),
        ("tpu-7x", "tpu7x_16"),
        ("cpu", None),
    ],
)
def test_kinds_of_job_files_are_clusters(accelerator: str, cluster: str | None) -> None:
    assert cluster_of(accelerator, devices=16) == cluster


@pytest.mark.parametrize(
    ("accelerator", "why"),
    [("cpu", "share their host's"), ("abacus", "nothing is known of 'abacus'")],
)
def test_devices_without_figures_are_not_judged(accelerator: str, why: str) -> None:
    found = layout("--devices=8", f"--accelerator={accelerator}")
    assert found["memory"].startswith("info: not checked")
    assert why in found["memory"]
    assert "price" not in found


def test_a_layout_that_does_not_divide_is_not_judged_any_further() -> None:
    assert "memory" not in layout("--cluster=h100_8", "--gin.DataConfig.global_batch=7")


def test_what_can_be_compiled_for_is_named() -> None:
    assert (
        json.loads(command(EIGHT, "--cluster=h100_8", "--json").stdout)["compiles_for"] == "h100_8"
    )
    assert json.loads(command(EIGHT, "--cluster=mi300x_8", "--json").stdout)["compiles_for"] is None


def test_an_unknown_cluster_is_refused_with_those_that_there_are() -> None:
    done = command(EIGHT, "--cluster=abacus")
    assert done.returncode == 64
    assert "h100" in done.stderr


def test_a_wrong_flag_is_one_line_and_the_help_is_an_example() -> None:
    done = command("--device=3")
    assert (done.returncode, len(done.stderr.splitlines())) == (64, 2)
    assert "--cluster=h100_8" in command("--help").stdout


def test_the_command_loads_no_jax() -> None:
    program = (
        "import sys; from trainer.readiness import examine; import trainer.check;"
        "from trainer.fleet import load_cluster;"
        "from trainer.layout_checks import Where;"
        "where = Where(cluster=load_cluster('h100_64'));"
        f"examine({MIXTRAL!r}, (), devices=64, processes=8, where=where);"
        "print(sorted({'jax', 'flax', 'orbax', 'tensorstore'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_parameters_to_start_from_are_looked_for(tmp_path: pathlib.Path) -> None:
    url = f"TrainConfig.init_from={str(tmp_path / 'gone')!r}"
    assert "gone holds no checkpoint" in wrong(QUICKSTART, url)["init_from"]
    store = CheckpointStore(open_root(tmp_path / "base"), attempt=1, config=CheckpointConfig())
    store.save(3, {"groups": {"model": {"parameters": {"w": jnp.ones(2)}}}}, data={})
    store.close()
    url = f"TrainConfig.init_from={str(tmp_path / 'base')!r}"
    (found,) = (
        f for f in examine(QUICKSTART, (url,), devices=1, processes=1) if "3.a1" in f.message
    )
    assert (found.about, found.verdict) == ("init_from", Verdict.OK)


@pytest.mark.parametrize(
    ("bindings", "said"),
    [
        ((), "TrainConfig.init_from names no parameters that they shall adapt"),
        (("LoraConfig.targets=('mlp/route',)", "TrainConfig.init_from='x'"), "matches no kernel"),
        (("LoraConfig.targets=('norm',)", "TrainConfig.init_from='x'"), "can have no adapter"),
    ],
)
def test_adapters_of_nothing_are_refused(bindings: tuple[str, ...], said: str) -> None:
    found = wrong(QUICKSTART, "DecoderConfig.lora=@LoraConfig()", *bindings)
    assert said in found["model"]
