"""A supervisor that is killed by its n-th line of the journal, before or after it is written."""

import os
import signal
import sys
from typing import Any

from launch.journal import Journal
from launch.records import JournalEntry
from launch.supervisor import supervise


def main() -> None:
    job_dir, number, when = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    append = Journal.append
    written = 0

    def dying(self: Journal, event: str, *, attempt: int, **details: Any) -> JournalEntry:
        nonlocal written
        written += 1
        if written == number and when == "torn":
            with self.path.open("ab") as file:
                file.write(b'{"version": 1, "time": 17')
        if written == number and when in ("before", "torn"):
            os.kill(os.getpid(), signal.SIGKILL)
        entry = append(self, event, attempt=attempt, **details)
        if written == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return entry

    Journal.append = dying  # type: ignore[method-assign]
    sys.exit(supervise(job_dir))


if __name__ == "__main__":
    main()
