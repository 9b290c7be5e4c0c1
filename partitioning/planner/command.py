"""What commands of the planner have in common: help with examples, --json, --policy, sizes."""

import argparse
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from launch.contract import ExitCode
from partitioning.planner.answers import Report, Section

PROGRAM = "python -m partitioning.planner"
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_BINARY = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}

LEAST, MOST = 1e-12, 1e30
"""Between these lies what is read, so that no product of some of it leaves the floats."""
_MOST_COUNTED = 10**12

Given = argparse.Namespace


class Parser(argparse.ArgumentParser):
    """One whose mistakes leave with the code for configuration."""

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # argparse takes "--name=--" for a name without a value, and hands on an empty list.
        if action.option_strings and action.nargs is None and arg_strings == ["--"]:
            raise argparse.ArgumentError(action, "expected a value, got '--'")
        return super()._get_values(action, arg_strings)

    def error(self, message: str) -> NoReturn:
        self.exit(int(ExitCode.CONFIGURATION), f"{message}\nSee {self.prog} --help.\n")


def add(
    commands: Any,
    name: str,
    help_text: str,
    examples: Sequence[str],
    *,
    run: Callable[[Given], Report],
) -> argparse.ArgumentParser:
    """Adds a command.

    Args:
      commands: what ``add_subparsers`` returned.
      name: of the command.
      help_text: what it answers.
      examples: command lines without the program.
      run: turns the parsed arguments into what is shown; raises ValueError for the user.

    Returns:
      The command's parser, for its arguments.
    """
    shown = "\n".join(f"  {PROGRAM} {line}" for line in examples)
    one: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help_text.partition(". ")[0].rstrip("."),
        description=textwrap.fill(help_text, 88),
        epilog=f"examples:\n{shown}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.set_defaults(run=run)
    one.add_argument("--json", action="store_true", help="Print one JSON object instead.")
    one.add_argument(
        "--policy",
        choices=("right", "book"),
        default="right",
        help="book: what the documents print, with the reason why it differs.",
    )
    return one


def group(commands: Any, name: str, help_text: str) -> Any:
    """Adds a command that consists of others; returns what these are added to."""
    one = commands.add_parser(name, help=help_text, description=f"{help_text}.")
    return one.add_subparsers(dest="what", metavar="WHAT", required=True)


def number(text: str) -> float:
    """Reads a decimal amount: 7e9, 70B, 1.5T, 100k.

    Raises:
      ArgumentTypeError: it is none, or not positive.
    """
    return _read(text, _DECIMAL, "70e9, 70B or 1.5T")


def tokens(text: str) -> int:
    """Reads a number of tokens, whose K, M and G are powers of two: 4M is 4,194,304.

    Raises:
      ArgumentTypeError: it is none, or not positive.
    """
    read = round(_read(text, _BINARY, "4194304 or 4M, which is the same"))
    if not read:
        raise argparse.ArgumentTypeError(f"{text!r} is less than one token.")
    return read


def seconds(text: str) -> float:
    """Reads a duration: 90, 450ms, 10min, 4h, 30d.

    Raises:
      ArgumentTypeError: it is none, or negative.
    """
    match = re.fullmatch(r"([0-9]+\.?[0-9]*)(ms|s|min|h|d|)", text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a duration; write 450ms, 90s, 10min, 4h or 30d."
        )
    scale = {"": 1, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86_400}[match[2]]
    return _bounded(text, float(match[1]) * scale)


def some_time(text: str) -> float:
    """Reads a duration that is not 0.

    Raises:
      ArgumentTypeError: it is none, or 0.
    """
    if not (read := seconds(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no time at all.")
    return read


def counted(text: str) -> int:
    """Reads a whole number that may be 0.

    Raises:
      ArgumentTypeError: it is none.
    """
    return 0 if re.fullmatch("0+", text) else positive(text)


def several(read: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Returns a reader of values with commas between them: 512,1024."""

    def values(text: str) -> tuple[Any, ...]:
        return tuple(read(one) for one in text.split(","))

    return values


def positive(text: str) -> int:
    """Reads a positive whole number.

    Raises:
      ArgumentTypeError: it is none.
    """
    if re.fullmatch("0*[1-9][0-9]{0,12}", text) and int(text) <= _MOST_COUNTED:
        return int(text)
    raise argparse.ArgumentTypeError(
        f"{text[:40]!r} is not a positive whole number of at most {_MOST_COUNTED:,}."
    )


def amount(text: str) -> float:
    """Reads a decimal amount that may be 0.

    Raises:
      ArgumentTypeError: it is none, or negative.
    """
    return 0.0 if re.fullmatch(r"0+(\.0*)?", text) else number(text)


def share(text: str) -> float:
    """Reads a share: 0.1 or 10%.

    Raises:
      ArgumentTypeError: it is none, or not between 0 and 1.
    """
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share; write 0.1 or 10%.")
    return _bounded(text, value)


def _read(text: str, scales: dict[str, int], example: str) -> float:
    match = re.fullmatch(r"([0-9][0-9_,]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?)([a-zA-Z]?)", text)
    if match is None or match[2].lower() not in scales:
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount; write {example}.")
    value = float(match[1].replace("_", "").replace(",", "")) * scales[match[2].lower()]
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not positive.")
    return _bounded(text, value)


def _bounded(text: str, value: float) -> float:
    if value and not LEAST <= value <= MOST:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is beyond what is calculated with, {LEAST:g} to {MOST:g}."
        )
    return value


def chosen(sections: Sequence[Section], names: str) -> tuple[Section, ...]:
    """Returns the sections with these names, between commas; all if there are none.

    Raises:
      ValueError: one of them does not exist.
    """
    wanted = [name for name in names.split(",") if name]
    known = {section.name.lower(): section for section in sections}
    if unknown := [name for name in wanted if name.lower() not in known]:
        raise ValueError(
            f"There is no {', '.join(unknown)}; there are {', '.join(s.name for s in sections)}."
        )
    return tuple(known[name.lower()] for name in wanted) or tuple(sections)
