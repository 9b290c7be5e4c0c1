"""What the search looks at, the trainer would take; and it looks at all that it should."""

import dataclasses
import functools
import math

import hypothesis
import pytest
from hypothesis import strategies

from partitioning import traffic
from partitioning.mesh_config import MeshConfig
from partitioning.planner.advisor.search_space import RULE_SETS, Question, layouts, plans, remats
from partitioning.planner.decoder_parameters import parameters
from partitioning.planner.inputs import load_inputs, rule_file
from partitioning.planner.plan import Plan
from trainer import config
from trainer.context_length import check_context
from trainer.fleet import load_cluster
from trainer.run_config import LanguageModel, RunConfig
from trainer.size_checks import check_batch, check_expert_count, check_loss_chunks, check_stages

RUN = "configs/runs/llama3_70b_512.gin"
MODELS = ("llama3_8b", "llama3_70b", "mixtral_8x7b", "mistral_7b", "tiny_moe")


@functools.cache
def question(model: str, devices: int, rows: int, length: int) -> Question:
    files = [f"configs/models/{model}.gin"]
    tables = {name: load_inputs([*files, rule_file(name)]).rules for name in RULE_SETS}
    parts = load_inputs(files)
    return Question(
        model=parts.model,
        optimizer=parts.optimizer,
        tables=tables,
        cluster=load_cluster(f"h100_{devices}"),
        rows=rows,
        length=length,
    )


@functools.cache
def any_run() -> RunConfig:
    return config.load([RUN]).run


def run_of(plan: Plan) -> RunConfig:
    """The run that a plan is."""
    run = any_run()
    return dataclasses.replace(
        run,
        task=LanguageModel(model=plan.model),
        mesh=MeshConfig(**plan.sizes),
        rules=plan.rules,
        pipeline=plan.work.pipeline,
        train=dataclasses.replace(run.train, microbatches=plan.work.microbatches),
        data=dataclasses.replace(
            run.data, global_batch=plan.work.rows, sequence_length=plan.work.length
        ),
    )


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(
    strategies.sampled_from(MODELS),
    strategies.sampled_from([1, 2, 8, 24, 64, 96, 512]),
    strategies.sampled_from([1, 6, 8, 48, 64, 512, 1000]),
    strategies.sampled_from([512, 4096, 5000, 8192, 32768, 131072]),
    strategies.randoms(use_true_random=False),
)
def test_the_trainer_would_take_every_plan(model, devices, rows, length, random) -> None:
    asked = question(model, devices, rows, length)
    found = list(layouts(asked))
    for layout in random.sample(found, min(20, len(found))):
        assert math.prod(layout.mesh.values()) == devices
        for plan in plans(asked, layout, remat=random.choice(remats(asked, layout))):
            run = run_of(plan)
            check_batch(run, sizes=plan.sizes)
            check_loss_chunks(run)
            check_context(run, sizes=plan.sizes)
            check_expert_count(plan.model, devices=plan.sizes["expert"])
            check_stages(run, stages=plan.sizes["stage"], repeats=plan.model.repeats)
            moved = traffic.expected(
                plan.model,
                parameters=parameters(plan.model),
                sizes=plan.sizes,
                rules=plan.rules,
                work=plan.work,
            )
            assert bool(moved) == (devices > 1)


def test_it_looks_at_every_way_to_use_devices() -> None:
    asked = question("llama3_70b", 512, 512, 8192)
    meshes = [layout.mesh for layout in layouts(asked)]
    for axis in ("data", "stage", "fsdp", "tensor"):
        assert {1, 2, 4, 8} <= {mesh[axis] for mesh in meshes}
    assert {layout.rules for layout in layouts(asked)} == {"fsdp_tp", "zero1", "pp"}
    assert {layout.chunks for layout in layouts(asked)} == {1, 2, 4}


def test_long_rows_are_split_and_experts_spread() -> None:
    long = question("llama3_8b", 64, 32, 131072)
    assert {1, 2, 4, 8} <= {layout.mesh["context"] for layout in layouts(long)}
    experts = question("mixtral_8x7b", 64, 512, 4096)
    assert {layout.mesh["expert"] for layout in layouts(experts)} == {1, 2, 4, 8}


def test_tensor_parallelism_stays_inside_a_host_unless_fixed() -> None:
    asked = question("llama3_70b", 512, 512, 8192)
    assert max(layout.mesh["tensor"] for layout in layouts(asked)) == 8
    wide = dataclasses.replace(asked, fixed={"tensor": 16})
    assert {layout.mesh["tensor"] for layout in layouts(wide)} == {16}


@pytest.mark.parametrize(
    "fixed",
    [
        {"stage": 4, "tensor": 8},
        {"data": 16},
        {"fsdp": 64},
        {"rules": "zero1"},
        {"chunks": 2, "stage": 2},
        {"schedule": "circular", "stage": 2},
        {"data": 1, "fsdp": 64, "tensor": 8},
    ],
    ids=str,
)
def test_what_is_fixed_is_kept(fixed: dict[str, int | str]) -> None:
    asked = dataclasses.replace(question("llama3_70b", 512, 512, 8192), fixed=fixed)
    found = list(layouts(asked))
    assert found
    for layout in found:
        values = {**layout.mesh, "rules": layout.rules, "chunks": layout.chunks}
        values["schedule"] = layout.schedule
        assert {name: values[name] for name in fixed} == fixed


def test_the_fewest_microbatches_come_first_and_fill_the_stages() -> None:
    asked = dataclasses.replace(
        question("llama3_70b", 512, 512, 8192), fixed={"stage": 4, "tensor": 8, "chunks": 2}
    )
    for layout in layouts(asked):
        counts = [plan.work.microbatches for plan in plans(asked, layout, remat="full")]
        assert counts == sorted(counts)
        assert all(count >= 4 and count % 4 == 0 for count in counts)
