"""``python -m trainer.check``: whether a run could start, in a second, without devices.

    python -m trainer.check --gin_file=configs/runs/llama3_8b_8.gin --devices=8

Reads the configuration, divides the mesh, the batch and the model over the devices, and looks
whether the data is there; with --run_dir also whose that directory is, and what has changed since
its last attempt. Everything that is wrong is told at once. Exit status 64 if the configuration is
not possible, 65 if only the data is missing. Loads no jax.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Sequence

from absl import flags

from launch.contract import ExitCode, Finding, Verdict
from trainer import standard_streams
from trainer.config_parser import rewrite_arguments
from trainer.readiness import Directory, examine

# Flags of its own: trainer.main defines some of the same names, and both are imported by tests.
FLAGS = flags.FlagValues()
_GIN_FILE = flags.DEFINE_multi_string(
    "gin_file", [], "Gin file of a run; may be repeated.", flag_values=FLAGS
)
_GIN_BINDINGS = flags.DEFINE_multi_string(
    "gin_bindings",
    [],
    "Binding such as MeshConfig.fsdp=8; --gin.MeshConfig.fsdp=8 is short.",
    flag_values=FLAGS,
)
_DEVICES = flags.DEFINE_integer("devices", 1, "Devices of the run.", 1, flag_values=FLAGS)
_PROCESSES = flags.DEFINE_integer(
    "processes", 1, "Processes that the devices are spread over.", 1, flag_values=FLAGS
)
_RUN_DIR = flags.DEFINE_string(
    "run_dir", None, "Look at this run directory, too.", flag_values=FLAGS
)
_RUN_ID = flags.DEFINE_string(
    "run_id", "", "Name that the run will have in --run_dir; default: any.", flag_values=FLAGS
)
_ALLOW_CHANGE = flags.DEFINE_multi_string(
    "allow_change",
    [],
    "Configuration key that may differ from the last attempt's.",
    flag_values=FLAGS,
)
_HELP = flags.DEFINE_bool("help", False, "Show the flags, and leave.", flag_values=FLAGS)
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object instead.", flag_values=FLAGS)


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit status."""
    del argv
    standard_streams.secure()
    if _HELP.value:
        print(f"{__doc__}\n{FLAGS.main_module_help()}")  # noqa: T201 - what was asked for
        return 0
    directory = None
    if _RUN_DIR.value is not None:
        allow_change = tuple(_ALLOW_CHANGE.value)
        directory = Directory(url=_RUN_DIR.value, run_id=_RUN_ID.value, allow_change=allow_change)
    found = examine(
        _GIN_FILE.value,
        _GIN_BINDINGS.value,
        devices=_DEVICES.value,
        processes=_PROCESSES.value,
        directory=directory,
    )
    print(as_json(found) if _JSON.value else show(found))  # noqa: T201 - what was asked for
    sys.stdout.flush()
    return int(exit_code(found))


def exit_code(found: Sequence[Finding]) -> ExitCode:
    """Returns what the findings mean for a program that starts this one."""
    wrong = {finding.about for finding in found if finding.verdict is Verdict.ERROR}
    if wrong - {"data"}:
        return ExitCode.CONFIGURATION
    return ExitCode.DATA if wrong else ExitCode.DONE


def show(found: Sequence[Finding]) -> str:
    """Returns the findings as lines."""
    return "\n".join(f"{f.verdict:7}  {f.about}: {f.message}" for f in found)


def as_json(found: Sequence[Finding]) -> str:
    """Returns the findings as one JSON object."""
    plain = [dataclasses.asdict(finding) for finding in found]
    return json.dumps({"exit_code": int(exit_code(found)), "findings": plain}, indent=1)


def parse_flags(argv: list[str]) -> list[str]:
    """Parses the command line; a mistake is one line and the exit code for configuration."""
    try:
        return FLAGS(rewrite_arguments(argv))
    except flags.Error as error:
        print(f"{error}\nSee python -m trainer.check --help.", file=sys.stderr)  # noqa: T201
        raise SystemExit(int(ExitCode.CONFIGURATION)) from None


if __name__ == "__main__":
    os._exit(main(parse_flags(sys.argv)))  # a request to a store may still hang in a thread
