"""What the commands print: answers on stdout, remarks on stderr."""

import datetime
import json
import sys
from collections.abc import Sequence
from typing import Any


def say(text: str) -> None:
    """Prints an answer."""
    print(text, flush=True)  # noqa: T201 - the console is this program's face


def remark(text: str) -> None:
    """Prints something beside the answer."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - the console is this program's face


def say_json(value: dict[str, Any]) -> None:
    """Prints one JSON object as the whole answer."""
    say(json.dumps({"version": 1, **value}, indent=1))


def ago(seconds: float) -> str:
    """Returns a span of time as people say it: 5 s, 3 min, 2.5 h, 4 d."""
    if seconds < 99.5:
        return f"{max(seconds, 0.0):.0f} s"
    if seconds < 5970:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.0f} d"


def clock(time: float) -> str:
    """Returns date and time of day where this is read, to the second."""
    return datetime.datetime.fromtimestamp(time).strftime("%Y-%m-%d %H:%M:%S")


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Returns lines with columns that start below one another; the first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
