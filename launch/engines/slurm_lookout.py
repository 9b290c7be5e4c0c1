"""``python -m launch.engines.slurm_lookout``: looks out for the host that runs the supervisor.

An allocation that outlives its hosts (``--no-kill``) outlives the batch script's, too: without a
lookout on another host, what is left of it would stand idle until its time limit (measured on
22.05). Only when Slurm itself has given that host up does the lookout act: it submits the run's
successor and ends this job. Standard library only.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence

from launch.engines import slurm_commands as commands
from launch.engines import slurm_nodes, slurm_submission
from launch.journal import Journal
from launch.recovery import History
from launch.spec import Job

_EVERY_S = 5.0
_PATIENCE_S = 900.0


def look(job: Job, *, host: str, job_id: str) -> None:
    """Returns when ``host`` was lost and the run has a successor."""
    while _lives(host, job_id=job_id):
        time.sleep(_EVERY_S)
    history = History.of(Journal(job.job_dir).entries())
    avoided = history.avoided(now=time.time(), for_s=job.spec.recovery.exclude_s)
    slurm_submission.submit(job, patience_s=_PATIENCE_S, succeeds=job_id, exclude=(*avoided, host))
    commands.run(["scancel", job_id], patience_s=_PATIENCE_S, always_again=True)


def _lives(host: str, *, job_id: str) -> bool:
    """Whether Slurm still counts on the host; what cannot be asked is not known to be dead."""
    try:
        shown = commands.run(
            ["scontrol", "--oneliner", "show", "job", job_id], patience_s=0, always_again=True
        )
    except commands.Unreached:
        return True
    return host in slurm_nodes.expand(slurm_nodes.field(shown, "NodeList"))


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m launch.engines.slurm_lookout")
    parser.add_argument("--job_dir", required=True, help="Folder that holds job.json.")
    parser.add_argument("--host", required=True, help="Node that runs the supervisor.")
    arguments = parser.parse_args(argv)
    job = Job.of_folder(arguments.job_dir)
    look(job, host=arguments.host, job_id=os.environ["SLURM_JOB_ID"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
