"""Operations of the matrix products of a compiled program, with the loops around them.

Imports of this repository only what reads programs. A loop of unknown length counts once.
"""

import math
import re

from partitioning import hlo

_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_RUNS_INSIDE = ("fusion", "call", "async-start", "custom-call")


def product_flops(text: str, *, taken: tuple[float, ...] = ()) -> float:
    """Returns multiplications and additions of one call of a program.

    Args:
      text: what ``compiled.as_text()`` returns.
      taken: how much of the time branches within loops are taken, by the depth of their nesting.
    """
    module = hlo.parse(text)
    return _of(module, module.entry, depth=0, looped=False, taken=taken)


def _of(
    module: hlo.Module, computation: str, *, depth: int, looped: bool, taken: tuple[float, ...]
) -> float:
    total = 0.0
    for instruction in module.computations[computation]:
        inner: tuple[str, ...] = ()
        times, below, inside = 1.0, depth, looped
        if instruction.opcode == "dot":
            total += _dot(module, computation, instruction)
        elif instruction.opcode == "while":
            inner, inside = hlo.loop(instruction), True
            times = hlo.trip_count(module, computation, instruction) or 1
        elif instruction.opcode == "conditional":
            inner = hlo.branches(instruction)
            if looped:
                below, times = depth + 1, _share(depth + 1, taken) / _share(depth, taken)
        elif instruction.opcode in _RUNS_INSIDE:
            inner = hlo.called(instruction)
        for name in inner:
            if name in module.computations:
                total += times * _of(module, name, depth=below, looped=inside, taken=taken)
    return total


def _share(depth: int, taken: tuple[float, ...]) -> float:
    known = taken[:depth]
    return known[-1] if known else 1.0


def _dot(module: hlo.Module, computation: str, instruction: hlo.Instruction) -> float:
    """Two operations per element of the result and contracted element."""
    (result,) = hlo.arrays(instruction.type)
    found = _CONTRACTED.search(instruction.attributes)
    left = module.find(computation, instruction.operands[0])
    assert left is not None
    assert found is not None
    (operand,) = hlo.arrays(left.type)
    contracted = (operand.shape[int(axis)] for axis in found[1].split(",") if axis)
    return 2.0 * math.prod(contracted) * math.prod(result.shape)
