"""The Jinja environment of chat templates. Imports Jinja.

Templates come with models, so they are programs of strangers. What they may do follows
``transformers`` (utils/chat_template_utils.py): Jinja's immutable sandbox, loop controls, the
filter ``tojson``, the functions ``raise_exception`` and ``strftime_now``, ``{% generation %}``.
Beyond that, what operators make is at most `LONGEST`, ``range`` counts through at most
`MOST_COUNTED` numbers, the date is a given one, and nothing is written that is another in the next
process: Jinja's ``lipsum`` and ``random`` are taken out, and functions and iterators, which show
where they lie in memory, are refused.
"""

import datetime
import json
import re
import types
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any

import jinja2
import jinja2.compiler
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

LONGEST = 1 << 22
"""Most characters or items of anything that a template makes."""
MOST_COUNTED = 100_000
"""Most numbers that a template may count through with ``range`` in one rendering."""
FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a faulty template, or one that does not fit a conversation, raises."""


_CHANGING = (Iterator, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_WIDTHS = re.compile(r"%(?:\([^)]*\))?[#0\- +]*(\d+|\*)?(?:\.(\d+|\*))?")


class Generation(jinja2.ext.Extension):
    """``{% generation %}``: puts marks around what the assistant writes.

    Attributes:
      marks: what goes before and behind it in the next rendering.
    """

    def __init__(self, environment: jinja2.Environment) -> None:
        """Called by Jinja."""
        super().__init__(environment)
        self.tags = {"generation"}
        self.marks = ("", "")

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Reads one block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        before, behind = self.marks
        return before + caller() + behind


class _CodeGenerator(jinja2.compiler.CodeGenerator):
    def visit_Concat(self, node: jinja2.nodes.Concat, frame: jinja2.compiler.Frame) -> None:
        """Compiles ``~``, which Jinja does not let sandboxes intercept."""
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Compiles chat templates.

    Attributes:
      counted: numbers that `range` has given out; set it to 0 before each rendering.
    """

    intercepted_binops = frozenset({"*", "**", "+", "%"})
    code_generator_class = _CodeGenerator

    def __init__(self, *, date: datetime.date | None) -> None:
        """Makes an environment in which today is ``date``; None knows no date."""
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[Generation, "jinja2.ext.loopcontrols"],
            finalize=_lasting,
        )
        del self.filters["random"], self.globals["lipsum"]
        self.filters["tojson"] = _to_json
        self.counted = 0
        more = {"raise_exception": _raise, "namespace": _Namespace, "range": self._range}
        self.globals |= more
        if date is not None:
            self.globals["strftime_now"] = date.strftime

    def _range(self, *bounds: int) -> range:
        numbers = range(*bounds)
        self.counted += len(numbers)
        if self.counted > MOST_COUNTED:
            raise jinja2.sandbox.SecurityError(
                f"it counts through {self.counted} numbers; templates may do so with "
                f"{MOST_COUNTED}."
            )
        return numbers

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Computes what could grow without end, if it does not."""
        _check_size(operator, _size_of(operator, left, right))
        return super().call_binop(context, operator, left, right)

    @staticmethod
    def joined(parts: Sequence[Any]) -> str:
        """Computes ``~``."""
        texts = [str(_lasting(part)) for part in parts]
        _check_size("~", sum(map(len, texts)))
        return "".join(texts)


def _lasting(value: Any) -> Any:
    """Returns a value that is to be written, if it is the same in every process."""
    if isinstance(value, _CHANGING):
        raise jinja2.sandbox.SecurityError(
            f"it writes a {type(value).__name__}, which is another text each time; did it mean to "
            "call it, or to put it through 'list' or 'join'?"
        )
    return value


def _check_size(operator: str, size: int) -> None:
    if size > LONGEST:
        raise jinja2.sandbox.SecurityError(
            f"{operator!r} would make something of {size} characters or items; templates may "
            f"make at most {LONGEST}."
        )


def _size_of(operator: str, left: Any, right: Any) -> int:
    """Returns the length of a text or list, or the decimal digits of a number, at most."""
    sized = [value for value in (left, right) if isinstance(value, Sized)]
    if operator == "+":
        return sum(map(len, sized))
    if operator == "*":
        return len(sized[0]) * int(right if sized[0] is left else left) if sized else 0
    if operator == "%":
        return _size_formatted(left, right) if isinstance(left, str) else 0
    return abs(int(left)).bit_length() * abs(int(right))


def _size_formatted(text: str, values: Any) -> int:
    """Returns the length that widths and precisions of ``text % values`` ask for."""
    asked = [int(number) for found in _WIDTHS.findall(text) for number in found if number.isdigit()]
    given = values if isinstance(values, tuple) else (values,)
    stars = [abs(value) for value in given if isinstance(value, int)] if "*" in text else []
    return len(text) + sum(asked) + sum(stars)


class _Namespace(jinja2.utils.Namespace):
    """Holds what a template sets; names of Python's own, such as ``__class__``, it refuses."""

    def __init__(self, *values: Any, **named: Any) -> None:
        for name in dict(*values, **named):
            _refuse_private(name)
        super().__init__(*values, **named)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: str) -> None:
    if name.startswith("_"):
        raise jinja2.sandbox.SecurityError(f"a namespace cannot hold {name!r}.")


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, **options: Any) -> str:
    """Jinja's own escapes HTML, which no model was trained on."""
    return json.dumps(value, **{"ensure_ascii": False, **options})
