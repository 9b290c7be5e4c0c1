"""Values against annotations."""

import dataclasses
from typing import Literal

import pytest

from trainer.config_types import Reference, TypeMismatch, conform


@dataclasses.dataclass(frozen=True)
class Base:
    """Base."""


@dataclasses.dataclass(frozen=True)
class Kind(Base):
    """Kind."""


Rule = tuple[str | tuple[str, ...] | None, ...]


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (3, int, 3),
        (3, float, 3.0),
        (3, float | None, 3.0),
        (None, float | None, None),
        ("a", Literal["a", "b"], "a"),
        (True, bool, True),
        ([1, 2], tuple[int, ...], (1, 2)),
        ((("a", 1, 2),), tuple[tuple[str, float, float], ...], (("a", 1.0, 2.0),)),
        ((("a", ("b", "c"), None),), tuple[Rule, ...], (("a", ("b", "c"), None),)),
        (None, tuple[Rule, ...] | None, None),
        (Reference(Kind), Base, Reference(Kind)),
        (Reference(Kind), Base | None, Reference(Kind)),
        ((Reference(Kind),), tuple[Base, ...], (Reference(Kind),)),
    ],
)
def test_values_that_fit_are_returned_in_one_form(value, annotation, expected):
    result = conform(value, annotation)
    assert result == expected
    assert repr(result) == repr(expected)


@pytest.mark.parametrize(
    ("value", "annotation", "message"),
    [
        ("5", int, "expected int, got '5' .str.; write 5 without quotes"),
        (5.0, int, "expected int, got 5.0 .float.; write 5"),
        (5.5, int, "expected int, got 5.5"),
        (True, int, "expected int, got True"),
        (True, float, "expected float, got True"),
        (1, bool, "expected bool, got 1 .int.; write True"),
        (None, int, "expected int, got None"),
        ("1e-3", float | None, "expected float or None.*write 1e-3 without quotes"),
        ("c", Literal["a", "b"], "expected 'a' or 'b', got 'c'"),
        (1, Literal[True], "expected True"),
        (
            3,
            tuple[int, ...],
            r"expected tuple\[int, ...\], got 3.*a tuple of one is written \(3,\)",
        ),
        ((1, "2"), tuple[int, ...], "element 1: expected int, got '2'"),
        ((1,), tuple[int, int], "2 elements.*got 1 elements"),
        ((("a", 1),), tuple[tuple[str, str], ...], "element 0: element 1: expected str, got 1"),
        (Reference(Base), Kind, r"expected @Kind\(\) or a kind of it, got @Base\(\)"),
        (Reference(Kind), int, r"expected int, got @Kind\(\)"),
        (3, Base, "expected @Base"),
        (float("inf"), float, "finite"),
        ({"a": 1}, str, "expected str"),
    ],
)
def test_values_that_do_not_fit_are_refused_with_both_sides_named(value, annotation, message):
    with pytest.raises(TypeMismatch, match=message):
        conform(value, annotation)


def test_annotations_that_cannot_be_checked_are_a_programming_error():
    with pytest.raises(TypeError, match="cannot be annotated"):
        conform({}, dict[str, int])
