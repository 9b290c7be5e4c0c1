"""Renders conversations with the Jinja templates of chat models. Imports Jinja.

Rendering follows ``transformers``' ``apply_chat_template``: the same environment (see
`input_pipeline.template_sandbox`) and variables.

Promises: a special token that a message spells is told apart from one that the template writes;
the text never depends on the day; errors name the template and the message.
"""

import bisect
import dataclasses
import datetime
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jinja2
import jinja2.meta

from input_pipeline.special_tokens import Span, pattern_of
from input_pipeline.template_sandbox import FAULTS, LONGEST, Generation, Sandbox

Messages = Sequence[Mapping[str, Any]]
"""A conversation: each message has a ``role`` and a ``content``, and may have more."""

CHATML = """\
{%- for message in messages -%}
{%- if message['tool_calls'] -%}{{ raise_exception('it cannot write tool_calls.') }}{%- endif -%}
{{ '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' -%}
{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}
{%- else -%}
{{ message['content'] + '<|im_end|>' }}
{%- endif -%}
{{ '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
"""ChatML, for tokenizers that have ``<|im_start|>`` and ``<|im_end|>`` but no template."""

PLAIN = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message['tool_calls'] -%}{{ raise_exception('it cannot write tool_calls.') }}{%- endif -%}
{{ '### ' + message['role'] | capitalize + '\\n' }}
{%- if message['role'] == 'assistant' -%}
{% generation %}{{ message['content'] | trim + eos_token }}{% endgeneration %}
{%- else -%}
{{ message['content'] | trim }}
{%- endif -%}
{{ '\\n\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '### Assistant\\n' }}{%- endif -%}
"""
"""Turns marked with ordinary text and ended by the end token: works with any tokenizer."""

BUILT_IN: Mapping[str, str] = {"chatml": CHATML, "plain": PLAIN}
_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
_REASONING = ("reasoning_content", "thinking", "reasoning")
_NONCHARACTERS = [chr(number) for number in range(0xFDD0, 0xFDF0)]
"""Code points that Unicode keeps for uses inside of programs."""


@dataclasses.dataclass(frozen=True)
class Rendered:
    """A conversation as text.

    Attributes:
      text: what the template wrote.
      meant: where special tokens are meant; None means all that are spelled.
      generated: what stands in ``{% generation %}`` blocks.
    """

    text: str
    meant: tuple[Span, ...] | None
    generated: tuple[Span, ...]


