"""``errata``: where the documents err, why, and what is right."""

from typing import Any

from partitioning.planner.answers import Answer, Section
from partitioning.planner.command import Given, add, chosen
from partitioning.planner.documents.errata_layout import layout_errata
from partitioning.planner.documents.errata_money import money_errata
from partitioning.planner.documents.errata_pipeline import pipeline_errata
from partitioning.planner.documents.errata_running import running_errata


def register(commands: Any) -> None:
    """Adds the command."""
    one = add(
        commands,
        "errata",
        "The slips of the documents that the planner answers: what they say, why it is wrong, and "
        "the right value, computed by the same functions as all other answers. Notes of other "
        "commands name them, as in E16.",
        ["errata", "errata --only=E16,E8", "errata --only=E27 --json"],
        run=_errata,
    )
    one.add_argument("--only", default="", metavar="E1,E2", help="Some of them.")


def errata() -> tuple[Section, ...]:
    """Returns all of them by number."""
    found = (*layout_errata(), *pipeline_errata(), *running_errata(), *money_errata())
    return tuple(sorted(found, key=lambda one: int(one.name[1:])))


def _errata(given: Given) -> Answer:
    sections = chosen(errata(), given.only)
    return Answer(title="What the documents say that is not so", sections=sections)
