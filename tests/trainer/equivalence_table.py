"""Writes docs/equivalence.md: ``python -m tests.trainer.equivalence_table``."""

import tests.conftest  # noqa: F401, I001 - eight devices, before anything else looks at them
import jax

from tests.trainer import equivalence
from tests.trainer.equivalence_cases import CASES
from trainer.config_parser import REPOSITORY

PAGE = REPOSITORY / "docs" / "equivalence.md"
HEAD = """\
# Every layout computes the same step

One training step on eight virtual devices against the same step on one device, in one piece,
nothing recomputed or scanned: a decoder of two layers with 8 query and 2 key/value heads, 32 rows
of 16 tokens, z-loss on. Shown is the worst error of a leaf, relative to its largest value: of the
loss and its metrics, of the gradients (every leaf), of the parameters after an SGD update.
`tests/trainer/test_equivalence.py` fails above 1e-12 in float64 and 1e-5 in float32.

Written by `python -m tests.trainer.equivalence_table`; the last digits differ between processors.

| dtype | layout | rule set | batch | loss | gradients | parameters |
|---|---|---|---|---|---|---|
"""


def key(case: equivalence.Case) -> str:
    """Returns the cells of a row that name it."""
    return f"| {case.dtype} | {case.name} | {case.rules} | {case.batch} |"


def row(case: equivalence.Case) -> str:
    """Returns the line of a case."""
    found = equivalence.outcome(case)
    errors = equivalence.errors(found, equivalence.on_one_device(case.reference()))
    return " ".join([key(case), *(f"{error:.1e} |" for _, error in errors.values())])


def main() -> None:
    """Runs every case and writes the page."""
    with jax.enable_x64(True):
        rows = [row(case) for case in CASES]
    PAGE.write_text(HEAD + "\n".join(rows) + "\n")
    print(PAGE.read_text())


if __name__ == "__main__":
    main()
