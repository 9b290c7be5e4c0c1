"""Tiny models of every architecture as config.json describes them, with all that is peculiar to it.

Windows are shorter than rows, there are more layers than one pattern, fewer key/value heads than
heads, and heads whose sizes do not add up to the width. A new architecture needs a line here.
Imports the standard library only.
"""

from typing import Any

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,
}
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 20, "sliding_window": 5}
QWEN3_MOE = {
    "num_hidden_layers": 5,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama 3.1": ("LlamaForCausalLM", "llama", {"rope_scaling": LLAMA3}),
    "llama, tied": (
        "LlamaForCausalLM",
        "llama",
        {
            "tie_word_embeddings": True,
            "rope_scaling": {"type": "linear", "factor": 2.0},
            "head_dim": None,
            "num_key_value_heads": None,
        },
    ),
    "mistral, window": ("MistralForCausalLM", "mistral", {"sliding_window": 5}),
    "mistral, tied": (
        "MistralForCausalLM",
        "mistral",
        {"sliding_window": None, "tie_word_embeddings": True},
    ),
    "qwen2": (
        "Qwen2ForCausalLM",
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen2, tied": (
        "Qwen2ForCausalLM",
        "qwen2",
        {"use_sliding_window": False, "sliding_window": 5, "tie_word_embeddings": True},
    ),
    "qwen3": (
        "Qwen3ForCausalLM",
        "qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen3, tied": ("Qwen3ForCausalLM", "qwen3", {"tie_word_embeddings": True}),
    "gemma 2": (
        "Gemma2ForCausalLM",
        "gemma2",
        {
            **GEMMA,
            "num_hidden_layers": 5,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma 2, untied": (
        "Gemma2ForCausalLM",
        "gemma2",
        {
            **GEMMA,
            "query_pre_attn_scalar": 12,
            "tie_word_embeddings": False,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
        },
    ),
    "gemma 3": (
        "Gemma3ForCausalLM",
        "gemma3_text",
        {
            **GEMMA,
            "num_hidden_layers": 8,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "rope_local_base_freq": 10.0,
            "sliding_window_pattern": 3,
        },
    ),
    "gemma 3, untied": (
        "Gemma3ForCausalLM",
        "gemma3_text",
        {
            **GEMMA,
            "tie_word_embeddings": False,
            "rope_local_base_freq": 10.0,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "final_logit_softcapping": 5.0,
        },
    ),
    "mixtral": (
        "MixtralForCausalLM",
        "mixtral",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 5},
    ),
    "mixtral, tied": (
        "MixtralForCausalLM",
        "mixtral",
        {"num_local_experts": 5, "num_experts_per_tok": 3, "tie_word_embeddings": True},
    ),
    "qwen3 moe": (
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        {**QWEN3_MOE, "mlp_only_layers": [0], "norm_topk_prob": True},
    ),
    "qwen3 moe, tied": (
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        {
            **QWEN3_MOE,
            "decoder_sparse_step": 2,
            "norm_topk_prob": False,
            "tie_word_embeddings": True,
        },
    ),
}
"""Name -> (architecture, model_type, keys besides SIZES). All of the form of transformers 4."""

PIECES = (24, 14, 9, 13)
"""Lengths of the texts whose logits are compared."""


def config_json(name: str) -> dict[str, Any]:
    """Returns the config.json of a case."""
    architecture, model_type, keys = CASES[name]
    merged = {**SIZES, "architectures": [architecture], "model_type": model_type, **keys}
    return {key: value for key, value in merged.items() if value is not None or key in NULL}


NULL = ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "rope_scaling")
"""Keys whose null is not the same as their absence."""
