import pathlib

import jax
import pytest
from flax import nnx

from models.decoder import Decoder
from partitioning.planner.decoder_parameters import active, count, parameters
from partitioning.planner.inputs import load_model

MODELS = sorted(path.stem for path in pathlib.Path("configs/models").glob("*.gin"))
PECULIAR = {
    "biases, tied, post-norms": (
        "tiny",
        (
            "DecoderConfig.qkv_bias=True",
            "DecoderConfig.tied_embedding=True",
            "DecoderConfig.post_norms=True",
        ),
    ),
    "plain gelu, query norms": (
        "tiny",
        ("DecoderConfig.activation='gelu'", "DecoderConfig.qk_norm=True"),
    ),
    "shared expert behind a dense prefix": (
        "tiny_moe",
        (
            "DecoderConfig.suffix=('global', 'global+experts')",
            "DecoderConfig.layers=5",
            "ExpertsConfig.shared_gate=True",
        ),
    ),
    "adapters": (
        "tiny",
        (
            "DecoderConfig.lora=@LoraConfig()",
            "LoraConfig.targets=('attention/.*/kernel', 'mlp/.*/kernel')",
            "DecoderConfig.prefix=('global',)",
            "DecoderConfig.layers=3",
        ),
    ),
}


def real(model):
    module = nnx.eval_shape(lambda: Decoder(model, key=jax.random.key(0)))
    flat = nnx.to_flat_state(nnx.state(module, nnx.Param))
    return {"/".join(map(str, p)): (leaf.logical_axes, tuple(leaf.shape)) for p, leaf in flat}


@pytest.mark.parametrize("name", MODELS)
def test_they_are_the_parameters_of_the_real_model(name: str) -> None:
    model = load_model([f"configs/models/{name}.gin"])
    assert parameters(model) == real(model)


@pytest.mark.parametrize("name", PECULIAR)
def test_peculiar_models_too(name: str) -> None:
    base, bindings = PECULIAR[name]
    model = load_model([f"configs/models/{base}.gin"], bindings)
    assert parameters(model) == real(model)


def test_the_counts_are_the_published_ones() -> None:
    mixtral = load_model(["configs/models/mixtral_8x7b.gin"])
    assert count(parameters(mixtral)) == 46_702_792_704
    assert active(mixtral) == 12_879_925_248
