"""Rotary position embeddings (Su et al., 2021), and frequencies scaled for long contexts."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from models.decoder_config import RopeScaling


def rope_frequencies(
    head_dim: int, *, base: float, scaling: RopeScaling | None = None
) -> np.ndarray:
    """Returns [head_dim / 2] float64 angular frequencies in radians per token."""
    frequencies = base ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if scaling is None:
        return frequencies
    low_factor, high_factor = scaling.low_frequency_factor, scaling.high_frequency_factor
    if low_factor is None or high_factor is None or scaling.original_length is None:
        return frequencies / scaling.factor
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.original_length / low_factor, scaling.original_length / high_factor
    # 1 keeps a frequency, 0 divides it by the factor; in between both are blended.
    kept = (scaling.original_length / wavelengths - low_factor) / (high_factor - low_factor)
    kept = np.where(wavelengths < high, 1.0, np.where(wavelengths > low, 0.0, kept))
    return frequencies * (kept + (1 - kept) / scaling.factor)


def rope_tables(positions: jax.Array, frequencies: np.ndarray) -> tuple[jax.Array, jax.Array]:
    """Returns cosines and sines, each [B, T, 1, head_dim / 2], for ``positions`` [B, T].

    Angles are computed in float32 at least: bfloat16 cannot count past 256.
    """
    dtype = jnp.promote_types(jnp.float32, jnp.result_type(float))
    angles = positions[..., None].astype(dtype) * jnp.asarray(frequencies, dtype)
    return jnp.cos(angles)[..., None, :], jnp.sin(angles)[..., None, :]


def apply_rope(x: jax.Array, tables: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotates ``x`` [B, T, heads, head_dim]; dimension i pairs with i + head_dim / 2."""
    x32 = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    cos, sin = (table.astype(x32.dtype) for table in tables)
    first, second = jnp.split(x32, 2, axis=-1)
    rotated = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
