"""``review``: the chapter's review questions, answered."""

from typing import Any

from partitioning.planner.answers import Answer
from partitioning.planner.command import Given, add, chosen
from partitioning.planner.documents.review_designs import designs
from partitioning.planner.documents.review_foundations import foundations


def register(commands: Any) -> None:
    """Adds the command."""
    one = add(
        commands,
        "review",
        "Answers to the chapter's review questions, F1 to P3f: numbers with their terms, computed "
        "by the functions behind the other commands, and words where a question asks for words.",
        ["review", "review --only=P2b,P2c", "review --only=I3d --policy=book"],
        run=_review,
    )
    one.add_argument("--only", default="", metavar="F1,P2b", help="Some of them.")


def _review(given: Given) -> Answer:
    sections = chosen((*foundations(), *designs()), given.only)
    return Answer(title="Review questions of chapter 10", sections=sections)
