"""What fine-tuning gains and what it forgets: ``python -m benchmarks.finetuning``.

Trains the quickstart's model, fine-tunes it on conversations once whole and once by adapters, and
scores all three on both texts. About eight minutes on two CPU cores; ``--folder`` keeps the runs,
and goes on with those that are there. The table goes into docs/finetuning.md with ``--write``.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from absl import app, flags

from benchmarks.output import JSON
from trainer.config_parser import REPOSITORY

flags.declare_key_flag("json")  # listed by --help
_FOLDER = flags.DEFINE_string("folder", None, "Where the runs live; default: a temporary one.")
_WRITE = flags.DEFINE_bool("write", False, "Write the table into docs/finetuning.md.")

PAGE = REPOSITORY / "docs" / "finetuning.md"
_BEGIN = "<!-- gains: written by python -m benchmarks.finetuning --write -->\n"
_END = "<!-- end of gains -->\n"
RUNS = {
    "quickstart": "before",
    "sft_quickstart": "fine-tuned whole",
    "lora_quickstart": "fine-tuned by adapters",
}
"""Run file -> what the page calls its model."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One model.

    Attributes:
      name: what was done to it.
      gained: held-out loss on the conversations, in nats per learned token.
      kept: held-out loss on the text of the base, in nats per token.
      saved: bytes of its last checkpoint.
    """

    name: str
    gained: float
    kept: float
    saved: int

    @property
    def cells(self) -> tuple[str, ...]:
        """What the table shows."""
        return (self.name, f"{self.gained:.3f}", f"{self.kept:.3f}", f"{self.saved / 1e6:.1f} MB")


def measure(folder: pathlib.Path) -> list[Row]:
    """Makes data and runs in ``folder``, those that are not there yet, and scores all models.

    Raises:
      CalledProcessError: a command failed.
    """
    if not (folder / "conversations").exists():
        _python(
            "input_pipeline.docstring_conversations", "numpy", "--output=conversations", at=folder
        )
    if not (folder / "tokenizer").exists():
        what = ("--text=standard_library", "--tokenizer=bpe", "--save_tokenizer=tokenizer")
        _python("input_pipeline.prepare", *what, at=folder)
    found = []
    for run, name in RUNS.items():
        where = f"runs/{run.removesuffix('_quickstart')}"
        _trainer(run, f"--run_dir={where}", at=folder)
        start = f"--gin.TrainConfig.init_from='{where}'"
        gained, kept = (
            json.loads(_trainer(text, "--mode=eval", start, at=folder).splitlines()[-1])
            for text in ("sft_quickstart", "quickstart")
        )
        saved = _newest_step(folder / where)
        found.append(Row(name=name, gained=gained["loss"], kept=kept["loss"], saved=saved))
    return found


def table(rows: Sequence[Row]) -> str:
    """Returns the page's table."""
    titles = ("model", "loss on conversations", "loss on the old text", "a checkpoint holds")
    lines = [titles, ("---",) * len(titles), *(row.cells for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def written(text: str, *, shown: str) -> str:
    """Returns the page's text with another table."""
    head, _, rest = text.partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    return f"{head}{_BEGIN}\n{shown}\n{_END}{tail}"


def shown_on(text: str) -> str:
    """Returns the table that a page's text has."""
    return text.partition(_BEGIN)[2].partition(_END)[0].strip("\n") + "\n"


def _trainer(run: str, *arguments: str, at: pathlib.Path) -> str:
    file = f"--gin_file={REPOSITORY}/configs/runs/{run}.gin"
    return _python("trainer.main", file, f"--cache_dir={at}/cache", *arguments, at=at)


def _python(module: str, *arguments: str, at: pathlib.Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(
        command, cwd=at, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def _newest_step(run: pathlib.Path) -> int:
    """Returns the bytes of the arrays of a run's last step."""
    steps = sorted(
        (run / "checkpoints").glob("*.a*"), key=lambda path: int(path.name.split(".")[0])
    )
    return sum(file.stat().st_size for file in (steps[-1] / "state").rglob("*") if file.is_file())


def main(argv: Sequence[str]) -> None:
    """Runs the comparison."""
    if len(argv) > 1:
        raise app.UsageError(f"Unknown argument {argv[1]!r}.")
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(_FOLDER.value or temporary).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        rows = measure(folder)
    if JSON.value:
        print(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
    else:
        print(table(rows), end="")
    if _WRITE.value:
        PAGE.write_text(written(PAGE.read_text(), shown=table(rows)))


if __name__ == "__main__":
    app.run(main)
