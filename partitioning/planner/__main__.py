"""``python -m partitioning.planner``: what a run needs, moves, takes and costs, before it runs."""

import argparse
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from launch.contract import ExitCode
from partitioning.planner.command import PROGRAM, Parser
from partitioning.planner.commands import (
    advise,
    calibration,
    communication,
    compare,
    cost,
    errata,
    layouts,
    parameters,
    prediction,
    reliability,
    review,
    runs,
    sheet,
    simulate,
    throughput,
)
from trainer import standard_streams
from trainer.finite_json import dumps

COMMANDS = (
    advise,
    compare,
    prediction,
    simulate,
    parameters,
    layouts,
    communication,
    throughput,
    reliability,
    runs,
    cost,
    sheet,
    review,
    errata,
    calibration,
)
"""Modules that register commands, in the order of the help."""

_DESCRIPTION = """\
Calculates without jax and without devices. Every value is shown with its terms; --policy=book shows
what the documents print where that differs, and why. COMMAND --help has examples.
"""


def parser() -> Parser:
    """Returns the parser of all commands; what it parses has ``run``, which takes it."""
    top = Parser(
        prog=PROGRAM, description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in COMMANDS:
        module.register(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    given = parser().parse_args(argv)
    try:
        report = given.run(given)
        plain = report.as_dict(given.policy) if given.json else None
        print(dumps(plain, indent=1) if plain else report.show(given.policy))  # noqa: T201
        sys.stdout.flush()
    except ValueError as error:  # a ConfigError is one
        print(error, file=sys.stderr)  # noqa: T201 - the console is this program's face
        return int(ExitCode.CONFIGURATION)
    except OSError as error:  # nowhere to print to, as on a full disk
        print(error, file=sys.stderr)  # noqa: T201
        return int(ExitCode.EXCEPTION)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    return report.exit_code


def _stop(number: int, _: Any) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    standard_streams.secure()
    signal.signal(signal.SIGTERM, _stop)  # so that what --verify started ends, too
    sys.exit(main())
