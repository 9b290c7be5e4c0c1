"""The formulas count what the traced step multiplies."""

import pathlib

import pytest

from models.experts_config import ExpertsConfig
from models.lora_config import LoraConfig
from partitioning.planner.cost_model.step_flops import step_flops
from partitioning.planner.inputs import load_model
from trainer.certificate import programs
from trainer.flops import step_flops as traced

MODELS = sorted(path.stem for path in pathlib.Path("configs/models").glob("*.gin"))
ROWS, LENGTH = 2, 64
SINGLE = {"dtype": "float32", "param_dtype": "float32"}
MIXTURE = ExpertsConfig(count=8, chosen=2, mlp_dim=20, shared_mlp_dim=12, shared_gate=True)


def agrees(model) -> None:
    found = step_flops(model, rows=ROWS, length=LENGTH)
    counted = traced(programs.program(model), rows=ROWS, length=LENGTH)
    assert found.products == pytest.approx(counted.products, rel=1e-12)
    for convention in ("causal", "full"):
        assert found.total(convention) == pytest.approx(counted.total(convention), rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_they_are_those_of_the_traced_step(name: str) -> None:
    agrees(load_model([f"configs/models/{name}.gin"]))


@pytest.mark.parametrize(
    "changes",
    [
        {"window": 16, "pattern": ("local", "global"), "layers": 4},
        {"activation": "gelu", "tied_embedding": True, "head_dim": 6},
        {"layers": 4, "pattern": ("global", "global+experts"), "experts": MIXTURE},
        {"remat": "full", "loss_chunks": 4},
        {"qkv_bias": True, "qk_norm": True, "post_norms": True},
        {"lora": LoraConfig(rank=3, targets=("attention/.*/kernel", "mlp/.*/kernel"))},
        {
            "lora": LoraConfig(rank=3),
            "layers": 4,
            "pattern": ("global", "global+experts"),
            "experts": MIXTURE,
        },
    ],
    ids=str,
)
def test_peculiar_models_too(changes) -> None:
    agrees(programs.decoder(**SINGLE, **changes))


def test_a_window_bounds_attention_whatever_the_length() -> None:
    model = programs.decoder(window=16, pattern=("local",), layers=4)
    short, long = (step_flops(model, rows=1, length=length) for length in (256, 512))
    assert long.attention_full == 2 * short.attention_full
    assert long.attention_causal < 2.1 * short.attention_causal


def test_what_is_kept_is_not_computed_again() -> None:
    def again(remat: str) -> float:
        return step_flops(programs.decoder(remat=remat), rows=1, length=64).recomputed

    assert again("none") == again("selective") == 0
    assert 0 < again("save:mlp_up,mlp_gate") < again("full")
    model = programs.decoder(remat="full")
    forward = step_flops(model, rows=1, length=64).products / 3
    assert again("full") < forward


def test_chunks_of_the_loss_compute_the_logits_again() -> None:
    whole, cut = (
        step_flops(programs.decoder(loss_chunks=chunks), rows=1, length=64) for chunks in (1, 4)
    )
    config = programs.decoder()
    assert cut.recomputed - whole.recomputed == 2 * config.embed_dim * config.vocab_size * 64
