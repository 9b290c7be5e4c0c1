"""What training and evaluating have in common: program, shardings, data, and the command line.

What cannot work is refused here, before anything is compiled, as a UserError with the exit code
that the launcher knows.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from absl import logging
from jax.sharding import NamedSharding

from input_pipeline.dataset import Dataset, build_dataset
from input_pipeline.evaluation import EvaluationBatches
from input_pipeline.placement import local_rows
from launch.contract import ExitCode
from models.decoder_config import DecoderConfig
from models.experts import check_platform
from models.quantized_matmul import check_installed
from partitioning.mesh import axis_sizes, build_mesh
from partitioning.sequence_layout import dealt_columns
from trainer.base_checks import check_base, unlike_import, unlike_tokenizer
from trainer.checkpoints.root import UNWRITABLE
from trainer.context_length import check_context
from trainer.distributed import Participant
from trainer.endings import user_error
from trainer.memory_checks import check_memory
from trainer.paths import split_frozen
from trainer.pipeline_checks import check_pipeline
from trainer.program import ADAPTERS, Program, build_program, build_task
from trainer.run_config import LanguageModel, RunConfig
from trainer.run_directory import Request
from trainer.size_checks import check_batch, check_expert_count, check_loss_chunks
from trainer.startup import StartupClock
from trainer.state import abstract_state, gradient_layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says about this process.

    Attributes:
      run_dir: where the run lives; empty where an evaluation needs none.
      cache_dir: prepared data and compiled programs, shared by runs.
      request: how an existing directory is treated.
      checkpoint: step to evaluate; None takes the newest.
      profile_steps: first and last step to trace, or None.
      clock: accounts for the time until the first step.
    """

    run_dir: str
    cache_dir: pathlib.Path
    request: Request
    checkpoint: int | None = None
    profile_steps: tuple[int, int] | None = None
    clock: StartupClock = dataclasses.field(default_factory=StartupClock.of_this_process)


@dataclasses.dataclass(kw_only=True)
class Setup:
    """What training and evaluating have in common.

    Attributes:
      config: the run's configuration.
      options: the command line's.
      participant: this process among the others.
      data: training split.
      held_out: evaluation split.
      program: fixed parts.
      shardings: where each array of a batch goes.
    """

    config: RunConfig
    options: Options
    participant: Participant
    data: Dataset
    held_out: Dataset
    program: Program
    shardings: dict[str, NamedSharding]

    @property
    def rows(self) -> np.ndarray:
        """Rows of the global batch that this process's devices hold."""
        return local_rows(next(iter(self.shardings.values())), self.config.data.global_batch)

    @property
    def columns(self) -> np.ndarray | None:
        """Order in which the tokens of a row go to the devices; None keeps it."""
        shard, length = self.program.shard, self.config.data.sequence_length
        return dealt_columns(layout=shard.layout, length=length, shards=shard.context)

    def evaluation_batches(self) -> EvaluationBatches:
        """Returns the held-out batches."""
        return EvaluationBatches(
            self.held_out,
            batch=self.config.data.global_batch,
            rows=self.rows,
            max_batches=self.config.evaluation.max_batches,
        )

    def say(self, text: str) -> None:
        """Prints on process 0."""
        if self.participant.rank == 0:
            print(text, flush=True)  # noqa: T201 - the console is this program's face


def assemble(config: RunConfig) -> tuple[Program, dict[str, NamedSharding]]:
    """Returns the program on the devices that are here, and where batches go.

    Raises:
      UserError: mesh, rules, model, schedule and batch do not fit together.
    """
    with user_error(ExitCode.CONFIGURATION):
        program = checked_program(config)
        rows, length = config.data.global_batch, config.data.sequence_length
        spec = program.task.batch_spec(rows=rows, length=length)
        shardings = {
            name: program.shard.sharding(s.axes, shape=s.shape) for name, s in spec.items()
        }
    return program, shardings


