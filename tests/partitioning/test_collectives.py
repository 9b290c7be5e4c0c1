"""Collectives are counted once each, in every form that compilers print them, with their bytes."""

import numpy as np
import pytest

from partitioning.collectives import (
    Collective,
    MeshShape,
    branch_collectives,
    collectives,
    instruction_counts,
    traffic,
)
from tests.partitioning import record_programs

MESH = MeshShape(sizes={"fsdp": 4, "tensor": 2})
FSDP, TENSOR = "replica_groups=[2,4]<=[4,2]T(1,0)", "replica_groups=[4,2]<=[8]"


def program(*lines: str, computations: str = "") -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return f"{computations}\nENTRY %main (p: f32[8]) -> f32[8] {{\n{body}\n}}\n"


def only(line: str, *, computations: str = "") -> Collective:
    """The single collective of a program of one line."""
    (found,) = collectives(program(line, computations=computations), mesh=MESH)
    return found


@pytest.mark.parametrize(
    ("line", "kind", "axes", "payload", "wire"),
    [
        (f"%g = bf16[64]{{0}} all-gather(bf16[16]{{0}} %p), {FSDP}, dimensions={{0}}",
         "all-gather", ("fsdp",), 128, 96),
        (f"%g = f32[16]{{0}} reduce-scatter(%p), {FSDP}, to_apply=%add",
         "reduce-scatter", ("fsdp",), 256, 192),
        (f"%g = f32[8,16]{{1,0}} all-reduce(%p), {TENSOR}, to_apply=%add",
         "all-reduce", ("tensor",), 512, 512),
        ("%g = f32[8]{0} all-reduce(%p), replica_groups={}, to_apply=%add",
         "all-reduce", ("fsdp", "tensor"), 32, 56),
        (f"%g = f32[8,2]{{1,0:T(8,128)}} all-to-all(%p), {TENSOR}, dimensions={{0}}",
         "all-to-all", ("tensor",), 64, 32),
        (f"%g = (f32[8]{{0}}, f32[8]{{0}}) all-to-all(%a, %b), {TENSOR}",
         "all-to-all", ("tensor",), 64, 32),
        ("%g = f32[2]{0} collective-permute(%p), source_target_pairs={{0,2},{2,4},{4,6},{6,0}}",
         "collective-permute", ("fsdp",), 8, 8),
        ("%g = f32[2]{0} collective-permute(%p), source_target_pairs={{0,3}}",
         "collective-permute", ("fsdp", "tensor"), 8, 8),
        # Combined: several arrays in one.
        (f"%g = (f32[1]{{0}}, f32[2]{{0}}, f32[3]{{0}}, f32[4]{{0}}, f32[5]{{0}}, /*index=5*/f32[6]"
         f"{{0}}) all-reduce(%a, %b, %c, %d, %e, /*index=5*/%f), {TENSOR}, to_apply=%add",
         "all-reduce", ("tensor",), 84, 84),
        # Asynchronous: (operands, results, ...), or results only.
        (f"%g = (f32[8]{{0}}, f32[32]{{0}}) all-gather-start(%p), {FSDP}",
         "all-gather", ("fsdp",), 128, 96),
        ("%g = ((f32[8]{0}, f32[1]{0}), (f32[32]{0}, f32[4]{0})) all-gather-start(%p, %q), "
         f"{FSDP}", "all-gather", ("fsdp",), 144, 108),
        (f"%g = f32[8]{{0:T(256)S(1)}} all-reduce-start(%p), {TENSOR}, to_apply=%add",
         "all-reduce", ("tensor",), 32, 32),
        (f"%g = (f32[8]{{0}}, f32[4]{{0}}) all-reduce-start(%p, %q), {TENSOR}, to_apply=%add",
         "all-reduce", ("tensor",), 48, 48),
        (f"%g = ((f32[8]{{0}}), f32[8]{{0}}) all-reduce-start(%p), {TENSOR}, to_apply=%add",
         "all-reduce", ("tensor",), 32, 32),
        (f"%g = ((f32[8]{{0}}), f32[2]{{0}}) reduce-scatter-start(%p), {FSDP}, to_apply=%add",
         "reduce-scatter", ("fsdp",), 32, 24),
        ("%g = (f32[2]{0}, f32[2]{0}, u32[], u32[]) collective-permute-start(%p), "
         "source_target_pairs={{0,1},{1,0}}", "collective-permute", ("tensor",), 8, 8),
        ('%g = (f32[2]{0}, u32[], token[]) send(%p, %t), channel_id=1, frontend_attributes={'
         '_xla_send_recv_source_target_pairs="{{0,2},{2,4}}"}',
         "collective-permute", ("fsdp",), 8, 8),
    ],
)  # fmt: skip
def test_each_form_has_its_kind_axes_and_bytes(line, kind, axes, payload, wire):
    found = only(line)
    assert (found.kind, found.axes, found.payload, found.wire) == (kind, axes, payload, wire)
    assert found.runs == 1
    assert found.conditional is None


