"""Lengths that cannot be split are refused with the numbers and the nearest that can."""

import dataclasses

import pytest

from partitioning.mesh_config import RulesConfig
from trainer.certificate import programs
from trainer.context_length import check_context
from trainer.run_config import LanguageModel, TaskConfig

SIZES = {"data": 1, "stage": 1, "fsdp": 1, "expert": 1, "context": 1, "tensor": 1}


def check(length, *, context=4, tensor=1, rules=None, **model):
    run = programs.load(rules="cp")
    chosen = dict(run.rules.__dict__) | (rules or {})
    run = dataclasses.replace(
        run,
        data=dataclasses.replace(run.data, sequence_length=length),
        rules=RulesConfig(**chosen),
        task=LanguageModel(model=programs.decoder(**model)),
    )
    check_context(run, sizes={**SIZES, "context": context, "tensor": tensor})


CONTIGUOUS = {"context_layout": "contiguous"}


@pytest.mark.parametrize(
    ("length", "options", "named"),
    [
        (20, {}, r"sequence_length=20 must be a multiple of 8 .*zigzag.*context=4.* is 16 or 24"),
        (6, {"rules": CONTIGUOUS}, r"6 must be a multiple of 4 .*contiguous.* is 4 or 8"),
        (
            20,
            {"rules": CONTIGUOUS, "context_attention": "ring"},
            r"multiple of 8 \(halves of ring attention over context=4\)",
        ),
        (24, {"loss_chunks": 4}, r"multiple of 16 .*loss_chunks=4 x context=4.* is 16 or 32"),
        (24, {"tensor": 4}, r"16 \(sequence parallelism over context=4 x tensor=4\)"),
        (3, {}, r"the nearest that fits everything is 8"),
        (24, {"loss_chunks": 3, "tensor": 4}, r"is 48"),
        (6, {"context": 1, "tensor": 4}, r"4 \(sequence parallelism over tensor=4\).* is 4 or 8"),
    ],
)
def test_a_length_that_does_not_divide(length, options, named):
    with pytest.raises(ValueError, match=named):
        check(length, **options)


def test_lengths_that_divide_and_meshes_without_the_axis_pass():
    check(16)
    check(12, rules=CONTIGUOUS)
    check(24, tensor=4, rules={"sequence_parallel": False})
    check(17, context=1, context_attention="ring")
    check(6, context=1, tensor=4, rules={"sequence_parallel": False})
    check(8, context=1, tensor=4)
    check(6, context=1, tensor=4, rules={"activations": (("act_length_residual", "tensor", None),)})


@pytest.mark.parametrize("name", ["act_length", "act_length_residual"])
def test_rules_that_leave_the_axis_out_are_refused(name):
    table = tuple(
        (rule[0], None) if rule[0] == name else rule for rule in programs.rules("cp").activations
    )
    with pytest.raises(ValueError, match=f"{name!r} does not name the mesh axis 'context'"):
        check(16, rules={"activations": table})


def test_a_task_without_a_sequence_is_refused():
    run = dataclasses.replace(programs.load(rules="cp"), task=TaskConfig())
    with pytest.raises(ValueError, match="context=2 splits the sequence of a LanguageModel"):
        check_context(run, sizes={**SIZES, "context": 2})
