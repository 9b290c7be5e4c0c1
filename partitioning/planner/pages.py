"""``python -m partitioning.planner.pages``: writes what the planner says into the pages of docs/.

A page holds marks, which are commands of the planner; what they print stands after them, and a test
sees that it still does. Two lines make a block::

    <!-- planner: failures --devices=512 -->
    <!-- end -->

``planner:`` shows what the command prints; ``planner matrix:`` one table, a row for each section
of its answer; ``planner sections:`` headings, text and tables. Inside of a sentence stands one
value, by section and name of the JSON::

    It fails every <!--= failures --devices=512 | 512.mtbf --><!--/-->.

``--check`` writes nothing and leaves with 1 if a page is old. A new page needs its marks only.
"""

import argparse
import functools
import pathlib
import re
import shlex
import sys

from partitioning.planner import markdown
from partitioning.planner.__main__ import parser
from partitioning.planner.answers import Answer, Policy, Report, shown
from partitioning.planner.command import Given

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"(<!-- planner( matrix| sections)?: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
_VALUE = re.compile(r"(<!--= (.*?) \| ([\w.+-]+) -->).*?(<!--/-->)", re.DOTALL)


def written(page: str) -> str:
    """Returns a page with everything between marks as it is now.

    Raises:
      ValueError: a mark asks for what no command answers.
    """
    page = _BLOCK.sub(lambda m: f"{m[1]}\n{_block(m[3], form=m[2] or '')}\n\n{m[4]}", page)
    return _VALUE.sub(lambda m: f"{m[1]}{_value(m[2], key=m[3])}{m[4]}", page)


def pages() -> list[pathlib.Path]:
    """Returns the pages that hold marks."""
    found = ((path, path.read_text()) for path in sorted(DOCS.glob("*.md")))
    return [path for path, text in found if _BLOCK.search(text) or _VALUE.search(text)]


@functools.cache
def _asked(command: str) -> tuple[Report, Policy]:
    try:
        given: Given = parser().parse_args(shlex.split(command))
    except SystemExit as error:
        raise ValueError(f"The mark {command!r} is no command of the planner.") from error
    report: Report = given.run(given)
    return report, given.policy


def _block(command: str, *, form: str) -> str:
    report, policy = _asked(command)
    if not form:
        lines = (line.rstrip() for line in report.show(policy).splitlines())
        return "\n".join(["```text planner", *lines, "```"])
    draw = {" matrix": markdown.matrix, " sections": markdown.sections}[form]
    return draw(_answer(report, command), policy=policy)


def _value(command: str, *, key: str) -> str:
    report, policy = _asked(command)
    section, _, name = key.rpartition(".")
    for one in _answer(report, command).sections:
        for quantity in one.quantities:
            if (one.name, quantity.name) == (section, name):
                return shown(quantity.under(policy), quantity.unit)
    raise ValueError(f"The answer of {command!r} has no quantity {key!r}.")


def _answer(report: Report, command: str) -> Answer:
    if not isinstance(report, Answer):
        raise ValueError(f"{command!r} answers with no sections; write `planner:` in the mark.")
    return report


def main() -> int:
    """Writes the pages, or with ``--check`` looks at them; returns the exit status."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--check", action="store_true", help="Say which pages are old.")
    check = arguments.parse_args().check
    old = {path: now for path in pages() if (now := written(path.read_text())) != path.read_text()}
    for path, now in old.items():
        if not check:
            path.write_text(now)
        print(f"{path.name}: {'old' if check else 'written'}")  # noqa: T201 - its face
    return int(check and bool(old))


if __name__ == "__main__":
    sys.exit(main())