@pytest.mark.parametrize(
    "line",
    [
        "%d = f32[64]{0} all-gather-done(%ag-start)",
        "%fusion = f32[8]{0} fusion(%all-reduce.1), kind=kLoop, calls=%fused_all-gather",
        "%t = f32[8]{0} get-tuple-element(%all-gather-start.3), index=1",
        '%c = f32[8]{0} custom-call(%x), metadata={op_name="all-reduce(x)"}',
        "%r = (f32[2]{0}, u32[], token[]) recv(%t), channel_id=1",
    ],
)
def test_what_only_mentions_a_collective_is_none(line):
    assert collectives(program(line), mesh=MESH) == ()


def test_a_wrapped_asynchronous_collective_counts_once():
    wrapped = f"""%async_computation (p: f32[16]) -> f32[8] {{
  %p = f32[16]{{0}} parameter(0)
  ROOT %rs = f32[8]{{0}} reduce-scatter(%p), {TENSOR}, to_apply=%add
}}"""
    lines = (
        "%s = ((f32[16]{0}), f32[8]{0}, u32[]) async-start(%x), calls=%async_computation",
        "%d = f32[8]{0} async-done(%s)",
    )
    text = program(*lines, computations=wrapped)
    assert instruction_counts(text) == {"reduce-scatter": 1}


def loop(inner: str, *, trips: int, name: str) -> tuple[str, str]:
    """A loop around a line: its computations, and the line that runs it."""
    text = f"""%{name}_condition (s: f32[8]) -> pred[] {{
  %s = f32[8]{{0}} parameter(0)
  ROOT %true = pred[] constant(true)
}}
%{name} (s: f32[8]) -> f32[8] {{
  ROOT {inner}
}}"""
    known = f'backend_config={{"known_trip_count":{{"n":"{trips}"}}}}' if trips else ""
    run = f"%w.{name} = f32[8]{{0}} while(%p), condition=%{name}_condition, body=%{name}, {known}"
    return text, run


REDUCE = f"%r = f32[8]{{0}} all-reduce(%s), {TENSOR}, to_apply=%add"


def test_loops_multiply_and_nest():
    inner, run_inner = loop(REDUCE, trips=3, name="inner")
    outer, run_outer = loop(run_inner, trips=5, name="outer")
    text = program(run_outer, REDUCE, computations=f"{inner}\n{outer}")
    (row,) = traffic(collectives(text, mesh=MESH))
    assert (row.instructions, row.count, row.payload, row.wire) == (2, 16, 16 * 32, 16 * 32)
    assert (row.conditional, row.unknown_loops) == (0, 0)


def test_a_loop_of_unknown_length_counts_once_and_is_marked():
    computations, run = loop(REDUCE, trips=0, name="endless")
    (row,) = traffic(collectives(program(run, computations=computations), mesh=MESH))
    assert (row.count, row.unknown_loops) == (1, 1)


