"""Every example of every page is true."""

import json
import re

import jax
import pytest

from input_pipeline.dataset import build_dataset
from launch import spec_reference
from launch.contract import VARIABLES, ExitCode, ending
from models.huggingface.architectures import ARCHITECTURES
from models.remat import SAVEABLE
from partitioning import figures
from partitioning.mesh_config import RulesConfig
from partitioning.rules import mesh_axes
from tests.docs import pages
from tests.models.huggingface.folders import write_folder
from trainer import config_registry, dry_run_page
from trainer.config_parser import REPOSITORY
from trainer.importing import import_folder


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(config_registry, "_extensions", {})
    (tmp_path / "corpus").mkdir()
    lines = [json.dumps({"text": f"document {n} of a small corpus"}) for n in range(200)]
    (tmp_path / "corpus" / "a.jsonl").write_text("\n".join(lines))
    return tmp_path


def kinds(page):
    return {example.kind for example in pages.examples(page)}


def test_adding_a_dataset(folder):
    assert kinds("adding_a_dataset") == {"bash", "gin", "python"}
    names = pages.run("adding_a_dataset")
    assert (folder / "shards" / "manifest.json").is_file()
    assert names["build_dataset"] is build_dataset


def test_finetuning(folder):
    pages.run("finetuning")
    assert (folder / "conversation_shards" / "manifest.json").is_file()
    assert (folder / "exported" / "chat_template.jinja").is_file()


def test_adding_a_model(folder):
    assert kinds("adding_a_model") == {"bash", "gin", "python", "text"}
    pages.run("adding_a_model")
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").open()]
    trained = [row for row in rows if row["kind"] == "train"]
    assert [row["step"] for row in trained] == [1, 2, 3, 4]
    assert trained[-1]["loss"] < trained[0]["loss"]


def test_partitioning():
    assert len(jax.devices()) == 8
    assert kinds("partitioning") == {"console", "gin", "python", "text"}
    pages.run("partitioning")


@pytest.mark.slow
def test_parallelism(folder):
    assert kinds("parallelism") == {"bash", "console", "gin", "python", "text"}
    pages.run("parallelism")
    for name in ("pipeline", "experts", "context"):
        rows = [json.loads(line) for line in (folder / "runs" / name / "metrics.jsonl").open()]
        assert [row["step"] for row in rows if row["kind"] == "train"] == [1, 2]


def test_the_figures_are_what_the_code_draws():
    drawn = dict(figures.figures())
    folder = figures.FIGURES
    assert {path.name: path.read_text() for path in folder.iterdir()} == drawn
    for name in drawn:
        assert f"figures/{name}" in (REPOSITORY / "docs" / "parallelism.md").read_text()


def test_memory():
    assert kinds("memory") == {"gin"}
    pages.run("memory")
    text = (REPOSITORY / "docs" / "memory.md").read_text()
    assert all(f"`{name}`" in text for name in SAVEABLE)


@pytest.mark.slow
def test_dry_run():
    assert kinds("dry_run") == {"bash", "console", "text"}
    pages.run("dry_run")
    text = dry_run_page.PAGE.read_text()
    example = dry_run_page.example()
    assert dry_run_page.written(text, example=example) == text, "run python -m trainer.dry_run_page"


def test_planning(folder):
    assert kinds("planning") == {"bash", "text", "yaml"}
    pages.run("planning")
    assert "MeshConfig." in (folder / "plan.gin").read_text()


@pytest.mark.slow
def test_processes(folder):
    pages.run("processes")
    rows = [json.loads(line) for line in (folder / "two" / "metrics.jsonl").open()]
    assert [row["step"] for row in rows if row["kind"] == "train"] == [1, 2, 3, 4]


@pytest.mark.slow
def test_launch(folder, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_HOME", str(folder / "home"))
    assert kinds("launch") == {"bash", "console", "gin", "python", "text", "yaml"}
    pages.run("launch")
    rows = [json.loads(line) for line in (folder / "runs/two/metrics.jsonl").open()]
    assert [row["step"] for row in rows if row["kind"] == "train"] == [1, 2, 3, 4]


def test_the_keys_of_job_files_are_those_of_the_dataclasses():
    text = spec_reference.PAGE.read_text()
    assert spec_reference.written(text) == text, "run python -m launch.spec_reference"


def test_every_example_job_has_its_row():
    text = (REPOSITORY / "docs" / "launch.md").read_text()
    for file in (REPOSITORY / "configs" / "jobs").glob("*.yaml"):
        assert f"| `{file.name}` |" in text


def test_the_tables_of_variables_and_exit_codes_are_the_contract():
    text = (REPOSITORY / "docs" / "processes.md").read_text()
    named = re.findall(r"^\| `(LAUNCH_\w+)`", text, re.MULTILINE)
    assert sorted(named) == sorted(VARIABLES.values())
    shown = re.findall(r"^\| (\d+) \| (.*) \|$", text, re.MULTILINE)
    assert shown == [(str(int(code)), ending(code).meaning) for code in ExitCode]


@pytest.mark.parametrize("table", ["parameters", "activations"])
def test_the_drawn_rule_tables_are_the_defaults(table):
    drawn = next(e.text for e in pages.examples("partitioning") if e.note == f"rules={table}")
    rows = [[cell.strip() for cell in line.split("|")] for line in drawn.splitlines()]
    assert rows[0] == ["logical axis", "candidates"]
    shown = [
        [rule[0], ", ".join("+".join(mesh_axes(c)) or "None" for c in rule[1:])]
        for rule in getattr(RulesConfig(), table)
    ]
    assert rows[1:] == shown


def test_every_rule_set_has_its_row():
    text = (REPOSITORY / "docs" / "partitioning.md").read_text()
    for file in (REPOSITORY / "configs" / "partitioning").glob("*.gin"):
        assert f"| `{file.stem}` |" in text


def test_every_page_with_examples_is_run_by_a_test():
    """Others: test_configuration.py, test_docs.py of checkpoints, tests/launch and tests/slurm.

    What the planner writes into a page is seen by tests/partitioning/planner/.
    """
    stems = (path.stem for path in (REPOSITORY / "docs").glob("*.md"))
    found = {stem for stem in stems if any(e.note != "planner" for e in pages.examples(stem))}
    ours = {
        "adding_a_dataset",
        "adding_a_model",
        "dry_run",
        "finetuning",
        "huggingface",
        "launch",
        "parallelism",
        "memory",
        "partitioning",
        "planning",
        "processes",
    }
    elsewhere = {"calibration", "configuration", "checkpoints", "failures", "kubernetes", "slurm"}
    assert ours <= found <= ours | elsewhere


@pytest.mark.parametrize("page", sorted((REPOSITORY / "docs").glob("*.md")), ids=lambda p: p.stem)
def test_configurations_that_a_page_names_exist(page):
    named = re.findall(r"configs/[\w/]+\.(?:gin|yaml)", page.read_text())
    missing = {name for name in named if not (REPOSITORY / name).exists()}
    assert missing <= {"configs/models/tny.gin"}, "a misspelt name that an example is about"


def test_huggingface(folder):
    assert kinds("huggingface") == {"console", "gin", "python", "text"}
    write_folder(folder / "downloads" / "smollm2")
    import_folder(folder / "downloads" / "smollm2", folder / "bases" / "smollm2")
    pages.run("huggingface")
    text = (REPOSITORY / "docs" / "huggingface.md").read_text()
    named = re.findall(r"^\| `(\w+ForCausalLM)` \|", text, re.MULTILINE)
    assert named == [architecture.name for architecture in ARCHITECTURES]
