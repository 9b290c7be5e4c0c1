"""The shape of a decoder-only transformer, as plain data.

Imports neither jax nor flax, so that the planner reads it in milliseconds.
"""

import dataclasses
from typing import Literal

from models.experts_config import ExpertsConfig
from models.lora_config import LoraConfig
from models.remat import Remat

ContextAttention = Literal["all_gather", "ring"]
"""How tokens split over the context axis see each other; see models/context_attention.py."""

Precision = Literal["default", "int8", "fp8"]
"""In what products with parameters are computed; see models/quantized_matmul.py."""

SCAN_ABOVE = 8
"""Repeats of the pattern above which they are scanned if nothing else is said."""

KINDS = ("global", "local", "global+experts", "local+experts")
"""Block kinds: what attention sees, and whether the feed-forward layer is one of experts."""


def is_local(kind: str) -> bool:
    """Whether attention sees only a window."""
    return kind.startswith("local")


def has_experts(kind: str) -> bool:
    """Whether the feed-forward layer is a mixture of experts."""
    return kind.endswith("+experts")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Slower rotary frequencies for contexts longer than those of pre-training.

    With ``factor`` alone all frequencies are divided by it (position interpolation; Chen et al.,
    2023); with all four they are scaled as in the Llama 3 report, section 3.2.

    Attributes:
      factor: how much longer the context is than in pre-training.
      low_frequency_factor: wavelengths above ``original_length / low`` are divided by ``factor``.
      high_frequency_factor: wavelengths below ``original_length / high`` stay as they are.
      original_length: context length of pre-training, in tokens.
    """

    factor: float
    low_frequency_factor: float | None = None
    high_frequency_factor: float | None = None
    original_length: int | None = None

    def __post_init__(self) -> None:
        low, high = self.low_frequency_factor, self.high_frequency_factor
        bands = [band is not None for band in (low, high, self.original_length)]
        if any(bands) and not all(bands):
            raise ValueError(
                f"{self}: set low_frequency_factor, high_frequency_factor and original_length, or "
                "none of them, which divides all frequencies by the factor."
            )
        if low is not None and high is not None and low >= high:
            raise ValueError(
                f"RopeScaling.low_frequency_factor={low} must be less than "
                f"high_frequency_factor={high}."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """A repeating pattern of decoder blocks between an embedding and a language-model head.

    Attributes:
      vocab_size: rows of the embedding.
      embed_dim: width of the residual stream.
      layers: number of blocks, ``prefix`` and ``suffix`` included.
      heads: query heads.
      kv_heads: key and value heads; each serves ``heads / kv_heads`` query heads.
      head_dim: width of one head; None derives ``embed_dim / heads``.
      mlp_dim: width of the feed-forward layer.
      pattern: block kinds that repeat: "global" attends to everything before, "local" to the
        last ``window`` tokens; "global+experts" and "local+experts" have a mixture of experts in
        place of the feed-forward layer.
      prefix: block kinds before the pattern, once.
      suffix: block kinds after the pattern, once.
      window: tokens that a "local" block sees, itself included.
      experts: the mixture of experts in blocks of such a kind.
      activation: "swiglu" and "geglu" are gated, "gelu" is not.
      norm_eps: added to the mean square in RMSNorm.
      norm_plus_one: RMSNorm multiplies by ``1 + scale`` (Gemma) instead of ``scale``.
      post_norms: also normalise each sublayer's output (Gemma-2).
      embed_scale: multiply embeddings by ``sqrt(embed_dim)`` (Gemma).
      rope_base: base of the rotary frequencies.
      rope_scaling: None for the plain frequencies.
      local_rope_base: base in "local" blocks, whose frequencies are not scaled then (Gemma-3);
        None gives them those of all blocks.
      qkv_bias: biases on the query, key and value projections (Qwen2).
      qk_norm: RMSNorm over each query and key head (Qwen3).
      attention_scale: what scores are multiplied by; None derives ``head_dim ** -0.5``.
      attention_soft_cap: ``cap * tanh(scores / cap)``; None switches it off.
      logits_soft_cap: the same for the logits.
      tied_embedding: the head is the transposed embedding.
      dropout: share of each sublayer's output that is dropped in training.
      dtype: dtype of activations.
      param_dtype: dtype of parameters.
      init_scale: multiplies the standard deviation of every matrix.
      remat: what a block's backward pass finds of its forward pass: "none" computes nothing again,
        "selective" no product with parameters (attention scores are, as fused kernels do anyway),
        "full" everything. Or by name, as in "save:attention;offload:mlp_up,mlp_gate": what to
        keep, what to move to host memory until it is needed; the rest is computed again. Names:
        models/remat.py.
      scan_layers: True scans over the repeats of the pattern (short compile), False unrolls
        (faster on CPU); None scans above eight repeats.
      matmul: "int8" and "fp8" compute the blocks' projections in eight bits, forward and backward;
        needs the package qwix. Head, router, attention scores and routed experts keep ``dtype``.
      lora: low-rank adapters beside kernels of the blocks, which alone are then trained; None has
        none. See models/lora.py.
      attention: "auto" takes cuDNN's kernel where it exists and XLA elsewhere.
      context_attention: how attention works where the sequence is split over devices:
        "all_gather" brings all keys and values to each, "ring" lets them go round, which holds
        less and, causal, computes about half.
      loss_chunks: parts that the sequence is cut into for the cross entropy.
    """

    vocab_size: int
    embed_dim: int
    layers: int
    heads: int
    kv_heads: int
    mlp_dim: int
    head_dim: int | None = None
    pattern: tuple[str, ...] = ("global",)
    prefix: tuple[str, ...] = ()
    suffix: tuple[str, ...] = ()
    window: int | None = None
    experts: ExpertsConfig | None = None
    activation: Literal["swiglu", "geglu", "gelu"] = "swiglu"
    norm_eps: float = 1e-5
    norm_plus_one: bool = False
    post_norms: bool = False
    embed_scale: bool = False
    rope_base: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    local_rope_base: float | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    attention_scale: float | None = None
    attention_soft_cap: float | None = None
    logits_soft_cap: float | None = None
    tied_embedding: bool = False
    dropout: float = 0.0
    dtype: Literal["float32", "bfloat16", "float64"] = "bfloat16"
    param_dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    init_scale: float = 1.0
    remat: str = "none"
    scan_layers: bool | None = None
    matmul: Precision = "default"
    lora: LoraConfig | None = None
    attention: Literal["auto", "xla", "cudnn"] = "auto"
    context_attention: ContextAttention = "all_gather"
    loss_chunks: int = 1

    def __post_init__(self) -> None:
        self._check_sizes()
        self._check_blocks()
        self._check_remat()
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"DecoderConfig.dropout={self.dropout} is not in [0, 1).")

    def _check_sizes(self) -> None:
        for name in ("vocab_size", "embed_dim", "layers", "heads", "kv_heads", "mlp_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"DecoderConfig.{name}={getattr(self, name)} must be positive.")
        if self.loss_chunks < 1:
            raise ValueError(f"DecoderConfig.loss_chunks={self.loss_chunks} must be positive.")
        if self.head_dim is None:
            if self.embed_dim % self.heads:
                raise ValueError(
                    f"DecoderConfig.embed_dim={self.embed_dim} is not a multiple of "
                    f"heads={self.heads}; set DecoderConfig.head_dim."
                )
            object.__setattr__(self, "head_dim", self.embed_dim // self.heads)
        if self.heads % self.kv_heads:
            raise ValueError(
                f"DecoderConfig.heads={self.heads} is not a multiple of kv_heads={self.kv_heads}; "
                "each key/value head serves an equal number of query heads."
            )
        if self.head_dim is None or self.head_dim < 2 or self.head_dim % 2:
            raise ValueError(
                f"DecoderConfig.head_dim={self.head_dim} is odd or not positive; rotary positions "
                "turn pairs of dimensions."
            )

    def _check_blocks(self) -> None:
        repeated = self.layers - len(self.prefix) - len(self.suffix)
        if not self.pattern or repeated < 0 or repeated % len(self.pattern):
            raise ValueError(
                f"DecoderConfig.layers={self.layers} does not equal prefix ({len(self.prefix)}) + "
                f"suffix ({len(self.suffix)}) + a multiple of pattern ({len(self.pattern)})."
            )
        kinds = {*self.pattern, *self.prefix, *self.suffix}
        if unknown := kinds - set(KINDS):
            raise ValueError(f"Unknown block kinds {sorted(unknown)}; allowed: {', '.join(KINDS)}.")
        if any(is_local(kind) for kind in kinds) and not self.window:
            raise ValueError("A 'local' block needs DecoderConfig.window (tokens).")
        if (self.experts is not None) != any(has_experts(kind) for kind in kinds):
            raise ValueError(
                f"DecoderConfig.experts={self.experts} with the block kinds {sorted(kinds)}: set "
                "experts to @ExpertsConfig() and name a kind with '+experts', or neither."
            )

    def _check_remat(self) -> None:
        remat = self.remat_choices
        if remat is not None and remat.offload and not self.scanned:
            raise ValueError(
                f"DecoderConfig.remat={self.remat!r} offloads, but the layers are unrolled, where "
                "the compiler leaves the values on the device until shortly before they are "
                "needed. Set DecoderConfig.scan_layers=True, or 'save:' instead of 'offload:'."
            )

    @property
    def remat_choices(self) -> Remat | None:
        """What ``remat`` says of each named value; None keeps all of them."""
        return Remat.parse(self.remat)

    @property
    def scanned(self) -> bool:
        """Whether the repeats of the pattern are scanned rather than unrolled."""
        scan = self.repeats > SCAN_ABOVE if self.scan_layers is None else self.scan_layers
        return scan and self.repeats > 1

    @property
    def repeats(self) -> int:
        """How often the pattern occurs."""
        return (self.layers - len(self.prefix) - len(self.suffix)) // len(self.pattern)

    @property
    def blocks(self) -> tuple[str, ...]:
        """Block kinds in the order in which activations pass them."""
        return self.prefix + self.pattern * self.repeats + self.suffix