BRANCHES = f"""%taken (s: f32[8]) -> f32[8] {{
  %s = f32[8]{{0}} parameter(0)
  ROOT %r = f32[8]{{0}} all-reduce(%s), {TENSOR}, to_apply=%add, metadata={{op_name="cond/psum"}}
}}
%skipped (s: f32[8]) -> f32[8] {{
  ROOT %s = f32[8]{{0}} parameter(0)
}}"""


def test_branches_count_once_each_and_say_who_exchanges():
    text = program(
        "%c = f32[8]{0} conditional(%i, %p, %p), branch_computations={%skipped, %taken}",
        f"%out = f32[32]{{0}} all-gather(%c), {FSDP}",
        computations=BRANCHES,
    )
    (inside,) = branch_collectives(text)
    assert (inside.kind, inside.conditional, inside.source) == ("all-reduce", "c", "cond/psum")
    np.testing.assert_array_equal(inside.members, [[0, 1], [2, 3], [4, 5], [6, 7]])
    assert inside.axes == ()
    assert [c.axes for c in branch_collectives(text, mesh=MESH)] == [("tensor",)]
    gather, reduce = traffic(collectives(text, mesh=MESH))
    assert (gather.kind, gather.conditional) == ("all-gather", 0)
    assert (reduce.count, reduce.conditional) == (1, 1)


def test_a_branch_of_a_branch_names_the_inner_one():
    nested = (
        BRANCHES
        + """
%again (s: f32[8]) -> f32[8] {
  %s = f32[8]{0} parameter(0)
  ROOT %inner = f32[8]{0} conditional(%i, %s), branch_computations={%taken, %skipped}
}"""
    )
    text = program(
        "%outer = f32[8]{0} conditional(%i, %p), branch_computations={%again}", computations=nested
    )
    assert [c.conditional for c in branch_collectives(text)] == ["inner"]


def test_an_all_reduce_of_which_each_device_keeps_its_slice_is_a_reduce_scatter():
    fused = f"""%fused (x: f32[32]) -> f32[8] {{
  %x = f32[32]{{0}} parameter(0)
  %ar = f32[32]{{0}} all-reduce(%x), channel_id=4, {FSDP}, to_apply=%add
  ROOT %ds = f32[8]{{0}} dynamic-slice(%ar, %i), dynamic_slice_sizes={{8}}
}}"""
    found = only("%f = f32[8]{0} fusion(%p), kind=kCustom, calls=%fused", computations=fused)
    assert (found.kind, found.payload, found.wire) == ("reduce-scatter", 128, 96)


def test_a_slice_of_something_else_leaves_an_all_reduce_one():
    fused = f"""%fused (x: f32[32]) -> f32[32] {{
  %x = f32[32]{{0}} parameter(0)
  %ds = f32[8]{{0}} dynamic-slice(%x, %i), dynamic_slice_sizes={{8}}
  ROOT %ar = f32[32]{{0}} all-reduce(%x), channel_id=4, {FSDP}, to_apply=%add
}}"""
    found = only("%f = f32[32]{0} fusion(%p), kind=kCustom, calls=%fused", computations=fused)
    assert found.kind == "all-reduce"


def test_parts_of_one_collective_in_several_fusions_count_once():
    part = """%{name} (x: f32[8]) -> f32[32] {{
  %x = f32[8]{{0}} parameter(0)
  ROOT %ag = f32[32]{{0}} all-gather(%x), channel_id={channel}, {groups}
}}"""
    computations = "\n".join(
        part.format(name=name, channel=channel, groups=FSDP)
        for name, channel in (("start", 1), ("step", 1), ("done", 1), ("other", 2))
    )
    lines = [
        f"%f.{name} = f32[32]{{0}} fusion(%p), kind=kCustom, calls=%{name}"
        for name in ("start", "step", "done", "other")
    ]
    text = program(*lines, computations=computations)
    assert instruction_counts(text) == {"all-gather": 2}


