"""What a run reads, as plain data. Imports the standard library only; the planner reads it too."""

import dataclasses
import datetime
from typing import Literal, get_args

Split = Literal["train", "held_out"]
"""The two sides of a dataset; no document is in both."""
TrainOn = Literal["assistant", "last_assistant", "all"]
"""What of a conversation is learned."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """Base of every source of documents."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StandardLibrary(SourceConfig):
    """Source text of the running Python's own standard library: about 11 MB on every machine.

    Attributes:
      held_out: share of the files, chosen by a hash of their path, that is kept for evaluation.
    """

    held_out: float = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextFiles(SourceConfig):
    """UTF-8 text files; each file is one document.

    Attributes:
      root: folder that the patterns are relative to.
      files: glob patterns, such as ``("**/*.txt",)``.
      licence: what the text may be used for, as an SPDX name or a sentence.
      held_out: share of the files, chosen by a hash of their path, that is kept for evaluation.
    """

    root: str
    files: tuple[str, ...] = ("**/*.txt",)
    licence: str = ""
    held_out: float = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class JsonLines(SourceConfig):
    """Files with one JSON object per line; each line is one document.

    Attributes:
      root: folder that the patterns are relative to.
      files: glob patterns, such as ``("*.jsonl",)``.
      field: key of the text.
      licence: what the text may be used for, as an SPDX name or a sentence.
      held_out: share of the lines, chosen by a hash of their content, that is kept for evaluation.
    """

    root: str
    files: tuple[str, ...] = ("**/*.jsonl",)
    field: str = "text"
    licence: str = ""
    held_out: float = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conversations(SourceConfig):
    """JSON Lines files with one conversation per line; docs/finetuning.md says in which forms.

    Attributes:
      root: folder that the patterns are relative to.
      files: glob patterns, such as ``("*.jsonl",)``.
      template: how a conversation is written as text: '' takes the tokenizer's own chat template,
        otherwise the name of one of several in its folder, 'chatml', 'plain', or a Jinja file.
      train_on: what is learned: every answer of the "assistant" up to the token that ends it, only
        the last one, or all of the text.
      date: day that templates write that ask for today, such as '2024-07-26'.
      licence: what the text may be used for, as an SPDX name or a sentence.
      held_out: share of the conversations, chosen by a hash of their content, kept for evaluation.
    """

    root: str
    files: tuple[str, ...] = ("**/*.jsonl",)
    template: str = ""
    train_on: TrainOn = "assistant"
    date: str = ""
    licence: str = ""
    held_out: float = 0.05

    def __post_init__(self) -> None:
        allowed = get_args(TrainOn)
        if self.train_on not in allowed:
            raise ValueError(
                f"Conversations.train_on={self.train_on!r}: allowed are {', '.join(allowed)}."
            )
        try:
            self.day()
        except ValueError as error:
            raise ValueError(
                f"Conversations.date={self.date!r} is no day; write it like '2024-07-26'."
            ) from error

    def day(self) -> datetime.date | None:
        """Returns the date, if there is one."""
        return datetime.date.fromisoformat(self.date) if self.date else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenShards(SourceConfig):
    """Documents that already are tokens, written by ``python -m input_pipeline.prepare``.

    Attributes:
      path: folder that holds ``manifest.json``.
    """

    path: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """Base of every tokenizer."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bytes(TokenizerConfig):
    """The 256 bytes of UTF-8 text and three special tokens."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerFile(TokenizerConfig):
    """A tokenizer that exists: Hugging Face's ``tokenizer.json``, or a SentencePiece model.

    Attributes:
      path: the file, or a model's folder that holds ``tokenizer.json`` or ``tokenizer.model``.
      bos: token put before every document. Unset takes the folder's, if texts begin with it there;
        '' puts none.
      eos: token put after every document; may be the same as ``bos``. Unset takes the folder's.
    """

    path: str
    bos: str | None = None
    eos: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedBpe(TokenizerConfig):
    """A byte-level byte-pair encoding trained once on the training split and kept in the cache.

    Attributes:
      vocab_size: number of tokens, special ones included; 259 is plain bytes.
    """

    vocab_size: int = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Source, tokenizer and the global order of examples.

    Attributes:
      source: where documents come from.
      tokenizer: how text becomes tokens; None for sources that hold tokens.
      sequence_length: tokens per row.
      global_batch: rows per optimizer step, over all devices.
      packing: "pack" fills rows with several documents and cuts them at the rows' ends, "whole"
        fills rows with whole documents only, "pad" gives each document rows of its own.
      seed: seed of the order of examples; parameters and dropout have their own.
      shuffle: whether the order differs from the source's, and from epoch to epoch.
      workers: processes that read ahead; 0 reads in this one.
      prefetch: batches that are ready ahead of the step.
    """

    source: SourceConfig
    tokenizer: TokenizerConfig | None = None
    sequence_length: int
    global_batch: int
    packing: Literal["pack", "whole", "pad"] = "pack"
    seed: int = 0
    shuffle: bool = True
    workers: int = 0
    prefetch: int = 2

    def __post_init__(self) -> None:
        for name, least in {
            "sequence_length": 1,
            "global_batch": 1,
            "seed": 0,
            "workers": 0,
            "prefetch": 0,
        }.items():
            if getattr(self, name) < least:
                raise ValueError(
                    f"DataConfig.{name}={getattr(self, name)}: it must be at least {least}."
                )
        if self.packing not in ("pack", "whole", "pad"):
            raise ValueError(
                f"DataConfig.packing={self.packing!r}: allowed are 'pack', 'whole' and 'pad'."
            )
