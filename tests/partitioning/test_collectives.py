"""Collectives are counted once each, in every form that compilers print them."""

import pytest

from partitioning.collectives import count_collectives

PLAIN = """
  %all-reduce.1 = f32[8,16]{1,0} all-reduce(%dot.3), channel_id=1, to_apply=%add
  %ar = (f32[4]{0}, bf16[8]{0}) all-reduce(%a, %b), channel_id=2, to_apply=%add
  ROOT %g = f32[64]{0} all-gather(f32[8]{0} %p), dimensions={0}
  %rs = f32[2]{0} reduce-scatter(%x), dimensions={0}
  %p2 = f32[2]{0} collective-permute(%x), source_target_pairs={{0,1}}
  %a2a = f32[8,2]{1,0:T(8,128)} all-to-all(%x), dimensions={0}
"""
ASYNCHRONOUS = """
  %ag-start = (f32[8]{0}, f32[64]{0}) all-gather-start(%p), dimensions={0}
  %ag-done = f32[64]{0} all-gather-done(%ag-start)
  %ar-start = f32[8]{0:T(256)S(1)} all-reduce-start(%p), to_apply=%add
  %ar-done = f32[8]{0} all-reduce-done(%ar-start)
  %cp = (f32[2]{0}, f32[2]{0}, u32[], u32[]) collective-permute-start(%x)
  %cp-done = f32[2]{0} collective-permute-done(%cp)
"""
WRAPPED = """
%async_computation (p: f32[16]) -> f32[2] {
  %p = f32[16]{0} parameter(0)
  ROOT %rs = f32[2]{0} reduce-scatter(%p), dimensions={0}
}
ENTRY %main {
  %s = ((f32[16]{0}), f32[2]{0}, u32[]) async-start(%x), calls=%async_computation
  %d = f32[2]{0} async-done(%s)
}
"""
NUMBERED = (
    "  %all-reduce = (f32[1]{0}, f32[2]{0}, f32[3]{0}, f32[4]{0}, f32[5]{0}, /*index=5*/f32[6]{0}, "
    "f32[7]{0}) all-reduce(%a, %b, %c, %d, %e, /*index=5*/%f, %g), channel_id=1, to_apply=%add\\n"
)
NOT_COLLECTIVES = """
  %fusion = f32[8]{0} fusion(%all-reduce.1), kind=kLoop, calls=%fused_all-gather
  %t = f32[8]{0} get-tuple-element(%all-gather-start.3), index=1
  %c = f32[8]{0} custom-call(%x), metadata={op_name="all-reduce(x)"}
"""


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        (
            PLAIN,
            {
                "all-gather": 1,
                "all-reduce": 2,
                "all-to-all": 1,
                "collective-permute": 1,
                "reduce-scatter": 1,
            },
        ),
        (ASYNCHRONOUS, {"all-gather": 1, "all-reduce": 1, "collective-permute": 1}),
        (WRAPPED, {"reduce-scatter": 1}),
        (NUMBERED, {"all-reduce": 1}),
        (NOT_COLLECTIVES, {}),
    ],
    ids=["plain", "asynchronous", "wrapped", "numbered tuple", "none"],
)
def test_each_instruction_counts_once(text, counts):
    assert count_collectives(text) == counts
