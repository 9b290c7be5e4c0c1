"""Matrix products in eight bits, forward and backward, by the optional package qwix.

Operands are scaled by their largest absolute value along the contracted dimensions (one scale per
token and per output), rounded, multiplied in eight bits, summed in 32, and scaled back. The two
products of the gradient are computed the same way, from the rounded operands. "int8" has equal
steps; "fp8" is float8_e4m3fn, in gradients too, whose range the scales make up for.

qwix has no public name for the product itself, so that its version is pinned.
"""

import functools
import importlib.util
from typing import Any, Literal

import jax
import jax.numpy as jnp

from models.decoder_config import Precision


def check_installed(precision: Precision) -> None:
    """Raises ValueError if products in ``precision`` need a package that is not there."""
    if precision != "default" and importlib.util.find_spec("qwix") is None:
        raise ValueError(
            f"DecoderConfig.matmul={precision!r} needs the package qwix, which is not installed; "
            "install lockstep[qwix], or take 'default'."
        )


def quantized_matmul(
    x: jax.Array, w: jax.Array, *, contract: int, precision: Literal["int8", "fp8"]
) -> jax.Array:
    """Contracts the last ``contract`` dimensions of ``x`` with the first ones of ``w``.

    Args:
      x: [..., *inputs].
      w: [*inputs, *outputs] in the dtype of ``x``.
      contract: how many dimensions ``inputs`` has.
      precision: "int8" or "fp8".

    Returns:
      [..., *outputs] in the dtype of ``x``.

    Raises:
      ValueError: qwix is not installed.
    """
    check_installed(precision)
    from qwix._src.core.dot_general_qt import dot_general_qt

    last = tuple(range(x.ndim - contract, x.ndim))
    numbers = ((last, tuple(range(contract))), ((), ()))
    y: jax.Array = dot_general_qt(x, w, numbers, _config(precision))
    return y.astype(x.dtype)


@functools.cache
def _config(precision: Literal["int8", "fp8"]) -> Any:
    from qwix._src.core.dot_general_qt import DotGeneralQtConfig

    operands = ("lhs", "rhs", "dlhs_grad", "drhs_grad")
    dtype = jnp.dtype(jnp.int8 if precision == "int8" else jnp.float8_e4m3fn)
    # qwix puts the largest value at 127.5, in the middle of two steps: the last bit of what was
    # computed before would decide between -127 and -128, in every row. Here it is 127.
    largest = f"absmax,{127.5 / 127!r}" if precision == "int8" else "absmax"
    return DotGeneralQtConfig(
        **{f"{operand}_qtype": dtype for operand in operands},
        **{f"{operand}_calibration_method": largest for operand in operands},
        disable_gradient_clipping=True,  # nothing is clipped
    )