def test_between_slices_a_send_counts_as_what_it_stands_for():
    mesh = MeshShape(sizes={"data": 2, "fsdp": 4}, outer={"data": 2})
    text = program(
        "%inside = f32[8]{0} all-reduce(%p), replica_groups={{0,1,2,3}}, to_apply=%add",
        '%s = (f32[8]{0}, u32[], token[]) send(%p, %t), channel_id=3, is_host_transfer=true, '
        'frontend_attributes={_xla_megascale_transfer_type="ALL_REDUCE"}',
        "%r = (f32[8]{0}, u32[], token[]) recv(%t), channel_id=4, is_host_transfer=true",
    )  # fmt: skip
    found = {c.axes: (c.kind, c.group, c.payload) for c in collectives(text, mesh=mesh)}
    assert found == {("fsdp",): ("all-reduce", 4, 32), ("data",): ("all-reduce", 2, 32)}


def test_a_part_of_an_axis_inside_a_slice_is_told_from_one_across():
    mesh = MeshShape(sizes={"data": 4, "fsdp": 4}, outer={"data": 2})
    assert mesh.axes(np.asarray([[0, 1, 2, 3], [4, 5, 6, 7]])) == ("fsdp",)
    assert mesh.axes(np.asarray([[0, 4], [1, 5], [2, 6], [3, 7]])) == ("data",)
    assert mesh.axes(np.asarray([[0, 8]])) == ("data",)


LAYERS = record_programs.MODEL.layers
RESIDUAL = record_programs.ROWS // 4 * record_programs.LENGTH * record_programs.MODEL.embed_dim * 2


def counted(name: str) -> dict[tuple[str, tuple[str, ...]], float]:
    recorded = record_programs.PROGRAMS[name]
    found = collectives(record_programs.text(name), mesh=recorded.shape)
    return {(row.kind, row.axes): row.payload for row in traffic(found)}


def block_elements() -> int:
    """Elements of a block's matrices."""
    model = record_programs.MODEL
    assert model.head_dim is not None
    attention = 2 * model.embed_dim * model.head_dim * (model.heads + model.kv_heads)
    return attention + 3 * model.embed_dim * model.mlp_dim


def test_a_program_for_h100_moves_what_pencil_and_paper_say():
    model, found = record_programs.MODEL, counted("h100_fsdp4_tensor4")
    table = model.vocab_size * model.embed_dim * 2 // 4
    assert found["all-gather", ("fsdp",)] == 2 * LAYERS * block_elements() * 2 / 4 + 2 * table
    assert found["reduce-scatter", ("fsdp",)] == LAYERS * block_elements() * 2 / 4 + 2 * table
    assert found["all-gather", ("tensor",)] == (4 * LAYERS + 2) * RESIDUAL
    assert found["reduce-scatter", ("tensor",)] == (4 * LAYERS + 2) * RESIDUAL


def test_a_program_for_tpu_moves_the_same_over_tensor_by_other_means():
    found = counted("v5e_fsdp4_tensor4")
    scattered = found["reduce-scatter", ("tensor",)]
    gathered = found["all-gather", ("tensor",)]
    assert scattered == pytest.approx((4 * LAYERS + 2) * RESIDUAL, rel=0.05)
    assert gathered == pytest.approx((4 * LAYERS + 2) * RESIDUAL, rel=0.05)


def test_a_program_for_two_slices_sums_gradient_shards_between_them():
    model, found = record_programs.MODEL, counted("v5e_2slices_data2_fsdp4")
    table = model.vocab_size * model.embed_dim
    shards = (LAYERS * block_elements() + 2 * table) * 2 / 4
    assert found["all-reduce", ("data",)] == pytest.approx(shards, rel=0.02)
