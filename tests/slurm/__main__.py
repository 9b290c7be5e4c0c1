"""``python -m tests.slurm``: a real Slurm of four nodes to try things on (root; docs/slurm.md)."""

import argparse
import pathlib
import sys
import time

from tests.slurm.lab import Lab
from tests.slurm.packages import CannotRun

FAULTS = ("cut", "mend", "off", "on")


def main() -> int:
    """Runs one command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.slurm", description=__doc__)
    parser.add_argument("command", choices=["up", "down", "status", "env", *FAULTS])
    parser.add_argument(
        "node", nargs="?", choices=["n1", "n2", "n3", "n4"], help="for " + str(FAULTS)
    )
    parser.add_argument("--accounting", action="store_true", help="slurmdbd, QOS, sacct")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("/tmp/lockstep-slurm"))
    flags = parser.parse_args()
    lab = Lab(flags.folder, accounting=flags.accounting)
    if flags.command in FAULTS:
        if flags.node is None:
            parser.error(f"{flags.command} needs a node.")
        {"cut": lab.cut, "mend": lab.mend, "off": lab.power_off, "on": lab.power_on}[flags.command](
            flags.node
        )
        return 0
    return {"up": up, "down": down, "status": status, "env": env}[flags.command](lab)


def up(lab: Lab) -> int:
    """Starts it."""
    start = time.monotonic()
    try:
        lab.up()
    except CannotRun as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Up after {time.monotonic() - start:.1f} s; jobs may write to {lab.shared}.")
    return 0


def down(lab: Lab) -> int:
    """Ends it."""
    lab.down()
    return 0


def env(lab: Lab) -> int:
    """Prints what makes a shell use it, as root, who owns what launch.main writes there."""
    print(f"export PATH={lab.bin}:$PATH   # {lab.user_bin}: the same as user nobody")
    return 0


def status(lab: Lab) -> int:
    """Prints nodes and queue."""
    if not lab.is_up():
        print("down")
        return 3
    print(lab.run(["sinfo", "-N", "-l"]).stdout, lab.run(["squeue", "-l"]).stdout, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
