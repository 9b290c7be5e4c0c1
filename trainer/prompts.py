"""What ``--mode=generate`` is asked: texts and conversations, as tokens."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from input_pipeline.chat_template import ChatTemplate
from input_pipeline.conversation import conversation_text
from input_pipeline.conversation_encoder import ConversationEncoder, chat_template
from input_pipeline.data_config import Conversations, DataConfig, SourceConfig, TokenShards
from input_pipeline.tokenizer import Tokenizer
from input_pipeline.tokenizer_folder import DEFAULT

_EXCHANGE = {"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]}


@dataclasses.dataclass(frozen=True)
class Prompt:
    """One question.

    Attributes:
      asked: the line of the file, or {"prompt": text} of the command line.
      tokens: [n] int32.
    """

    asked: Mapping[str, Any]
    tokens: np.ndarray


def text_prompt(text: str, *, tokenizer: Tokenizer) -> np.ndarray:
    """Returns a text's tokens [n] int32, beginning as documents do."""
    start = [] if tokenizer.bos is None else [tokenizer.bos]
    return np.asarray([*start, *tokenizer.encode_batch([text.encode()])[0]], np.int32)


def stop_tokens(source: SourceConfig, *, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Returns the tokens that end an answer: the end of a text and, if it has one, of a turn.

    Raises:
      ValueError: the chat template of ``source`` cannot be used.
    """
    if isinstance(source, TokenShards) and DEFAULT in tokenizer.conventions.chat_templates:
        # Shards of conversations record their template. Any day does: only the end is looked at.
        source = Conversations(root="", date="2000-01-01")
    if isinstance(source, Conversations):
        return tuple(sorted({tokenizer.eos, *_ends_of_turns(source, tokenizer)}))
    return (tokenizer.eos,)


def _ends_of_turns(source: Conversations, tokenizer: Tokenizer) -> list[int]:
    """Returns the special token, if it is one, with which the template ends an answer."""
    how = dataclasses.replace(source, train_on="last_assistant")
    tokens, learned = ConversationEncoder(how, tokenizer=tokenizer).encode_one(_EXCHANGE)
    last = int(tokens[learned][-1])
    return [last] if last in tokenizer.special.values() else []


class PromptReader:
    """Turns texts and conversations into prompts.

    Attributes:
      stop: tokens that end an answer; those of turns from the first conversation on.
    """

    def __init__(self, data: DataConfig, *, tokenizer: Tokenizer) -> None:
        """``data`` says how conversations are written, if its source is one of conversations."""
        chats = data.source if isinstance(data.source, Conversations) else Conversations(root="")
        self._conversations, self._tokenizer = chats, tokenizer
        self._template: ChatTemplate | None = None
        self.stop: tuple[int, ...] = (tokenizer.eos,)

    def text(self, text: str) -> Prompt:
        """Returns a text that is to be continued.

        Raises:
          ValueError: it is no Unicode.
        """
        _check_unicode(text)
        return Prompt({"prompt": text}, text_prompt(text, tokenizer=self._tokenizer))

    def conversation(self, asked: Mapping[str, Any]) -> Prompt:
        """Returns a conversation that is to be answered.

        Raises:
          ValueError: it is none or no Unicode, or there is no chat template that can write it.
        """
        if self._template is None:
            self._template = chat_template(self._conversations, tokenizer=self._tokenizer)
            self.stop = stop_tokens(self._conversations, tokenizer=self._tokenizer)
        _check_unicode(text := conversation_text(asked))
        known = json.loads(text)
        rendered = self._template.render(
            known["messages"], tools=known.get("tools"), add_generation_prompt=True
        )
        encoded = self._tokenizer.encode_marked(rendered.text, meant=rendered.meant)
        return Prompt(asked, encoded.tokens)

    def file(self, path: pathlib.Path) -> list[Prompt]:
        """Returns the prompts of a JSON Lines file: {"prompt": text} or {"messages": [...]}.

        Raises:
          ValueError: the file cannot be read, or a line is neither; names it.
        """
        try:
            # Not splitlines: JSON may have U+2028 and its like inside of a text.
            lines = path.read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"--prompts_file={path} cannot be read: {error}.") from error
        found = []
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    found.append(self._line(line))
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"{path}:{number}: {error}") from error
        return found

    def _line(self, line: str) -> Prompt:
        asked = json.loads(line)
        if isinstance(asked, dict) and isinstance(asked.get("prompt"), str):
            return self.text(asked["prompt"])
        if isinstance(asked, dict) and "messages" in asked:
            return self.conversation(asked)
        raise ValueError('a line is {"prompt": "..."} or {"messages": [{"role": ..., ...}]}.')


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"a prompt is no Unicode text: {error.reason} (character {error.start + 1}), half of a "
            "pair or a byte that is no UTF-8. Convert it to UTF-8."
        ) from error


def asked_prompts(
    reader: PromptReader, *, texts: Sequence[str], file: pathlib.Path | None, chat: bool
) -> list[Prompt]:
    """Returns what the command line asks, first its texts, then the file.

    Args:
      reader: of the run.
      texts: each a text to continue, or, with ``chat``, a user's message to answer.
      file: see `PromptReader.file`.
      chat: whether texts are messages.

    Raises:
      ValueError: nothing is asked, or something that cannot be read.
    """
    message = lambda text: {"messages": [{"role": "user", "content": text}]}  # noqa: E731
    found = [reader.conversation(message(t)) if chat else reader.text(t) for t in texts]
    found += reader.file(file) if file else []
    if not found:
        raise ValueError(
            "Nothing to continue: give --prompt='...' (repeatable) or --prompts_file=FILE.jsonl."
        )
    return found
