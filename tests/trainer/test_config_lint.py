"""Every way to write a gin file that gin accepts in silence, or rejects without a place."""

import dataclasses

import pytest

from trainer import config
from trainer.config_errors import ConfigError
from trainer.config_schema import Schema


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """Model.

    Attributes:
      width: columns of the residual stream.
    """

    width: int = 8
    rate: float = 0.1
    name: str = "m"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wide(Model):
    """Wide."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Root:
    """Root."""

    model: Model
    steps: int = 1


TOY = Schema(Root, {c.__name__: c for c in (Root, Model, Wide)}, frozenset())


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def load(text, *bindings, **files):
        for name, content in files.items():
            (tmp_path / f"{name}.gin").write_text(content)
        (tmp_path / "run.gin").write_text(text)
        return config.load(["run.gin"], bindings, schema=TOY).run

    return load


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("Modle.width = 3", 1, "no configurable 'Modle'.*import the.module.*Did you mean Model?"),
        ("Model.widht = 3", 1, "Model has no parameter 'widht'. Did you mean width?"),
        ("Model.zzz = 3", 1, "no parameter 'zzz'. It has: name, rate, width."),
        ("\nmodle/Model.width = 3", 2, "no scope 'modle'.*Did you mean model?"),
        ("Model.width = '5'", 1, "Model.width: expected int, got '5'.*columns of the residual"),
        ("Model.rate = 'x'", 1, "Model.rate: expected float, got 'x'"),
        ("W = 5\nModel.name = 'a'", 1, "macro W has no effect: nothing uses it"),
        ("Model.width = %W", 1, "no macro %W; define it: W = VALUE"),
        ("WIDTH = 3\nModel.width = %WIDHT\nRoot.steps = %WIDTH", 2, "Did you mean %WIDTH?"),
        ("A = %B\nB = %A\nModel.width = %A", 2, "Macros refer to one another: %A -> %B -> %A"),
        ("W = '5'\n\nModel.width = %W", 3, r"got '5'.*\(%W is set at .*run.gin:1\)"),
        ("Root.model = @Wide", 1, r"write @Wide\(\) with brackets"),
        ("Root.model = @Wdie()", 1, "no configurable 'Wdie'.*Did you mean Wide?"),
        ("Root.model = @Root()", 1, r"expected @Model\(\) or a kind of it, got @Root\(\)"),
        ("Root.steps = @Model()", 1, r"expected int, got @Model\(\)"),
        ("Wide.width = 3", 1, "Wide.width has no effect: this run builds no Wide"),
        ("Model.width = %gin.REQUIRED", 1, "Model.width must be given: --gin.Model.width=VALUE"),
        ("model/W = 3", 1, "a macro has no scope"),
        ("Model = 3", 1, "Model is a configurable, not a macro"),
        ("width = 3", 1, "The macro width has no effect.*Did you mean width"),
        ("Model.width = 3\nModel.width = 4", 1, "is set again at .*run.gin:2, which undoes this"),
    ],
)
def test_each_mistake_is_an_error_with_file_line_and_nearest_name(run, text, line, message):
    with pytest.raises(ConfigError, match=f"(?s)run.gin:{line}: .*{message}") as caught:
        run(text)
    assert len(caught.value.problems) == 1 or "A = %B" in text


def test_mistakes_on_the_command_line_name_it(run):
    with pytest.raises(ConfigError, match="command line: Model has no parameter 'widht'"):
        run("", "Model.widht=3")


def test_all_mistakes_are_reported_at_once(run):
    with pytest.raises(ConfigError) as caught:
        run("Modle.width = 3\nModel.widht = 3\ninclude 'x.gin'\nModel.rate = fast\nM = 1\n")
    assert [p.location.line for p in caught.value.problems] == [3, 4, 1, 2]
    assert str(caught.value).startswith("4 problems in the configuration:\n  ")


def test_an_unreadable_statement_does_not_make_macros_look_unused(run):
    with pytest.raises(ConfigError) as caught:
        run("W = 1\nModel.width = %W + 1\n")
    assert len(caught.value.problems) == 1


def test_mistakes_in_overridden_bindings_are_found_too(run):
    with pytest.raises(ConfigError, match=r"run.gin:1: Model.width: expected int"):
        run("Model.width = '5'", "Model.width=5")


def test_a_later_layer_overrides_an_earlier_one(run):
    assert run("include 'base.gin'\nModel.width = 4", base="Model.width = 3").model.width == 4
    text = "include 'base.gin'\ninclude 'tweak.gin'"
    assert run(text, base="Model.width = 3", tweak="Model.width = 5").model.width == 5
    assert run("Model.width = 3", "Model.width=6").model.width == 6
    assert run("Model.width = 3", "Model.width=6", "Model.width=7").model.width == 7


def test_an_include_that_undoes_a_line_before_it_is_an_error(run):
    with pytest.raises(ConfigError, match=r"run.gin:1: Model.width is set again at .*base.gin:1"):
        run("Model.width = 4\ninclude 'base.gin'", base="Model.width = 3")


def test_macros_may_be_used_before_they_are_set_and_overridden_on_the_command_line(run):
    text = "Model.width = %W\nRoot.steps = %N\nN = %W\nW = 3"
    assert run(text).steps == 3
    assert run(text, "W=7") == Root(model=Model(width=7), steps=7)


def test_a_command_line_macro_whose_every_use_is_overridden_is_an_error(run):
    text = "W = 3\nModel.width = %W"
    assert run(text, "Model.width=5").model.width == 5
    with pytest.raises(ConfigError, match="macro W has no effect: every use of it is overridden"):
        run(text, "Model.width=5", "W=4")


def test_a_required_macro_is_satisfied_by_the_command_line(run):
    text = "W = %gin.REQUIRED\nModel.width = %W"
    with pytest.raises(ConfigError, match=r"W must be given: --gin.W=VALUE"):
        run(text)
    assert run(text, "W=4").model.width == 4


def test_a_configurable_of_an_own_module_is_registered_by_its_import(tmp_path, monkeypatch):
    from trainer import config_registry, config_schema

    monkeypatch.setattr(config_registry, "_extensions", {})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_sources.py").write_text(
        "import dataclasses\n"
        "from input_pipeline.data_config import SourceConfig\n"
        "from trainer.config_registry import register\n"
        "@register\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class OwnSource(SourceConfig):\n"
        "    path: str = 'x'\n"
    )
    binding = "DataConfig.source = @OwnSource()\n"
    (tmp_path / "without.gin").write_text(binding)
    with pytest.raises(ConfigError, match=r"no configurable 'OwnSource'.*add 'import the.module'"):
        config.load(["without.gin"])
    (tmp_path / "with.gin").write_text("import own_sources\n" + binding)
    with pytest.raises(ConfigError) as caught:
        config.load(["with.gin"])
    assert "OwnSource" not in str(caught.value)
    assert "OwnSource" in config_schema.standard().classes


def test_another_kind_may_be_chosen_over_a_file_that_binds_its_own(run):
    base = "Root.model = @Wide()\nWide.width = 3"
    assert type(run("include 'base.gin'", "Root.model=@Model()", base=base).model) is Model
    assert run("include 'base.gin'\nRoot.model = @Model()", base=base).model.width == 8
    with pytest.raises(ConfigError, match=r"command line: Wide.rate has no effect"):
        run("include 'base.gin'", "Root.model=@Model()", "Wide.rate=1.0", base=base)
