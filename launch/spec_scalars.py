"""One value of a job file: what was written, checked against what is wanted. No guessing.

A number in quotes is no number and a bare ``no`` is no text, because the same characters would
mean something else to the next reader of the file. Imports PyYAML.
"""

import enum
import math
import re
from typing import Any

import yaml

from launch.spec_problems import nearest

_TAG = "tag:yaml.org,2002:"
_KINDS = {
    "bool": "a yes or no",
    "int": "a whole number",
    "float": "a number",
    "null": "nothing",
    "timestamp": "a date",
}
_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9_]{0,18})")
_NUMBER = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9]*)?([eE][-+]?[0-9]{1,3})?")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
LONGEST_S = 3650 * 86400.0
DURATION = "a number of seconds, or a number with a unit such as 90s, 30m, 12h or 7d"


class Wrong(Exception):
    """A value that cannot be used; the text says why, ``nearest`` what may have been meant."""

    def __init__(self, message: str, *, nearest: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.nearest = nearest


def shown(node: yaml.Node) -> str:
    """Returns what was written, as a message names it."""
    if isinstance(node, yaml.MappingNode):
        return "keys with values"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    text = node.value if len(node.value) <= 60 else f"{node.value[:57]}..."
    if not node.value and node.style is None:
        return "nothing"
    kind = _KINDS.get(_kind(node))
    return f"{text} ({kind})" if kind and node.style is None else repr(text)


def is_empty(node: yaml.Node) -> bool:
    """Whether nothing, ~ or null is written."""
    return isinstance(node, yaml.ScalarNode) and _kind(node) == "null"


def scalar(node: yaml.Node, *, kind: Any) -> Any:
    """Returns the value of a node as ``kind``: str, int, float, bool or an enum.

    Raises:
      Wrong: it is something else.
    """
    if not isinstance(node, yaml.ScalarNode):
        raise Wrong(f"given {shown(node)}, but {_wanted(kind)} is wanted.")
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _member(node, kind)
    return {str: _text, int: _whole, float: _number, bool: _switch}[kind](node)


def duration(node: yaml.Node) -> float:
    """Returns seconds.

    Raises:
      Wrong: it is no duration.
    """
    if isinstance(node, yaml.ScalarNode):
        parts = _DURATION.findall(node.value)
        value = -1.0
        if parts and "".join("".join(part) for part in parts) == node.value:
            value = sum(float(number) * _UNITS[unit] for number, unit in parts)
        elif node.style is None and _NUMBER.fullmatch(node.value):
            value = _number(node)
        if 0 <= value <= LONGEST_S:
            return value
    raise Wrong(f"given {shown(node)}; allowed is {DURATION}, at most ten years.")


def _kind(node: yaml.ScalarNode) -> str:
    return str(node.tag).removeprefix(_TAG)


def _wanted(kind: Any) -> str:
    if issubclass(kind, enum.Enum):
        return f"one of {', '.join(str(member.value) for member in kind)}"
    return {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}[kind]


def _text(node: yaml.ScalarNode) -> str:
    kind = _KINDS.get(_kind(node))
    if node.style is None and kind:
        if _kind(node) == "null":
            raise Wrong('given nothing, but a text is wanted; write "" for an empty one.')
        raise Wrong(f'YAML reads {node.value} as {kind}; a text is wanted: write "{node.value}".')
    if bad := next((c for c in node.value if c == "\0" or "\ud800" <= c <= "\udfff"), None):
        raise Wrong(f"the text holds U+{ord(bad):04X}, which no program can be given.")
    return str(node.value)


def _whole(node: yaml.ScalarNode) -> int:
    if node.style is None and _WHOLE.fullmatch(node.value):
        return int(node.value.replace("_", ""))  # YAML puts _ anywhere, Python does not
    if _WHOLE.fullmatch(node.value):
        raise Wrong(f'given the text "{node.value}"; write {node.value} without quotes.')
    raise Wrong(f"given {shown(node)}, but a whole number is wanted, such as 8.")


def _number(node: yaml.ScalarNode) -> float:
    if _NUMBER.fullmatch(node.value):
        if node.style is not None:
            raise Wrong(f'given the text "{node.value}"; write {node.value} without quotes.')
        value = float(node.value.replace("_", ""))
        if math.isfinite(value):
            return value
    raise Wrong(f"given {shown(node)}, but a number is wanted, such as 1.5.")


def _switch(node: yaml.ScalarNode) -> bool:
    values = yaml.SafeLoader.bool_values
    if _kind(node) == "bool":
        return bool(values[node.value.lower()])
    if node.value.lower() in values:
        raise Wrong(f'given the text "{node.value}"; write {node.value} without quotes.')
    raise Wrong(f"given {shown(node)}, but true or false is wanted.")


def _member(node: yaml.ScalarNode, kind: type[enum.Enum]) -> enum.Enum:
    values = [str(member.value) for member in kind]
    if node.value in values:
        return kind(node.value)
    close = nearest(node.value, among=values)
    raise Wrong(f"given {shown(node)}; allowed are {', '.join(values)}.", nearest=close)
