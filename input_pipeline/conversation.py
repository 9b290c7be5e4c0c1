"""A line of a file of conversations, checked and in one form. Imports the standard library only."""

import json
from collections.abc import Mapping
from typing import Any

_FORMS = (
    'Allowed are {"messages": [{"role": ..., "content": ...}, ...]}, {"prompt": ..., '
    '"completion": ...} and {"conversations": [{"from": ..., "value": ...}, ...]}.'
)
_SPEAKERS = {"system": "system", "human": "user", "user": "user", "gpt": "assistant"}
"""Names of the ShareGPT form, and the roles that templates know."""


def conversation_text(record: Mapping[str, Any]) -> str:
    """Returns a conversation as canonical JSON with ``messages`` and, if there are some, ``tools``.

    What else is in a message, such as ``tool_calls``, is kept: templates may show it.

    Raises:
      ValueError: it is no conversation; says what is wrong and what is allowed.
    """
    messages = [_checked(message, number) for number, message in enumerate(_messages(record), 1)]
    if not messages:
        raise ValueError("the conversation has no messages; leave the line out.")
    value: dict[str, Any] = {"messages": messages}
    if (tools := record.get("tools")) is not None:
        if not isinstance(tools, list):
            raise ValueError(f"tools is {type(tools).__name__}, not a list of JSON schemas.")
        value["tools"] = tools
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _messages(record: Mapping[str, Any]) -> list[Any]:
    match record:
        case {"messages": list() as messages}:
            return messages
        case {"prompt": str() as prompt, "completion": str() as completion}:
            question = {"role": "user", "content": prompt}
            return [question, {"role": "assistant", "content": completion}]
        case {"conversations": list() as turns}:
            return [_from_turn(turn, number) for number, turn in enumerate(turns, 1)]
    raise ValueError(f"not a conversation: it has {sorted(record)}. {_FORMS}")


def _from_turn(turn: object, number: int) -> dict[str, Any]:
    match turn:
        case {"from": str() as speaker, "value": value} if speaker in _SPEAKERS:
            return {"role": _SPEAKERS[speaker], "content": value}
        case {"from": speaker, "value": _}:
            raise ValueError(
                f"message {number} is from {speaker!r}; allowed are {sorted(_SPEAKERS)}."
            )
    raise ValueError(f"message {number} has no 'from' and 'value'. {_FORMS}")


def _checked(message: object, number: int) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise ValueError(f"message {number} is {type(message).__name__}, not an object. {_FORMS}")
    # Whoever calls a tool may have nothing to say.
    silent = message.get("content") is None and message.get("tool_calls")
    for name in ("role",) if silent else ("role", "content"):
        if name not in message:
            raise ValueError(f"message {number} has no {name!r}; it has {sorted(message)}.")
        if not isinstance(message[name], str):
            kind = type(message[name]).__name__
            raise ValueError(f"{name} of message {number} is {kind}, not text.")
    # As transformers does: a null stands for a key that is not there.
    return {name: value for name, value in message.items() if value is not None}
