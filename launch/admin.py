"""From a teams file to the objects of a cluster's owner: ``admin render``.

Lockstep applies nothing of it and needs none of the owner's rights: it prints what the owner looks
at and applies.
"""

import pathlib
from collections.abc import Callable, Mapping

from launch import admin_kubernetes, admin_slurm, spec_reader, teams
from launch.engines.engine import Rendered
from launch.teams import TeamsFile

_ENGINES: Mapping[str, Callable[[TeamsFile], Rendered]] = {
    "kubernetes": admin_kubernetes.render,
    "slurm": admin_slurm.render,
}


def load(path: pathlib.Path) -> TeamsFile:
    """Reads a teams file.

    Raises:
      SpecError: anything is wrong, with line, key and what comes nearest.
    """
    return spec_reader.load_as(path, TeamsFile, check=teams.check)


def render(path: pathlib.Path, *, engine: str) -> Rendered:
    """Returns what the owner of a cluster applies.

    Args:
      path: the teams file.
      engine: kubernetes or slurm; this machine has no owner but its user.

    Raises:
      SpecError: the teams file is wrong.
      ValueError: the engine has nothing to be owned.
    """
    if engine not in _ENGINES:
        raise ValueError(
            f"There is nothing to render for the owner of {engine!r}; there are "
            f"{', '.join(sorted(_ENGINES))}."
        )
    return _ENGINES[engine](load(path))
