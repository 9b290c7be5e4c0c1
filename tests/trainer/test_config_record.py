"""What is written about a configuration reads back, and what changed is named."""

import dataclasses
import json

import gin
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer import config, config_record
from trainer.config_errors import ConfigError
from trainer.config_record import Difference, Kind, check_resume, describe, differences, resolved
from trainer.config_schema import Schema


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Base."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fast(Optimizer):
    """Fast."""

    rate: float = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slow(Optimizer):
    """Slow."""

    rate: float = 0.01
    patience: int = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """Model."""

    width: int = 8
    rules: tuple[tuple[str, str | None], ...] = (("embed", "fsdp"), ("norm", None))
    name: str = "m"
    scale: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Logging:
    """Logging."""

    every: int = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Root:
    """Root."""

    student: Model
    teacher: Model
    several: tuple[Optimizer, ...] = ()
    optimizer: Optimizer = dataclasses.field(default_factory=Fast)
    logging: Logging
    workers: int = 0


CLASSES = (Root, Model, Fast, Slow, Logging)
TOY = Schema(Root, {c.__name__: c for c in CLASSES}, frozenset({"Logging", "Root.workers"}))


def load(*bindings, files=()):
    return config.load(files, bindings, schema=TOY)


def record(*bindings):
    return json.loads(json.dumps(resolved(load(*bindings))))


def diff(old, new):
    return differences(record(*old), record(*new), schema=TOY)


def _gin_factory(cls):
    names = [field.name for field in dataclasses.fields(cls)]
    parameters = ", ".join(f"{name}=None" for name in names)
    source = f"lambda {parameters}: cls({', '.join(f'{name}={name}' for name in names)})"
    return gin.external_configurable(eval(source, {"cls": cls}), name=cls.__name__, module="oracle")


GIN_FACTORIES = {cls: _gin_factory(cls) for cls in CLASSES}


def _with_gin(text):
    """What gin itself builds from ``text``: an independent reading of the same language."""
    gin.clear_config()
    gin.parse_config(text)
    return GIN_FACTORIES[Root]()


CASES = [
    [],
    ["teacher/Model.width=16", "Model.name='it\\'s # \"x\"'"],
    ["Root.optimizer=@Slow()", "Slow.rate=1e-17", "Model.scale=3"],
    ["Root.several=(@a/Fast(), @b/Fast(), @Slow())", "a/Fast.rate=1", "b/Fast.rate=2"],
    ["Model.rules=(('a', None),)", "student/Model.rules=()"],
]


@pytest.mark.parametrize("bindings", CASES)
@pytest.mark.parametrize("sources", [True, False])
def test_the_description_reads_back_to_the_same_configuration_here_and_in_gin(
    bindings, sources, tmp_path
):
    loaded = load(*bindings)
    text = describe(loaded, sources=sources)
    (tmp_path / "operative.gin").write_text(text)
    again = load(files=[str(tmp_path / "operative.gin")])
    assert again.run == loaded.run
    assert _with_gin(text) == loaded.run
    assert describe(again, sources=False) == describe(loaded, sources=False)
    assert resolved(again) == resolved(loaded)


@given(
    name=st.text(max_size=20),
    rate=st.floats(allow_nan=False, allow_infinity=False),
    width=st.integers(),
)
def test_every_value_reads_back_bit_for_bit(name, rate, width):
    text = f"Model.name={name!r}", f"Model.scale={rate!r}", f"Model.width={width!r}"
    loaded = load(*text)
    again = load(describe(loaded))
    assert repr(again.run) == repr(loaded.run)


def test_every_line_says_where_its_value_comes_from(tmp_path):
    file = tmp_path / "run.gin"
    file.write_text("WIDTH = 4\nModel.width = %WIDTH\nModel.scale = 2\n")
    text = describe(load("Logging.every=5", "WIDTH=6", files=[str(file)]))
    lines = {line.split("=")[0].strip(): line for line in text.splitlines() if "=" in line}
    assert "= 6 " in lines["student/Model.width"]
    assert lines["student/Model.width"].endswith(f"  # {file}:2 via %WIDTH at command line")
    assert "= 2.0" in lines["student/Model.scale"]
    assert f"# {file}:3" in lines["student/Model.scale"]
    assert lines["Logging.every"].split("#")[1] == " command line"
    assert lines["Root.workers"].split("#")[1] == " default"


