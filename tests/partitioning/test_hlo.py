"""The text of a compiled program is read whole, and a loop's length is known or said not to be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioning import hlo
from tests.partitioning import record_programs

LOOP = """
%condition (state: (s32[], f32[8])) -> pred[] {{
  %state = (s32[], f32[8]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %limit = s32[] constant({limit})
  ROOT %less = pred[] compare(%i, %limit), direction={direction}
}}

%body (state.1: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %state.1 = (s32[], f32[8]{{0}}) parameter(0)
  %i.1 = s32[] get-tuple-element(%state.1), index=0
  %x = f32[8]{{0}} get-tuple-element(%state.1), index=1
  %by = s32[] constant({step})
  %next = s32[] {add}(%i.1, %by)
  %next.copy = s32[] copy(%next)
  ROOT %out = (s32[], f32[8]{{0}}) tuple(%next.copy, %x)
}}

ENTRY %main (p: f32[8]) -> f32[8] {{
  %p = f32[8]{{0}} parameter(0)
  %zero = s32[] constant({start})
  %in = (s32[], f32[8]{{0}}) tuple(%zero, %p)
  %loop = (s32[], f32[8]{{0}}) while(%in), condition=%condition, body=%body{known}
  ROOT %y = f32[8]{{0}} get-tuple-element(%loop), index=1
}}
"""
COMPARE = {
    "LT": lambda i, limit: i < limit,
    "LE": lambda i, limit: i <= limit,
    "GT": lambda i, limit: i > limit,
    "GE": lambda i, limit: i >= limit,
}


def trips(*, start=0, limit=10, step=1, add="add", direction="LT", known="") -> int | None:
    text = LOOP.format(
        start=start, limit=limit, step=step, add=add, direction=direction, known=known
    )
    module = hlo.parse(text)
    loop = module.find("main", "loop")
    assert loop is not None
    return hlo.trip_count(module, "main", loop)


@given(
    start=st.integers(-20, 20),
    limit=st.integers(-20, 20),
    step=st.integers(1, 7),
    direction=st.sampled_from(["LT", "LE"]),
)
def test_a_loop_s_length_is_that_of_running_it(start, limit, step, direction):
    i, count = start, 0
    while COMPARE[direction](i, limit):
        i, count = i + step, count + 1
    found = trips(start=start, limit=limit, step=step, direction=direction)
    assert found == count or (found is None and count == 0)


@given(start=st.integers(0, 20), limit=st.integers(-20, 0), step=st.integers(1, 7))
def test_a_loop_may_count_down(start, limit, step):
    count = len(range(start, limit, -step))
    assert trips(start=start, limit=limit, step=step, add="subtract", direction="GT") == count


def test_the_compiler_s_own_count_comes_first():
    known = ', backend_config={"known_trip_count":{"n":"7"}}'
    assert trips(known=known) == 7


@pytest.mark.parametrize(
    "unsettled",
    [{"add": "multiply"}, {"direction": "EQ"}, {"limit": "nan"}, {"step": 0}],
    ids=lambda changes: next(iter(changes)),
)
def test_a_loop_of_unknown_length_is_said_to_be_one(unsettled):
    assert trips(**unsettled) is None


def test_the_condition_may_stand_in_a_fusion():
    text = LOOP.format(start=0, limit=12, step=2, add="add", direction="LT", known="").replace(
        "  ROOT %less = pred[] compare(%i, %limit), direction=LT\n",
        "  ROOT %less = pred[] fusion(%limit, %i), kind=kLoop, calls=%compared\n",
    )
    text = (
        """%compared (a: s32[], b: s32[]) -> pred[] {
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %r = pred[] compare(%b, %a), direction=LT
}
"""
        + text
    )
    module = hlo.parse(text)
    loop = module.find("main", "loop")
    assert loop is not None
    assert hlo.trip_count(module, "main", loop) == 6


@pytest.mark.parametrize(
    ("text", "arrays"),
    [
        ("f32[8,16]{1,0:T(8,128)S(1)}", [("f32", (8, 16), 512)]),
        ("bf16[4,64]", [("bf16", (4, 64), 512)]),
        ("(f32[2]{0}, (s4[8]{0}, token[]), u32[]{:S(2)})",
         [("f32", (2,), 8), ("s4", (8,), 4), ("u32", (), 4)]),
        ("f8e4m3fn[<=16]{0}", [("f8e4m3fn", (16,), 16)]),
        ("pred[3]", [("pred", (3,), 3)]),
        ("c64[3]", [("c64", (3,), 24)]),
    ],
)  # fmt: skip
def test_types_are_read_with_their_sizes(text, arrays):
    assert [(a.dtype, a.shape, a.bytes) for a in hlo.arrays(text)] == arrays


def test_an_unknown_dtype_is_not_guessed():
    with pytest.raises(ValueError, match="posit"):
        hlo.bits("posit")


def test_tuples_are_cut_at_their_own_commas():
    text = "((f32[8,2]{1,0}, f32[1]), f32[64]{0:T(8,128)(2,1)}, u32[])"
    assert hlo.elements(text) == (
        "(f32[8,2]{1,0}, f32[1])",
        "f32[64]{0:T(8,128)(2,1)}",
        "u32[]",
    )
    assert hlo.elements("f32[8]{0}") == ("f32[8]{0}",)


def test_operands_are_read_with_and_without_types_and_comments():
    module = hlo.parse(
        "ENTRY %e (p: f32[2]) -> f32[2] {\n"
        "  %p = f32[2]{0} parameter(0)\n"
        "  %q.1 = f32[2]{0} add(f32[2]{0} %p, /*index=1*/f32[2]{0} %p), metadata={x=\"(\"}\n"
        "  ROOT r = f32[2]{0} negate(q.1)\n"
        "}\n"
    )  # fmt: skip
    p, q, r = module.computations["e"]
    assert (p.literal, q.operands, r.operands) == ("0", ("p", "p"), ("q.1",))
    assert module.root("e") is r


def test_branches_are_read_in_both_forms():
    line = "  %c = f32[] conditional(%p, %x, %y), {}"
    texts = (
        "branch_computations={%one, %two}",
        "true_computation=%one, false_computation=%two",
    )
    for text in texts:
        module = hlo.parse("ENTRY %e (p: pred[]) -> f32[] {\n" + line.format(text) + "\n}\n")
        assert hlo.branches(module.computations["e"][0]) == ("one", "two")


def test_text_that_is_no_program_is_refused():
    with pytest.raises(ValueError, match="ENTRY"):
        hlo.parse("all-reduce")


@pytest.mark.parametrize("name", record_programs.PROGRAMS)
def test_every_instruction_of_real_programs_is_read(name):
    text = record_programs.text(name)
    module = hlo.parse(text)
    lines = [line for line in text.splitlines() if line.startswith("  ") and " = " in line]
    assert len(lines) == sum(map(len, module.computations.values()))
    for computation, instructions in module.computations.items():
        assert module.root(computation) in instructions
        for instruction in instructions:
            hlo.arrays(instruction.type)
            assert all(module.find(computation, name) for name in instruction.operands)
            assert set(hlo.called(instruction)) <= set(module.computations)


@pytest.mark.parametrize("name", record_programs.PROGRAMS)
def test_every_loop_over_the_layers_of_real_programs_has_their_number(name):
    module = hlo.parse(record_programs.text(name))
    found = [
        hlo.trip_count(module, computation, instruction)
        for computation, instructions in module.computations.items()
        for instruction in instructions
        if instruction.opcode == "while"
    ]
    assert found.count(record_programs.MODEL.layers) >= 2
    assert None not in found
