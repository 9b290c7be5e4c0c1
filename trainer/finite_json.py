"""JSON that every reader takes: NaN and the infinities are strings. Standard library only."""

import json
import math
from collections.abc import Mapping
from typing import Any

NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""How a number that is not finite is written, and what it is."""


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Returns ``value`` as JSON; finite floats read back bit-equal.

    Raises:
      TypeError: something in it is not JSON.
    """
    return json.dumps(_finite(value), allow_nan=False, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
