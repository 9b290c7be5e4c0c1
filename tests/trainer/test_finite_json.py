"""What is written is plain JSON, also where a number is not finite."""

import json
import math

import pytest

from trainer.finite_json import NOT_FINITE, dumps


def strictly(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_numbers_that_are_not_finite_are_strings_at_any_depth():
    value = {"loss": math.nan, "parts": [math.inf, (-math.inf, 0.1)], "steps": 3}
    read = strictly(dumps(value, indent=1))
    assert read == {"loss": "NaN", "parts": ["Infinity", ["-Infinity", 0.1]], "steps": 3}


@pytest.mark.parametrize("text", NOT_FINITE)
def test_each_such_string_stands_for_the_number_that_gave_it(text):
    assert strictly(dumps(NOT_FINITE[text])) == text


def test_what_is_not_json_is_refused():
    with pytest.raises(TypeError):
        dumps({"array": object()})
