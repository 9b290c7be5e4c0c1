"""What training changes, and the one place that says how it is shaped and sharded.

``abstract_state`` feeds initialisation, restore, the dry run and memory accounting, so that they
cannot disagree.
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from models.lora_config import NOT_ADAPTERS
from partitioning import table
from partitioning.mesh import axis_sizes
from partitioning.mesh_config import Rule
from partitioning.rules import Resolution, optimizer_rules, resolve
from trainer.paths import leaves, merge_frozen, nest, path_of, split_adapters, split_frozen
from trainer.program import MODEL, Program

Tree = Any
HOST: Literal["pinned_host"] = "pinned_host"
"""Memory in which an offloaded optimizer's state waits."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Parameters that are trained together.

    Attributes:
      parameters: nested dict of arrays.
      variables: state of the model that is no parameter, nested dict.
      optimizer: optimizer state of the trainable parameters.
      average: exponential moving average of the parameters, in 32 bits or more, or None.
      frozen: patterns of parameter paths that are not trained.
    """

    parameters: Tree
    variables: Tree
    optimizer: optax.OptState
    average: Tree | None
    frozen: tuple[str, ...] = dataclasses.field(metadata={"static": True}, default=())

    def scored(self) -> Tree:
        """Returns what evaluation and sampling use: the average where there is one."""
        if self.average is None:
            return self.parameters
        return jax.tree.map(lambda a, p: a.astype(p.dtype), self.average, self.parameters)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainState:
    """Everything that a step reads and writes.

    Attributes:
      step: int32, optimizer steps done.
      nonfinite: int32, consecutive steps that were skipped for non-finite gradients.
      groups: named groups. A plain run has one, "model", which is trained. Where the model has
        adapters, these are the group that is trained, and "model" is what they adapt, which no
        step changes: it has neither optimizer state nor average, and is not saved.
    """

    step: jax.Array
    nonfinite: jax.Array
    groups: dict[str, Group]


def create_state(program: Program) -> TrainState:
    """Builds a fresh state; traced by ``abstract_state`` and compiled by ``init_state``."""
    model = program.task.init(jax.random.key(program.train.parameter_seed))
    _, parameters, variables = nnx.split(model, nnx.Param, ...)
    parameters = on_devices(nnx.to_pure_dict(parameters), program)
    adapters, fixed = split_adapters(parameters)
    trained = adapters or parameters
    trainable, _ = split_frozen(trained, program.train.frozen)
    average = first_average(trained) if program.train.ema_decay is not None else None
    group = Group(
        parameters=trained,
        variables=nnx.to_pure_dict(variables),
        optimizer=program.optimizer.init(trainable),
        average=average,
        frozen=program.train.frozen,
    )
    zero = jnp.zeros((), jnp.int32)
    base = Group(parameters=fixed, variables={}, optimizer=(), average=None)
    # A plain run's only group takes the base's place.
    groups = {MODEL: base, program.trained: group}
    return TrainState(step=zero, nonfinite=zero, groups=groups)


def whole(state: TrainState, program: Program, *, scored: bool = False) -> Group:
    """Returns the group that is trained with all of the model's parameters in it.

    Those of another group are frozen. ``scored`` takes what evaluation and sampling use.
    """
    group = state.groups[program.trained]
    if scored:
        group = dataclasses.replace(group, parameters=group.scored())
    if program.trained == MODEL:
        return group
    return dataclasses.replace(
        group,
        parameters=merge_frozen(group.parameters, state.groups[MODEL].parameters),
        frozen=(NOT_ADAPTERS, *group.frozen),
    )


def saved(state: TrainState, program: Program) -> TrainState:
    """Returns the part of the state that checkpoints hold: without what is only read."""
    groups = {program.trained: state.groups[program.trained]}
    return dataclasses.replace(state, groups=groups)


def with_parameters(state: TrainState, parameters: Tree) -> TrainState:
    """Returns the state with other parameters of the group "model", as they lie on devices.

    The state may be one that ``saved`` returned. An average starts from them if they are trained.
    """
    group = state.groups.get(MODEL)
    if group is None:
        group = Group(parameters=parameters, variables={}, optimizer=(), average=None)
    average = None if group.average is None else first_average(parameters)
    group = dataclasses.replace(group, parameters=parameters, average=average)
    return dataclasses.replace(state, groups={**state.groups, MODEL: group})


def first_average(parameters: Tree) -> Tree:
    """Returns the moving average of one step's parameters, as new arrays.

    In 16 bits it would never move: with a decay of 0.999 each change is below the last digit.
    """
    wide = lambda leaf: jnp.array(leaf, jnp.promote_types(leaf.dtype, jnp.float32))  # noqa: E731
    return jax.tree.map(wide, parameters)


def abstract_state(program: Program) -> TrainState:
    """Returns the state as ShapeDtypeStructs with shardings; allocates nothing.

    Raises:
      ValueError: a rule table does not fit the mesh or the model.
    """
    shapes = jax.eval_shape(lambda: create_state(program))
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jax.ShapeDtypeStruct(
            leaf.shape,
            leaf.dtype,
            sharding=_sharding(path_of(path), leaf, program=program),
        ),
        shapes,
    )


def parameter_rows(program: Program) -> list[table.Row]:
    """Returns the printed table's rows: every parameter, with the rules that gave way."""
    parameters = whole(abstract_state(program), program).parameters
    return [
        table.row_of(name, leaf, note="; ".join(_resolution(name, leaf, program=program).notes))
        for name, leaf in leaves(parameters).items()
    ]


