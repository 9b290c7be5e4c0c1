"""Tokenizers from files and to files. Imports NumPy, and what the tokenizer's kind needs.

A saved folder is what ``transformers.AutoTokenizer`` and `load_tokenizer` read.
"""

import base64
import json
from pathlib import Path
from typing import Any

from input_pipeline.data_config import Bytes, TokenizerConfig, TokenizerFile
from input_pipeline.huggingface_tokenizer import HuggingFaceTokenizer, with_special
from input_pipeline.sentencepiece_tokenizer import SentencePieceTokenizer
from input_pipeline.tokenizer import BYTES, ByteTokenizer, Conventions, Tokenizer
from input_pipeline.tokenizer_folder import (
    CHAT_TEMPLATE,
    CONFIG,
    DEFAULT,
    TEMPLATE_FOLDER,
    TokenizerFolder,
    read_folder,
    tokenizer_file,
)


def tokenizer_from_json(text: str, *, where: str) -> Tokenizer:
    """Returns the tokenizer whose `Tokenizer.to_json` gave ``text``."""
    value = json.loads(text)
    told = value.get("conventions")
    conventions = None if told is None else Conventions(**told)
    if value["kind"] == "bytes":
        return ByteTokenizer(conventions=conventions)
    ends: dict[str, Any] = {name: value[name] for name in ("bos", "eos")}
    if value["kind"] == "sentencepiece":
        return SentencePieceTokenizer(
            base64.b64decode(value["model"]),
            **ends,
            where=where,
            declared=value["declared"],
            added=value["added"],
            conventions=conventions,
        )
    spec = json.dumps(value["spec"], ensure_ascii=False)
    return HuggingFaceTokenizer(spec, **ends, where=where, conventions=conventions)


def load_tokenizer(config: TokenizerConfig) -> Tokenizer:
    """Returns a tokenizer that needs no training.

    Raises:
      ValueError: the file is missing or unfit.
    """
    match config:
        case Bytes():
            return ByteTokenizer()
        case TokenizerFile():
            return _load_file(config)
    raise ValueError(f"{type(config).__name__} is not a tokenizer that can be loaded.")


def _load_file(config: TokenizerFile) -> Tokenizer:
    path = tokenizer_file(Path(config.path))
    folder = read_folder(path.parent) if Path(config.path).is_dir() else None
    names = folder.conventions.names if folder else {}
    bos = (names.get("bos_token") if config.bos is None else config.bos) or None
    eos = names.get("eos_token") if config.eos is None else config.eos
    if not eos:
        raise ValueError(
            f"{path}: which token ends a document is not known"
            + (f"; {path.parent / CONFIG} names no eos_token" if folder else "")
            + ". Set TokenizerFile.eos"
            + ("." if folder else ", or give the model's whole folder as TokenizerFile.path.")
        )
    conventions = _conventions(folder, bos=bos, eos=eos)
    special = folder.special if folder else frozenset()
    if path.suffix == ".model":
        return SentencePieceTokenizer(
            path.read_bytes(),
            bos=bos,
            eos=eos,
            where=str(path),
            declared=special,
            added=folder.added if folder else {},
            conventions=conventions,
        )
    try:
        text = path.read_text(encoding="utf-8")
        if folder:
            text = _without_start(with_special(text, names=special), bos=bos)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: not a tokenizer.json ({error!r}).") from error
    return HuggingFaceTokenizer(text, bos=bos, eos=eos, where=str(path), conventions=conventions)


def _conventions(folder: TokenizerFolder | None, *, bos: str | None, eos: str) -> Conventions:
    ends = Conventions.of_ends(bos=bos, eos=eos)
    if folder is None:
        return ends
    told = folder.conventions
    # Templates write the folder's own start token even where documents get none.
    return Conventions(
        names={**told.names, **ends.names},
        chat_templates=told.chat_templates,
        tokenizer_class=told.tokenizer_class,
    )


