"""``python -m trainer.check``: whether a run could start, in a second, without devices.

    python -m trainer.check --gin_file=configs/runs/llama3_8b_8.gin --cluster=h100_8

Reads the configuration, divides the mesh, the batch and the model over the devices, says by formula
whether they have the memory and what is unwise in the layout, and looks whether the data is there;
with --run_dir also whose that directory is, and what has changed since
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
from partitioning.targets import has_compiler
from trainer import standard_streams
from trainer.config_parser import rewrite_arguments
from trainer.fleet import cluster_of, load_cluster
from trainer.layout_checks import Where
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
_DEVICES = flags.DEFINE_integer(
    "devices", None, "Devices of the run; default: of --cluster, or 1.", 1, flag_values=FLAGS
)
_CLUSTER = flags.DEFINE_string(
    "cluster", None, "What they are, such as h100_512 (configs/clusters/).", flag_values=FLAGS
)
_ACCELERATOR = flags.DEFINE_string(
    "accelerator", "", "What they are, as job files say: h100, tpu-v5p, cpu.", flag_values=FLAGS
)
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
    try:
        devices, where = _devices()
    except ValueError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the console is this program's face
        return int(ExitCode.CONFIGURATION)
    found = examine(
        _GIN_FILE.value,
        _GIN_BINDINGS.value,
        devices=devices,
        processes=_PROCESSES.value,
        directory=directory,
        where=where,
    )
    shown = as_json(found, where=where) if _JSON.value else show(found)
    print(shown)  # noqa: T201 - what was asked for
    sys.stdout.flush()
    return int(exit_code(found))


def _devices() -> tuple[int, Where]:
    """Returns how many devices there are, and what they are.

    Raises:
      ValueError: there is no such cluster.
    """
    devices, accelerator = _DEVICES.value, _ACCELERATOR.value
    name = _CLUSTER.value or cluster_of(accelerator, devices=devices or 1)
    if name is None:
        return devices or 1, Where(accelerator=accelerator)
    cluster = load_cluster(name)
    return devices or cluster.devices, Where(cluster=cluster, name=name, accelerator=accelerator)


def exit_code(found: Sequence[Finding]) -> ExitCode:
    """Returns what the findings mean for a program that starts this one."""
    wrong = {finding.about for finding in found if finding.verdict is Verdict.ERROR}
    if wrong - {"data"}:
        return ExitCode.CONFIGURATION
    return ExitCode.DATA if wrong else ExitCode.DONE


def show(found: Sequence[Finding]) -> str:
    """Returns the findings as lines."""
    return "\n".join(f"{f.verdict:7}  {f.about}: {f.message}" for f in found)


def as_json(found: Sequence[Finding], *, where: Where) -> str:
    """Returns the findings as one JSON object, with what a dry run can compile for, if anything."""
    cluster = where.cluster
    compiles = cluster is not None and has_compiler(cluster.chip.target)
    plain = {
        "exit_code": int(exit_code(found)),
        "findings": [dataclasses.asdict(finding) for finding in found],
        "compiles_for": where.name if compiles else None,
    }
    return json.dumps(plain, indent=1)


def parse_flags(argv: list[str]) -> list[str]:
    """Parses the command line; a mistake is one line and the exit code for configuration."""
    try:
        return FLAGS(rewrite_arguments(argv))
    except flags.Error as error:
        print(f"{error}\nSee python -m trainer.check --help.", file=sys.stderr)  # noqa: T201
        raise SystemExit(int(ExitCode.CONFIGURATION)) from None


if __name__ == "__main__":
    os._exit(main(parse_flags(sys.argv)))  # a request to a store may still hang in a thread