class ChatTemplate:
    """A template with the special tokens of one tokenizer.

    Attributes:
      name: what people call it; part of every error.
      source: the Jinja text.
      marks_generation: whether it has ``{% generation %}`` blocks.
    """

    def __init__(
        self,
        source: str,
        *,
        name: str,
        variables: Mapping[str, str],
        special: Collection[str],
        date: datetime.date | None = None,
    ) -> None:
        """Compiles a template.

        Args:
          source: Jinja text.
          name: what people call it.
          variables: such as ``bos_token``.
          special: names of all special tokens.
          date: what ``strftime_now`` formats.

        Raises:
          ValueError: it is no valid template, or asks for the date where none is given.
        """
        self.name, self.source = name, source
        self.marks_generation = bool(_GENERATION.search(source))
        self._variables, self._special = dict(variables), pattern_of(special).pattern
        sandbox = Sandbox(date=date)
        self._sandbox = sandbox
        try:
            self._template = sandbox.from_string(source)
            needed = jinja2.meta.find_undeclared_variables(sandbox.parse(source))
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(
                f"Chat template {name}, line {error.lineno}: {error.message}"
            ) from error
        except (SyntaxError, *FAULTS) as error:
            raise ValueError(f"Chat template {name} is not valid: {_told(error)}") from error
        if date is None and "strftime_now" in needed:
            raise ValueError(
                f"Chat template {name} writes the date (strftime_now), so that the same "
                "conversations would give other tokens tomorrow. Set Conversations.date to the "
                "day that it is to write, such as '2024-07-26'."
            )

    def render(
        self, messages: Messages, *, tools: Any = None, add_generation_prompt: bool = False
    ) -> Rendered:
        """Writes a conversation as text.

        Args:
          messages: from the first on; they are plain data, as JSON has it.
          tools: JSON schemas of functions, for templates that show them.
          add_generation_prompt: whether the text ends with what comes before an answer.

        Raises:
          ValueError: the template refuses the conversation, or cannot be run on it.
        """
        messages = [_with_reasoning(message) for message in messages]
        literal, before, behind = _unused_in(json.dumps([messages, tools], ensure_ascii=False))
        at = re.compile(f"(?={self._special})")
        marked, marked_tools = _mapped([messages, tools], lambda text: at.sub(literal, text))
        asked = {
            "tools": marked_tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        generation = self._sandbox.extensions[Generation.identifier]
        assert isinstance(generation, Generation)
        generation.marks = (before, behind)
        try:
            raw = self._run(marked, asked)
            return _unmarked(raw, marks=(literal, before, behind), special=self._special)
        except FAULTS as error:
            raise ValueError(
                f"Chat template {self.name}{self._culprit(marked, asked, error)}: {_told(error)}"
            ) from error

    def _run(self, messages: Any, asked: Mapping[str, Any]) -> str:
        self._sandbox.counted = 0
        parts, size = [], 0
        for part in self._template.generate(messages=messages, **self._variables, **asked):
            parts.append(part)
            size += len(part)
            if size > LONGEST:
                raise ValueError(f"it writes more than {LONGEST} characters.")
        return "".join(parts)

    def _culprit(self, messages: Any, asked: Mapping[str, Any], error: Exception) -> str:
        """Returns the first message with which the template fails in this way."""
        for count in range(1, len(messages) + 1):
            try:
                self._run(messages[:count], {**asked, "add_generation_prompt": False})
            except FAULTS as found:
                if str(found) == str(error):
                    return f", message {count} of {len(messages)}"
        return ""


def _with_reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Gives what an assistant thought the names that templates read, as transformers does."""
    found = [message[name] for name in _REASONING if message.get(name) is not None]
    if not found:
        return message
    return {"thinking": found[0], **message, "reasoning_content": found[0]}


def _told(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _unused_in(text: str) -> list[str]:
    """Returns three characters that can stand for something else in ``text``."""
    free = [mark for mark in _NONCHARACTERS if mark not in text]
    if len(free) < 3:
        raise ValueError("The conversation holds nearly all of Unicode's noncharacters.")
    return free[:3]


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Returns plain data with ``change`` applied to each text in it.

    Keys that templates may ask for by name stay.
    """
    match value:
        case str():
            return change(value)
        case dict():
            named = {name: name if name.isidentifier() else change(name) for name in value}
            return {named[name]: _mapped(item, change) for name, item in value.items()}
        case list() | tuple():
            return [_mapped(item, change) for item in value]
    return value


def _unmarked(raw: str, *, marks: tuple[str, str, str], special: str) -> Rendered:
    literal, before, behind = marks
    text, (opened, closed) = _without(raw, (before, behind))
    meant = [found.span() for found in re.finditer(f"(?<!{literal})(?:{special})", text)]
    text, (spelled,) = _without(text, (literal,))

    def moved(place: int) -> int:
        return place - bisect.bisect_left(spelled_at, place)

    # Places in the text that still had the marks.
    spelled_at = [place + number for number, place in enumerate(spelled)]
    if len(opened) != len(closed) or any(a > b for a, b in zip(opened, closed)):
        raise ValueError("it cuts or turns around what its {% generation %} blocks have written.")
    generated = tuple((moved(a), moved(b)) for a, b in zip(opened, closed))
    spans = tuple((moved(a), moved(b)) for a, b in meant)
    return Rendered(text, spans if spelled else None, generated)


def _without(text: str, marks: Sequence[str]) -> tuple[str, list[list[int]]]:
    """Returns a text without marks, and where each mark stood in what is left."""
    pieces = re.split(f"([{''.join(marks)}])", text)
    places: dict[str, list[int]] = {mark: [] for mark in marks}
    length = 0
    for piece in pieces:
        if piece in places:
            places[piece].append(length)
        else:
            length += len(piece)
    return "".join(pieces[::2]), list(places.values())