def checked_program(config: RunConfig, *, devices: Sequence[jax.Device] | None = None) -> Program:
    """Returns the program on ``devices``, by default those that are here.

    Raises:
      ValueError: mesh, rules, model, schedule and batch do not fit together.
    """
    check_decoder(config)
    mesh = build_mesh(config.mesh, devices=devices)
    check_batch(config, sizes=axis_sizes(mesh))
    if isinstance(config.task, LanguageModel):
        platform = mesh.devices.flat[0].platform
        check_experts(config.task.model, devices=mesh.shape["expert"], platform=platform)
    check_context(config, sizes=axis_sizes(mesh))
    check_memory(config, mesh=mesh)
    program = build_program(config, task=build_task(config.task), mesh=mesh)
    check_base(config, adapted=program.trained == ADAPTERS)
    if told := unlike_import(config):
        logging.warning("%s", told)
    check_axes(program)
    check_pipeline(config, program)
    check_layouts(program)
    return program


def with_data(
    program: Program,
    shardings: dict[str, NamedSharding],
    config: RunConfig,
    *,
    options: Options,
    participant: Participant,
) -> Setup:
    """Adds the data, prepared if need be, and a task that knows the dataset's tokens.

    Raises:
      UserError: the data is missing or does not fit the configuration, or the model's vocabulary
        is too small.
    """
    with user_error(ExitCode.DATA), _cache_errors(options.cache_dir):
        data, held_out = (
            build_dataset(config.data, split=split, cache_dir=options.cache_dir)
            for split in ("train", "held_out")
        )
    if isinstance(config.task, LanguageModel):
        with user_error(ExitCode.CONFIGURATION):
            data.check_vocabulary(config.task.model.vocab_size)
        if told := unlike_tokenizer(config, data.tokenizer):
            logging.warning("%s", told)
    sizes = None if data.token_bytes is None else tuple(data.token_bytes.tolist())
    return Setup(
        config=config,
        options=options,
        participant=participant,
        data=data,
        held_out=held_out,
        program=dataclasses.replace(program, task=build_task(config.task, token_bytes=sizes)),
        shardings=shardings,
    )


@contextlib.contextmanager
def _cache_errors(cache_dir: pathlib.Path) -> Iterator[None]:
    """Says what to do where prepared data cannot be kept."""
    try:
        yield
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise ValueError(
            f"The data cannot be prepared: {error}. Prepared data is kept in "
            f"--cache_dir={cache_dir}; take one that can be written."
        ) from error


def check_decoder(config: RunConfig) -> None:
    """Raises ValueError where a decoder asks for what jax or the length of a row does not allow."""
    task = config.task
    if not isinstance(task, LanguageModel):
        return
    check_installed(task.model.matmul)
    check_loss_chunks(config)
    if jax.config.jax_enable_x64:
        return
    for field in ("dtype", "param_dtype"):
        if getattr(task.model, field) == "float64":
            raise ValueError(
                f"DecoderConfig.{field}='float64', but jax is set to 32 bits and would take "
                "float32 without a word; set JAX_ENABLE_X64=1 in the environment."
            )


def check_layouts(program: Program) -> None:
    """Raises ValueError where a rule table does not fit the state or its gradients.

    Gradients live where the optimizer's state would, also if the optimizer keeps none.
    """
    group = abstract_state(program).groups[program.trained]
    trainable, _ = split_frozen(group.parameters, group.frozen)
    gradient_layout(program, trainable)


def check_axes(program: Program) -> None:
    """Raises ValueError if a mesh axis only repeats work, because the model has nothing for it."""
    there = {name for axes, _ in program.axes.values() for name in axes}
    size = program.mesh.shape["expert"]
    if size > 1 and "experts" not in there:
        raise ValueError(
            f"MeshConfig.expert takes {size} devices, but no parameter of this model has a "
            "dimension 'experts'; give the devices to MeshConfig.data or MeshConfig.fsdp."
        )


def check_experts(model: DecoderConfig, *, devices: int, platform: str) -> None:
    """Raises ValueError if experts do not divide over their mesh axis or cannot run here."""
    if model.experts is not None:
        check_platform(model.experts, platform=platform)
    check_expert_count(model, devices=devices)
