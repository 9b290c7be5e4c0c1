"""Puts a run together: directory, data, mesh, program, checkpoints, and where it stands.

Everything that can be refused is refused here, before anything is compiled, as a UserError with
the exit code that the launcher knows.
"""

import contextlib
import dataclasses
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
from absl import logging
from jax.sharding import Mesh, NamedSharding

from input_pipeline.dataset import Dataset, build_dataset
from input_pipeline.evaluation import EvaluationBatches
from input_pipeline.loader import BatchLoader
from input_pipeline.placement import local_rows
from input_pipeline.position import PositionRecord
from launch.contract import ExitCode, Phase
from partitioning import table
from partitioning.mesh import build_mesh, describe
from trainer.checkpoints import coordination as checkpoint_coordination
from trainer.checkpoints.parameters import load_params
from trainer.checkpoints.root import open_root
from trainer.checkpoints.store import CheckpointStore
from trainer.config import LoadedConfig
from trainer.distributed import Participant
from trainer.optimizers import build_schedule
from trainer.program import Program, build_program, build_task
from trainer.run_config import LanguageModel, RunConfig
from trainer.run_directory import Request, RunDirectory, open_run
from trainer.state import (
    MODEL,
    TrainState,
    abstract_state,
    from_portable,
    init_state,
    parameter_rows,
    to_portable,
)


class UserError(ValueError):
    """Something that the user has to change; ``exit_code`` says of which kind."""

    def __init__(self, message: str, exit_code: ExitCode) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says about this process.

    Attributes:
      run_dir: where the run lives.
      cache_dir: prepared data and compiled programs, shared by runs.
      request: how an existing directory is treated.
      profile_steps: first and last step to trace, or None.
    """

    run_dir: str
    cache_dir: pathlib.Path
    request: Request
    profile_steps: tuple[int, int] | None = None


@dataclasses.dataclass(kw_only=True)
class Run:
    """A run that is ready to go.

    Attributes:
      config: its configuration.
      options: the command line's.
      participant: this process among the others.
      directory: the attempt on the run directory.
      data: training split.
      held_out: evaluation split.
      program: fixed parts.
      shardings: where each array of a batch goes.
      store: checkpoints.
      position: what each step reads.
      state: where training starts.
      start_step: steps done so far.
    """

    config: RunConfig
    options: Options
    participant: Participant
    directory: RunDirectory
    data: Dataset
    held_out: Dataset
    program: Program
    shardings: dict[str, NamedSharding]
    store: CheckpointStore
    position: PositionRecord
    state: TrainState
    start_step: int

    @property
    def rows(self) -> Any:
        """Rows of the global batch that this process's devices hold."""
        return local_rows(next(iter(self.shardings.values())), self.config.data.global_batch)

    def loader(self, *, start: int, stop: int) -> BatchLoader:
        """Returns the batches of steps ``start`` to ``stop`` (excluded)."""
        data = self.config.data
        return BatchLoader(
            self.data,
            position=self.position,
            rows=self.rows,
            start_step=start,
            stop_step=stop,
            workers=data.workers,
            prefetch=data.prefetch,
        )

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


def prepare(loaded: LoadedConfig, *, options: Options, participant: Participant) -> Run:
    """Builds everything up to the state that training starts from.

    Raises:
      UserError: configuration or data cannot work.
      RunDirectoryError: the run directory cannot be used as asked.
    """
    config = loaded.run
    with user_error(ExitCode.CONFIGURATION):
        mesh = build_mesh(config.mesh)
        program, shardings = assemble(config, mesh=mesh)
    root = open_root(options.run_dir)
    directory = open_run(
        options.run_dir,
        loaded=loaded,
        environment=participant.environment,
        coordination=participant.coordination,
        request=options.request,
        root=root,
    )
    participant.attempt, participant.root = directory.attempt, directory.root
    participant.before_leaving(directory.close)
    data, held_out = load_data(config, cache_dir=options.cache_dir)
    program = with_data(program, config=config, data=data)
    store = CheckpointStore(
        root,
        attempt=directory.attempt,
        config=config.checkpoint,
        coordination=checkpoint_coordination.of_this_process(),
        dataset_digest=data.digest,
        staging=directory.local / "staging" if "://" in options.run_dir else None,
    )
    participant.progress(Phase.RESTORE)
    state, position, step = resume(store, program=program, config=config, data=data)
    participant.saved_step = step or None
    run = Run(
        config=config,
        options=options,
        participant=participant,
        directory=directory,
        data=data,
        held_out=held_out,
        program=program,
        shardings=shardings,
        store=store,
        position=position,
        state=state,
        start_step=step,
    )
    describe_run(run, mesh=mesh)
    return run


def load_data(config: RunConfig, *, cache_dir: pathlib.Path) -> tuple[Dataset, Dataset]:
    """Returns training and held-out split, prepared if need be.

    Raises:
      UserError: the data is missing or does not fit the configuration.
    """
    with user_error(ExitCode.DATA):
        data, held_out = (
            build_dataset(config.data, split=split, cache_dir=cache_dir)
            for split in ("train", "held_out")
        )
    return data, held_out


