"""Tokenizers from files and to files. Imports NumPy, and what the tokenizer's kind needs.

A saved folder is what ``transformers.AutoTokenizer`` and `load_tokenizer` read.
"""

import base64
import dataclasses
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
    path, whole = tokenizer_file(Path(config.path)), Path(config.path).is_dir()
    folder = read_folder(path.parent) if whole else TokenizerFolder()
    eos = folder.conventions.names.get("eos_token") if config.eos is None else config.eos
    if not eos:
        raise ValueError(
            f"{path}: which token ends a document is not known"
            + (f"; {path.parent / CONFIG} names no eos_token" if whole else "")
            + ". Set TokenizerFile.eos"
            + ("." if whole else ", or give the model's whole folder as TokenizerFile.path.")
        )
    if path.suffix == ".model":
        bos = _start_token(config, folder, puts=True)
        return SentencePieceTokenizer(
            path.read_bytes(),
            bos=bos,
            eos=eos,
            where=str(path),
            declared=folder.special,
            added=folder.added,
            conventions=_conventions(folder, bos=bos, eos=eos),
        )
    try:
        spec = json.loads(path.read_text(encoding="utf-8"))
        if whole:
            spec = with_special(spec, names=folder.special)
        named = folder.conventions.names.get("bos_token")
        bos = _start_token(config, folder, puts=_puts(spec.get("post_processor"), named))
        if whole and bos is not None:
            spec = _without_start(spec, bos=bos)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: not a tokenizer.json ({error!r}).") from error
    text = json.dumps(spec, ensure_ascii=False)
    conventions = _conventions(folder, bos=bos, eos=eos)
    return HuggingFaceTokenizer(text, bos=bos, eos=eos, where=str(path), conventions=conventions)


def _start_token(config: TokenizerFile, folder: TokenizerFolder, *, puts: bool) -> str | None:
    """Returns the token that begins documents: some folders name one that begins no text.

    Args:
      config: what it says counts.
      folder: what it says comes next.
      puts: what counts last: whether the tokenizer's file puts it there.
    """
    if config.bos is not None:
        return config.bos or None
    begins = puts if folder.add_bos is None else folder.add_bos
    return folder.conventions.names.get("bos_token") if begins else None


def _puts(post_processor: dict[str, Any] | None, token: str | None) -> bool:
    """Whether a post-processor of a tokenizer.json begins texts with a token."""
    if not post_processor or not token:
        return False
    first = [part.get("SpecialToken", {}) for part in post_processor.get("single", ())[:1]]
    inner = post_processor.get("processors", ())
    return {"id": token, "type_id": 0} in first or any(_puts(each, token) for each in inner)


def _conventions(folder: TokenizerFolder, *, bos: str | None, eos: str) -> Conventions:
    # Templates write the folder's own start token even where documents get none.
    names = {**folder.conventions.names, **Conventions.of_ends(bos=bos, eos=eos).names}
    return dataclasses.replace(folder.conventions, names=names)


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
    config["add_bos_token"] = tokenizer.bos is not None
    if isinstance(tokenizer, SentencePieceTokenizer):
        (folder / "tokenizer.model").write_bytes(tokenizer.model)
        kind = kind or "LlamaTokenizer"
        config |= {"legacy": False, "added_tokens_decoder": _added(tokenizer)}
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


def _without_start(spec: dict[str, Any], *, bos: str) -> dict[str, Any]:
    """Takes out what `_with_start` put in, so that a saved tokenizer is the one it was."""
    numbers = {token["content"]: token["id"] for token in spec["added_tokens"]}
    if bos in numbers and spec.get("post_processor") == _start(bos, number=numbers[bos]):
        return {**spec, "post_processor": None}
    return spec


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
