"""The examples of docs/checkpoints.md run as they stand, in order, in one place."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "checkpoints.md"


def test_the_examples_run(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```(python|bash)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert {language for language, _ in blocks} == {"python", "bash"}
    monkeypatch.chdir(tmp_path)
    here = pathlib.Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{here}{os.pathsep}{os.environ['PATH']}"}
    names: dict[str, object] = {}
    for language, block in blocks:
        if language == "python":
            exec(compile(block, str(PAGE), "exec"), names)
        else:
            subprocess.run(["bash", "-euc", block], check=True, env=environment)
