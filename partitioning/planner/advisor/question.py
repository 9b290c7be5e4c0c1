"""Puts a question to the search together from gin files. Imports no jax."""

from collections.abc import Mapping, Sequence

from partitioning.planner.advisor.search_space import RULE_SETS, Question
from partitioning.planner.hardware import ClusterConfig
from partitioning.planner.inputs import Parts, decoder_of, load_inputs, rule_file
from trainer.run_config import RunConfig

_LENGTH = 8192
"""Tokens of a row where nothing says it."""


def question_of(
    sources: Parts | RunConfig,
    *,
    cluster: ClusterConfig,
    files: Sequence[str],
    bindings: Sequence[str] = (),
    length: int | None = None,
    wanted: int | None = None,
    fixed: Mapping[str, int | str] | None = None,
) -> tuple[Question, list[str]]:
    """Returns the question and what to mind about it.

    Args:
      sources: what the files say.
      cluster: the devices.
      files: gin files of a model or a run.
      bindings: ``NAME=VALUE``.
      length: tokens of a row; None for a run's.
      wanted: tokens of a step; None for a run's.
      fixed: what is already decided.

    Raises:
      ValueError: a batch is missing, or shorter than a row.
    """
    if isinstance(sources, Parts):
        model, length = sources.model, length or _LENGTH
    else:
        data = sources.data
        model, length = decoder_of(sources), length or data.sequence_length
        wanted = wanted or data.global_batch * data.sequence_length
    if wanted is None:
        raise ValueError(
            "--tokens_per_batch is missing: a model file does not say it. Write "
            "--tokens_per_batch=4M, or give a run file."
        )
    rows = round(wanted / length)
    if rows < 1:
        raise ValueError(
            f"--tokens_per_batch={wanted} is less than one row of {length} tokens; give more, or a "
            "smaller --seq_len."
        )
    notes = []
    if rows * length != wanted:
        notes.append(
            f"{wanted:,} tokens are no whole number of rows: {rows} rows of {length:,} are "
            f"{rows * length:,}."
        )
    asked = Question(
        model=model,
        optimizer=sources.optimizer,
        tables={name: load_inputs([*files, rule_file(name)], bindings).rules for name in RULE_SETS},
        cluster=cluster,
        rows=rows,
        length=length,
        fixed=fixed or {},
    )
    return asked, notes