def abstract_batch(program: Program, *, rows: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns shapes and shardings of a global batch, as compiling a step takes them."""
    return {
        name: jax.ShapeDtypeStruct(
            each.shape, each.dtype, sharding=program.shard.sharding(each.axes, shape=each.shape)
        )
        for name, each in program.task.batch_spec(rows=rows, length=length).items()
    }


def shardings(state: Tree) -> Tree:
    """Returns the shardings of a (possibly abstract) state."""
    return jax.tree.map(lambda leaf: leaf.sharding, state)


def parameter_shardings(program: Program, parameters: Tree) -> Tree:
    """Returns where each of a nested dict of parameters belongs."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: _sharding(path_of(path), leaf, program=program), parameters
    )


def gradient_layout(program: Program, trainable: Tree) -> Tree | None:
    """Returns where gradients live: with the optimizer's state, so that ZeRO-1 reduce-scatters.

    None on one device, where there is nothing to say.
    """
    if program.mesh.size == 1:
        return None
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: NamedSharding(
            program.mesh, _spec(f"/optimizer/{path_of(path)}", leaf, program=program)
        ),
        trainable,
    )


def init_state(program: Program, parameters: Tree | None = None) -> TrainState:
    """Creates the state directly where it lives; no host ever holds a whole one.

    ``parameters``, laid out as those of the group "model", take the place of random ones, which
    are then not computed; they are donated.
    """
    at = shardings(abstract_state(program))
    if parameters is None:
        return jax.jit(lambda: create_state(program), out_shardings=at)()
    create = jax.jit(
        lambda given: with_parameters(create_state(program), given),
        out_shardings=at,
        donate_argnums=0,
    )
    return create(parameters)


def on_devices(state: Tree, program: Program) -> Tree:
    """Brings repeats from their own order, in which checkpoints hold them, to that on devices.

    ``state`` is a TrainState or a part of one. The orders differ only where pipeline stages hold
    several chunks.
    """
    return _reordered(state, program.layer_order, program=program)


def off_devices(state: Tree, program: Program) -> Tree:
    """Undoes ``on_devices``."""
    order = program.layer_order
    return _reordered(state, None if order is None else np.argsort(order), program=program)


def to_portable(state: TrainState, program: Program) -> Tree:
    """Returns the state as checkpoints hold it: nested dicts with string keys, repeats in order.

    Of a state with adapters only what is ``saved``.
    """
    return nest(leaves(off_devices(saved(state, program), program)))


