"""A Hugging Face config.json as a DecoderConfig, and back; and as gin. Imports no jax."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from models.decoder_config import DecoderConfig, RopeScaling
from models.experts_config import ExpertsConfig
from models.huggingface.architectures import ARCHITECTURES, Architecture
from models.huggingface.config_keys import Keys, short

CLASSES = (DecoderConfig, ExpertsConfig, RopeScaling)
"""What ``bindings`` may bind."""

WITHOUT_INFLUENCE = frozenset(
    (
        # What the file says about itself and about programs.
        *("_name_or_path", "architectures", "model_type", "transformers_version"),
        *("dtype", "torch_dtype", "use_cache", "cache_implementation", "pretraining_tp"),
        *("_attn_implementation_autoset", "attn_implementation", "_attn_implementation"),
        *("output_attentions", "output_hidden_states", "output_router_logits", "return_dict"),
        *("gradient_checkpointing", "torchscript", "use_bfloat16", "tokenizer_class"),
        *("is_llama_config", "transformers.js_config", "unsloth_fixed", "unsloth_version"),
        # Training: its start, and losses beside the usual one.
        *("initializer_range", "router_aux_loss_coef"),
        # Lengths; llama3's scaling looks at the first itself.
        *("max_position_embeddings", "max_sequence_length", "_sliding_window_pattern"),
        # Tokens, and how text is generated.
        *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "max_length"),
        *("min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups"),
        *("diversity_penalty", "temperature", "top_k", "top_p", "typical_p"),
        *("repetition_penalty", "length_penalty", "no_repeat_ngram_size"),
        *("encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences"),
        *("output_scores", "return_dict_in_generate", "forced_bos_token_id"),
        *("forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty"),
        *("suppress_tokens", "begin_suppress_tokens", "decoder_start_token_id"),
        # Other heads than that of a language model.
        *("id2label", "label2id", "num_labels", "problem_type", "finetuning_task"),
        *("task_specific_params", "prefix", "chunk_size_feed_forward", "pruned_heads"),
        *("is_decoder", "is_encoder_decoder", "add_cross_attention", "tie_encoder_decoder"),
        *("cross_attention_hidden_size", "tf_legacy_loss"),
    )
)
"""Keys on which logits do not depend."""

REFUSED = {
    "auto_map": "the model is code of its own, which is not run",
    "quantization_config": "the weights are quantised; convert them to 16 or 32 bits first",
    "vision_config": "the model has a part for images",
    "audio_config": "the model has a part for sound",
}
"""Keys that say why a model cannot be read."""


def read(
    config: Mapping[str, Any], *, where: str, ignore: Sequence[str] = ()
) -> tuple[Architecture, DecoderConfig]:
    """Returns what a config.json describes.

    Args:
      config: its content.
      where: the file, for messages.
      ignore: keys to pass over although nothing is known about them.

    Raises:
      ValueError: the architecture is unknown; a key is missing or has a value that DecoderConfig
        cannot express; a key is unknown, so that it may change the function.
    """
    architecture = _architecture(config, where=where)
    keys = Keys({k: v for k, v in config.items() if k not in ignore}, where=where)
    fields = architecture.fields(keys)
    for name in keys.rest():
        if name not in WITHOUT_INFLUENCE and config[name] is not None:
            unknown = (
                f"{architecture.name} is not known to have this key. If logits do not depend on "
                f"it, import the folder with --ignore={name}"
            )
            raise keys.refusal(name, f"{REFUSED.get(name, unknown)}.")
    return architecture, keys.build(DecoderConfig, **fields)


def _architecture(config: Mapping[str, Any], *, where: str) -> Architecture:
    names = config.get("architectures") or []
    for architecture in ARCHITECTURES:
        named = not names and config.get("model_type") == architecture.model_type
        if names == [architecture.name] or named:
            return architecture
    reasons = [why for key, why in REFUSED.items() if config.get(key) is not None]
    raise ValueError(
        f"{where}: architectures={short(config.get('architectures'))} with "
        f"model_type={short(config.get('model_type'))} is not supported"
        f"{''.join(f'; {why}' for why in reasons)}. Supported are "
        f"{', '.join(each.name for each in ARCHITECTURES)}."
    )


def write(
    config: DecoderConfig,
    *,
    architecture: Architecture,
    dtype: str,
    max_length: int | None = None,
    bos: int | None = None,
    eos: int | Sequence[int] | None = None,
) -> dict[str, Any]:
    """Returns the config.json of a model.

    Args:
      config: the model.
      architecture: one that can express it; see ``architectures.fitting``.
      dtype: of the tensors in the files, such as "bfloat16".
      max_length: the longest context that programs should offer; None leaves it to their defaults.
      bos: id of the token that begins a text.
      eos: id of the token that ends one, or ids.

    Raises:
      ValueError: the architecture cannot express the model.
    """
    if differences := architecture.differences(config):
        raise ValueError(
            f"{architecture.name} cannot express this model: {'; '.join(differences)}."
        )
    written: dict[str, Any] = {
        "architectures": [architecture.name],
        "model_type": architecture.model_type,
        **architecture.content(config),
        "torch_dtype": dtype,
        "bos_token_id": bos,
        "eos_token_id": eos if eos is None or isinstance(eos, int) else list(eos),
    }
    return written if max_length is None else written | {"max_position_embeddings": max_length}


def bindings(config: DecoderConfig) -> str:
    """Returns gin lines that bind what differs from the defaults of DecoderConfig.

    Fields that are configurations themselves are bound by reference, their own lines following.
    """
    lines, parts = [], []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        derived = field.name == "head_dim" and value == config.embed_dim / config.heads
        if value == field.default or derived:
            continue
        if dataclasses.is_dataclass(value):
            name = type(value).__name__
            lines.append(f"DecoderConfig.{field.name} = @{name}()")
            parts += _set_fields(name, value)
        else:
            lines.append(f"DecoderConfig.{field.name} = {value!r}")
    return "".join(f"{line}\n" for line in (*lines, *parts))


def _set_fields(name: str, part: Any) -> list[str]:
    values = {field: getattr(part, field.name) for field in dataclasses.fields(part)}
    return [f"{name}.{k.name} = {v!r}" for k, v in values.items() if v != k.default]
