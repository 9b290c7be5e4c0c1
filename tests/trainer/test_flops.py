"""Operations of the traced step equal 6 P T and the attention formula; peaks are dense."""

import dataclasses

import jax
import pytest
from flax import nnx

from models.experts_config import ExpertsConfig
from partitioning.mesh_config import MeshConfig
from trainer.certificate import programs
from trainer.flops import StepFlops, Utilization, step_flops, utilization
from trainer.hardware import PEAK_FLOPS, peak_flops

ROWS, LENGTH = 4, 32
SINGLE = {"dtype": "float32", "param_dtype": "float32"}


def matrix_parameters(config) -> int:
    """Returns P: parameters that multiply activations; the head counts, the look-up does not."""
    task = programs.program(config).task
    model = nnx.eval_shape(lambda: task.init(jax.random.key(0)))
    flat = nnx.to_flat_state(nnx.state(model, nnx.Param))
    total = sum(leaf.size for path, leaf in flat if path[-1] == "kernel")
    return total + (config.vocab_size * config.embed_dim if config.tied_embedding else 0)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied_embedding": True},
        {"activation": "gelu", "head_dim": 6},
        {"layers": 12},
        {"layers": 3, "remat": "full", "scan_layers": True, "loss_chunks": 4},
        {"qkv_bias": True, "qk_norm": True, "post_norms": True},
    ],
    ids=str,
)
def test_products_with_parameters_are_six_per_parameter_and_token(changes):
    config = programs.decoder(**SINGLE, **changes)
    found = step_flops(programs.program(config), rows=ROWS, length=LENGTH)
    assert found.products == 6 * matrix_parameters(config) * ROWS * LENGTH


@pytest.mark.parametrize("matmul", ["padded", "blocked", "ragged"])
@pytest.mark.parametrize("capacity", [None, 4.0])
def test_of_experts_only_the_chosen_count_whatever_is_padded(capacity, matmul):
    experts = ExpertsConfig(
        count=8, chosen=2, mlp_dim=20, shared_mlp_dim=12, capacity=capacity, matmul=matmul
    )
    pattern = ("global", "global+experts")
    config = programs.decoder(**SINGLE, layers=4, pattern=pattern, experts=experts)
    found = step_flops(programs.program(config), rows=ROWS, length=LENGTH)
    router, chosen = 8 * config.embed_dim, 2 * 3 * 20 * config.embed_dim
    # The shared layers' matrices are named kernel and are counted with the others.
    each = matrix_parameters(config) + 2 * (router + chosen)
    assert found.products == 6 * each * ROWS * LENGTH


def test_attention_is_counted_in_two_named_conventions():
    config = programs.decoder(**SINGLE, head_dim=6)
    found = step_flops(programs.program(config), rows=ROWS, length=LENGTH)
    width = config.heads * 6
    assert found.attention_full == 12 * config.layers * width * LENGTH * ROWS * LENGTH
    pairs = sum(t + 1 for t in range(LENGTH))
    assert found.attention_causal == 12 * config.layers * width * ROWS * pairs
    assert found.total("full") == found.products + found.attention_full
    assert found.total("causal") == found.products + found.attention_causal


@pytest.mark.parametrize("window", [1, 5, 32, 1000])
def test_a_window_counts_only_the_keys_in_it(window):
    """P113."""
    config = programs.decoder(**SINGLE, layers=4, pattern=("local", "global"), window=window)
    task = programs.program(config).task
    pairs = {
        kind: sum(min(t + 1, window if kind == "local" else LENGTH) for t in range(LENGTH))
        for kind in ("local", "global")
    }
    width = config.heads * config.head_dim
    expected = 4 * ROWS * width * 2 * (pairs["local"] + pairs["global"])
    assert task.attention_flops(rows=ROWS, length=LENGTH, causal=True) == expected
    full = 4 * ROWS * width * 2 * LENGTH * (min(window, LENGTH) + LENGTH)
    assert task.attention_flops(rows=ROWS, length=LENGTH, causal=False) == full


def test_the_count_does_not_depend_on_mesh_or_microbatches():
    config = programs.decoder(**SINGLE)
    alone = step_flops(programs.program(config), rows=32, length=LENGTH)
    mesh = MeshConfig(fsdp=4, tensor=2)
    spread = programs.program(config, mesh=mesh, train={"microbatches": 4})
    assert step_flops(spread, rows=32, length=LENGTH) == alone


def test_a_published_model_is_counted_without_allocating():
    """Llama 3 8B at 8,192 tokens: 6 N T of its 7.50 billion matrix parameters, and attention."""
    run = programs.load(model="llama3_8b")
    program = programs.program(run.task.model)
    found = step_flops(program, rows=1, length=8192)
    assert found.products == 6 * (8_030_261_248 - 128256 * 4096 - 65 * 4096) * 8192
    assert found.attention_full == 12 * 32 * 4096 * 8192 * 8192


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989.4e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5p", 459e12),
        ("TPU v4", 275e12),
        ("cpu", None),
        ("", None),
    ],
)
def test_peaks_are_dense_bfloat16(kind, peak):
    """P114: 989.4e12, not the 1,979e12 of the sheet's sparse line."""
    assert peak_flops(kind) == peak


def test_no_peak_is_a_figure_with_sparsity():
    sparse = {1979e12, 624e12, 1513e12, 4500e12, 2614.9e12}
    assert not sparse & set(PEAK_FLOPS.values())


def test_utilization_is_of_all_devices_and_says_why_there_is_none():
    program = programs.program(programs.decoder(**SINGLE), mesh=MeshConfig(fsdp=8))
    flops = StepFlops(products=80.0, attention_full=40.0, attention_causal=20.0)
    unknown = utilization(flops, program=program, convention="causal")
    assert unknown.mfu(1.0) is None
    assert unknown.reason == "no peak rate known for 'cpu'"
    known = Utilization(flops=flops.total("causal"), peak=8 * 25.0, reason="")
    assert known.mfu(2.0) == 100.0 / 2.0 / 200.0
    assert dataclasses.replace(known, flops=3e12).teraflops(1.5) == 2.0
