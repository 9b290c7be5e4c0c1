"""No value that cannot work gets past the configuration, and no numeric field goes unchecked."""

import math
import types
import typing

import pytest

from trainer import config, config_ranges, config_registry, config_schema, fleet
from trainer.config_errors import ConfigError
from trainer.config_parser import REPOSITORY
from trainer.config_ranges import PATTERNS, RANGES, Range

CLASSES = config_registry.CONFIGURABLES + fleet.CLASSES
QUICKSTART = str(REPOSITORY / "configs/runs/quickstart.gin")


def _is_number(annotation: object) -> bool:
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    kinds = typing.get_args(annotation) if union else (annotation,)
    return int in kinds or float in kinds


NUMBERS = [
    (cls, field)
    for cls in CLASSES
    for field, annotation in config_schema.hints(cls).items()
    if _is_number(annotation)
]


def test_every_numeric_field_has_a_range_and_every_range_a_field():
    assert not [(c.__name__, f) for c, f in NUMBERS if config_ranges.find(c, f) is None]
    bases = {base.__name__: base for cls in CLASSES for base in cls.__mro__}
    for name in [*RANGES, *PATTERNS]:
        cls, field = name.split(".")
        assert field in config_schema.hints(bases[cls])


@pytest.mark.parametrize(("cls", "field"), NUMBERS, ids=lambda x: getattr(x, "__name__", x))
def test_defaults_pass_and_what_lies_outside_of_either_end_is_named(cls, field):
    limits = config_ranges.find(cls, field)
    (default,) = [f.default for f in cls.__dataclass_fields__.values() if f.name == field]
    if isinstance(default, int | float):
        assert not list(config_ranges.problems(cls, {field: default}))
    outside = [limits.low - 1] + ([limits.high + 1] if limits.high < math.inf else [])
    outside += [limits.low] * limits.above + [limits.high] * limits.below
    for value in outside:
        (message,) = config_ranges.problems(cls, {field: value})
        assert message == f"{cls.__name__}.{field}={value}: it must be {limits}."
    assert not list(config_ranges.problems(cls, {field: None}))


def test_an_interval_contains_its_ends_unless_they_are_excluded():
    assert 0 in Range(0, 1)
    assert 1 in Range(0, 1)
    assert 0 not in Range(0, 1, above=True)
    assert 1 not in Range(0, 1, below=True)
    assert str(Range(0, 1, above=True, below=True)) == "greater than 0 and less than 1"
    assert str(Range(1)) == "at least 1"


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        ("TrainConfig.steps=0", "TrainConfig.steps=0: it must be at least 1"),
        ("TrainConfig.clip_norm=0.0", "greater than 0"),
        ("EvaluationConfig.max_batches=0", "at least 1"),
        ("AdamW.b1=1.0", "less than 1"),
        ("AdamW.weight_decay=-1.0", "at least 0"),
        ("TrainConfig.frozen=('(',)", "'(' is no regular expression"),
        ("AdamW.groups=(('(', 1.0, 1.0),)", "'(' is no regular expression"),
        ("AdamW.decay_exclude=('(',)", "'(' is no regular expression"),
    ],
)
def test_a_run_is_refused_with_the_place_of_the_binding(binding, words):
    with pytest.raises(ConfigError) as caught:
        config.load([QUICKSTART], [binding])
    (problem,) = caught.value.problems
    assert words in problem.message
    assert problem.location is not None
    assert "command line" in str(problem)


def test_a_field_is_not_mistaken_for_one_whose_name_it_ends():
    bindings = ["CheckpointConfig.every=5", "CheckpointConfig.keep_every=-1"]
    with pytest.raises(ConfigError) as caught:
        config.load([QUICKSTART], bindings)
    (problem,) = caught.value.problems
    assert "(" not in problem.message  # it names no second binding
