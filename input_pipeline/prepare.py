"""Writes token shards from text, or checks them. ``python -m input_pipeline.prepare --help``.

Imports NumPy and absl. Promises: the folder appears whole or not at all; exit code 64 says that a
flag or the text was unfit or a file cannot be read or written, with the reason on stderr.
"""

import sys
import tempfile
from pathlib import Path
from typing import cast

from absl import app, flags

from input_pipeline.cache import check_new, make_new
from input_pipeline.corpus import Corpus, open_corpus
from input_pipeline.data_config import (
    Bytes,
    Conversations,
    JsonLines,
    SourceConfig,
    Split,
    StandardLibrary,
    TextFiles,
    TokenizerConfig,
    TokenizerFile,
    TrainedBpe,
    TrainOn,
)
from input_pipeline.document_encoder import DocumentEncoder, encoder_of
from input_pipeline.token_store import StoreRecord, TokenStore
from input_pipeline.tokenization import ready_tokenizer, write_store
from input_pipeline.tokenizer import Tokenizer
from input_pipeline.tokenizer_files import save_tokenizer

_SPLITS: tuple[Split, ...] = ("train", "held_out")

_TEXT = flags.DEFINE_enum(
    "text",
    "files",
    ["files", "json_lines", "standard_library", "conversations"],
    "What kind of text to read.",
)
_ROOT = flags.DEFINE_string("root", None, "Folder that the patterns are relative to.")
_FILES = flags.DEFINE_multi_string("files", [], "Glob pattern under --root; may be repeated.")
_FIELD = flags.DEFINE_string("field", "text", "Key of the text in each line of json_lines.")
_LICENCE = flags.DEFINE_string("licence", "", "What the text may be used for.")
_HELD_OUT = flags.DEFINE_float("held_out", 0.05, "Share of the documents kept for evaluation.")
_TEMPLATE = flags.DEFINE_string(
    "template",
    "",
    "Chat template: the tokenizer's own, a name in its folder, 'chatml', 'plain', or a Jinja file.",
)
_TRAIN_ON = flags.DEFINE_enum(
    "train_on", "assistant", ["assistant", "last_assistant", "all"], "What conversations teach."
)
_DATE = flags.DEFINE_string("date", "", "Day that chat templates write which ask for today.")
_TOKENIZER = flags.DEFINE_string(
    "tokenizer",
    "bytes",
    "'bytes', 'bpe', a tokenizer.json, a SentencePiece .model, or a folder that holds either.",
)
_VOCAB_SIZE = flags.DEFINE_integer("vocab_size", 4096, "Size of the trained 'bpe'.")
_BOS = flags.DEFINE_string("bos", None, "Start token of a file; a folder names its own.")
_EOS = flags.DEFINE_string("eos", None, "End token of a file; a folder names its own.")
_SAVE_TOKENIZER = flags.DEFINE_string(
    "save_tokenizer", None, "Folder to write the tokenizer to, with or without --out."
)
_OUT = flags.DEFINE_string("out", None, "Folder to write; must not exist.")
_VERIFY = flags.DEFINE_string("verify", None, "Check every digest of this folder instead.")


def _source_of_flags() -> SourceConfig:
    if _TEXT.value == "standard_library":
        return StandardLibrary(held_out=_HELD_OUT.value)
    if _ROOT.value is None:
        raise ValueError("--root names the folder that holds the text; it is not set.")
    if _TEXT.value == "files":
        return TextFiles(
            root=_ROOT.value,
            files=tuple(_FILES.value) or TextFiles.files,
            licence=_LICENCE.value,
            held_out=_HELD_OUT.value,
        )
    if _TEXT.value == "conversations":
        return Conversations(
            root=_ROOT.value,
            files=tuple(_FILES.value) or Conversations.files,
            template=_TEMPLATE.value,
            train_on=cast("TrainOn", _TRAIN_ON.value),
            date=_DATE.value,
            licence=_LICENCE.value,
            held_out=_HELD_OUT.value,
        )
    return JsonLines(
        root=_ROOT.value,
        files=tuple(_FILES.value) or JsonLines.files,
        field=_FIELD.value,
        licence=_LICENCE.value,
        held_out=_HELD_OUT.value,
    )


def _tokenizer_of_flags() -> TokenizerConfig:
    match _TOKENIZER.value:
        case "bytes":
            return Bytes()
        case "bpe":
            return TrainedBpe(vocab_size=_VOCAB_SIZE.value)
        case path:
            return TokenizerFile(path=path, bos=_BOS.value, eos=_EOS.value)


def _run() -> str:
    if _VERIFY.value is not None:
        folder = Path(_VERIFY.value)
        record = StoreRecord.read(folder)
        for split in _SPLITS:
            if split in record.splits:
                TokenStore(folder, split=split, verify=True)
        return f"{folder}: every digest is right; version {record.digest}."
    if _OUT.value is None and _SAVE_TOKENIZER.value is None:
        raise ValueError("--out names the folder to write; it is not set.")
    for value in filter(None, (_OUT.value, _SAVE_TOKENIZER.value)):
        check_new(Path(value))
    if _OUT.value == _SAVE_TOKENIZER.value:
        raise ValueError(f"--out and --save_tokenizer both name {_OUT.value}; give two folders.")
    source = _source_of_flags()
    corpus = open_corpus(source)
    with tempfile.TemporaryDirectory() as scratch:
        beside = Path(scratch) if _OUT.value is None else Path(_OUT.value).parent
        tokenizer = ready_tokenizer(corpus, config=_tokenizer_of_flags(), cache_dir=beside)
    if _SAVE_TOKENIZER.value is not None:
        save_tokenizer(Path(_SAVE_TOKENIZER.value), tokenizer)
    if _OUT.value is None:
        return f"{_SAVE_TOKENIZER.value}: a tokenizer of {tokenizer.vocab_size} tokens."
    return _write(Path(_OUT.value), corpus, encoder_of(source, tokenizer=tokenizer), tokenizer)


def _write(out: Path, corpus: Corpus, encoder: DocumentEncoder, tokenizer: Tokenizer) -> str:
    record = make_new(
        out,
        make=lambda partial: write_store(partial, corpus, tokenizer=tokenizer, encoder=encoder),
    )
    sizes = ", ".join(
        f"{n}: {s.documents} documents, {s.tokens} tokens"
        + ("" if s.learned is None else f", {s.learned} of them learned")
        for n, s in record.splits.items()
    )
    return f"{out}: {sizes}; version {record.digest}."


def main(argv: list[str]) -> int:
    """Runs the command; 64 is a wrong flag, unfit data, or a file out of reach."""
    if len(argv) > 1:
        sys.stderr.write(f"Unexpected arguments {argv[1:]}; see --help.\n")
        return 64
    try:
        sys.stdout.write(_run() + "\n")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 64
    return 0


if __name__ == "__main__":
    app.run(main)
