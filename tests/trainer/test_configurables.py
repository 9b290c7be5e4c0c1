"""Knobs are few, documented and checkable, and a new one shows up in review.

``UPDATE_GOLDEN=1 python -m pytest tests/trainer/test_configurables.py`` rewrites the list.
"""

import contextlib
import os
import pathlib

import pytest

from trainer import config_registry, config_schema
from trainer.config_types import TypeMismatch, conform

LIST = pathlib.Path(__file__).parent / "golden" / "configurables.txt"
SCHEMA = config_schema.Schema(
    config_schema.standard().root,
    {cls.__name__: cls for cls in config_registry.CONFIGURABLES},
    config_registry.EXECUTION,
)
CLASSES = config_registry.CONFIGURABLES


def test_configurables_and_their_parameters_are_those_of_the_committed_list():
    text = "".join(
        f"{key}{'  (execution)' if SCHEMA.is_execution(*key.split('.')) else ''}\n"
        for key in SCHEMA.parameters()
    )
    if os.environ.get("UPDATE_GOLDEN"):
        LIST.write_text(text)
    assert text == LIST.read_text()


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_parameter_is_documented(cls):
    undocumented = set(config_schema.hints(cls)) - set(config_schema.documentation(cls))
    assert not undocumented


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_annotation_can_be_checked(cls):
    for annotation in config_schema.hints(cls).values():
        for value in (object(), 1, (1, 2), "a"):
            with contextlib.suppress(TypeMismatch):
                conform(value, annotation)


def test_execution_names_only_what_exists():
    known = {*SCHEMA.parameters(), *SCHEMA.classes}
    assert known >= config_registry.EXECUTION


def test_class_names_are_unique():
    assert len({cls.__name__ for cls in CLASSES}) == len(CLASSES)
