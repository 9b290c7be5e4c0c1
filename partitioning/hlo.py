"""Reads the text of a compiled program (HLO) into computations and instructions.

Knows the grammar only: names, types, operands, attributes, which computation calls which, and how
often a loop runs. What a collective moves is in collectives.py.

Imports the standard library only. Promises: every computation and instruction of the text is
there, in order; a loop whose trip count the text does not settle is reported as unknown, never
guessed.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

_COMMENT = re.compile(r"/\*.*?\*/")
_HEAD = re.compile(r"^(ENTRY\s+)?%?([\w.\-]+)\s*(?:\(.*)?\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT\s+)?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,<=]*)\]")
_LAYOUT = re.compile(r"\{[^{}]*\}")
_NAME = re.compile(r"%([\w.\-]+)|([\w.\-]+)\s*$")
_KNOWN_TRIPS = re.compile(r'"known_trip_count":\s*\{\s*"n":\s*"(\d+)"')
_CALLED = re.compile(r"\b(?:calls|to_apply)=%?([\w.\-]+)")
_CALLED_LIST = re.compile(r"\bcalled_computations=\{([^}]*)\}")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_BOOLEAN = re.compile(r"\b(?:true|false)_computation=%?([\w.\-]+)")
_SAME = ("copy", "bitcast", "convert", "reshape")
_WIDTHS = {"pred": 8, "c64": 64, "c128": 128}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Array:
    """The type of one array.

    Attributes:
      dtype: as printed, such as ``bf16``.
      shape: dimensions; a dynamic one counts at its bound.
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> float:
        """Size; half a byte per element for four-bit types."""
        return bits(self.dtype) / 8 * math.prod(self.shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instruction:
    """One line of a computation.

    Attributes:
      name: without the percent sign.
      opcode: such as ``all-gather-start``.
      type: result type as printed, layouts included.
      operands: names of the operands.
      literal: the text between the parentheses.
      attributes: the text after them.
      is_root: whether it is the result of its computation.
    """

    name: str
    opcode: str
    type: str
    operands: tuple[str, ...]
    literal: str
    attributes: str
    is_root: bool

    def number(self, attribute: str) -> int | None:
        """Returns an attribute such as ``channel_id=7``, or None."""
        found = re.search(rf"\b{attribute}=(\d+)", self.attributes)
        return int(found[1]) if found else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Module:
    """A compiled program.

    Attributes:
      computations: name -> instructions, in order.
      entry: name of the computation that runs first.
    """

    computations: dict[str, tuple[Instruction, ...]]
    entry: str

    def find(self, computation: str, name: str) -> Instruction | None:
        """Returns an instruction by name."""
        return _by_name(self.computations[computation]).get(name)

    def root(self, computation: str) -> Instruction:
        """Returns the result of a computation."""
        return next(i for i in reversed(self.computations[computation]) if i.is_root)


@functools.lru_cache(maxsize=4096)
def _by_name(instructions: tuple[Instruction, ...]) -> dict[str, Instruction]:
    return {instruction.name: instruction for instruction in instructions}


def parse(text: str) -> Module:
    """Parses the text that ``compiled.as_text()`` returns.

    Raises:
      ValueError: there is no entry computation.
    """
    computations: dict[str, list[Instruction]] = {}
    entry = current = None
    for line in text.splitlines():
        if line and not line[0].isspace():
            head = _HEAD.match(line)
            current = None
            if head and not line.startswith("HloModule"):
                current = head[2]
                computations[current] = []
                entry = current if head[1] else entry
        elif current is not None:
            instruction = _instruction(_COMMENT.sub("", line))
            if instruction is not None:
                computations[current].append(instruction)
    if entry is None:
        raise ValueError("No ENTRY computation: this is not the text of a compiled program.")
    return Module(
        computations={name: tuple(body) for name, body in computations.items()}, entry=entry
    )


def bits(dtype: str) -> int:
    """Returns the width of an element.

    Raises:
      ValueError: the dtype is not known.
    """
    if dtype in _WIDTHS:
        return _WIDTHS[dtype]
    digits = re.match(r"(?:bf|[sufc])(\d+)", dtype)
    if digits is None:
        raise ValueError(f"Unknown dtype {dtype!r} in a compiled program.")
    return int(digits[1])


def arrays(type_text: str) -> tuple[Array, ...]:
    """Returns all arrays of a type, tuples flattened; tokens and opaque values are no arrays."""
    return tuple(
        Array(
            dtype=dtype,
            shape=tuple(int(size.lstrip("<=")) for size in shape.split(",") if size),
        )
        for dtype, shape in _ARRAY.findall(_LAYOUT.sub("", type_text))
        if dtype not in ("token", "opaque")
    )


def elements(type_text: str) -> tuple[str, ...]:
    """Returns the top-level elements of a tuple type, or the type itself."""
    text = type_text.strip()
    return tuple(_split(text[1:-1])) if text.startswith("(") else (text,)


def called(instruction: Instruction) -> tuple[str, ...]:
    """Returns what an instruction runs once: a fusion's body, a call's, an asynchronous one's."""
    lists = ",".join(_CALLED_LIST.findall(instruction.attributes))
    return (*_CALLED.findall(instruction.attributes), *_names(lists))


def branches(instruction: Instruction) -> tuple[str, ...]:
    """Returns the computations of which a ``conditional`` runs one."""
    listed = ",".join(_BRANCHES.findall(instruction.attributes))
    return _names(listed) or tuple(_BOOLEAN.findall(instruction.attributes))


def loop(instruction: Instruction) -> tuple[str, str]:
    """Returns (condition, body) of a ``while``."""
    condition = re.search(r"\bcondition=%?([\w.\-]+)", instruction.attributes)
    body = re.search(r"\bbody=%?([\w.\-]+)", instruction.attributes)
    assert condition is not None, instruction.name
    assert body is not None, instruction.name
    return condition[1], body[1]


def trip_count(module: Module, computation: str, instruction: Instruction) -> int | None:
    """Returns how often a ``while`` runs, or None if the text does not say.

    CPU and GPU compilers print the count. TPU's does not: there the condition compares an
    element of the loop's state with a constant, the body adds a constant to it (more than one
    where the loop was unrolled), and the operand of the loop says where it starts.
    """
    if known := _KNOWN_TRIPS.search(instruction.attributes):
        return int(known[1])
    condition, body = loop(instruction)
    comparison = _comparison(module, condition)
    if comparison is None:
        return None
    index, direction, limit = comparison
    step = _step(module, body, index=index)
    start = _start(module, computation, instruction, index=index)
    if not step or start is None:
        return None
    distance = limit - start + (1 if direction in ("LE", "GE") else 0) * (1 if step > 0 else -1)
    if direction not in ("LT", "LE", "GT", "GE", "NE") or distance * step < 0:
        return None
    return -(-abs(distance) // abs(step))


def _instruction(line: str) -> Instruction | None:
    match = _INSTRUCTION.match(line)
    if match is None:
        return None
    rest = match[3]
    end = _closing(rest) + 1 if rest.startswith("(") else rest.find(" ")
    opcode = _OPCODE.match(rest, end) if end > 0 else None
    if opcode is None:
        return None
    opened = opcode.end() - 1
    closed = opened + _closing(rest[opened:])
    literal = rest[opened + 1 : closed]
    return Instruction(
        name=match[2],
        opcode=opcode[1],
        type=rest[:end],
        operands=_names(literal) if opcode[1] not in ("constant", "parameter") else (),
        literal=literal,
        attributes=rest[closed + 1 :],
        is_root=match[1] is not None,
    )


def _closing(text: str) -> int:
    """Returns where the parenthesis that ``text`` begins with is closed."""
    depth = 0
    for found in re.finditer(r"[()]", text):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return found.start()
    return len(text)


def _split(text: str) -> Iterator[str]:
    """Cuts at commas that stand inside no bracket."""
    depth = start = 0
    for found in re.finditer(r"[(\[{}\]),]", text):
        if found[0] == ",":
            if depth == 0:
                yield text[start : found.start()].strip()
                start = found.end()
        else:
            depth += 1 if found[0] in "([{" else -1
    if text[start:].strip():
        yield text[start:].strip()


def _names(text: str) -> tuple[str, ...]:
    found = (_NAME.search(part) for part in _split(text))
    return tuple(match[1] or match[2] for match in found if match)


def _comparison(module: Module, condition: str) -> tuple[int, str, int] | None:
    """Returns (element of the loop's state, direction, limit) of a loop's condition."""
    scope = condition
    root = module.root(condition)
    arguments: tuple[Instruction | None, ...] | None = None
    if root.opcode in ("fusion", "call"):
        arguments = tuple(module.find(condition, name) for name in root.operands)
        scope = called(root)[0]
        root = module.root(scope)
    if root.opcode != "compare":
        return None
    sides = [_follow(module, scope, name, arguments=arguments) for name in root.operands]
    direction = re.search(r"direction=(\w+)", root.attributes)
    index, limit = _element(sides[0]), _constant(sides[1])
    if index is None or limit is None or direction is None:
        return None
    return index, direction[1], limit


def _step(module: Module, body: str, *, index: int) -> int | None:
    """Returns what the body adds to one element of the loop's state."""
    root = module.root(body)
    if root.opcode != "tuple" or index >= len(root.operands):
        return None
    new = _follow(module, body, root.operands[index])
    scope, arguments = body, None
    if new is not None and new.opcode in ("fusion", "call"):
        arguments = tuple(module.find(body, name) for name in new.operands)
        scope = called(new)[0]
        new = module.root(scope)
    if new is None or new.opcode not in ("add", "subtract"):
        return None
    sides = [_follow(module, scope, name, arguments=arguments) for name in new.operands]
    sign = -1 if new.opcode == "subtract" else 1
    if _element(sides[0]) == index and (added := _constant(sides[1])) is not None:
        return sign * added
    if sign > 0 and _element(sides[1]) == index:
        return _constant(sides[0])
    return None


def _start(module: Module, computation: str, loop_: Instruction, *, index: int) -> int | None:
    """Returns what one element of the loop's state is before the first run."""
    state = _follow(module, computation, loop_.operands[0])
    if state is None or state.opcode != "tuple":
        return None
    return _constant(_follow(module, computation, state.operands[index]))


def _follow(
    module: Module,
    computation: str,
    name: str,
    *,
    arguments: tuple[Instruction | None, ...] | None = None,
) -> Instruction | None:
    """Returns the instruction behind copies, and behind a fusion's parameter its argument."""
    instruction = module.find(computation, name)
    while instruction is not None and instruction.opcode in _SAME:
        instruction = module.find(computation, instruction.operands[0])
    if arguments is not None and instruction is not None and instruction.opcode == "parameter":
        return arguments[int(instruction.literal)]
    return instruction


def _element(instruction: Instruction | None) -> int | None:
    if instruction is None or instruction.opcode != "get-tuple-element":
        return None
    return instruction.number("index")


def _constant(instruction: Instruction | None) -> int | None:
    if instruction is None or instruction.opcode != "constant":
        return None
    return int(instruction.literal) if re.fullmatch(r"-?\d+", instruction.literal) else None
