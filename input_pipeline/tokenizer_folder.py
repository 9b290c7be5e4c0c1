"""What a Hugging Face model's folder says of its tokenizer. Imports the standard library only."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from input_pipeline.tokenizer import Conventions

CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
TEMPLATE_FOLDER = "additional_chat_templates"
DEFAULT = "default"
FILES = (
    "tokenizer.json",
    "*.model",
    CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    CHAT_TEMPLATE,
    "chat_template.json",
    f"{TEMPLATE_FOLDER}/*.jinja",
)
"""A tokenizer's files in a model's folder, as glob patterns; some only other programs read."""
_PURPOSES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerFolder:
    """A folder's settings.

    Attributes:
      conventions: names of special tokens, chat templates, class.
      special: every token that the folder calls special.
      added: tokens that were added to the vocabulary, and their numbers.
      add_bos: whether texts begin with the start token; None leaves it to the tokenizer's file.
    """

    conventions: Conventions = dataclasses.field(default_factory=Conventions)
    special: frozenset[str] = frozenset()
    added: Mapping[str, int] = dataclasses.field(default_factory=dict)
    add_bos: bool | None = None


def tokenizer_file(path: Path) -> Path:
    """Returns the file of tokens that ``path`` is or holds.

    Raises:
      ValueError: there is none; says what is there.
    """
    if path.is_file():
        return path
    if not path.is_dir():
        raise ValueError(f"TokenizerFile.path={str(path)!r}: no such file ({path.absolute()}).")
    for name in (
        "tokenizer.json",
        "tokenizer.model",
        *sorted(p.name for p in path.glob("*.model")),
    ):
        if (path / name).is_file():
            return path / name
    around = sorted(p.name for p in path.iterdir())[:8]
    raise ValueError(
        f"TokenizerFile.path={str(path)!r}: the folder holds neither tokenizer.json nor a "
        f"SentencePiece *.model, but {around}. Download the model's tokenizer files, too."
    )


def read_folder(folder: Path) -> TokenizerFolder:
    """Returns what the files beside a tokenizer say; files may be missing.

    Raises:
      ValueError: one is no JSON object, or holds something else than it should; it is named.
    """
    config = _object(folder / CONFIG)
    older = _object(folder / "special_tokens_map.json")
    try:
        return _understood(folder, config=config, older=older)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{folder / CONFIG} or a file beside it is not as it should be ({error!r}). Download "
            "it again."
        ) from error


def _understood(
    folder: Path, *, config: Mapping[str, Any], older: Mapping[str, Any]
) -> TokenizerFolder:
    names = {
        purpose: token
        for purpose in _PURPOSES
        if (token := _text(config.get(purpose)) or _text(older.get(purpose)))
    }
    if not isinstance(add_bos := config.get("add_bos_token"), bool | None):
        raise TypeError(f"add_bos_token is {add_bos!r}, not true or false")
    decoder = config.get("added_tokens_decoder") or {}
    if wrong := [number for number in decoder if not number.isdecimal()]:
        raise TypeError(f"added_tokens_decoder has {wrong[0]!r} in place of a number")
    more = [t for source in (config, older) for t in _further(source)]
    more += [_text(token) for token in decoder.values() if token.get("special")]
    added = {_text(token): int(number) for number, token in decoder.items()}
    return TokenizerFolder(
        conventions=Conventions(
            names=names,
            chat_templates=dict(_templates(folder, config)),
            tokenizer_class=str(config.get("tokenizer_class") or ""),
        ),
        special=frozenset({*names.values(), *filter(None, more)}),
        added={**_object(folder / "added_tokens.json"), **added},
        add_bos=add_bos,
    )


def _further(config: Mapping[str, Any]) -> Iterator[str]:
    for key in ("additional_special_tokens", "extra_special_tokens"):
        tokens = config.get(key) or []
        if isinstance(tokens, str):
            raise TypeError(f"{key} is a text, not a list")
        yield from map(_text, tokens.values() if isinstance(tokens, dict) else tokens)


def _templates(folder: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    match config.get("chat_template"):
        case str() as only:
            yield DEFAULT, only
        case list() as several:
            yield from ((str(one["name"]), str(one["template"])) for one in several)
    for path in sorted((folder / TEMPLATE_FOLDER).glob("*.jinja")):
        yield path.stem, template_text(path)
    if (path := folder / CHAT_TEMPLATE).is_file():
        yield DEFAULT, template_text(path)


def template_text(path: Path) -> str:
    """Returns a chat template's text.

    Raises:
      ValueError: it is not UTF-8; names the file.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error}).") from error


def _text(token: object) -> str:
    """A token is its text, or an object that holds it."""
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else ""


def _object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON ({error}). Download it again.") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: must hold a JSON object, not {type(value).__name__}.")
    return value