def assemble(config: RunConfig, *, mesh: Mesh) -> tuple[Program, dict[str, NamedSharding]]:
    """Returns the program and where batches go.

    Raises:
      ValueError: mesh, rules, model, schedule and batch do not fit together.
    """
    check_batch(config, mesh=mesh)
    task = build_task(config.task)
    program = build_program(config, task=task, mesh=mesh)
    abstract_state(program)
    spec = task.batch_spec(rows=config.data.global_batch, length=config.data.sequence_length)
    shardings = {name: program.shard.sharding(s.axes, shape=s.shape) for name, s in spec.items()}
    return program, shardings


def with_data(program: Program, *, config: RunConfig, data: Dataset) -> Program:
    """Returns the program with a task that knows the dataset's tokens.

    Raises:
      UserError: the model's vocabulary is too small.
    """
    if isinstance(config.task, LanguageModel):
        with user_error(ExitCode.CONFIGURATION):
            data.check_vocabulary(config.task.model.vocab_size)
    sizes = None if data.token_bytes is None else tuple(data.token_bytes.tolist())
    return dataclasses.replace(program, task=build_task(config.task, token_bytes=sizes))


def check_batch(config: RunConfig, *, mesh: Mesh) -> None:
    """Raises ValueError if the batch does not divide over mesh and microbatches."""
    ways = mesh.shape["data"] * mesh.shape["fsdp"] * mesh.shape["expert"]
    parts = ways * config.train.microbatches
    batch = config.data.global_batch
    if batch % parts:
        near = max(batch // parts, 1) * parts
        raise ValueError(
            f"DataConfig.global_batch={batch} does not divide over data x fsdp x expert = {ways} "
            f"and TrainConfig.microbatches={config.train.microbatches}; it must be a multiple of "
            f"{parts}, for example {near}."
        )


def resume(
    store: CheckpointStore, *, program: Program, config: RunConfig, data: Dataset
) -> tuple[TrainState, PositionRecord, int]:
    """Returns the newest verified state, or a fresh one, with its position and step.

    Raises:
      UserError: the dataset is another one than the checkpoint's.
    """
    abstract = abstract_state(program)
    restored = store.restore(to_portable(abstract))
    batch = config.data.global_batch
    if restored is None:
        logging.info("No checkpoint found; starting from step 0.")
        state = init_state(program)
        if config.train.init_from is not None:
            state = _with_parameters(state, abstract, url=config.train.init_from)
        return state, PositionRecord.start(global_batch=batch), 0
    if restored.dataset_digest != data.digest:
        raise UserError(
            f"Step {restored.step} was trained on dataset {restored.dataset_digest[:12]}, but "
            f"DataConfig now names {data.digest[:12]} ({data.manifest.name}): files, tokenizer or "
            "layout differ. Restore the dataset, or start a new run with TrainConfig.init_from.",
            ExitCode.DATA,
        )
    position = PositionRecord.from_json(restored.data["position"])
    if position.entry(restored.step).global_batch != batch:
        position = position.change_batch(at_step=restored.step, global_batch=batch)
    return from_portable(restored.state, abstract), position, restored.step


def describe_run(run: Run, *, mesh: Mesh) -> None:
    """Prints where parameters live and where the run stands."""
    rows = parameter_rows(run.program)
    run.say(table.show(rows))
    count = sum(math.prod(row.shape) for row in rows)
    run.say(f"{count:,} parameters; mesh {describe(mesh)}; attempt {run.directory.attempt}")
    if message := moved_schedule(run):
        logging.warning("%s", message)
    share = table.replicated_share(rows)
    if mesh.size > 1 and share > run.config.rules.max_replicated:
        logging.warning(
            "%.1f%% of the parameter bytes are replicated on every device, more than "
            "RulesConfig.max_replicated=%.1f%%.",
            100 * share,
            100 * run.config.rules.max_replicated,
        )


def moved_schedule(run: Run) -> str:
    """Says how a changed length moves the learning rate; empty where it does not."""
    schedule, steps = run.config.schedule, run.config.train.steps
    old = next((c.old for c in run.directory.changes if c.key == "TrainConfig.steps"), None)
    if old is None or schedule.decay_steps is not None:
        return ""
    before, after = (
        float(build_schedule(schedule, steps=length)(run.start_step)) for length in (old, steps)
    )
    if before == after:
        return ""
    return (
        f"TrainConfig.steps went from {old} to {steps}, which moves the learning rate at step "
        f"{run.start_step} from {before:.6g} to {after:.6g}. "
        f"ScheduleConfig.decay_steps = {old} keeps the old schedule."
    )


@contextlib.contextmanager
def user_error(code: ExitCode) -> Iterator[None]:
    """Turns a ValueError of the code inside into a UserError with ``code``."""
    try:
        yield
    except UserError:
        raise
    except ValueError as error:
        raise UserError(str(error), code) from error


def _with_parameters(state: TrainState, abstract: TrainState, *, url: str) -> TrainState:
    wanted = to_portable(abstract)["groups"][MODEL]["parameters"]
    with user_error(ExitCode.CONFIGURATION):
        parameters = load_params(
            url, wanted, coordination=checkpoint_coordination.of_this_process()
        )
    group = dataclasses.replace(state.groups[MODEL], parameters=parameters)
    if group.average is not None:
        group = dataclasses.replace(group, average=jax.tree.map(lambda x: x.copy(), parameters))
    return dataclasses.replace(state, groups={MODEL: group})
