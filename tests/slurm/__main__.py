"""``python -m tests.slurm up|down|status``: a real Slurm of four nodes to try things on (root)."""

import argparse
import pathlib
import sys
import time

from tests.slurm.lab import Lab
from tests.slurm.packages import CannotRun


def main() -> int:
    """Runs one command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.slurm", description=__doc__)
    parser.add_argument("command", choices=["up", "down", "status"])
    parser.add_argument("--accounting", action="store_true", help="slurmdbd, QOS, sacct")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("/tmp/lockstep-slurm"))
    flags = parser.parse_args()
    lab = Lab(flags.folder, accounting=flags.accounting)
    if flags.command == "down":
        lab.down()
        return 0
    if flags.command == "up":
        start = time.monotonic()
        try:
            lab.up()
        except CannotRun as error:
            print(error, file=sys.stderr)
            return 1
        print(f"# up after {time.monotonic() - start:.1f} s; jobs may write to {lab.shared}")
        print(f"export PATH={lab.bin}:$PATH   # or {lab.user_bin}: as an ordinary user")
        return 0
    if not lab.is_up():
        print("down")
        return 3
    print(lab.run(["sinfo", "-N", "-l"]).stdout, lab.run(["squeue", "-l"]).stdout, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
