"""What one block of a decoder computes and holds per token: products, values, elementwise work.

Numbers are elements and matrices of the whole block, before any sharding; what splits them is said
by ``tensor``. memory.py and step_time.py count with them. Standard library only.
"""

import dataclasses
import functools
import math

from models.decoder_config import DecoderConfig, has_experts, is_local
from models.lora_config import is_adapter
from partitioning.planner.decoder_parameters import parameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class Product:
    """A product of a token's activations with a matrix.

    Attributes:
      value: name of its output in models/remat.py; empty where no backward pass reads the output.
      inputs: rows of the matrix, K.
      outputs: its columns, N.
      columns: whether tensor parallelism splits N; K otherwise.
      whole: largest number of devices that the split dimension has parts for.
      rows: rows per token; of experts the chosen ones.
      padding: rows that are computed over those that are needed, more than 1 under a capacity.
      narrow: whether DecoderConfig.matmul may take it to eight bits.
    """

    value: str
    inputs: int
    outputs: int
    columns: bool
    whole: int
    rows: float = 1.0
    padding: float = 1.0
    narrow: bool = True

    @property
    def flops(self) -> float:
        """Operations of a forward pass, per token."""
        return 2.0 * self.inputs * self.outputs * self.rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockWork:
    """A block of one kind.

    Attributes:
      products: with parameters.
      window: tokens that attention sees, 0 for all.
      heads: query heads times their width, elements of a query.
      keys: the same of keys; values are as many.
      residual: elementwise elements of the residual stream's width that a forward pass reads and
        writes: norms and additions.
      inside: the same between products: rotary positions and the activation function; split by
        ``tensor``.
      casts: elements that products in eight bits look for the largest of, read and write.
      routed: rows per token that an exchange of experts moves and sorts.
    """

    products: tuple[Product, ...]
    window: int
    heads: int
    keys: int
    residual: int
    inside: float
    casts: float
    routed: float


@functools.cache
def block_work(model: DecoderConfig, kind: str) -> BlockWork:
    """Returns what a block of a kind computes."""
    assert model.head_dim is not None
    D, H, G = model.embed_dim, model.heads * model.head_dim, model.kv_heads * model.head_dim
    products = [
        Product(value="query", inputs=D, outputs=H, columns=True, whole=model.heads),
        Product(value="key", inputs=D, outputs=G, columns=True, whole=model.kv_heads),
        Product(value="value", inputs=D, outputs=G, columns=True, whole=model.kv_heads),
        Product(value="attention_out", inputs=H, outputs=D, columns=False, whole=model.heads),
    ]
    gated, narrow = model.activation != "gelu", model.matmul != "default"
    inside = 2.0 * (H + G) * (2 if model.qk_norm else 1)
    routed = 0.0
    if has_experts(kind):
        experts = model.experts
        assert experts is not None
        routed = float(experts.chosen)
        products.append(
            Product(value="", inputs=D, outputs=experts.count, columns=True, whole=1, narrow=False)
        )
        padding = max(1.0, experts.capacity or 1.0)
        products += [
            dataclasses.replace(product, rows=routed, padding=padding, narrow=False)
            for product in _feed_forward(D, experts.mlp_dim, gated=gated)
        ]
        # Each chosen row is gathered in, and its result gathered and added back.
        inside += routed * (4 * D + (3 if gated else 2) * experts.mlp_dim)
        if experts.shared_mlp_dim:
            products += _feed_forward(D, experts.shared_mlp_dim, gated=gated)
            inside += (3 if gated else 2) * experts.shared_mlp_dim
    else:
        products += _feed_forward(D, model.mlp_dim, gated=gated)
        inside += (3 if gated else 2) * model.mlp_dim
    # A norm reads and writes; an addition reads two and writes one.
    residual = (2 * 2 + 2 * 3 + (4 if model.post_norms else 0)) * D
    return BlockWork(
        products=tuple(products),
        window=(model.window or 0) if is_local(kind) else 0,
        heads=H,
        keys=G,
        residual=residual,
        inside=inside,
        casts=2.5 * sum(p.inputs for p in products if p.narrow) if narrow else 0.0,
        routed=routed,
    )


@functools.cache
def adapter_products(model: DecoderConfig) -> tuple[tuple[Product, int], ...]:
    """Returns the products with adapters' matrices, each with the layers that have it."""
    return tuple(
        (
            Product(
                value="",
                inputs=math.prod(shape[1:-1]) if path.endswith("/a") else shape[1],
                outputs=shape[-1] if path.endswith("/a") else math.prod(shape[2:]),
                columns=True,
                whole=1,
                narrow=False,
            ),
            shape[0],
        )
        for path, (_, shape) in parameters(model).items()
        if is_adapter(path)
    )


def _feed_forward(inputs: int, width: int, *, gated: bool) -> list[Product]:
    up = Product(value="mlp_up", inputs=inputs, outputs=width, columns=True, whole=width)
    gate = [dataclasses.replace(up, value="mlp_gate")] if gated else []
    down = Product(value="", inputs=width, outputs=inputs, columns=False, whole=width)
    return [up, *gate, down]


def attended(length: int, *, window: int, causal: bool) -> float:
    """Returns the keys that a query sees on average.

    Args:
      length: tokens of a row.
      window: tokens that a query sees at most, itself included; 0 for all.
      causal: whether those after it are left out.
    """
    width = min(length, window or length)
    if not causal:
        return float(width)
    return (width * (width + 1) / 2 + (length - width) * width) / length
