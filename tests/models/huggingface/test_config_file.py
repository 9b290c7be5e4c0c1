"""A config.json is read as what it says, refused by name where ours cannot say it, written back."""

import contextlib
import json
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.decoder_config import DecoderConfig, RopeScaling
from models.experts_config import ExpertsConfig
from models.huggingface import config_file
from models.huggingface.architectures import ARCHITECTURES, Architecture
from models.huggingface.block_keys import pattern_of
from partitioning.planner.inputs import load_model
from tests.models.huggingface import reference_cases

BY_NAME = {each.name: each for each in ARCHITECTURES}
UNIFORM = ("MistralForCausalLM", "MixtralForCausalLM", "Qwen3MoeForCausalLM")
"""Architectures in which all blocks have a window or none has."""

FLOATS = st.floats(1e-7, 1e7)
SCALINGS = st.none() | st.builds(
    RopeScaling,
    factor=FLOATS,
    low_frequency_factor=st.floats(0.5, 2.0),
    high_frequency_factor=st.floats(2.5, 9.0),
    original_length=st.integers(1, 1 << 20),
)
SCALINGS |= st.builds(RopeScaling, factor=FLOATS)


@st.composite
def kinds(draw: st.DrawFn, architecture: Architecture) -> list[str]:
    """Draws block kinds that an architecture can have."""
    layers = draw(st.integers(1, 14))
    name, windows = architecture.name, st.sampled_from(["global", "local"])
    if name == "LlamaForCausalLM":
        windows = st.just("global")
    found = [draw(windows)] * layers
    if name not in UNIFORM:
        found = draw(st.lists(windows, min_size=layers, max_size=layers))
    sparse = [name == "MixtralForCausalLM"] * layers
    if name == "Qwen3MoeForCausalLM":
        sparse = draw(st.lists(st.booleans(), min_size=layers, max_size=layers).filter(any))
    return [kind + "+experts" * has for kind, has in zip(found, sparse, strict=True)]


@st.composite
def models(draw: st.DrawFn, architecture: Architecture) -> DecoderConfig:
    """Draws models that an architecture can express."""
    blocks = draw(kinds(architecture))
    sizes = st.integers(1, 500)
    kv_heads, group, half = draw(sizes), draw(sizes), draw(sizes)
    own: dict[str, Any] = dict(architecture.fixed)
    own["window"] = draw(sizes) if any("local" in kind for kind in blocks) else None
    own["mlp_dim"] = draw(sizes)
    if any("experts" in kind for kind in blocks):
        mixtral, chosen = architecture.name == "MixtralForCausalLM", draw(st.integers(2, 9))
        own["experts"] = ExpertsConfig(
            count=chosen + draw(sizes),
            chosen=chosen,
            mlp_dim=own["mlp_dim"] if mixtral else draw(sizes),
            renormalize=mixtral or draw(st.booleans()),
        )
    if "Gemma" in architecture.name:
        scalar = draw(st.none() | sizes.filter(lambda n: n != 2 * half))
        own["attention_scale"] = None if scalar is None else scalar**-0.5
        own["logits_soft_cap"] = draw(st.none() | FLOATS)
    if architecture.name == "Gemma2ForCausalLM":
        own["attention_soft_cap"] = draw(st.none() | FLOATS)
    if architecture.name == "Gemma3ForCausalLM":
        own["local_rope_base"] = draw(FLOATS)
    return DecoderConfig(
        vocab_size=draw(sizes),
        embed_dim=kv_heads * group * draw(st.integers(1, 9)),
        layers=len(blocks),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        head_dim=2 * half,
        norm_eps=draw(FLOATS),
        rope_base=draw(FLOATS),
        rope_scaling=draw(SCALINGS),
        tied_embedding=draw(st.booleans()),
        **pattern_of(blocks),
        **own,
    )


@pytest.mark.parametrize("name", BY_NAME)
@given(data=st.data())
def test_what_is_written_is_read_back(name, data) -> None:
    architecture = BY_NAME[name]
    config = data.draw(models(architecture))
    written = config_file.write(config, architecture=architecture, dtype="bfloat16")
    again = config_file.read(json.loads(json.dumps(written)), where="config.json")
    assert again == (architecture, config)


