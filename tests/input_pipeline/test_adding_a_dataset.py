"""Every example in docs/adding_a_dataset.md runs, in order, in one folder."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from input_pipeline.dataset import build_dataset
from trainer import config_lint, config_parser, config_schema

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / "docs" / "adding_a_dataset.md").read_text()
EXAMPLES = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def write_corpus(folder: Path) -> None:
    (folder / "corpus").mkdir()
    lines = [json.dumps({"text": f"document {n} of a small corpus"}) for n in range(60)]
    (folder / "corpus" / "a.jsonl").write_text("\n".join(lines))


def run_shell(text: str) -> None:
    for line in text.replace("\\\n", " ").splitlines():
        program, *arguments = shlex.split(line)
        assert program == "python"
        subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            check=True,
            capture_output=True,
        )


def check_gin(text: str, *, folder: Path) -> None:
    file = folder / "example.gin"
    file.write_text(text)
    checked = config_lint.check(config_parser.read([str(file)]), schema=config_schema.standard())
    assert not checked.problems, checked.problems


def test_every_example_runs(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path)
    names: dict[str, object] = {}
    kinds = []
    for kind, text in EXAMPLES:
        kinds.append(kind)
        match kind:
            case "gin":
                check_gin(text, folder=tmp_path)
            case "bash":
                run_shell(text)
            case "python":
                exec(compile(text, "docs/adding_a_dataset.md", "exec"), names)
            case _:
                raise AssertionError(f"an example of unknown kind {kind}")
    assert sorted(set(kinds)) == ["bash", "gin", "python"]
    assert (tmp_path / "shards" / "manifest.json").is_file()
    assert names["build_dataset"] is build_dataset
