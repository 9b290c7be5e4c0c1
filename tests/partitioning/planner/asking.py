"""Asks the planner as a command line does."""

import shlex

from partitioning.planner.__main__ import parser


def answer(command):
    given = parser().parse_args(shlex.split(command))
    return given.run(given)


def quantity(command, key):
    """Returns one quantity of an answer; ``key`` is section.name."""
    section, _, name = key.rpartition(".")
    return next(
        q
        for one in answer(command).sections
        for q in one.quantities
        if (one.name, q.name) == (section, name)
    )