@given(st.lists(st.sampled_from(["global", "local", "global+experts"]), min_size=1, max_size=20))
def test_a_pattern_stands_for_the_blocks_it_was_made_of(blocks) -> None:
    parts = pattern_of(blocks)
    repeated = len(blocks) - len(parts["prefix"]) - len(parts["suffix"])
    repeats = repeated // len(parts["pattern"])
    assert [*parts["prefix"], *parts["pattern"] * repeats, *parts["suffix"]] == blocks


@pytest.mark.parametrize(
    ("blocks", "prefix", "pattern", "suffix"),
    [
        ("GGGG", "", "G", ""),
        ("LGLGLG", "", "LG", ""),
        ("LLLLLG" * 4 + "LL", "", "LLLLLG", "LL"),
        ("GLLLLLLL", "G", "L", ""),
        ("G" + "LG" * 3 + "LLL", "", "GL", "LL"),
    ],
)
def test_patterns_are_short(blocks, prefix, pattern, suffix) -> None:
    wanted = {"prefix": prefix, "pattern": pattern, "suffix": suffix}
    assert pattern_of(blocks) == {name: tuple(kinds) for name, kinds in wanted.items()}


@pytest.mark.parametrize("name", reference_cases.CASES)
def test_bindings_are_the_model_again(name, tmp_path) -> None:
    _, config = config_file.read(reference_cases.config_json(name), where=name)
    file = tmp_path / "model.gin"
    file.write_text(config_file.bindings(config))
    assert load_model([str(file)]) == config


