"""The examples of docs/configuration.md are true."""

import re
import shlex

import pytest

from tests.docs import pages
from trainer import config, config_parser, config_record, config_registry
from trainer.config_errors import ConfigError
from trainer.config_parser import REPOSITORY

TEXT = (REPOSITORY / "docs" / "configuration.md").read_text()
BLOCKS = [(example.kind, example.text) for example in pages.examples("configuration")]
RUN = next(body for kind, body in BLOCKS if kind == "gin")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(config_registry, "_extensions", {})
    (tmp_path / "my_run.gin").write_text(RUN)
    (tmp_path / "halving.py").write_text(next(body for kind, body in BLOCKS if kind == "python"))
    return tmp_path


@pytest.mark.parametrize("body", [body for kind, body in BLOCKS if kind == "gin"])
def test_examples_load_and_print_as_gin(body, folder):
    (folder / "example.gin").write_text(body)
    loaded = config.load(["example.gin"])
    (folder / "operative.gin").write_text(config_record.describe(loaded))
    imports = [line for line in body.splitlines() if line.startswith("import ")]
    (folder / "again.gin").write_text("\n".join([*imports, "include 'operative.gin'\n"]))
    assert config.load(["again.gin"]).run == loaded.run


@pytest.mark.parametrize(
    "command",
    [
        line.removeprefix("$ ")
        for kind, body in BLOCKS
        if kind == "console"
        for line in body.splitlines()
    ],
)
def test_command_lines_load(command):
    arguments = config_parser.rewrite_arguments(shlex.split(command))[3:]
    pairs = [argument.removeprefix("--").split("=", 1) for argument in arguments]
    files = [value for name, value in pairs if name == "gin_file"]
    bindings = [value for name, value in pairs if name == "gin_bindings"]
    assert len(files) + len(bindings) == len(arguments)
    config.load(files, bindings)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (body, BLOCKS[index + 1][1])
        for index, (kind, body) in enumerate(BLOCKS)
        if kind == "gin-with-errors"
    ],
)
def test_errors_read_as_shown(body, expected, folder):
    (folder / "example.gin").write_text(body)
    with pytest.raises(ConfigError) as caught:
        config.load(["example.gin"])
    messages = list(map(str, caught.value.problems))
    shown = expected.splitlines()
    assert len(messages) == len(shown)
    for message, line in zip(messages, shown, strict=True):
        assert line in message


def test_every_key_that_the_page_names_exists():
    from trainer import config_schema

    known = set(config_schema.standard().parameters())
    classes = {key.split(".")[0] for key in known}
    named = set(re.findall(r"\b([A-Z]\w+)\.(\w+)\b", "".join(re.findall(r"`[^`\n]+`", TEXT))))
    assert {f"{c}.{f}" for c, f in named if c in classes} <= known
