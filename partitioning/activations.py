"""Where activations live: the one object through which model code speaks of sharding.

Model code names dimensions; this object turns names into constraints, or into nothing on one
device. Inside a ``shard_map`` the axes that it took are already split and are left out. It is
hashable, so it may be closed over or passed as a static argument.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from partitioning.mesh import automatic_sizes, current_mesh
from partitioning.mesh_config import ContextLayout, Rule
from partitioning.rules import mesh_axes, resolve
from partitioning.sequence_layout import original_columns


@dataclasses.dataclass(frozen=True, kw_only=True)
class Activations:
    """Constrains activations by logical axes.

    Attributes:
      mesh: the device mesh; None means one device and no constraints.
      rules: activation table.
      layout: order in which the tokens of a row are dealt out to the context axis.
    """

    mesh: Mesh | None = None
    rules: tuple[Rule, ...] = ()
    layout: ContextLayout = "contiguous"

    def __call__(self, x: jax.Array, *axes: str | None) -> jax.Array:
        """Returns ``x`` (one logical name per dimension) with its sharding constrained."""
        if self.mesh is None or self.mesh.size == 1:
            return x
        return jax.lax.with_sharding_constraint(x, self.sharding(axes, shape=x.shape))

    def forward(self, x: jax.Array, *axes: str | None) -> jax.Array:
        """Returns ``x`` with its sharding constrained; that of its gradient is left open.

        For what is gathered and whose gradient is a sum: a sum that goes where the array was
        before is a reduce-scatter, one that goes where it is used an all-reduce.
        """
        if self.mesh is None or self.mesh.size == 1:
            return x
        return _with_value_at(x, self, axes)

    def gradient(self, x: jax.Array, *axes: str | None) -> jax.Array:
        """Returns ``x`` as it is; the sharding of its gradient is constrained."""
        if self.mesh is None or self.mesh.size == 1:
            return x
        return _with_gradient_at(x, self, axes)

    def sharding(self, axes: tuple[str | None, ...], *, shape: tuple[int, ...]) -> NamedSharding:
        """Returns the sharding of an activation of ``shape``."""
        assert self.mesh is not None
        return NamedSharding(current_mesh(self.mesh), self.spec(axes, shape=shape))

    def spec(self, axes: tuple[str | None, ...], *, shape: tuple[int, ...]) -> PartitionSpec:
        """Returns the PartitionSpec of an activation of ``shape``."""
        assert self.mesh is not None
        sizes = automatic_sizes(self.mesh)
        return resolve(axes, shape=shape, rules=self.rules, sizes=sizes, name="activation").spec

    @property
    def platform(self) -> str:
        """Returns jax's name for what the program runs on, which need not be here."""
        if self.mesh is None:
            return jax.default_backend()
        platform: str = self.mesh.devices.flat[0].platform
        return platform

    @property
    def context(self) -> int:
        """Ranks that the tokens of a row are split over."""
        return 1 if self.mesh is None else self.mesh.shape["context"]

    def columns(self, length: int) -> jax.Array:
        """Returns [length] int32: which column of its row, as it was read, each token is."""
        places = jnp.arange(length, dtype=jnp.int32)
        columns: jax.Array = original_columns(
            places, layout=self.layout, length=length, shards=self.context
        )
        return columns

    def axes(self, logical: str, *, size: int) -> tuple[str, ...]:
        """Returns the mesh axes that split a dimension of ``size``, none where it is whole."""
        if self.mesh is None or self.mesh.size == 1:
            return ()
        return mesh_axes(self.spec((logical,), shape=(size,))[0])

    def parts(self, logical: str, *, size: int) -> int:
        """Returns how many parts a dimension of ``size`` is split into."""
        sizes = {} if self.mesh is None else self.mesh.shape
        return math.prod(sizes[axis] for axis in self.axes(logical, size=size))

    @property
    def flatten_matmuls(self) -> bool:
        """Whether ``[batch, length, in] @ [in, out]`` should run as one two-dimensional matmul.

        On CPU the weight gradient of the two-dimensional form is 1.35x (float32) to 3.45x
        (bfloat16) faster. Merging a sharded length into the batch would reshard, so the form is
        left alone there, and on accelerators, whose programs it would not improve.
        """
        if self.platform != "cpu":
            return False
        return self.mesh is None or not self._length_is_sharded()

    def _length_is_sharded(self) -> bool:
        assert self.mesh is not None
        candidates = [
            candidate
            for name, *candidates in self.rules
            if name in ("act_length", "act_length_residual")
            for candidate in candidates
        ]
        return any(self.mesh.shape[axis] > 1 for c in candidates for axis in mesh_axes(c))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _with_value_at(x: jax.Array, shard: Activations, axes: tuple[str | None, ...]) -> jax.Array:
    return shard(x, *axes)


def _value_forward(
    x: jax.Array, shard: Activations, axes: tuple[str | None, ...]
) -> tuple[Any, None]:
    return shard(x, *axes), None


def _value_backward(
    shard: Activations, axes: tuple[str | None, ...], _: None, dx: jax.Array
) -> tuple[jax.Array]:
    del shard, axes
    return (dx,)


_with_value_at.defvjp(_value_forward, _value_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _with_gradient_at(x: jax.Array, shard: Activations, axes: tuple[str | None, ...]) -> jax.Array:
    del shard, axes
    return x


def _forward(x: jax.Array, shard: Activations, axes: tuple[str | None, ...]) -> tuple[Any, None]:
    del shard, axes
    return x, None


def _backward(
    shard: Activations, axes: tuple[str | None, ...], _: None, dx: jax.Array
) -> tuple[jax.Array]:
    return (shard(dx, *axes),)


_with_gradient_at.defvjp(_forward, _backward)
