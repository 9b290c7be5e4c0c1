"""``python -m launch.keeper``: starts the supervisor of a run again whenever something kills it.

So small that nothing in it can fail: the part of a run that has to outlive the others.
Standard library only.
"""

import argparse
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from launch.journal import Journal

_PAUSE_S = 1.0
_FUTILE = 3
_SOON_S = 60.0
_CRASHED = 1
"""Exit code of Python after an exception that nobody caught."""


def keep(job_dir: str) -> int:
    """Runs supervisors of a job folder until one ends by itself; returns its exit code.

    Gives up after three in a row that added nothing to the journal, or that failed at once: what
    no supervisor survives is for a person.
    """
    journal = Journal(job_dir)
    child: subprocess.Popen[bytes] | None = None
    told: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        del frame
        told.append(number)
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        signal.signal(number, pass_on)
    futile = 0
    while True:
        before, began = len(journal.entries()), time.monotonic()
        child = subprocess.Popen([sys.executable, "-m", "launch.supervisor", "--job_dir", job_dir])
        code = child.wait()
        if code >= 0 and code != _CRASHED:
            return code
        at_once = code == _CRASHED and time.monotonic() - began < _SOON_S
        futile = 0 if len(journal.entries()) > before + 1 and not at_once else futile + 1
        if told:  # there was nobody to pass it on to, or it was not obeyed
            return 128 + told[-1]
        if futile >= _FUTILE:
            return 128 - code if code < 0 else code
        time.sleep(_PAUSE_S * futile)


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m launch.keeper", description=__doc__)
    parser.add_argument("--job_dir", required=True, help="Folder that holds job.json.")
    return keep(parser.parse_args(argv).job_dir)


if __name__ == "__main__":
    sys.exit(main())
