"""What a run, one of its steps, or an imported folder is a model of. Imports no jax."""

import pathlib
import tempfile
from typing import cast

from models.decoder_config import DecoderConfig
from models.huggingface import config_file
from models.huggingface.source import MODEL, is_imported
from trainer import config, run_records
from trainer.checkpoints import layout
from trainer.checkpoints.root import open_root
from trainer.config_schema import Schema
from trainer.run_config import LanguageModel, RunConfig


def stored_config(url: str) -> tuple[DecoderConfig, RunConfig | None]:
    """Returns the decoder of a run, of one of its steps, or of an imported folder.

    Returns:
      The decoder, and the whole configuration where there was a run.

    Raises:
      ValueError: there is none, or the run's task has no decoder.
      ConfigError: it was recorded by another version whose settings are no longer known.
    """
    if decoder := imported_config(url):
        return decoder, None
    text = run_records.last_operative(open_root(run_of(url)))
    if text is None:
        raise ValueError(f"{url}: no run there has recorded its configuration.")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "operative.gin"
        path.write_text(text, encoding="utf-8")
        run = config.load([str(path)]).run
    if not isinstance(run.task, LanguageModel):
        raise ValueError(
            f"{url}: its task is {type(run.task).__name__}; only a LanguageModel has a decoder."
        )
    return run.task.model, run


def imported_config(url: str) -> DecoderConfig | None:
    """Returns the decoder of an imported folder or of its step; None of anything else.

    Raises:
      ConfigError: its model.gin was changed and cannot be read.
    """
    folder = run_of(url)
    if not is_imported(folder):
        return None
    classes = {cls.__name__: cls for cls in config_file.CLASSES}
    schema = Schema(DecoderConfig, classes, frozenset())
    built, _ = config.build([str(pathlib.Path(folder) / MODEL)], schema=schema)
    return cast(DecoderConfig, built.instance)


def run_of(url: str) -> str:
    """Returns the run directory of a run, of its checkpoints, or of one of its steps."""
    url = url.rstrip("/")
    above, _, last = url.rpartition("/")
    if layout.parse(last):
        url, (above, _, last) = above, above.rpartition("/")
    return above if last == layout.CHECKPOINTS else url
