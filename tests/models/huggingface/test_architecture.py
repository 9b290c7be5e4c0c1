"""Where each tensor of a checkpoint belongs, however a model is divided into patterns."""

import dataclasses

import pytest

from models.decoder_config import DecoderConfig
from models.experts_config import ExpertsConfig
from models.huggingface.architecture import function
from models.huggingface.architectures import ARCHITECTURES, Architecture, fitting

BY_NAME = {each.name: each for each in ARCHITECTURES}
SIZES = {"vocab_size": 9, "embed_dim": 8, "heads": 4, "kv_heads": 2, "mlp_dim": 6}
MIXED = DecoderConfig(
    **SIZES,
    layers=5,
    prefix=("global",),
    pattern=("global+experts", "global"),
    experts=ExpertsConfig(count=3, chosen=2, mlp_dim=5),
    qk_norm=True,
)


def places(architecture: Architecture, config: DecoderConfig) -> dict[str, tuple[str, int | None]]:
    """Returns for each name the number of the block, or None, and the parameter in it."""
    starts = {"prefix": 0, "pattern": len(config.prefix)}
    starts["suffix"] = config.layers - len(config.suffix)
    found: dict[str, tuple[str, int | None]] = {}
    for tensor in architecture.tensors(config):
        if not tensor.path.startswith("stacks/"):
            found[tensor.name] = (tensor.path, None)
            continue
        _, stack, _, position, path = tensor.path.split("/", 4)
        number = starts[stack] + tensor.at[0] * len(getattr(config, stack)) + int(position)
        found[tensor.name] = ("/".join([path, *map(str, tensor.at[1:])]), number)
    return found


def test_a_tensor_is_in_the_block_whose_number_it_bears() -> None:
    found = places(BY_NAME["Qwen3MoeForCausalLM"], MIXED)
    assert found["model.layers.0.mlp.up_proj.weight"] == ("mlp/up/kernel", 0)
    assert found["model.layers.3.mlp.experts.2.up_proj.weight"] == ("mlp/up/2", 3)
    assert found["model.layers.4.self_attn.k_norm.weight"] == ("attention/key_norm/scale", 4)
    numbers = {name: int(name.split(".")[2]) for name in found if ".layers." in name}
    assert numbers == {name: found[name][1] for name in numbers}


@pytest.mark.parametrize(
    "division",
    [
        {"prefix": (), "pattern": ("global", "global+experts"), "suffix": ("global",)},
        {"prefix": MIXED.blocks[:3], "pattern": ("global+experts",), "suffix": ("global",)},
        {"prefix": MIXED.blocks, "pattern": ("global",), "suffix": ()},
    ],
    ids=str,
)
def test_the_same_blocks_in_another_division_have_the_same_tensors(division) -> None:
    other = dataclasses.replace(MIXED, **division)
    assert other.blocks == MIXED.blocks
    assert function(other) == function(MIXED)
    architecture = BY_NAME["Qwen3MoeForCausalLM"]
    assert places(architecture, other) == places(architecture, MIXED)


def test_tensors_stand_in_the_order_of_their_files() -> None:
    tensors = BY_NAME["LlamaForCausalLM"].tensors(DecoderConfig(**SIZES, layers=2))
    names = [tensor.name for tensor in tensors]
    assert (names[0], names[-2], names[-1]) == (
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
    )
    assert [name.split(".")[2] for name in names[1:-2]] == ["0"] * 9 + ["1"] * 9


def test_a_parameter_without_a_tensor_is_named() -> None:
    with pytest.raises(ValueError, match=r"LlamaForCausalLM has no tensor for .*query/bias"):
        BY_NAME["LlamaForCausalLM"].tensors(DecoderConfig(**SIZES, layers=1, qkv_bias=True))


@pytest.mark.parametrize("tied", [True, False])
def test_what_files_may_hold_besides_is_known(tied) -> None:
    architecture = BY_NAME["LlamaForCausalLM"]
    config = DecoderConfig(**SIZES, layers=2, tied_embedding=tied)
    names = {tensor.name for tensor in architecture.tensors(config)}
    redundant = architecture.redundant(config)
    assert not names & redundant
    assert ("lm_head.weight" in redundant, "lm_head.weight" in names) == (tied, not tied)
    assert "model.layers.1.self_attn.rotary_emb.inv_freq" in redundant


def test_why_no_architecture_fits_is_said_of_each() -> None:
    with pytest.raises(ValueError, match="No architecture can express this model") as refused:
        fitting(DecoderConfig(**SIZES, layers=1, activation="gelu"))
    lines = str(refused.value).splitlines()[1:]
    assert [line.split(":")[0].strip() for line in lines] == list(BY_NAME)
    assert "LlamaForCausalLM: activation='gelu', where it has 'swiglu'" in lines[0]


@pytest.mark.parametrize("field", ["dropout", "remat", "dtype", "param_dtype", "loss_chunks"])
def test_how_a_model_is_trained_does_not_change_what_it_is(field) -> None:
    changes = {"dropout": 0.1, "remat": "full", "loss_chunks": 2}
    value = changes.get(field, "float32")
    config = DecoderConfig(**SIZES, layers=1, dtype="bfloat16", param_dtype="bfloat16")
    assert function(dataclasses.replace(config, **{field: value})) == function(config)
