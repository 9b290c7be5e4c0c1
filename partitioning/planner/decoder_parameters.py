"""The parameters of a decoder by its configuration, without building it. Imports no jax.

A test holds them against the real model's, for every configuration in configs/models.
"""

import math
from collections.abc import Iterator, Mapping

from models.decoder_config import DecoderConfig, has_experts
from models.lora_config import adapters

Axes = tuple[str, ...]
Shape = tuple[int, ...]
Parameters = Mapping[str, tuple[Axes, Shape]]
"""Path -> (logical axes, shape), as trainer.program.Program.axes has them."""


def parameters(model: DecoderConfig) -> dict[str, tuple[Axes, Shape]]:
    """Returns path -> (logical axes, shape) of every parameter, a stack's layers included.

    Raises:
      ValueError: adapters are asked for where there can be none.
    """
    D, V = model.embed_dim, model.vocab_size
    found: dict[str, tuple[Axes, Shape]] = {
        "embedding": (("vocab", "embed"), (V, D)),
        "final_norm/scale": (("norm",), (D,)),
    }
    if not model.tied_embedding:
        found["head/kernel"] = (("embed", "vocab"), (D, V))
    stacks = (
        ("prefix", model.prefix, 1),
        ("pattern", model.pattern, model.repeats),
        ("suffix", model.suffix, 1),
    )
    for name, kinds, repeats in stacks:
        if not kinds or not repeats:
            continue
        for position, kind in enumerate(kinds):
            for path, (axes, shape) in _block(model, kind):
                key = f"stacks/{name}/blocks/{position}/{path}"
                found[key] = (("layers", *axes), (repeats, *shape))
    return dict(sorted((found | adapters(model.lora, found)).items()))


def count(tree: Parameters) -> int:
    """Returns the number of elements."""
    return sum(math.prod(shape) for _, shape in tree.values())


def active(model: DecoderConfig) -> int:
    """Returns the parameters that one token uses: of routed experts only the chosen ones."""
    share = 1.0 if model.experts is None else model.experts.chosen / model.experts.count
    return round(
        sum(
            math.prod(shape) * (share if is_routed(axes) else 1.0)
            for axes, shape in parameters(model).values()
        )
    )


def is_routed(axes: Axes) -> bool:
    """Whether a parameter belongs to routed experts (the router itself does not)."""
    return "experts" in axes and axes[-1] != "experts"


def _block(model: DecoderConfig, kind: str) -> Iterator[tuple[str, tuple[Axes, Shape]]]:
    assert model.head_dim is not None
    D, K, G = model.embed_dim, model.head_dim, model.kv_heads
    norms = ["attention_norm", "mlp_norm"]
    norms += ["attention_post_norm", "mlp_post_norm"] if model.post_norms else []
    for norm in norms:
        yield f"{norm}/scale", (("norm",), (D,))
    for name, heads, axis in (
        ("query", model.heads, "heads"),
        ("key", G, "kv_heads"),
        ("value", G, "kv_heads"),
    ):
        yield f"attention/{name}/kernel", (("embed", axis, "head_dim"), (D, heads, K))
        if model.qkv_bias:
            yield f"attention/{name}/bias", ((axis, "head_dim"), (heads, K))
    yield "attention/out/kernel", (("heads", "head_dim", "embed"), (model.heads, K, D))
    if model.qk_norm:
        yield "attention/query_norm/scale", (("norm",), (K,))
        yield "attention/key_norm/scale", (("norm",), (K,))
    if has_experts(kind):
        yield from _experts(model)
    else:
        yield from _feed_forward("mlp", model, width=model.mlp_dim)


def _feed_forward(
    path: str, model: DecoderConfig, *, width: int
) -> Iterator[tuple[str, tuple[Axes, Shape]]]:
    D = model.embed_dim
    yield f"{path}/up/kernel", (("embed", "mlp"), (D, width))
    if model.activation != "gelu":
        yield f"{path}/gate/kernel", (("embed", "mlp"), (D, width))
    yield f"{path}/down/kernel", (("mlp", "embed"), (width, D))


def _experts(model: DecoderConfig) -> Iterator[tuple[str, tuple[Axes, Shape]]]:
    assert model.experts is not None
    D, E, F = model.embed_dim, model.experts.count, model.experts.mlp_dim
    yield "mlp/router", (("embed", "experts"), (D, E))
    yield "mlp/up", (("experts", "embed", "mlp"), (E, D, F))
    if model.activation != "gelu":
        yield "mlp/gate", (("experts", "embed", "mlp"), (E, D, F))
    yield "mlp/down", (("experts", "mlp", "embed"), (E, F, D))
    if model.experts.shared_mlp_dim:
        yield from _feed_forward("mlp/shared", model, width=model.experts.shared_mlp_dim)
    if model.experts.shared_gate:
        yield "mlp/shared_gate/kernel", (("embed", "norm"), (D, 1))
