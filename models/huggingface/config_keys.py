"""Between keys of a Hugging Face config.json and fields of DecoderConfig, a few keys at a time.

Each class here reads some keys and writes them back; an architecture is a list of them. They know
both forms of config.json: that which transformers 4 wrote (``rope_theta``, ``rope_scaling``) and
that of transformers 5 (``rope_parameters``). They write the older one, which both read, and other
programs too. Imports neither jax nor flax.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from models.decoder_config import DecoderConfig, RopeScaling

REQUIRED: Any = object()
"""Default of a key that has none."""

MOST = 2**31 - 1
"""Counted in int32 on devices."""
LEAST_REAL, MOST_REAL = 2.0**-126, 3.4e38
"""What float32 holds with all its digits."""

Fields = dict[str, Any]


class Keys:
    """A config.json's content that remembers which keys were asked for."""

    def __init__(self, content: Mapping[str, Any], *, where: str):
        """``where`` is the file, for messages."""
        self.content, self.where = content, where
        self.seen: set[str] = set()

    def get(self, name: str, *kinds: type, default: Any = REQUIRED) -> Any:
        """Returns a value of one of ``kinds``; null counts as absent.

        Raises:
          ValueError: it is of another type, a whole number below 0 or beyond int32, a real one that
            is not positive or beyond float32, or absent without a default.
        """
        self.seen.add(name)
        value = self.content.get(name)
        if value is None:
            if default is REQUIRED:
                raise ValueError(f"{self.where}: the key {name!r} is missing.")
            return default
        if type(value) not in kinds and not (float in kinds and type(value) is int):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"{self.where}: {name}={short(value)} must be of type {names}.")
        if float in kinds:
            if not LEAST_REAL <= value <= MOST_REAL:
                raise self.refusal(name, "it must be positive, and a number that float32 holds.")
            return float(value)
        if isinstance(value, int) and not 0 <= value <= MOST:
            raise self.refusal(name, f"it must be from 0 to {MOST}.")
        return value

    def part(self, name: str) -> "Keys":
        """Returns the object at ``name``, empty if it is absent."""
        return Keys(self.get(name, dict, default={}), where=f"{self.where}: {name}")

    def rest(self) -> list[str]:
        """Returns the names nobody asked for."""
        return [name for name in self.content if name not in self.seen]

    def build[Built](self, kind: Callable[..., Built], **fields: Any) -> Built:
        """Returns ``kind(**fields)``; what that refuses is said to stand in this file."""
        try:
            return kind(**fields)
        except ValueError as error:
            raise ValueError(f"{self.where}: {error}") from error

    def refusal(self, name: str, why: str) -> ValueError:
        """Returns the error that refuses a key's value."""
        shown = name if name.isprintable() else repr(name)
        return ValueError(f"{self.where}: {shown}={short(self.content.get(name))}: {why}")


def short(value: Any) -> str:
    """Returns a value for a message; what is very long is cut."""
    text = repr(value)
    return text if len(text) <= 400 else f"{text[:400]}..."


class Translation(Protocol):
    """A few keys, and the fields that they set."""

    def read(self, keys: Keys) -> Fields:
        """Returns fields of DecoderConfig; raises ValueError for what it cannot express."""

    def write(self, config: DecoderConfig) -> Mapping[str, Any]:
        """Returns keys of config.json."""


@dataclasses.dataclass(frozen=True)
class Same:
    """A key whose value is that of one of our fields.

    Attributes:
      theirs: name of the key.
      ours: name of the field.
      kind: type of its value.
      default: value where the key is absent.
      optional: null is a value, None.
    """

    theirs: str
    ours: str
    kind: type = int
    default: Any = REQUIRED
    optional: bool = False

    def read(self, keys: Keys) -> Fields:
        """Reads the key."""
        if self.optional and keys.content.get(self.theirs, self) is None:
            keys.seen.add(self.theirs)
            return {self.ours: None}
        return {self.ours: keys.get(self.theirs, self.kind, default=self.default)}

    def write(self, config: DecoderConfig) -> Fields:
        """Writes the key."""
        return {self.theirs: getattr(config, self.ours)}


@dataclasses.dataclass(frozen=True)
class Only:
    """A key that changes the function and has one value that DecoderConfig can express.

    Attributes:
      theirs: name of the key.
      value: the only value.
      written: whether it is written, too.
    """

    theirs: str
    value: Any
    written: bool = False

    def read(self, keys: Keys) -> Fields:
        """Refuses other values."""
        keys.seen.add(self.theirs)
        given = keys.content.get(self.theirs)
        if given is not None and given != self.value:
            raise keys.refusal(self.theirs, f"only {self.value!r} is supported.")
        return {}

    def write(self, config: DecoderConfig) -> Fields:
        """Writes the only value."""
        return {self.theirs: self.value} if self.written else {}


@dataclasses.dataclass(frozen=True)
class Heads:
    """Numbers and size of heads.

    Attributes:
      head_dim: what an absent head_dim means; None derives it.
      kv_heads: what an absent num_key_value_heads means; None takes as many as query heads.
      divide: whether transformers refuses a width that is no multiple of the heads, though
        head_dim is given.
    """

    head_dim: int | None = None
    kv_heads: int | None = None
    divide: bool = False

    def read(self, keys: Keys) -> Fields:
        """Reads them."""
        heads = keys.get("num_attention_heads", int)
        return {
            "heads": heads,
            "kv_heads": keys.get("num_key_value_heads", int, default=self.kv_heads or heads),
            "head_dim": keys.get("head_dim", int, default=self.head_dim),
        }

    def write(self, config: DecoderConfig) -> Fields:
        """Writes head_dim only where it would not be derived: older programs do not know it."""
        if self.divide and config.embed_dim % config.heads:
            raise ValueError(
                f"embed_dim={config.embed_dim} must be a multiple of {config.heads} heads"
            )
        written = {"num_attention_heads": config.heads, "num_key_value_heads": config.kv_heads}
        derived = config.embed_dim / config.heads
        if self.head_dim is not None or config.head_dim != derived:
            written["head_dim"] = config.head_dim or 0
        return written


