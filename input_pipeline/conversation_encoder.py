"""Conversations to tokens, and which of them are learned. Imports NumPy and Jinja.

The tokens are those of ``transformers``' ``apply_chat_template(..., tokenize=True)``, except that
a special token that a message spells is ordinary text.

What the assistant wrote is found in one of two ways. A template that marks it with
``{% generation %}`` says so itself. Of others the conversation is rendered up to each answer, with
the prompt for it and with the answer: what the second text has more than the first is the answer
with the token that ends it. That needs both texts to be beginnings of the whole one; templates that
write earlier answers differently once there are later ones are refused.
"""

import dataclasses
import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from input_pipeline.chat_template import BUILT_IN, ChatTemplate, Messages, Rendered
from input_pipeline.data_config import Conversations
from input_pipeline.document_encoder import EncodedDocuments
from input_pipeline.manifest import digest_of
from input_pipeline.special_tokens import Span, spelled
from input_pipeline.tokenizer import Conventions, Tokenizer
from input_pipeline.tokenizer_folder import DEFAULT, template_text

_VERSION = 2
_NEEDED = {"chatml": ("<|im_start|>", "<|im_end|>")}
"""Special tokens without which a template of ours makes no sense."""


class ConversationEncoder:
    """Encodes conversations; see `input_pipeline.document_encoder.DocumentEncoder`."""

    def __init__(self, config: Conversations, *, tokenizer: Tokenizer) -> None:
        """Finds the chat template.

        Raises:
          ValueError: there is none, or it does not fit the tokenizer.
        """
        self._tokenizer, self._train_on = tokenizer, config.train_on
        self._template = chat_template(config, tokenizer=tokenizer)
        how = [_VERSION, self._template.source, config.train_on, config.date]
        self.digest = digest_of([*how, dict(tokenizer.conventions.names)])

    def tokenizer_json(self) -> str:
        """See `DocumentEncoder.tokenizer_json`: with the template as the tokenizer's own."""
        conventions = self._tokenizer.conventions
        templates = {**conventions.chat_templates, DEFAULT: self._template.source}
        told = dataclasses.replace(conventions, chat_templates=templates)
        return json.dumps({**json.loads(self._tokenizer.to_json()), "conventions": told.to_json()})

    def encode(self, texts: Sequence[bytes], *, where: Callable[[int], str]) -> EncodedDocuments:
        """See `DocumentEncoder.encode`."""
        tokens, weights = [], []
        for number, text in enumerate(texts):
            try:
                one, learned = self.encode_one(json.loads(text))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{where(number)}: {error}") from error
            tokens.append(one)
            weights.append(learned)
        lengths = np.array([len(one) for one in tokens], np.int64)
        return EncodedDocuments(
            tokens=np.concatenate(tokens), lengths=lengths, weights=np.concatenate(weights)
        )

    def encode_one(self, conversation: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Returns one conversation, as `conversation_text` gives it.

        Returns:
          Tokens int32 [n], and which of them are learned, bool [n]; the first never is, for nothing
          comes before it.

        Raises:
          ValueError: there is nothing to learn, or the template refuses it.
        """
        messages, tools = conversation["messages"], conversation.get("tools")
        whole = self._template.render(messages, tools=tools)
        encoded = self._tokenizer.encode_marked(whole.text, meant=whole.meant)
        if self._train_on == "all":
            learned = np.ones(len(encoded.tokens), bool)
        else:
            learned = encoded.within(self._answers(whole, messages=messages, tools=tools))
        learned[:1] = False
        if not learned.any():
            raise ValueError(f"chat template {self._template.name} writes nothing to learn.")
        return encoded.tokens, learned

    def _answers(self, whole: Rendered, *, messages: Messages, tools: Any) -> list[Span]:
        """Returns where the learned answers stand."""
        places = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
        if not places:
            raise ValueError(
                "the conversation has no message of the role 'assistant', so there is nothing to "
                "learn. Leave the line out, or set Conversations.train_on='all'."
            )
        last = self._train_on == "last_assistant"
        if not self._template.marks_generation:
            asked = places[-1:] if last else places
            return [self._answer(whole, messages=messages, tools=tools, place=n) for n in asked]
        if not last:
            return list(whole.generated)
        before = self._template.render(messages[: places[-1]], tools=tools) if places[-1] else None
        return list(whole.generated[len(before.generated) if before else 0 :])

    def _answer(self, whole: Rendered, *, messages: Messages, tools: Any, place: int) -> Span:
        render, through = self._template.render, messages[: place + 1]
        prompt = render(messages[:place], tools=tools, add_generation_prompt=True)
        answered = whole if len(through) == len(messages) else render(through, tools=tools)
        start, stop = len(prompt.text), len(answered.text)
        agree = answered.text.startswith(prompt.text) and whole.text.startswith(answered.text)
        if not agree or start == stop:
            raise ValueError(
                f"chat template {self._template.name} writes what comes before the end of message "
                f"{place + 1} differently once more follows, so it cannot be told which tokens are "
                "the answer. Set Conversations.train_on='last_assistant', or copy the template "
                "into a .jinja file with {% generation %} and {% endgeneration %} around the "
                "answers and name it in Conversations.template."
            )
        return start, self._end_of_turn(answered, start=start)

    def _end_of_turn(self, answered: Rendered, *, start: int) -> int:
        """Returns where the turn ends: white space behind its last token belongs to the next."""
        text, meant = answered.text, answered.meant
        spans = spelled(text, names=self._tokenizer.special) if meant is None else meant
        for _, stop in reversed(spans):
            if stop > start and not text[stop:].strip():
                return stop
        return len(text)


def chat_template(config: Conversations, *, tokenizer: Tokenizer) -> ChatTemplate:
    """Returns the chat template that ``config`` names.

    Raises:
      ValueError: there is none of that name, or it needs tokens that the tokenizer does not have.
    """
    return template_of(config, conventions=tokenizer.conventions, special=tokenizer.special)


def template_of(
    config: Conversations, *, conventions: Conventions, special: Collection[str] | None
) -> ChatTemplate:
    """Does what `chat_template` does; ``special`` is None where no tokenizer has been loaded."""
    name, own = config.template or DEFAULT, conventions.chat_templates
    if name in own:
        source = own[name]
    elif name in BUILT_IN:
        source = BUILT_IN[name]
    elif config.template and _is_file(name):
        source = template_text(Path(name))
    else:
        which = "no chat template" if not own else f"chat templates {sorted(own)}"
        asked = f"no {name[:99]!r}" if own or config.template else "so there is none to use"
        looked = f" ({Path(name[:99]).absolute()} is none)" if config.template else ""
        raise ValueError(
            f"The tokenizer has {which}, {asked}. Set Conversations.template to "
            f"{_choice([*own, *BUILT_IN])}, or to a Jinja file{looked}."
        )
    missing = set(_NEEDED.get(name, ())) - set(special or ())
    if special is not None and missing and name not in own:
        raise ValueError(
            f"Chat template {name!r} marks turns with {sorted(missing)}, which this tokenizer does "
            "not have. Set Conversations.template to 'plain', which needs no tokens of its own."
        )
    return ChatTemplate(
        source,
        name=repr(name),
        variables=conventions.names,
        special=special or (),
        date=config.day(),
    )


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except OSError:  # It is longer than names of files can be: perhaps the template itself.
        return False


def _choice(names: Sequence[str]) -> str:
    return " or ".join(repr(name) for name in dict.fromkeys(names))
