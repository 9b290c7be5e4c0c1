"""Reads what a plan is about from gin files: a run's, or only a model's. No jax.

The one place of the planner that looks at how configurations are built; everything else gets plain
dataclasses.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from models.decoder_config import DecoderConfig
from partitioning.mesh_config import MeshConfig, PipelineConfig, RulesConfig
from partitioning.planner.plan import Plan
from partitioning.traffic_step import Work
from trainer import config, config_parser
from trainer.config_registry import CONFIGURABLES
from trainer.config_schema import Schema
from trainer.optimizer_config import AdamW, OptimizerConfig
from trainer.run_config import LanguageModel, RunConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """What files without a run say: a model, perhaps with partitioning and optimizer.

    Attributes:
      model: the decoder.
      mesh: sizes; one device if no file says anything.
      pipeline: settings of a pipeline.
      rules: what is sharded.
      optimizer: whose state is kept.
    """

    model: DecoderConfig
    mesh: MeshConfig
    pipeline: PipelineConfig
    rules: RulesConfig
    optimizer: OptimizerConfig = dataclasses.field(default_factory=AdamW)


_ROOT = dataclasses.make_dataclass("RunConfig", (), bases=(Parts,), frozen=True, kw_only=True)
"""Parts, under the name by which files of optimizers and the like bind them."""


def load_model(files: Sequence[str], bindings: Sequence[str] = ()) -> DecoderConfig:
    """Returns the decoder of model or run files; see `load_inputs`."""
    found = load_inputs(files, bindings)
    return found.model if isinstance(found, Parts) else decoder_of(found)


def load_inputs(files: Sequence[str], bindings: Sequence[str] = ()) -> Parts | RunConfig:
    """Reads files that describe a run, or only a model.

    Raises:
      ConfigError: they are wrong.
      ValueError: they describe a run that is no language model.
    """
    statements = config_parser.read(files, bindings=bindings).statements
    ours = {field.name for field in dataclasses.fields(Parts)}
    if any(s.selector == "RunConfig" and s.parameter not in ours for s in statements):
        return config.load(files, bindings).run
    classes = {cls.__name__: cls for cls in CONFIGURABLES if cls is not RunConfig}
    schema = Schema(_ROOT, {_ROOT.__name__: _ROOT, **classes}, frozenset())
    built = config.build(files, bindings, schema=schema)[0].instance
    assert isinstance(built, Parts)
    return built


def decoder_of(run: RunConfig) -> DecoderConfig:
    """Returns the decoder of a run.

    Raises:
      ValueError: its task is another one.
    """
    if isinstance(run.task, LanguageModel):
        return run.task.model
    raise ValueError(f"There are formulas for LanguageModel, not for {type(run.task).__name__}.")


def rule_file(name: str) -> str:
    """Returns the gin file of a rule set, such as "fsdp_tp"."""
    return f"configs/partitioning/{name}.gin"


def plan_of(run: RunConfig, *, devices: int) -> Plan:
    """Returns the plan that a run is on so many devices.

    Raises:
      ValueError: the mesh does not fit, or the run is no language model.
    """
    sizes: Mapping[str, int] = run.mesh.sizes(devices)
    return Plan(
        model=decoder_of(run),
        sizes=sizes,
        rules=run.rules,
        work=Work(
            rows=run.data.global_batch,
            length=run.data.sequence_length,
            microbatches=run.train.microbatches,
            pipeline=run.pipeline,
        ),
        optimizer=run.optimizer,
    )
