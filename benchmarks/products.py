"""Operations of the matrix products of a compiled program, with the loops around them.

Imports of this repository only what reads programs. A loop of unknown length counts once.
"""

import math
import re

from partitioning import hlo
from partitioning.hlo_walk import walk

_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")


def product_flops(text: str, *, taken: tuple[float, ...] = ()) -> float:
    """Returns multiplications and additions of one call of a program.

    Args:
      text: what ``compiled.as_text()`` returns.
      taken: how much of the time branches within loops are taken, by the depth of their nesting.
    """
    module = hlo.parse(text)
    return sum(
        place.runs * place.share * _dot(module, computation, instruction)
        for computation, instruction, place in walk(module, taken=taken)
        if instruction.opcode == "dot"
    )


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
