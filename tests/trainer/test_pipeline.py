"""What a compiled pipeline step holds: memory, and no exchange that could hang."""

import pytest

from partitioning.mesh_config import MeshConfig, PipelineConfig
from trainer.certificate import programs
from trainer.endings import UserError
from trainer.pipeline import check_branches
from trainer.state import abstract_batch, abstract_state
from trainer.step import build_train_step

ROWS = 4


def compiled(*, microbatches=4, mesh=MeshConfig(stage=4), rules="pp", **pipeline):  # noqa: B008
    model = {"layers": 8, "dtype": "float32", "param_dtype": "float32", "scan_layers": True}
    program = programs.program(
        programs.decoder(**model, **pipeline.pop("model", {})),
        mesh=mesh,
        rules=programs.rules(rules),
        train={"microbatches": microbatches},
        pipeline=PipelineConfig(**pipeline),
    )
    batch = abstract_batch(program, rows=ROWS * microbatches, length=64)
    return program, build_train_step(program).lower(abstract_state(program), batch).compile()


def temporary(**options):
    return compiled(**options)[1].memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("chunks", [1, 2])
def test_the_peak_of_1f1b_does_not_grow_with_the_microbatches(chunks):
    # P015, P016: more microbatches of one size cost no memory but their token ids.
    few, more, most = (temporary(microbatches=m, chunks=chunks) for m in (8, 16, 32))
    ids = 5 * 4 * ROWS * 64
    assert more - few <= 4 * 8 * ids
    assert most - more <= 4 * 16 * ids
    of_one_input = ROWS * 64 * 32 * 4
    circular = [temporary(microbatches=m, schedule="circular") for m in (8, 32)]
    assert circular[1] - circular[0] > 20 * of_one_input > most - few


@pytest.mark.parametrize(
    "mesh",
    [
        MeshConfig(stage=2, fsdp=2, tensor=2),
        MeshConfig(data=2, stage=2, tensor=2),
        MeshConfig(stage=2, context=2, tensor=2),
    ],
    ids=str,
)
@pytest.mark.parametrize("schedule", ["1f1b", "circular"])
def test_no_exchange_stands_where_stages_may_take_different_branches(mesh, schedule):
    program, step = compiled(mesh=mesh, schedule=schedule)
    assert "conditional(" in step.as_text()
    check_branches(step, program)


def test_a_ring_is_kept_out_of_branches_and_would_be_refused_in_one(monkeypatch):
    mesh = MeshConfig(stage=2, context=2)
    ring = {"model": {"context_attention": "ring"}, "mesh": mesh}
    for idle in ("auto", "compute"):
        program, step = compiled(**ring, idle=idle)
        check_branches(step, program)
    monkeypatch.setattr("partitioning.pipeline_stage._may_branch", lambda *_: True)
    program, step = compiled(**ring)
    with pytest.raises(UserError, match=r"collective-permute over context .*idle='compute'"):
        check_branches(step, program)
