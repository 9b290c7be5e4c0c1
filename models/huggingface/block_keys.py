"""Which kinds of blocks a Hugging Face config.json describes, and back. Imports no jax.

A config.json says for single layers whether they have a window or experts; DecoderConfig says it by
a pattern. See config_keys.py.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from models.decoder_config import DecoderConfig, has_experts, is_local
from models.experts_config import ExpertsConfig
from models.huggingface.config_keys import Fields, Keys

SLIDING, FULL = "sliding_attention", "full_attention"

MOST_LAYERS, MOST_EXPERTS = 1000, 10_000
"""More than any model has; a file that says more would keep the reader busy for hours."""


class Windows(Protocol):
    """Which blocks see a window only."""

    def read(self, keys: Keys, *, layers: int) -> tuple[list[bool], int | None]:
        """Returns for each block whether it has a window, and the window in tokens."""

    def write(self, local: Sequence[bool], window: int | None) -> Mapping[str, Any]:
        """Returns keys of config.json."""


class NoWindow:
    """All blocks see everything before."""

    def read(self, keys: Keys, *, layers: int) -> tuple[list[bool], int | None]:
        """Reads nothing."""
        return [False] * layers, None

    def write(self, local: Sequence[bool], window: int | None) -> Fields:
        """Writes nothing."""
        return {}


@dataclasses.dataclass(frozen=True)
class OneWindow:
    """All blocks have the window of sliding_window, or none has one.

    Attributes:
      default: value where the key is missing; null always means no window.
    """

    default: int | None

    def read(self, keys: Keys, *, layers: int) -> tuple[list[bool], int | None]:
        """Reads sliding_window."""
        window = _window(keys, default=self.default)
        return [window is not None] * layers, window

    def write(self, local: Sequence[bool], window: int | None) -> Fields:
        """Writes sliding_window."""
        return {"sliding_window": window if all(local) else None}


@dataclasses.dataclass(frozen=True)
class SwitchedWindow:
    """Qwen: blocks from max_window_layers on, or those of layer_types, if use_sliding_window.

    Attributes:
      everywhere: the architecture knows no layers apart (Qwen3-MoE).
    """

    everywhere: bool = False

    def read(self, keys: Keys, *, layers: int) -> tuple[list[bool], int | None]:
        """Reads them."""
        used = keys.get("use_sliding_window", bool, default=False)
        window = _window(keys, default=4096)
        first = keys.get("max_window_layers", int, default=0 if self.everywhere else 28)
        local = None if self.everywhere else _layer_types(keys, layers=layers)
        if not used or window is None:
            if local and any(local):
                raise keys.refusal("layer_types", "a window needs use_sliding_window=true.")
            return [False] * layers, None
        if self.everywhere and first:
            raise keys.refusal("max_window_layers", "here a window is in all blocks (0) or none.")
        return local or [number >= first for number in range(layers)], window

    def write(self, local: Sequence[bool], window: int | None) -> Fields:
        """Writes all keys, so that programs that do not know layer_types understand most."""
        if not any(local):
            return {"use_sliding_window": False}
        written = {"use_sliding_window": True, "sliding_window": window}
        if self.everywhere:
            return written | {"max_window_layers": 0 if all(local) else len(local)}
        types = _types_of(local)
        return written | {"max_window_layers": list(local).index(True), "layer_types": types}


@dataclasses.dataclass(frozen=True)
class Alternating:
    """Gemma: every so many blocks one sees everything, or layer_types says which.

    Attributes:
      period: blocks of which the last sees everything, where nothing is said.
      key: that of the period in older files; None where there is none.
    """

    period: int
    key: str | None = None

    def read(self, keys: Keys, *, layers: int) -> tuple[list[bool], int | None]:
        """Reads layer_types, or the period."""
        window = _window(keys, default=4096)
        if keys.get("sliding_window_size", int, default=window) != window:
            raise keys.refusal("sliding_window_size", f"it differs from sliding_window={window}.")
        period = keys.get(self.key, int, default=self.period) if self.key else self.period
        if period < 1:
            raise keys.refusal(self.key or "", "it must be positive.")
        local = _layer_types(keys, layers=layers) or [
            number % period != 0 for number in range(1, layers + 1)
        ]
        if window is None and any(local):
            raise keys.refusal("sliding_window", "blocks of sliding attention need a window.")
        return local, window if any(local) else None

    def write(self, local: Sequence[bool], window: int | None) -> Fields:
        """Writes layer_types, and the period where the blocks follow one."""
        # transformers wants a number even where no block has a window.
        written: Fields = {"sliding_window": window or 4096, "layer_types": _types_of(local)}
        period = [*local, False].index(False) + 1
        follows = all(each == (n % period != 0) for n, each in enumerate(local, start=1))
        return written | ({self.key: period} if self.key and follows else {})


def _window(keys: Keys, *, default: int | None) -> int | None:
    absent = None if "sliding_window" in keys.content else default
    window: int | None = keys.get("sliding_window", int, default=absent)
    return window


def _layer_types(keys: Keys, *, layers: int) -> list[bool] | None:
    types = keys.get("layer_types", list, default=None)
    if types is None:
        return None
    if len(types) != layers or not all(each in (SLIDING, FULL) for each in types):
        raise keys.refusal(
            "layer_types", f"it must name {SLIDING!r} or {FULL!r} for each of {layers} blocks."
        )
    return [each == SLIDING for each in types]


def _types_of(local: Sequence[bool]) -> list[str]:
    return [SLIDING if each else FULL for each in local]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixture:
    """Keys of a mixture of experts.

    Attributes:
      count: key of the number of experts, and other names for it.
      width: key of an expert's width.
      renormalizes: False where norm_topk_prob says whether weights add up to one.
      mixed: whether decoder_sparse_step and mlp_only_layers leave some blocks without experts.
    """

    count: tuple[str, ...]
    width: str
    renormalizes: bool
    mixed: bool

    def read(self, keys: Keys, *, layers: int) -> tuple[list[bool], ExpertsConfig | None]:
        """Returns for each block whether it has experts, and what they are."""
        names = [name for name in self.count if name in keys.content] or [self.count[0]]
        counts = {keys.get(name, int) for name in names}
        if len(counts) > 1:
            raise keys.refusal(names[0], f"it disagrees with {names[1]}.")
        if max(counts) > MOST_EXPERTS:
            raise keys.refusal(names[0], f"at most {MOST_EXPERTS} experts are supported.")
        sparse = self._sparse(keys, layers=layers) if self.mixed else [True] * layers
        renormalize = self.renormalizes or keys.get("norm_topk_prob", bool, default=False)
        experts = keys.build(
            ExpertsConfig,
            count=counts.pop(),
            chosen=keys.get("num_experts_per_tok", int),
            mlp_dim=keys.get(self.width, int),
            renormalize=renormalize,
        )
        return sparse, experts if any(sparse) else None

    def _sparse(self, keys: Keys, *, layers: int) -> list[bool]:
        step = keys.get("decoder_sparse_step", int, default=1)
        dense = keys.get("mlp_only_layers", list, default=[])
        if step < 1:
            raise keys.refusal("decoder_sparse_step", "it must be positive.")
        if not all(type(n) is int and 0 <= n < layers for n in dense):
            raise keys.refusal("mlp_only_layers", f"it must hold numbers from 0 to {layers - 1}.")
        return [n not in dense and (n + 1) % step == 0 for n in range(layers)]

    def write(self, config: DecoderConfig) -> Fields:
        """Writes them; blocks without experts by their numbers."""
        experts = config.experts
        if experts is None:
            raise ValueError("no block has experts")
        written: Fields = {
            self.count[0]: experts.count,
            "num_experts_per_tok": experts.chosen,
            self.width: experts.mlp_dim,
        }
        if not self.renormalizes:
            written["norm_topk_prob"] = experts.renormalize
        if self.mixed:
            dense = [n for n, kind in enumerate(config.blocks) if not has_experts(kind)]
            written |= {"decoder_sparse_step": 1, "mlp_only_layers": dense}
        return written


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Number, kinds and feed-forward width of the blocks.

    Attributes:
      windows: which see a window only.
      mixture: which have experts; None for architectures without.
    """

    windows: Windows
    mixture: Mixture | None = None

    def read(self, keys: Keys) -> Fields:
        """Reads them into a pattern."""
        layers = keys.get("num_hidden_layers", int)
        if layers > MOST_LAYERS:
            raise keys.refusal("num_hidden_layers", f"at most {MOST_LAYERS} are supported.")
        local, window = self.windows.read(keys, layers=layers)
        sparse, experts = [False] * layers, None
        if self.mixture is not None:
            sparse, experts = self.mixture.read(keys, layers=layers)
        kinds = [
            ("local" if each else "global") + ("+experts" if has else "")
            for each, has in zip(local, sparse, strict=True)
        ]
        fields = {"layers": layers, "window": window, "experts": experts}
        return fields | pattern_of(kinds) | {"mlp_dim": keys.get("intermediate_size", int)}

    def write(self, config: DecoderConfig) -> Fields:
        """Writes them."""
        local = [is_local(kind) for kind in config.blocks]
        written: Fields = {"num_hidden_layers": config.layers, "intermediate_size": config.mlp_dim}
        written |= self.windows.write(local, config.window)
        return written if self.mixture is None else written | self.mixture.write(config)


def pattern_of(kinds: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Returns prefix, pattern and suffix that name the fewest blocks for these kinds."""
    best, found = (len(kinds) + 1, 0, 0), (0, 1, 1)
    for start in range(len(kinds)):
        for size in range(1, len(kinds) - start + 1):
            if start + size > best[0]:
                break
            repeats = 1
            part = kinds[start : start + size]
            while kinds[start + repeats * size :][:size] == part:
                repeats += 1
            rest = len(kinds) - repeats * size
            if (rest + size, rest, size) < best:
                best, found = (rest + size, rest, size), (start, size, repeats)
    start, size, repeats = found
    return {
        "prefix": tuple(kinds[:start]),
        "pattern": tuple(kinds[start : start + size]),
        "suffix": tuple(kinds[start + repeats * size :]),
    }