LLAMA = reference_cases.config_json("llama 3.1")
YARN = {"rope_type": "yarn", "factor": 4.0}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama 3.1", {"attention_bias": True}, "attention_bias=True: only False"),
    ("llama 3.1", {"mlp_bias": True}, "mlp_bias=True: only False"),
    ("llama 3.1", {"hidden_act": "gelu"}, "hidden_act='gelu': only 'silu'"),
    ("llama 3.1", {"attention_dropout": 0.1}, "attention_dropout=0.1: only 0"),
    ("llama 3.1", {"rope_scaling": YARN}, "rope_scaling: rope_type='yarn': only 'default', 'lin"),
    ("llama 3.1", {"rope_scaling": {"type": "dynamic"}}, "type='dynamic'"),
    ("llama 3.1", {"rope_scaling": {"rope_type": "linear"}}, "the key 'factor' is missing"),
    ("llama 3.1", {"rope_scaling": {**YARN, "type": "linear"}}, "rope_type='yarn'"),
    (
        "llama 3.1",
        {"rope_scaling": {"type": "linear", "factor": 2.0, "mscale": 1.0}},
        "rope_scaling: mscale=1.0: this key is not supported here",
    ),
    ("llama 3.1", {"rope_parameters": {"rope_theta": 1.5}}, "rope_theta says otherwise"),
    ("llama 3.1", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
    ("llama 3.1", {"quantization_config": {"bits": 4}}, "the weights are quantised; convert them"),
    ("llama 3.1", {"auto_map": {"AutoModel": "own.Own"}}, "code of its own, which is not run"),
    ("llama 3.1", {"residual_multiplier": 0.2}, "residual_multiplier=0.2: LlamaForCausalLM is not"),
    ("llama 3.1", {"use_rope": False}, "use_rope=False: LlamaForCausalLM is not known"),
    ("llama 3.1", {"hidden_size": "32"}, "hidden_size='32' must be of type int"),
    ("llama 3.1", {"num_hidden_layers": True}, "num_hidden_layers=True must be of type int"),
    ("llama 3.1", {"rms_norm_eps": -1e-5}, "rms_norm_eps=-1e-05: it must be positive, and"),
    ("llama 3.1", {"rms_norm_eps": -1}, "rms_norm_eps=-1: it must be positive, and"),
    ("llama 3.1", {"rope_theta": 10**400}, "rope_theta=1000*...: it must be positive, and"),
    ("llama 3.1", {"rope_scaling": {"type": "linear", "factor": 0}}, "factor=0: it must be posi"),
    ("llama 3.1", {"hidden_size": 2**31}, "hidden_size=2147483648: it must be from 0 to"),
    ("llama 3.1", {"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000: at most 1000"),
    ("llama 3.1", {"\x1b[2J": 1}, r"'.x1b.2J'=1: LlamaForCausalLM is not known"),
    ("mixtral", {"num_local_experts": 10**9}, "num_local_experts=1000000000: at most 10000"),
    ("llama 3.1", {"rope_theta": math.inf}, "rope_theta=inf: it must be positive, and"),
    ("mistral, window", {"sliding_window": -1}, "sliding_window=-1: it must be from 0 to"),
    ("llama 3.1", {"vocab_size": None}, "the key 'vocab_size' is missing"),
    ("llama 3.1", {"num_key_value_heads": 3}, "heads=4 is not a multiple of kv_heads=3"),
    ("llama 3.1", {"architectures": ["GPT2LMHeadModel"]}, "Supported are LlamaForCausalLM, Mis"),
    (
        "gemma 3",
        {"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {}},
        "is not supported; the model has a part for images. Supported are",
    ),
    ("gemma 3", {"vision_config": {"hidden_size": 8}}, "the model has a part for images"),
    ("gemma 3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0: only None"),
    ("gemma 3", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
    ("gemma 3", {"hidden_activation": "gelu"}, "hidden_activation='gelu': only 'gelu_pytorch_t"),
    ("gemma 3", {"sliding_window_pattern": 0}, "sliding_window_pattern=0: it must be positive"),
    ("gemma 3", {"sliding_window": None}, "sliding_window=None: blocks of sliding attention"),
    ("gemma 2", {"sliding_window_size": 4}, "sliding_window_size=4: it differs from"),
    ("gemma 2", {"layer_types": ["full_attention"]}, "for each of 5 blocks"),
    ("gemma 2", {"layer_types": ["chunked_attention"] * 5}, "layer_types=.'chunked_attention'"),
    ("gemma 2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar=0: it must be positive, and"),
    ("qwen3", {"use_sliding_window": False}, "a window needs use_sliding_window=true"),
    ("qwen2", {"use_mrope": True}, "use_mrope=True: only False"),
    ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise=0.1: only 0"),
    ("mixtral", {"num_experts": 9}, "num_local_experts=4: it disagrees with num_experts"),
    ("mixtral", {"num_experts_per_tok": 9}, "mixtral: ExpertsConfig.chosen=9 is more than"),
    ("gemma 2", {"layer_types": [{}] * 5}, "layer_types=.* for each of 5 blocks"),
    ("qwen3 moe", {"mlp_only_layers": ["0"]}, "mlp_only_layers=.'0'.: it must hold numbers from 0"),
    (
        "qwen3 moe",
        {"mlp_only_layers": [5]},
        "mlp_only_layers=.5.: it must hold numbers from 0",
    ),
    ("qwen3 moe", {"decoder_sparse_step": 0}, "decoder_sparse_step=0: it must be positive"),
    ("qwen3 moe", {"use_sliding_window": True, "max_window_layers": 2}, "max_window_layers=2"),
]


@pytest.mark.parametrize(("name", "change", "message"), REFUSED, ids=str)
def test_what_cannot_be_expressed_is_refused_by_name(name, change, message) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        config_file.read({**reference_cases.config_json(name), **change}, where=name)
    assert str(refused.value).startswith(name)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from((0, 1, -1, 2, 10**9, 10**40, -(10**400), 10**400, -0.0, 1e-300, 1e308))
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(("silu", "linear", "llama3", "full_attention")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
SCALED = st.fixed_dictionaries(
    {},
    optional={
        **{"rope_type": st.sampled_from(("linear", "llama3", "default")) | JSON},
        **dict.fromkeys(("factor", "low_freq_factor", "high_freq_factor", "rope_theta"), JSON),
        **dict.fromkeys(("original_max_position_embeddings", "full_attention"), JSON),
    },
)


@given(data=st.data())
def test_any_value_is_read_as_a_model_or_refused(data) -> None:
    """Neither another error than ValueError nor hours of work come of a file."""
    name = data.draw(st.sampled_from(sorted(reference_cases.CASES)))
    given_ = reference_cases.config_json(name)
    key = data.draw(st.sampled_from(sorted({*given_, "architectures", "rope_scaling", "unknown"})))
    value = data.draw(SCALED | JSON if key.startswith("rope") else JSON)
    with contextlib.suppress(ValueError):
        architecture, config = config_file.read({**given_, key: value}, where=name)
        assert len(architecture.tensors(config)) < 10**6
        factor = 1.0 if config.rope_scaling is None else config.rope_scaling.factor
        cap = 1.0 if config.attention_soft_cap is None else config.attention_soft_cap
        for number in (config.rope_base, config.norm_eps, factor, cap):
            assert 0 < number <= 3.4e38


NEWER = {
    "full_attention": {"rope_type": "linear", "factor": 8.0},
    "sliding_attention": {"rope_type": "default"},
}


def test_frequencies_may_be_said_partly_in_either_form() -> None:
    content = reference_cases.config_json("gemma 3")
    del content["rope_scaling"]
    _, config = config_file.read({**content, "rope_parameters": NEWER}, where="config.json")
    assert (config.rope_base, config.local_rope_base) == (100.0, 10.0)
    assert config.rope_scaling == RopeScaling(factor=8.0)


def test_lengths_of_llama3_scaling_are_those_of_the_model_where_none_are_given() -> None:
    scaling = {k: v for k, v in LLAMA["rope_scaling"].items() if not k.startswith("original")}
    _, config = config_file.read({**LLAMA, "rope_scaling": scaling}, where="config.json")
    assert config.rope_scaling is not None
    assert config.rope_scaling.original_length == LLAMA["max_position_embeddings"]


def test_a_key_is_passed_over_on_purpose_only() -> None:
    strange = {**LLAMA, "made_by": True}
    with pytest.raises(ValueError, match="import the folder with --ignore="):
        config_file.read(strange, where="config.json")
    expected = config_file.read(LLAMA, where="config.json")
    assert config_file.read(strange, where="config.json", ignore=["made_by"]) == expected


def test_a_model_without_an_architecture_is_known_by_its_type() -> None:
    typed = {key: value for key, value in LLAMA.items() if key != "architectures"}
    assert config_file.read(typed, where="config.json")[0].name == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("LlamaForCausalLM", {"qk_norm": True}, "qk_norm=True, where it has False"),
        ("LlamaForCausalLM", {"pattern": ("local",), "window": 4}, r"block 0='local \(window=4"),
        (
            "LlamaForCausalLM",
            {"embed_dim": 9, "head_dim": 4},
            "embed_dim=9 must be a multiple",
        ),
        ("Qwen2ForCausalLM", {}, "qkv_bias=False, where it has True"),
        ("MixtralForCausalLM", {}, "no block has experts"),
        ("LlamaForCausalLM", {"attention_scale": 0.3}, "attention_scale=0.3, where it has None"),
    ],
    ids=str,
)
def test_a_model_is_not_written_as_what_it_is_not(name, change, message) -> None:
    sizes = {"vocab_size": 8, "embed_dim": 8, "layers": 2, "heads": 2, "kv_heads": 1, "mlp_dim": 8}
    config = DecoderConfig(**sizes | change)
    with pytest.raises(ValueError, match=message):
        config_file.write(config, architecture=BY_NAME[name], dtype="float32")


def test_tokens_and_length_are_written_as_given() -> None:
    architecture, config = config_file.read(LLAMA, where="config.json")
    written = config_file.write(
        config, architecture=architecture, dtype="float16", max_length=99, bos=3, eos=(4, 5)
    )
    named = ("torch_dtype", "max_position_embeddings", "bos_token_id", "eos_token_id")
    assert [written[key] for key in named] == ["float16", 99, 3, [4, 5]]


def test_it_imports_neither_jax_nor_flax() -> None:
    code = "import sys, models.huggingface.config_file; print({'jax', 'flax'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
