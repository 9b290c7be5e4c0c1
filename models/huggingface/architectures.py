"""The architectures of Hugging Face checkpoints that a DecoderConfig can express, as tables.

Each is the names and layouts of its tensors, the keys of its config.json, and the fields of
DecoderConfig that it fixes. Imports no jax.
"""

from models.decoder_config import DecoderConfig
from models.huggingface.architecture import Architecture, Row
from models.huggingface.block_keys import (
    Alternating,
    Blocks,
    Mixture,
    NoWindow,
    OneWindow,
    SwitchedWindow,
)
from models.huggingface.config_keys import AttentionScale, Heads, Only, Rope, Same
from models.huggingface.tensors import Layout

__all__ = ["ARCHITECTURES", "Architecture", "Row", "fitting"]


def fitting(config: DecoderConfig) -> Architecture:
    """Returns the first architecture that can express a model.

    Raises:
      ValueError: none can; says for each why not.
    """
    reasons = []
    for architecture in ARCHITECTURES:
        if not (differences := architecture.differences(config)):
            return architecture
        reasons.append(f"  {architecture.name}: {'; '.join(differences)}")
    raise ValueError("No architecture can express this model:\n" + "\n".join(reasons))


VECTOR = Layout("norm -> norm")
HEADS_IN = Layout("(heads head_dim) embed -> embed heads head_dim")
HEADS_OUT = Layout("embed (heads head_dim) -> heads head_dim embed")
HEADS_BIAS = Layout("(heads head_dim) -> heads head_dim")
UP, DOWN = Layout("mlp embed -> embed mlp"), Layout("embed mlp -> mlp embed")
ROUTER = Layout("experts embed -> embed experts")

EMBEDDING = Row(
    theirs="model.embed_tokens.weight",
    ours="embedding",
    layout=Layout("vocab embed -> vocab embed"),
)
FINAL_NORM = Row(theirs="model.norm.weight", ours="final_norm/scale", layout=VECTOR)
HEAD = Row(theirs="lm_head.weight", ours="head/kernel", layout=Layout("vocab embed -> embed vocab"))
WHOLE = (EMBEDDING, FINAL_NORM, HEAD)


def _block(*rows: tuple[str, str, Layout]) -> tuple[Row, ...]:
    """Returns rows of a block from what is under ``model.layers.{layer}``."""
    return tuple(
        Row(theirs=f"model.layers.{{layer}}.{theirs}", ours=ours, layout=layout)
        for theirs, ours, layout in rows
    )


ATTENTION = _block(
    ("self_attn.q_proj.weight", "attention/query/kernel", HEADS_IN),
    ("self_attn.k_proj.weight", "attention/key/kernel", HEADS_IN),
    ("self_attn.v_proj.weight", "attention/value/kernel", HEADS_IN),
    ("self_attn.o_proj.weight", "attention/out/kernel", HEADS_OUT),
)
BIASES = _block(
    ("self_attn.q_proj.bias", "attention/query/bias", HEADS_BIAS),
    ("self_attn.k_proj.bias", "attention/key/bias", HEADS_BIAS),
    ("self_attn.v_proj.bias", "attention/value/bias", HEADS_BIAS),
)
HEAD_NORMS = _block(
    ("self_attn.q_norm.weight", "attention/query_norm/scale", VECTOR),
    ("self_attn.k_norm.weight", "attention/key_norm/scale", VECTOR),
)
GATED = _block(
    ("mlp.gate_proj.weight", "mlp/gate/kernel", UP),
    ("mlp.up_proj.weight", "mlp/up/kernel", UP),
    ("mlp.down_proj.weight", "mlp/down/kernel", DOWN),
)
NORMS = _block(
    ("input_layernorm.weight", "attention_norm/scale", VECTOR),
    ("post_attention_layernorm.weight", "mlp_norm/scale", VECTOR),
)
FOUR_NORMS = _block(
    ("input_layernorm.weight", "attention_norm/scale", VECTOR),
    ("post_attention_layernorm.weight", "attention_post_norm/scale", VECTOR),
    ("pre_feedforward_layernorm.weight", "mlp_norm/scale", VECTOR),
    ("post_feedforward_layernorm.weight", "mlp_post_norm/scale", VECTOR),
)
MIXTRAL_EXPERTS = _block(
    ("block_sparse_moe.gate.weight", "mlp/router", ROUTER),
    ("block_sparse_moe.experts.{expert}.w1.weight", "mlp/gate", UP),
    ("block_sparse_moe.experts.{expert}.w2.weight", "mlp/down", DOWN),
    ("block_sparse_moe.experts.{expert}.w3.weight", "mlp/up", UP),
)
QWEN_EXPERTS = _block(
    ("mlp.gate.weight", "mlp/router", ROUTER),
    ("mlp.experts.{expert}.gate_proj.weight", "mlp/gate", UP),
    ("mlp.experts.{expert}.up_proj.weight", "mlp/up", UP),
    ("mlp.experts.{expert}.down_proj.weight", "mlp/down", DOWN),
)