@dataclasses.dataclass(frozen=True)
class AttentionScale:
    """query_pre_attn_scalar: scores are divided by its square root.

    Attributes:
      default: value where the key is absent.
      head_dim: what an absent head_dim means.
    """

    default: int
    head_dim: int

    def read(self, keys: Keys) -> Fields:
        """Reads it; where it equals head_dim, the scale is the usual one."""
        scalar = keys.get("query_pre_attn_scalar", int, float, default=self.default)
        if scalar <= 0:
            raise keys.refusal("query_pre_attn_scalar", "it must be positive.")
        usual = scalar == keys.get("head_dim", int, default=self.head_dim)
        return {"attention_scale": None if usual else scalar**-0.5}

    def write(self, config: DecoderConfig) -> Fields:
        """Writes a whole number, as transformers wants it."""
        scale = config.attention_scale
        return {"query_pre_attn_scalar": config.head_dim if scale is None else round(scale**-2)}


OLDER = {
    "rope_theta": "rope_base",
    "rope_scaling": "rope_scaling",
    "rope_local_base_freq": "local_rope_base",
}
"""Keys of the older form, and the fields that they set."""


@dataclasses.dataclass(frozen=True)
class Rope:
    """Rotary frequencies.

    Attributes:
      base: default of rope_theta.
      local_base: default of rope_local_base_freq, the base in blocks with a window; None for
        architectures that have one kind of frequencies.
    """

    base: float = 10_000.0
    local_base: float | None = None

    def read(self, keys: Keys) -> Fields:
        """Reads either form; what both say must be the same."""
        scaling = keys.part("rope_scaling")
        old: Fields = {
            "rope_base": keys.get("rope_theta", float, default=self.base),
            "rope_scaling": _scaling(scaling, keys),
        }
        _finish(scaling)
        if self.local_base:
            local = keys.get("rope_local_base_freq", float, default=self.local_base)
            old["local_rope_base"] = local
        new = keys.part("rope_parameters")
        if not new.content:
            return old
        found = self._nested(new, keys, old) if self.local_base else self._flat(new, keys, old)
        for name, ours in OLDER.items():
            if keys.content.get(name) is not None and found[ours] != old[ours]:
                raise keys.refusal("rope_parameters", f"{name} says otherwise.")
        return found

    def _flat(self, new: Keys, keys: Keys, old: Fields) -> Fields:
        base = new.get("rope_theta", float, default=old["rope_base"])
        fields = {"rope_base": base, "rope_scaling": _scaling(new, keys)}
        _finish(new)
        return fields

    def _nested(self, new: Keys, keys: Keys, old: Fields) -> Fields:
        full, sliding = new.part("full_attention"), new.part("sliding_attention")
        _finish(new)
        local = sliding.get("rope_theta", float, default=old["local_rope_base"])
        if _scaling(sliding, keys) is not None:
            raise new.refusal("sliding_attention", "frequencies of a window are not scaled.")
        _finish(sliding)
        return {**self._flat(full, keys, old), "local_rope_base": local}

    def write(self, config: DecoderConfig) -> Fields:
        """Writes the older form."""
        written: Fields = {"rope_theta": config.rope_base, "rope_scaling": None}
        scaling = config.rope_scaling
        if scaling is not None:
            written["rope_scaling"] = {"rope_type": "linear", "factor": scaling.factor}
            if scaling.original_length is not None:
                written["rope_scaling"] = {
                    "rope_type": "llama3",
                    "factor": scaling.factor,
                    "low_freq_factor": scaling.low_frequency_factor,
                    "high_freq_factor": scaling.high_frequency_factor,
                    "original_max_position_embeddings": scaling.original_length,
                }
        if self.local_base:
            local = config.local_rope_base
            written["rope_local_base_freq"] = config.rope_base if local is None else local
        return written


def _scaling(keys: Keys, around: Keys) -> RopeScaling | None:
    kind = keys.get("rope_type", str, default=keys.get("type", str, default="default"))
    if keys.get("partial_rotary_factor", float, default=1.0) != 1.0:
        raise keys.refusal("partial_rotary_factor", "whole heads are rotated.")
    if kind == "default":
        return None
    if kind == "linear":
        return keys.build(RopeScaling, factor=keys.get("factor", float))
    if kind != "llama3":
        name = "rope_type" if "rope_type" in keys.content else "type"
        raise keys.refusal(name, "only 'default', 'linear' and 'llama3' are supported.")
    length = around.get("max_position_embeddings", int, default=0)
    return keys.build(
        RopeScaling,
        factor=keys.get("factor", float),
        low_frequency_factor=keys.get("low_freq_factor", float),
        high_frequency_factor=keys.get("high_freq_factor", float),
        original_length=keys.get(
            "original_max_position_embeddings", int, default=length or REQUIRED
        ),
    )


def _finish(keys: Keys) -> None:
    if rest := keys.rest():
        raise keys.refusal(rest[0], "this key is not supported here.")
