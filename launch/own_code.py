"""Lockstep's own code for the processes that it starts. Standard library only."""

import os
import pathlib
from collections.abc import Mapping

ROOT = pathlib.Path(__file__).resolve().parents[1]


def importable(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment in which Lockstep can be imported, wherever the job's code is."""
    paths = [str(ROOT), *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
