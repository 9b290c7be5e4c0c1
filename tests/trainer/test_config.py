"""Building configurations: defaults, scopes, references, and what is missing."""

import dataclasses
import multiprocessing
import pickle
from typing import Literal

import pytest

from partitioning.mesh_config import MeshConfig
from trainer import config, config_registry, config_schema
from trainer.config_errors import ConfigError
from trainer.config_schema import Schema


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Base."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Files(Source):
    """Files.

    Attributes:
      path: pattern of the files
        that are read.
      weight: share.
    """

    path: str
    weight: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixture(Source):
    """Mixture."""

    sources: tuple[Source, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """Model."""

    width: int
    heads: int = 4
    head_dim: int | None = None
    kind: Literal["dense", "moe"] = "dense"

    def __post_init__(self):
        if self.head_dim is None:
            if self.width % self.heads:
                raise ValueError(f"width={self.width} is not a multiple of heads={self.heads}.")
            object.__setattr__(self, "head_dim", self.width // self.heads)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distillation:
    """Two models."""

    student: Model
    teacher: Model
    temperature: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Root:
    """Root.

    Attributes:
      source: what is read.
    """

    source: Source
    task: Distillation
    extra: Model | None = None


TOY = Schema(
    Root,
    {c.__name__: c for c in (Root, Files, Mixture, Model, Distillation)},
    frozenset({"Files.weight"}),
)
BASE = ["Root.source=@Files()", "Files.path='a'", "Model.width=8"]


def load(*bindings, schema=TOY):
    return config.load([], bindings, schema=schema)


def problems(*bindings):
    with pytest.raises(ConfigError) as caught:
        load(*bindings)
    return str(caught.value)


def test_unbound_fields_are_built_from_the_bindings_of_their_class():
    run = load(*BASE, "Distillation.temperature=2").run
    assert run == Root(
        source=Files(path="a"),
        task=Distillation(student=Model(width=8), teacher=Model(width=8), temperature=2.0),
    )


def test_field_names_are_the_scopes_of_their_subtree():
    run = load(*BASE, "teacher/Model.width=16", "task/Model.heads=2").run
    assert run.task.student == Model(width=8, heads=2)
    assert run.task.teacher == Model(width=16, heads=2)


def test_the_longest_scope_wins_then_the_deepest_then_the_last():
    run = load(
        *BASE,
        "task/teacher/Model.heads=8",
        "teacher/Model.heads=2",
        "task/Model.heads=1",
        "Model.heads=4",
    ).run
    assert (run.task.teacher.heads, run.task.student.heads) == (8, 1)
    run = load(*BASE, "teacher/Model.heads=2", "task/Model.heads=1").run
    assert (run.task.teacher.heads, run.task.student.heads) == (2, 1)


def test_of_equally_many_scopes_the_deeper_end_wins_then_the_last_binding():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Deep:
        run: Root

    schema = dataclasses.replace(TOY, root=Deep, classes={**TOY.classes, "Deep": Deep})

    def heads(*bindings):
        base = [*BASE, "Model.width=32"]
        return load(*base, *bindings, schema=schema).run.run.task.teacher.heads

    assert heads("run/teacher/Model.heads=2", "run/task/Model.heads=8") == 2
    pair = "run/teacher/Model.heads=2", "task/teacher/Model.heads=8"
    assert heads(*pair) == 8
    assert heads(*reversed(pair)) == 2
    assert heads("run/teacher/Model.heads=1", *reversed(pair)) == 2
    assert heads(*pair, "run/teacher/Model.heads=16") == 16


def test_references_with_scopes_build_several_of_one_class():
    run = load(
        "Model.width=8",
        "Root.source=@Mixture()",
        "Mixture.sources=(@web/Files(), @code/Files())",
        "web/Files.path='w'",
        "code/Files.path='c'",
        "Files.weight=3",
    ).run
    assert run.source.sources == (Files(path="w", weight=3.0), Files(path="c", weight=3.0))


def test_optional_configurables_stay_none_until_they_are_bound():
    assert load(*BASE).run.extra is None
    assert load(*BASE, "Root.extra=@Model()").run.extra == Model(width=8)


def test_a_required_field_is_named_with_its_meaning_and_the_way_to_bind_it():
    text = problems("Root.source=@Files()", "Model.width=8")
    assert "Files.path is not set" in text
    assert "pattern of the files that are read" in text
    assert "--gin.Files.path=VALUE" in text


def test_a_required_configurable_lists_its_kinds():
    text = problems("Model.width=8")
    assert "Root.source is not set (what is read): bind it to one of @Files(), @Mixture()" in text


def test_all_missing_fields_are_reported_at_once():
    text = problems("Root.source=@Files()")
    assert "Files.path" in text
    assert "Model.width is not set for task.student" in text
    assert "Model.width is not set for task.teacher" in text


def test_a_binding_of_a_class_that_is_not_built_is_an_error():
    text = problems(*BASE, "Mixture.sources=()")
    assert "Mixture.sources has no effect: this run builds no Mixture; bind Root.source" in text


def test_a_binding_in_a_scope_where_the_class_is_not_built_is_an_error():
    text = problems(*BASE, "extra/Model.heads=2")
    assert "extra/Model.heads has no effect: no Model of this run is in that scope" in text


def test_what_a_class_itself_rejects_points_at_the_binding():
    text = problems(*BASE, "Model.heads=3")
    assert text.startswith("command line: ")
    assert "width=8 is not a multiple of heads=3" in text


def test_derived_values_are_recorded_as_such():
    tree = load(*BASE).tree
    student = next(node for node in tree.walk() if node.scopes == ("task", "student"))
    assert {e.name: (e.value, e.source) for e in student.entries} == {
        "width": (8, "command line"),
        "heads": (4, "default"),
        "head_dim": (2, "derived"),
        "kind": ("dense", "default"),
    }


def test_an_endless_reference_is_an_error():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Loop(Source):
        inner: Source

    schema = dataclasses.replace(TOY, classes={**TOY.classes, "Loop": Loop})
    with pytest.raises(ConfigError, match="without end"):
        load("Model.width=8", "Root.source=@Loop()", "Loop.inner=@Loop()", schema=schema)


def test_loading_leaves_nothing_behind():
    load(*BASE, "Model.heads=2")
    assert load(*BASE).run.task.student.heads == 4


def test_built_configurations_pickle_and_reach_spawned_processes():
    run = load(*BASE).run
    assert pickle.loads(pickle.dumps(run)) == run
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=MeshConfig.sizes, args=(MeshConfig(data=2), 2))
    child.start()
    child.join()
    assert child.exitcode == 0


def test_the_standard_tree_builds_from_a_few_bindings():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Texts(config_registry.data_config.SourceConfig):
        """Texts."""

    standard = config_schema.standard()
    schema = dataclasses.replace(standard, classes={**standard.classes, "Texts": Texts})
    run = load(
        "RunConfig.task=@LanguageModel()",
        "DataConfig.source=@Texts()",
        "DataConfig.sequence_length=16",
        "DataConfig.global_batch=4",
        "DecoderConfig.vocab_size=256",
        "DecoderConfig.embed_dim=32",
        "DecoderConfig.layers=2",
        "DecoderConfig.heads=4",
        "DecoderConfig.kv_heads=2",
        "DecoderConfig.mlp_dim=64",
        "ScheduleConfig.peak=1e-3",
        "TrainConfig.steps=10",
        "MeshConfig.fsdp=-1",
        "AdamW.b1=0.8",
        schema=schema,
    ).run
    assert run.task.model.head_dim == 8
    assert run.mesh.fsdp == -1
    assert run.optimizer.b1 == 0.8  # AdamW is the default optimizer, and its bindings reach it
    assert run.train.steps == 10


def test_registering_refuses_what_cannot_be_bound_safely():
    class Deep:
        pass

    with pytest.raises(ValueError, match="not a frozen dataclass"):
        config_registry.register(Deep)
    impostor = dataclasses.make_dataclass("AdamW", [], frozen=True)
    with pytest.raises(ValueError, match="already registers"):
        config_registry.register(impostor)
