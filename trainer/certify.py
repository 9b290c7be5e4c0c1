"""Certifies that every layout computes the step of one device: ``python -m trainer.certify``.

Runs on sixteen virtual CPU devices and writes docs/equivalence.md; ``--only=stage`` runs the rows
whose names match and writes nothing. Exit status 1 if a row fails. Rows that nobody reads any more
(``| head``) are run all the same.
"""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

os.environ["JAX_PLATFORMS"] = "cpu"  # before jax looks for accelerators

import jax
from absl import app, flags

from trainer import standard_streams

if TYPE_CHECKING:
    from trainer.certificate.page import Row

_JSON = flags.DEFINE_bool("json", False, "Print one JSON object instead of lines.")
_ONLY = flags.DEFINE_string("only", None, "Run rows whose names match this regular expression.")
DEVICES = 16
INTERRUPTED = 128 + signal.SIGINT


@flags.validator("only")
def _is_pattern(pattern: str | None) -> bool:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise flags.ValidationError(f"no regular expression: {error}.") from error
    return True


def main(argv: Sequence[str]) -> None:
    """Runs the matrix."""
    if len(argv) > 1:
        raise app.UsageError(f"Unknown argument {argv[1]!r}.")
    standard_streams.secure()
    jax.config.update("jax_num_cpu_devices", DEVICES)
    jax.config.update("jax_enable_x64", True)
    # What they import asks jax for devices.
    from trainer.certificate import matrix
    from trainer.certificate.page import PAGE, check_writable, page

    wanted = [
        of for of in matrix.EVERYTHING if re.search(_ONLY.value or "", ", ".join(matrix.names(of)))
    ]
    if not wanted:
        raise app.UsageError(f"--only={_ONLY.value!r} matches no row.")
    if not _ONLY.value:
        try:
            check_writable(PAGE)
        except ValueError as error:
            raise app.UsageError(f"{error} --only=. runs every row and writes nothing.") from error
    rows = _run(wanted)
    failed = [row for row in rows if not row.passed]
    if _JSON.value:
        counts = {"passed": len(rows) - len(failed), "failed": len(failed)}
        print(json.dumps({**counts, "rows": [row.as_json() for row in rows]}))  # noqa: T201
    else:
        print(f"{len(rows) - len(failed)} passed, {len(failed)} failed.")  # noqa: T201
    if not _ONLY.value and not failed:
        PAGE.write_text(page(rows), encoding="utf-8")
        _say(f"Written: {PAGE.name}")
    sys.exit(1 if failed else 0)


def _run(wanted: Sequence[Any]) -> "list[Row]":
    """Runs Cases and Controls one by one and says how each went; leaves if it is interrupted."""
    from trainer.certificate import matrix

    rows: list[Row] = []
    start = time.monotonic()
    try:
        for number, of in enumerate(wanted, start=1):
            rows.append(matrix.run(of))
            at = f"{number}/{len(wanted)} {time.monotonic() - start:5.0f} s"
            _say(f"{at} {'passed' if rows[-1].passed else 'FAILED'} {rows[-1].as_text()}")
    except KeyboardInterrupt:
        _say(f"Interrupted after {len(rows)} of {len(wanted)} rows; nothing was written.")
        sys.exit(INTERRUPTED)
    return rows


def _say(text: str) -> None:
    print(text, file=sys.stderr if _JSON.value else sys.stdout, flush=True)


if __name__ == "__main__":
    app.run(main)
