"""Runs the examples of a page in docs/, in order, in the working directory.

Kinds of examples: ``python`` runs in one namespace; ``bash`` runs as a script; ``gin`` is written
to a file and checked; ``text`` is what the python example before it printed; ``console`` shows
commands that a reader may run and a test need not; ``yaml`` is a job file. ``file=NAME`` after the
kind keeps the example under that name.
"""

import contextlib
import dataclasses
import io
import os
import pathlib
import re
import subprocess
import sys

from trainer import config_lint, config_parser, config_schema
from trainer.config_parser import REPOSITORY

_FENCE = re.compile(r"^```([\w-]+)(?: ([\w=.]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Example:
    """One fenced block: its kind, what follows the kind (``file=NAME``), and its text."""

    kind: str
    note: str
    text: str


def examples(page: str) -> list[Example]:
    """Returns the examples of docs/<page>.md."""
    text = (REPOSITORY / "docs" / f"{page}.md").read_text()
    return [Example(kind, note, body) for kind, note, body in _FENCE.findall(text)]


def run(page: str) -> dict[str, object]:
    """Runs every example of a page and returns the names that its python examples defined."""
    names: dict[str, object] = {"__name__": page}
    said = io.StringIO()
    for number, example in enumerate(examples(page)):
        name = example.note.removeprefix("file=") if example.note.startswith("file=") else None
        if name:
            pathlib.Path(name).write_text(example.text)
        match example.kind:
            case "python" if not name:
                said = io.StringIO()
                with contextlib.redirect_stdout(said):
                    exec(compile(example.text, f"docs/{page}.md", "exec"), names)
            case "bash":
                _script(example.text)
            case "gin":
                _check_gin(example.text, name=name or f"example{number}.gin")
            case "text" if not example.note:
                assert said.getvalue() == example.text, said.getvalue()
            case "python" | "text" | "console" | "yaml":
                pass
            case _:
                raise AssertionError(f"docs/{page}.md: an example of unknown kind {example.kind}")
    return names


def _script(text: str) -> None:
    here = pathlib.Path(sys.executable).parent
    paths = os.pathsep.join([os.getcwd(), str(REPOSITORY)])
    changes = {"PATH": f"{here}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": paths}
    done = subprocess.run(
        ["bash", "-euc", text], env=os.environ | changes, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _check_gin(text: str, *, name: str) -> None:
    file = pathlib.Path(name)
    file.write_text(text)
    checked = config_lint.check(config_parser.read([str(file)]), schema=config_schema.standard())
    assert not checked.problems, checked.problems