def save_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Writes a tokenizer into ``folder``, beside a model's weights.

    Writes ``tokenizer.json`` or ``tokenizer.model``, ``tokenizer_config.json`` and, where there
    are chat templates, ``chat_template.jinja``. `load_tokenizer` reads back the same digest,
    except of `Bytes`, which becomes a byte-level vocabulary with the same tokens.
    """
    folder.mkdir(parents=True, exist_ok=True)
    conventions = tokenizer.conventions
    kind = conventions.tokenizer_class
    config: dict[str, Any] = {**conventions.names, "clean_up_tokenization_spaces": False}
    if isinstance(tokenizer, SentencePieceTokenizer):
        (folder / "tokenizer.model").write_bytes(tokenizer.model)
        kind = kind or "LlamaTokenizer"
        config |= {"legacy": False, "added_tokens_decoder": _added(tokenizer)}
        config["add_bos_token"] = tokenizer.bos is not None
    else:
        spec = tokenizer.spec if isinstance(tokenizer, HuggingFaceTokenizer) else byte_level_spec()
        spec = _with_start(spec, tokenizer=tokenizer)
        (folder / "tokenizer.json").write_text(
            json.dumps(spec, ensure_ascii=False), encoding="utf-8"
        )
        kind = kind or "PreTrainedTokenizerFast"
    text = json.dumps({**config, "tokenizer_class": kind}, indent=2, ensure_ascii=False)
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")
    for name, template in conventions.chat_templates.items():
        path = folder / (CHAT_TEMPLATE if name == DEFAULT else f"{TEMPLATE_FOLDER}/{name}.jinja")
        path.parent.mkdir(exist_ok=True)
        path.write_text(template, encoding="utf-8")


def _with_start(spec: dict[str, Any], *, tokenizer: Tokenizer) -> dict[str, Any]:
    """Lets other programs put the start token in front of a text, as it was in training."""
    if spec.get("post_processor") is not None or tokenizer.bos is None:
        return spec
    names = {number: name for name, number in tokenizer.special.items()}
    return {**spec, "post_processor": _start(names[tokenizer.bos], number=tokenizer.bos)}


def _without_start(text: str, *, bos: str | None) -> str:
    """Takes out what `_with_start` put in, so that a saved tokenizer is the one it was."""
    spec = json.loads(text)
    numbers = {token["content"]: token["id"] for token in spec["added_tokens"]}
    if (
        bos is not None
        and bos in numbers
        and spec.get("post_processor") == _start(bos, number=numbers[bos])
    ):
        spec["post_processor"] = None
    return json.dumps(spec, ensure_ascii=False)


def _start(bos: str, *, number: int) -> dict[str, Any]:
    """Returns the post-processor of a tokenizer.json that puts one token in front of a text."""
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    start = {"SpecialToken": {"id": bos, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [start, first],
        "pair": [start, first, second],
        "special_tokens": {bos: {"id": bos, "ids": [number], "tokens": [bos]}},
    }


def _added(tokenizer: Tokenizer) -> dict[str, Any]:
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {
        str(number): {"content": name, **flags, "special": True}
        for name, number in sorted(tokenizer.special.items(), key=lambda item: item[1])
    }


def byte_level_spec() -> dict[str, Any]:
    """Returns a ``tokenizer.json`` with the tokens of `ByteTokenizer`: no merges."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    # GPT-2's table: printable bytes are themselves, the others follow from U+0100 on.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = {ord(character): character for character in alphabet if ord(character) < BYTES}
    others = iter(character for character in alphabet if ord(character) >= BYTES)
    vocabulary = {printable.get(byte) or next(others): byte for byte in range(BYTES)}
    built = Tokenizer(models.BPE(vocabulary, []))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    names = sorted(ByteTokenizer().special.items(), key=lambda item: item[1])
    built.add_special_tokens([AddedToken(name, normalized=False) for name, _ in names])
    spec: dict[str, Any] = json.loads(built.to_str())
    return spec
