"""A run's fixed parts, built once: task, mesh, rules, optimizer and the names of dimensions."""

import dataclasses
import functools

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from models.layers import Adapter
from partitioning.activations import Activations
from partitioning.mesh_config import PipelineConfig, RulesConfig
from partitioning.rules import activation_rules, check_rules
from partitioning.schedules import layer_order
from trainer.language_model import LanguageModelTask
from trainer.optimizers import Schedule, build_optimizer, build_schedule
from trainer.paths import path_of, split_adapters, split_frozen
from trainer.run_config import LanguageModel, RunConfig, TaskConfig, TrainConfig
from trainer.task import PipelinedTask, Task

MODEL, ADAPTERS = "model", "adapters"
"""Groups of the state."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """What the compiled functions close over.

    Attributes:
      task: what is learned.
      mesh: devices.
      rules: rule tables.
      shard: constrains activations.
      optimizer: gradients -> what to subtract per unit of learning rate.
      offload: whether the optimizer's state waits in host memory.
      schedule: step -> learning rate.
      train: settings of the step.
      pipeline: how microbatches pass through the stages.
      graph: static structure of the model.
      axes: parameter path -> (logical axes, shape).
      adapter_scale: ``LoraConfig.scale`` of a model with adapters, else None.
    """

    task: Task
    mesh: Mesh
    rules: RulesConfig
    shard: Activations
    optimizer: optax.GradientTransformation
    schedule: Schedule
    train: TrainConfig
    pipeline: PipelineConfig
    graph: nnx.GraphDef
    axes: dict[str, tuple[tuple[str, ...], tuple[int, ...]]]
    offload: bool = False
    adapter_scale: float | None = None

    @property
    def trained(self) -> str:
        """The group of the state that is trained: adapters, where the model has any."""
        return MODEL if self.adapter_scale is None else ADAPTERS

    @property
    def stages(self) -> int:
        """Pipeline stages; 1 where there is no pipeline."""
        return self.mesh.shape["stage"]

    def is_repeated(self, path: str) -> bool:
        """Whether a parameter belongs to the repeats that pipeline stages share among them."""
        return isinstance(self.task, PipelinedTask) and path.startswith(f"{self.task.repeated}/")

    @property
    def layer_order(self) -> np.ndarray | None:
        """Which repeat stands at each place on the devices; None if they stand in their order."""
        stages, chunks = self.stages, self.pipeline.chunks
        if stages == 1 or chunks == 1:
            return None
        repeats = next(shape[0] for path, (_, shape) in self.axes.items() if self.is_repeated(path))
        return layer_order(repeats=repeats, stages=stages, chunks=chunks)

    def dropout_key(self, step: jax.Array) -> jax.Array:
        """Returns the key of a step's dropout."""
        return jax.random.fold_in(jax.random.key(self.train.dropout_seed), step)


@functools.singledispatch
def build_task(config: TaskConfig, *, token_bytes: tuple[int, ...] | None = None) -> Task:
    """Returns the task of ``config``; ``@build_task.register`` adds one for another config class.

    Args:
      config: which task; its class decides.
      token_bytes: [V] bytes of each token, for bits per byte; None leaves them out.

    Raises:
      TypeError: no task is registered for the class.
    """
    raise TypeError(
        f"No task for {type(config).__name__}; write one and decorate its builder with "
        "@trainer.program.build_task.register."
    )


@build_task.register
def _(config: LanguageModel, *, token_bytes: tuple[int, ...] | None = None) -> Task:
    return LanguageModelTask(config, token_bytes)


def build_program(run: RunConfig, *, task: Task, mesh: Mesh) -> Program:
    """Puts a run together; traces the model's shapes but allocates nothing.

    Raises:
      ValueError: a rule table, the schedule, the model or a pattern of parameters is not possible.
    """
    for table in ("parameters", "activations", "optimizer"):
        check_rules(getattr(run.rules, table) or (), table=table)
    model = nnx.eval_shape(lambda: task.init(jax.random.key(0)))
    modules = [module for _, module in nnx.iter_modules(model)]
    graph, parameters, _ = nnx.split(model, nnx.Param, ...)
    flat = nnx.to_flat_state(parameters)
    axes = {"/".join(map(str, path)): (leaf.logical_axes, tuple(leaf.shape)) for path, leaf in flat}
    named = jax.tree_util.tree_map_with_path(
        lambda path, _: axes[path_of(path)][0], nnx.to_pure_dict(parameters)
    )
    is_axes = lambda node: isinstance(node, tuple)  # noqa: E731
    adapters, _ = split_adapters(named, is_leaf=is_axes)
    trainable, _ = split_frozen(adapters or named, run.train.frozen, is_leaf=is_axes)
    return Program(
        task=task,
        mesh=mesh,
        rules=run.rules,
        shard=Activations(
            mesh=mesh, rules=activation_rules(run.rules), layout=run.rules.context_layout
        ),
        optimizer=build_optimizer(run.optimizer, axes=trainable),
        schedule=build_schedule(run.schedule, steps=run.train.steps),
        train=run.train,
        pipeline=run.pipeline,
        graph=graph,
        axes=axes,
        offload=run.optimizer.offload,
        adapter_scale=next((m.scale for m in modules if isinstance(m, Adapter)), None),
    )