def test_the_record_is_json_with_digests_of_everything_and_of_what_matters():
    base, other = record(), record("Logging.every=5")
    assert base["run"]["student"] == {
        "@": "Model",
        "width": 8,
        "rules": [["embed", "fsdp"], ["norm", None]],
        "name": "m",
        "scale": None,
    }
    assert base["digest"] != other["digest"]
    assert base["identity"] == other["identity"]
    assert base["identity"] != record("Model.width=9")["identity"]


def test_equal_configurations_have_no_differences():
    assert diff(["Model.scale=1"], ["Model.scale=1.0"]) == []


def test_differences_name_key_values_and_kind():
    assert diff([], ["teacher/Model.width=9", "Logging.every=5", "Root.workers=2"]) == [
        Difference("teacher/Model.width", 8, 9, Kind.IDENTITY),
        Difference("Logging.every", 10, 5, Kind.EXECUTION),
        Difference("Root.workers", 0, 2, Kind.EXECUTION),
    ]


def test_another_class_is_one_difference():
    (found,) = diff([], ["Root.optimizer=@Slow()"])
    assert found == Difference("Root.optimizer", "@Fast()", "@Slow()", Kind.IDENTITY)


def test_elements_of_a_tuple_are_told_apart():
    several = ["Root.several=(@a/Slow(), @b/Slow())"]
    (found,) = diff(several, [*several, "b/Slow.rate=2"])
    assert (found.key, found.old, found.new) == ("several/1/Slow.rate", 0.01, 2.0)


def test_a_knob_that_the_old_software_lacked_differs_only_when_it_is_turned():
    old = record()
    del old["run"]["student"]["scale"]
    assert differences(old, record(), schema=TOY) == []
    (found,) = differences(old, record("student/Model.scale=2"), schema=TOY)
    assert found.key == "student/Model.scale"
    assert found.old == "(absent)"


def test_a_knob_that_the_new_software_lacks_is_a_difference():
    old = record()
    old["run"]["student"]["gone"] = 3
    (found,) = differences(old, record(), schema=TOY)
    assert (found.key, found.old, found.new) == ("student/Model.gone", 3, "(absent)")


def test_records_of_another_version_are_refused():
    with pytest.raises(ValueError, match="version 7 cannot be compared"):
        differences({**record(), "version": 7}, record(), schema=TOY)


def test_resume_refuses_every_identity_difference_with_the_flag_that_permits_it():
    old, new = record(), record("Model.width=9", "Logging.every=5")
    with pytest.raises(ConfigError) as caught:
        check_resume(old, new, schema=TOY)
    assert len(caught.value.problems) == 2
    assert "student/Model.width: 8 -> 9: " in str(caught.value)
    assert "--allow_change=student/Model.width" in str(caught.value)
    assert "--allow_change=teacher/Model.width" in str(caught.value)
    assert "every" not in str(caught.value)


def test_resume_returns_what_was_permitted_and_permits_only_that():
    old, new = record(), record("Model.width=9", "Logging.every=5")
    with pytest.raises(ConfigError, match=r"teacher/Model\.width"):
        check_resume(old, new, allow_change=["student/Model.width"], schema=TOY)
    allowed = ["student/Model.width", "teacher/Model.width"]
    found = check_resume(old, new, allow_change=allowed, schema=TOY)
    assert [d.key for d in found] == [*allowed, "Logging.every"]


def test_the_same_command_works_again_after_the_change_was_made():
    new = record("teacher/Model.width=9")
    assert check_resume(new, new, allow_change=["teacher/Model.width"], schema=TOY) == []


def test_a_misspelt_permission_is_an_error():
    with pytest.raises(ConfigError, match=r"names no parameter. Did you mean teacher/Model.width"):
        check_resume(record(), record(), allow_change=["teacher/Model.widht"], schema=TOY)


def test_notes_appear_beside_a_difference():
    difference = dataclasses.replace(
        Difference("TrainConfig.steps", 100, 200, Kind.EXECUTION), note="the cosine moves"
    )
    assert str(difference) == "TrainConfig.steps: 100 -> 200 (the cosine moves)"
    assert config_record.VERSION == 1