SIZES = (Same("vocab_size", "vocab_size"), Same("hidden_size", "embed_dim"))
EPS = Same("rms_norm_eps", "norm_eps", float, 1e-6)
UNTIED, TIED = (Same("tie_word_embeddings", "tied_embedding", bool, at) for at in (False, True))
NO_DROPOUT = Only("attention_dropout", 0)
NO_BIAS = Only("attention_bias", False, written=True)
COMMON = (*SIZES, UNTIED, Only("hidden_act", "silu", written=True), NO_DROPOUT)
GEMMA_KEYS = (
    *SIZES,
    EPS,
    TIED,
    Heads(head_dim=256, kv_heads=4, divide=True),
    AttentionScale(256, head_dim=256),
    Only("hidden_activation", "gelu_pytorch_tanh", written=True),
    Only("hidden_act", "gelu_pytorch_tanh"),
    NO_BIAS,
    NO_DROPOUT,
    Only("use_bidirectional_attention", False),
)
GEMMA = {"norm_plus_one": True, "post_norms": True, "embed_scale": True, "activation": "geglu"}

LLAMA = Architecture(
    name="LlamaForCausalLM",
    model_type="llama",
    rows=(*WHOLE, *ATTENTION, *GATED, *NORMS),
    keys=(
        *COMMON,
        EPS,
        Heads(divide=True),
        Rope(),
        Blocks(NoWindow()),
        NO_BIAS,
        Only("mlp_bias", False, written=True),
        Only("rope_interleaved", False),
    ),
)
MISTRAL = Architecture(
    name="MistralForCausalLM",
    model_type="mistral",
    rows=LLAMA.rows,
    keys=(
        *COMMON,
        EPS,
        Heads(kv_heads=8),
        Rope(),
        Blocks(OneWindow(4096)),
    ),
)
QWEN2 = Architecture(
    name="Qwen2ForCausalLM",
    model_type="qwen2",
    rows=(*WHOLE, *ATTENTION, *BIASES, *GATED, *NORMS),
    keys=(
        *COMMON,
        EPS,
        Heads(kv_heads=32),
        Rope(),
        Blocks(SwitchedWindow()),
        Only("use_mrope", False),
    ),
    fixed={"qkv_bias": True},
)
QWEN3 = Architecture(
    name="Qwen3ForCausalLM",
    model_type="qwen3",
    rows=(*WHOLE, *ATTENTION, *HEAD_NORMS, *GATED, *NORMS),
    keys=(
        *COMMON,
        EPS,
        Heads(head_dim=128, kv_heads=32),
        Rope(),
        Blocks(SwitchedWindow()),
        NO_BIAS,
    ),
    fixed={"qk_norm": True},
)
GEMMA2 = Architecture(
    name="Gemma2ForCausalLM",
    model_type="gemma2",
    rows=(*WHOLE, *ATTENTION, *GATED, *FOUR_NORMS),
    keys=(
        *GEMMA_KEYS,
        Rope(),
        Blocks(Alternating(2)),
        Same("attn_logit_softcapping", "attention_soft_cap", float, 50.0, optional=True),
        Same("final_logit_softcapping", "logits_soft_cap", float, 30.0, optional=True),
    ),
    fixed=GEMMA,
)
GEMMA3 = Architecture(
    name="Gemma3ForCausalLM",
    model_type="gemma3_text",
    rows=(*WHOLE, *ATTENTION, *HEAD_NORMS, *GATED, *FOUR_NORMS),
    keys=(
        *GEMMA_KEYS,
        Rope(base=1_000_000.0, local_base=10_000.0),
        Blocks(Alternating(6, key="sliding_window_pattern")),
        # transformers ignores this cap, other programs may not.
        Only("attn_logit_softcapping", None),
        Same("final_logit_softcapping", "logits_soft_cap", float, None, optional=True),
    ),
    fixed={**GEMMA, "qk_norm": True},
)
MIXTRAL = Architecture(
    name="MixtralForCausalLM",
    model_type="mixtral",
    rows=(*WHOLE, *ATTENTION, *MIXTRAL_EXPERTS, *NORMS),
    keys=(
        *COMMON,
        Same("rms_norm_eps", "norm_eps", float, 1e-5),
        Heads(kv_heads=8),
        Rope(base=1_000_000.0),
        Blocks(
            OneWindow(None),
            Mixture(
                count=("num_local_experts", "num_experts"),
                width="intermediate_size",
                renormalizes=True,
                mixed=False,
            ),
        ),
        Only("router_jitter_noise", 0),
    ),
)
QWEN3_MOE = Architecture(
    name="Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    rows=(*WHOLE, *ATTENTION, *HEAD_NORMS, *GATED, *QWEN_EXPERTS, *NORMS),
    keys=(
        *COMMON,
        EPS,
        Heads(kv_heads=4),
        Rope(),
        Blocks(
            SwitchedWindow(everywhere=True),
            Mixture(
                count=("num_experts", "num_local_experts"),
                width="moe_intermediate_size",
                renormalizes=False,
                mixed=True,
            ),
        ),
        NO_BIAS,
    ),
    fixed={"qk_norm": True},
)

ARCHITECTURES = (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA2, GEMMA3, MIXTRAL, QWEN3_MOE)
"""Those that can be read and written; ``fitting`` tries them in this order."""
