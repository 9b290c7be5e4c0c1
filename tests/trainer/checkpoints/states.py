"""Tiny states on 8 virtual devices, and the abstract trees that restore them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from trainer.checkpoints.root import Root
from trainer.checkpoints.store import CheckpointStore
from trainer.run_config import CheckpointConfig

Tree = dict[str, object]


def mesh(*sizes: int) -> Mesh:
    return jax.make_mesh(sizes, ("a", "b")[: len(sizes)], axis_types=(AxisType.Auto,) * len(sizes))


def make(seed: int = 0, *, over: Mesh | None = None, spec: PartitionSpec | None = None) -> Tree:
    """Matrix [16, 8] float32 sharded, vector [8] bfloat16 and a step counter replicated."""
    over = over or mesh(8)
    rng = np.random.default_rng(seed)
    matrix = NamedSharding(over, PartitionSpec("a") if spec is None else spec)
    replicated = NamedSharding(over, PartitionSpec())
    params = {
        "w": jax.device_put(rng.standard_normal((16, 8), dtype=np.float32), matrix),
        "b": jax.device_put(jnp.asarray(rng.standard_normal(8), jnp.bfloat16), replicated),
    }
    momentum = {"w": jax.device_put(rng.standard_normal((16, 8), dtype=np.float32), matrix)}
    step = jax.device_put(jnp.int32(seed), replicated)
    return {"step": step, "groups": {"model": {"parameters": params, "optimizer": momentum}}}


def abstract(state: Tree, *, over: Mesh | None = None, spec: PartitionSpec | None = None) -> Tree:
    """The same shapes; on another mesh where one is given."""

    def leaf(x: jax.Array) -> jax.ShapeDtypeStruct:
        where = x.sharding
        if over is not None:
            where = NamedSharding(over, spec if spec and x.ndim == 2 else PartitionSpec())
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)

    return jax.tree.map(leaf, state)


def equal(one: object, other: object) -> bool:
    """Bit equality of all leaves, which must be the same ones."""
    same = jax.tree.map(
        lambda x, y: x.dtype == y.dtype and np.array_equal(np.asarray(x), np.asarray(y)), one, other
    )
    return all(jax.tree.leaves(same))


def store(root: Root, attempt: int | None = 1, **settings: object) -> CheckpointStore:
    config = CheckpointConfig(**settings)  # type: ignore[arg-type]
    return CheckpointStore(root, attempt=attempt, config=config)


def saved(root: Root, *steps: int, attempt: int = 1) -> None:
    """Saves steps whose state is ``make(step)`` and keeps all of them."""
    writer = store(root, attempt, keep_latest=100)
    for step in steps:
        writer.save(step, make(step), data={"first_example": step * 8})
    writer.close()
