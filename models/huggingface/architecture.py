"""What an architecture of Hugging Face checkpoints is. Imports no jax."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from models.decoder_config import DecoderConfig, has_experts, is_local
from models.huggingface.config_keys import Keys, Translation
from models.huggingface.tensors import Layout, Tensor
from partitioning.planner import decoder_parameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A line of a table.

    Attributes:
      theirs: name of a tensor, with ``{layer}``, the number of the block in the whole decoder, and
        ``{expert}``.
      ours: path of the parameter inside a block, such as "attention/query/kernel"; or in the whole
        model: "embedding", "head/kernel", "final_norm/scale".
      layout: between both, without the dimensions of layers and experts.
    """

    theirs: str
    ours: str
    layout: Layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """How models of one kind are stored.

    Attributes:
      name: in ``architectures`` of config.json.
      model_type: in config.json.
      rows: in the order of the tensors in a file; of a tensor that a model does not have, such as
        a tied head, the row is passed over.
      keys: of config.json.
      fixed: fields that every such model has.
    """

    name: str
    model_type: str
    rows: tuple[Row, ...]
    keys: tuple[Translation, ...]
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def tensors(self, config: DecoderConfig) -> list[Tensor]:
        """Returns every tensor of a model: embedding, blocks, final norm, head.

        Raises:
          ValueError: the model has parameters that this architecture does not have.
        """
        shapes = {k: shape for k, (_, shape) in decoder_parameters.parameters(config).items()}
        whole = {row.ours: row for row in self.rows if "{layer}" not in row.theirs}
        first, *last = [_of_model(row, shapes) for row in whole.values() if row.ours in shapes]
        found = [first, *self._of_blocks(config, shapes), *last]
        if lost := shapes.keys() - {tensor.path for tensor in found}:
            raise ValueError(f"{self.name} has no tensor for {', '.join(sorted(lost))}.")
        return found

    def _of_blocks(
        self, config: DecoderConfig, shapes: Mapping[str, tuple[int, ...]]
    ) -> Iterator[Tensor]:
        rows = [row for row in self.rows if "{layer}" in row.theirs]
        first = 0
        parts = (("prefix", config.prefix, 1), ("pattern", config.pattern, config.repeats))
        for stack, kinds, repeats in (*parts, ("suffix", config.suffix, 1)):
            for repeat in range(repeats):
                for position in range(len(kinds)):
                    at = f"stacks/{stack}/blocks/{position}/"
                    named = [(row, at + row.ours) for row in rows if at + row.ours in shapes]
                    number = first + repeat * len(kinds) + position
                    for row, path in named:
                        yield from _of_block(row, path, shapes[path], repeat=repeat, layer=number)
            first += repeats * len(kinds)

    def redundant(self, config: DecoderConfig) -> frozenset[str]:
        """Returns names that may be in files of such a model and are not read.

        These are the head where it is the embedding, and rotary frequencies, which old versions of
        transformers stored.
        """
        names = {f"model.layers.{n}.self_attn.rotary_emb.inv_freq" for n in range(config.layers)}
        names |= {"model.rotary_emb.inv_freq"}
        return frozenset(names | ({"lm_head.weight"} if config.tied_embedding else set()))

    def fields(self, keys: Keys) -> dict[str, Any]:
        """Returns the fields of DecoderConfig that a config.json sets."""
        found = dict(self.fixed)
        for translation in self.keys:
            found |= translation.read(keys)
        return found

    def content(self, config: DecoderConfig) -> dict[str, Any]:
        """Returns the keys of config.json that describe a model's function."""
        written: dict[str, Any] = {}
        for translation in self.keys:
            written |= translation.write(config)
        return written

    def differences(self, config: DecoderConfig) -> list[str]:
        """Returns what of a model this architecture cannot express, a sentence each."""
        try:
            keys = Keys(self.content(config), where=self.name)
            read = DecoderConfig(**self.fields(keys))
        except ValueError as error:
            return [str(error)]
        return [
            f"{name}={wanted!r}, where it has {found!r}"
            for name, (wanted, found) in differing(config, read).items()
        ]


def _of_model(row: Row, shapes: Mapping[str, tuple[int, ...]]) -> Tensor:
    return Tensor(name=row.theirs, path=row.ours, at=(), shape=shapes[row.ours], layout=row.layout)


def _of_block(
    row: Row, path: str, shape: tuple[int, ...], *, repeat: int, layer: int
) -> Iterator[Tensor]:
    tensor = functools.partial(Tensor, path=path, layout=row.layout)
    if "{expert}" not in row.theirs:
        yield tensor(name=row.theirs.format(layer=layer), at=(repeat,), shape=shape[1:])
        return
    for expert in range(shape[1]):
        name = row.theirs.format(layer=layer, expert=expert)
        yield tensor(name=name, at=(repeat, expert), shape=shape[2:])


def function(config: DecoderConfig) -> dict[str, Any]:
    """Returns what a model's logits depend on, equal for equal models."""
    found = {name: getattr(config, name) for name in FUNCTION}
    for name in EXPERTS if config.experts is not None else ():
        found[f"experts.{name}"] = getattr(config.experts, name)
    return found | {f"block {n}": _block(config, kind) for n, kind in enumerate(config.blocks)}


def differing(one: DecoderConfig, other: DecoderConfig) -> dict[str, tuple[Any, Any]]:
    """Returns name -> both values of what differs between two models; of blocks only the first."""
    mine, theirs = function(one), function(other)
    names = [name for name in mine | theirs if mine.get(name) != theirs.get(name)]
    blocks = [name for name in names if name.startswith("block ")]
    return {n: (mine.get(n), theirs.get(n)) for n in names if n not in blocks[1:]}


def _block(config: DecoderConfig, kind: str) -> str:
    """Returns a block's kind with the fields that matter in it."""
    base, scaling, details = config.rope_base, config.rope_scaling, []
    if is_local(kind):
        if config.local_rope_base is not None:
            base, scaling = config.local_rope_base, None
        details.append(f"window={config.window}")
    details += [f"rope_base={base}", *([] if scaling is None else [str(scaling)])]
    details += [] if has_experts(kind) else [f"mlp_dim={config.mlp_dim}"]
    return f"{kind} ({', '.join(details)})"


FUNCTION = (
    *("vocab_size", "embed_dim", "layers", "heads", "kv_heads", "head_dim", "activation"),
    *("norm_eps", "norm_plus_one", "post_norms", "embed_scale", "qkv_bias", "qk_norm"),
    *("attention_scale", "attention_soft_cap", "logits_soft_cap", "tied_embedding"),
)
"""Fields that logits depend on in every model; the others are about training and execution."""

EXPERTS = ("count", "chosen", "mlp_dim", "renormalize", "shared_mlp_dim", "shared_gate")
"""The same of ExpertsConfig."""
