"""What cannot be a pipeline is refused with the numbers and a way out."""

import dataclasses
import math

import jax
import pytest

from partitioning.mesh import axis_sizes, build_mesh
from partitioning.mesh_config import AXES, MeshConfig, PipelineConfig
from trainer.certificate import programs
from trainer.pipeline_checks import check_pipeline
from trainer.program import build_program, build_task
from trainer.run_config import LanguageModel
from trainer.size_checks import check_batch


def check(*, stages, chunks=1, microbatches=8, layers=8, batch=64, rules="pp", data=1):
    run = programs.load(rules=rules)
    run = dataclasses.replace(
        run,
        mesh=MeshConfig(stage=stages, data=data),
        pipeline=PipelineConfig(chunks=chunks),
        task=LanguageModel(model=programs.decoder(layers=layers, param_dtype="float32")),
        train=dataclasses.replace(run.train, microbatches=microbatches),
        data=dataclasses.replace(run.data, global_batch=batch),
    )
    devices = jax.devices()[: math.prod(getattr(run.mesh, axis) for axis in AXES)]
    mesh = build_mesh(run.mesh, devices=devices)
    check_batch(run, sizes=axis_sizes(mesh))
    check_pipeline(run, build_program(run, task=build_task(run.task), mesh=mesh))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"stages": 4, "chunks": 3}, "8 repeats .*stage=4 x .*chunks=3. Possible: stage=4 with"),
        ({"stages": 3, "microbatches": 6, "batch": 66}, "or move 2 of them to .*prefix"),
        ({"stages": 8, "microbatches": 4}, "take at least 8, better 32"),
        ({"stages": 4, "chunks": 2, "microbatches": 6, "batch": 66}, "Take 8, or chunks=1"),
        ({"stages": 4, "batch": 60}, "must be a multiple of 8, for example 56"),
        ({"stages": 4, "data": 2, "batch": 24}, "must be a multiple of 16, for example 16"),
        ({"stages": 1, "chunks": 2}, "needs pipeline stages"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_sizes_that_do_not_fit(sizes, words):
    with pytest.raises(ValueError, match=words):
        check(**sizes)


def test_sizes_that_fit_pass():
    check(stages=4, chunks=2)
    check(stages=1)
    check(stages=8, microbatches=9, batch=63)


def test_rules_that_leave_layers_whole_are_refused(monkeypatch):
    rules = programs.rules("pp")
    table = tuple(("layers", None) if r[0] == "layers" else r for r in rules.parameters)
    run = dataclasses.replace(rules, parameters=table)
    whole = dataclasses.replace(programs.load(rules="pp"), rules=run)
    monkeypatch.setattr(programs, "load", lambda **_: whole)
    with pytest.raises(ValueError, match="must split 'layers' over 'stage'"):
        check(stages=4)
