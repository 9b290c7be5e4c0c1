"""Low-rank adapters of a decoder (LoRA; Hu et al., 2021): how it gets them, and merging them.

An adapter is a part of its Dense layer, with parameters of its own beside the layer's; which of
them are trained is the trainer's business.
"""

import dataclasses
import math
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.decoder_config import DecoderConfig
from models.layers import Adapter, Dense, normal_parameter
from models.lora_config import adapters, is_adapter


def add_adapters(decoder: nnx.Module, config: DecoderConfig, *, key: jax.Array) -> None:
    """Gives the layers that ``config.lora`` names their adapters.

    A is random, with standard deviation ``1 / sqrt(inputs)``, and B zero, so that the decoder
    starts as what it was. Both have at least 32 bits, whatever the other parameters have: small
    steps would be lost in 16.

    Args:
      decoder: with its blocks.
      config: its configuration.
      key: of the parameters; every adapter folds its path into it.

    Raises:
      ValueError: a target matches nothing, or what can have no adapter.
    """
    lora = config.lora
    if lora is None:
        return
    flat = nnx.to_flat_state(nnx.state(decoder, nnx.Param))
    parameters = {_name(path): (leaf.logical_axes, tuple(leaf.shape)) for path, leaf in flat}
    layers = {_name(path): module for path, module in nnx.iter_modules(decoder)}
    dtype: Any = jnp.promote_types(config.param_dtype, jnp.float32).name
    drawn = dataclasses.replace(config, param_dtype=dtype, init_scale=1.0)
    found = adapters(lora, parameters)
    for path, (axes, shape) in found.items():
        layer, _, matrix = path.rpartition("/adapter/")
        if matrix == "b":
            continue
        dense = layers[layer]
        assert isinstance(dense, Dense)
        axes_b, shape_b = found[f"{layer}/adapter/b"]
        a = normal_parameter(
            nnx.Rngs(params=jax.random.fold_in(key, zlib.crc32(layer.encode()))),
            shape=shape,
            axes=axes,
            fan_in=math.prod(shape[-1 - dense.contract : -1]),
            config=drawn,
        )
        b = nnx.Param(jnp.zeros(shape_b, dtype), logical_axes=axes_b)
        dense.adapter = nnx.data(Adapter(a, b, contract=dense.contract, scale=lora.scale))


def merged(parameters: dict[str, Any], *, scale: float) -> dict[str, Any]:
    """Returns path -> parameter of the decoder without adapters that computes the same.

    Args:
      parameters: path -> parameter, adapters included; their kernels keep their dtype.
      scale: ``LoraConfig.scale``.
    """
    plain = {path: leaf for path, leaf in parameters.items() if not is_adapter(path)}
    for path, a in parameters.items():
        layer, _, matrix = path.rpartition("/adapter/")
        if matrix != "a":
            continue
        kernel = plain[f"{layer}/kernel"]
        whole = merged_kernel(kernel, a, parameters[f"{layer}/adapter/b"], scale=scale)
        plain[f"{layer}/kernel"] = whole.astype(kernel.dtype)
    return plain


def merged_kernel(kernel: Any, a: Any, b: Any, *, scale: float) -> Any:
    """Returns ``W + scale * A B`` in at least 32 bits.

    Args:
      kernel: W, [*inputs, *outputs], or of stacked layers [layers, *inputs, *outputs].
      a: [*inputs, rank], or with the layers in front.
      b: [rank, *outputs], or with the layers in front.
      scale: ``LoraConfig.scale``.
    """
    inner = a.shape[-1]
    lead = kernel.shape[: a.ndim + b.ndim - 2 - kernel.ndim]
    product = a.reshape(*lead, -1, inner) @ b.reshape(*lead, inner, -1)
    return kernel.astype(np.promote_types(product.dtype, np.float32)) + scale * product.reshape(
        kernel.shape
    )


def _name(path: tuple[Any, ...]) -> str:
    return "/".join(map(str, path))
