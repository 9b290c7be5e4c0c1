"""What compilers say when they refuse a step, and what is made of it."""

import jax
import pytest

from trainer.compile_errors import explain, out_of_memory

GROSS = """\
RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required \
for HLO temporaries (111.40G) exceeds available HBM (15.75G). HLO module: jit_train_step.
See https://openxla.org/xla/errors/error_1000 for more details."""

NARROW = """\
RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 17.50G of 15.75G hbm. Exceeded hbm \
capacity by 1.75G.

Largest program allocations in hbm:

  1. Size: 3.91G
     Operator: op_name="jit(train_step)/loss/dot_general" source_file="losses.py"
     Shape: f32[8192,128256]{1,0:T(8,128)}
     Unpadded size: 3.91G
     XLA label: fusion.1
  2. Size: 512.00M
     Shape: bf16[32,1024,8192]
"""

PARTITIONER = """\
INTERNAL: custom_partitioner: Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
ValueError: Query, key and value should have same sharding.
"""


def test_gross_lack_of_memory_has_its_numbers():
    found = out_of_memory(jax.errors.JaxRuntimeError(GROSS))
    assert found is not None
    assert found.needed == pytest.approx(111.40 * 2**30)
    assert found.available == pytest.approx(15.75 * 2**30)
    assert found.largest == ()


def test_the_largest_arrays_are_named_where_the_compiler_does():
    found = out_of_memory(jax.errors.JaxRuntimeError(NARROW))
    assert found is not None
    assert found.needed == pytest.approx(17.5 * 2**30)
    assert found.largest == (
        "3.91 GiB f32[8192,128256]{1,0:T(8,128)} in jit(train_step)/loss/dot_general",
        "0.50 GiB bf16[32,1024,8192]",
    )


def test_a_lack_without_numbers_is_one_all_the_same():
    found = out_of_memory(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no room"))
    assert found is not None
    assert (found.needed, found.available) == (None, None)
    assert out_of_memory(jax.errors.JaxRuntimeError(PARTITIONER)) is None


def test_the_last_word_of_an_error_inside_the_compiler_is_told_and_no_traceback():
    said = explain(jax.errors.JaxRuntimeError(PARTITIONER), chip="h100")
    assert "the compiler for h100 refuses the step" in said
    assert "ValueError: Query, key and value should have same sharding." in said
    assert "frozen" not in said
    assert "\n" not in said


def test_long_words_are_cut():
    said = explain(jax.errors.JaxRuntimeError("INTERNAL: " + "x" * 5000), chip="h100")
    assert len(said) < 700


def test_our_own_refusals_are_told_as_they_are():
    assert explain(ValueError("DataConfig.global_batch=7 is odd."), chip="h100") == (
        "DataConfig.global_batch=7 is odd."
    )


def test_what_cudnn_lacks_names_the_other_kernel():
    from jax._src.cudnn import fused_attention_stablehlo as fused

    from partitioning.target_cudnn import kernels_of
    from partitioning.targets import target_devices

    query = jax.ShapeDtypeStruct((1, 16, 4, 300), "bfloat16")
    with (
        kernels_of(target_devices("h100", devices=8)[0]),
        pytest.raises(NotImplementedError) as raised,
    ):
        fused.check_is_flash_attention(query, query, query, 0, fused.check_cudnn_version(), 0, 1)
    said = explain(raised.value, chip="h100")
    assert "cuDNN has no attention for this on h100" in said
    assert "DecoderConfig.attention = 'xla'" in said
    assert "but got 300." in said
