"""What a run reads, as plain data. Imports the standard library only; the planner reads it too."""

import dataclasses
from typing import Literal

Split = Literal["train", "held_out"]
"""The two sides of a dataset; no document is in both."""


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
    """A ``tokenizer.json`` in the format of Hugging Face ``tokenizers``.

    Attributes:
      path: the file.
      bos: token put before every document.
      eos: token put after every document; may be the same as ``bos``.
    """

    path: str
    bos: str
    eos: str


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