def from_portable(portable: Tree, like: TrainState, program: Program) -> TrainState:
    """Undoes ``to_portable``; ``like`` gives the structure, of which what is ``saved`` comes."""
    flat, like = leaves(portable), saved(like, program)
    state = jax.tree_util.tree_map_with_path(lambda path, _: flat[path_of(path)], like)
    return on_devices(state, program)


def _reordered(state: Tree, order: np.ndarray | None, *, program: Program) -> Tree:
    if order is None:
        return state

    def reorder(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        named = _parameter_of(path_of(path), program.axes)
        if named is None or not program.is_repeated(named[0]):
            return leaf
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        if _axes_for(leaf.shape, axes=named[1], shape=named[2])[:1] != ("layers",):
            return leaf
        if isinstance(leaf, jax.core.Tracer):
            return leaf[order]
        # One leaf at a time, so that only one has to be gathered over stages.
        return jax.jit(lambda leaf: leaf[order], out_shardings=leaf.sharding)(leaf)

    return jax.tree_util.tree_map_with_path(reorder, state)


def optimizer_in(memory: Literal["device", "pinned_host"], group: Group, like: Group) -> Group:
    """Returns ``group`` with its optimizer state moved, inside a jitted function.

    Args:
      memory: where to.
      group: to change.
      like: with shardings, from ``abstract_state``; what is on devices there is left alone.
    """

    def move(leaf: jax.Array, like: jax.ShapeDtypeStruct) -> jax.Array:
        assert isinstance(like.sharding, NamedSharding)
        if like.sharding.memory_kind != HOST:
            return leaf
        moved: jax.Array = jax.device_put(leaf, like.sharding.with_memory_kind(memory))
        return moved

    return dataclasses.replace(group, optimizer=jax.tree.map(move, group.optimizer, like.optimizer))


def _sharding(path: str, leaf: jax.ShapeDtypeStruct, *, program: Program) -> NamedSharding:
    at = NamedSharding(program.mesh, _spec(path, leaf, program=program))
    # Not counters: they belong to no parameter, and are read at once.
    waits = program.offload and "/optimizer/" in path and _parameter_of(path, program.axes)
    return at.with_memory_kind(HOST) if waits else at


def _spec(path: str, leaf: jax.ShapeDtypeStruct, *, program: Program) -> PartitionSpec:
    return _resolution(path, leaf, program=program).spec


def _resolution(path: str, leaf: jax.ShapeDtypeStruct, *, program: Program) -> Resolution:
    """Lays out one leaf of the state; optimizer leaves follow the parameter they belong to."""
    named = _parameter_of(path, program.axes)
    if named is None:
        return Resolution(spec=PartitionSpec(), notes=())
    parameter, axes, shape = named
    is_optimizer = "/optimizer/" in path
    rules: tuple[Rule, ...] = (
        optimizer_rules(program.rules) if is_optimizer else program.rules.parameters
    )
    return resolve(
        _axes_for(leaf.shape, axes=axes, shape=shape),
        shape=leaf.shape,
        rules=rules,
        sizes=axis_sizes(program.mesh),
        name=parameter,
    )


def _parameter_of(
    path: str, axes: dict[str, tuple[tuple[str, ...], tuple[int, ...]]]
) -> tuple[str, tuple[str, ...], tuple[int, ...]] | None:
    parts = path.split("/")
    for start in range(len(parts)):
        candidate = "/".join(parts[start:])
        if candidate in axes:
            return (candidate, *axes[candidate])
    return None


def _axes_for(
    leaf: tuple[int, ...], *, axes: tuple[str, ...], shape: tuple[int, ...]
) -> tuple[str | None, ...]:
    """Names the dimensions of a leaf that has its parameter's shape, or that minus one.

    Where several could be the missing one it is taken to be the last of them: statistics are means
    over a matrix's dimensions, never over layers, which come first.
    """
    if leaf == shape:
        return axes
    for dropped in reversed(range(len(shape))):
        if leaf == shape[:dropped] + shape[dropped + 1 :]:
            return axes[:dropped] + axes[dropped + 1 :]
    return (None,) * len(leaf)
