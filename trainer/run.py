"""Puts a run together: directory, data, mesh, program, checkpoints, and where it stands.

Everything that can be refused is refused here, before anything is compiled, as a UserError with
the exit code that the launcher knows.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from absl import logging

from input_pipeline.dataset import Dataset
from input_pipeline.loader import BatchLoader
from input_pipeline.position import PositionRecord
from launch.contract import ExitCode, Phase
from models.lora_config import is_adapter
from partitioning import table
from partitioning.mesh import axis_sizes, describe
from partitioning.mesh_config import RulesConfig
from trainer.ahead import CompiledAhead
from trainer.assembly import Options, Setup, assemble, with_data
from trainer.bases import Base
from trainer.checkpoints.restoring import Restored
from trainer.checkpoints.root import open_root
from trainer.checkpoints.store import CheckpointStore
from trainer.config import LoadedConfig
from trainer.distributed import Participant
from trainer.endings import UserError, user_error
from trainer.optimizers import build_schedule
from trainer.pipeline import check_branches, describe_pipeline
from trainer.program import ADAPTERS, Program
from trainer.reading import fresh_state, with_base
from trainer.run_directory import RunDirectory, open_run
from trainer.state import (
    TrainState,
    abstract_batch,
    abstract_state,
    from_portable,
    parameter_rows,
    to_portable,
)
from trainer.step import build_train_step


@dataclasses.dataclass(kw_only=True)
class Run(Setup):
    """A run that is ready to go.

    Attributes:
      directory: the attempt on the run directory.
      store: checkpoints.
      position: what each step reads.
      state: where training starts.
      start_step: steps done so far.
      base: what adapters are trained beside; None where the whole model is trained.
      step: the train step, compiled while the rest gets ready.
    """

    directory: RunDirectory
    store: CheckpointStore
    position: PositionRecord
    state: TrainState
    start_step: int
    base: Base | None
    step: CompiledAhead

    @property
    def needed(self) -> dict[str, Any]:
        """JSON that a saved step keeps beside its arrays, to go on from it."""
        data: dict[str, Any] = {"position": self.position.to_json()}
        if self.base is not None:
            scale = self.program.adapter_scale
            data["adapters"] = {"base": self.base.to_json(), "scale": scale}
        return data

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


def prepare(loaded: LoadedConfig, *, options: Options, participant: Participant) -> Run:
    """Builds everything up to the state that training starts from.

    Raises:
      UserError: configuration or data cannot work.
      RunDirectoryError: the run directory cannot be used as asked.
    """
    program, shardings = assemble(loaded.run)
    with user_error(ExitCode.CONFIGURATION):
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
    setup = with_data(program, shardings, loaded.run, options=options, participant=participant)
    options.clock.ended("data")
    train_step = compile_ahead(setup)
    store = CheckpointStore(
        root,
        attempt=directory.attempt,
        config=loaded.run.checkpoint,
        coordination=participant.coordination,
        dataset_digest=setup.data.digest,
        staging=directory.local / "staging" if "://" in options.run_dir else None,
        committed=participant.committed,
    )
    participant.progress(Phase.RESTORE)
    state, position, step, base = resume(store, setup=setup)
    participant.saved_step = step or None
    options.clock.ended("restore" if step else "initialize")
    run = Run(
        **vars(setup),
        directory=directory,
        store=store,
        position=position,
        state=state,
        start_step=step,
        base=base,
        step=train_step,
    )
    describe_run(run)
    participant.progress(Phase.COMPILE)
    return run


def compile_ahead(
    setup: Setup, build: Callable[[Program], jax.stages.Wrapped] = build_train_step
) -> CompiledAhead:
    """Returns the train step, or another called like it, which a thread compiles from now on."""
    program, data = setup.program, setup.config.data
    batch = abstract_batch(program, rows=data.global_batch, length=data.sequence_length)
    step, state = build(program), abstract_state(program)
    return CompiledAhead(step, state, batch, check=lambda it: check_branches(it, program))


def resume(
    store: CheckpointStore, *, setup: Setup
) -> tuple[TrainState, PositionRecord, int, Base | None]:
    """Returns the newest verified state, or a fresh one, with its position, step and base.

    Raises:
      UserError: the model, the dataset, or the base of adapters, is another one than the
        checkpoint's.
      CheckpointError: there are steps, and none is whole.
    """
    program, config = setup.program, setup.config
    peers = setup.participant.coordination
    abstract = abstract_state(program)
    with user_error(ExitCode.CONFIGURATION):
        restored = store.restore(to_portable(abstract, program))
    batch = config.data.global_batch
    if restored is None:
        logging.info("No checkpoint found; starting from step 0.")
        state, base = fresh_state(program, config.train.init_from, coordination=peers)
        if base is not None:
            setup.say(f"Starts from the parameters of {base.url}.")
        kept = base if program.trained == ADAPTERS else None
        return state, PositionRecord.start(global_batch=batch), 0, kept
    if restored.dataset_digest != setup.data.digest:
        message = f"{other_dataset(restored, setup.data)} Restore the dataset, or start a new run "
        raise UserError(f"{message}with TrainConfig.init_from.", ExitCode.DATA)
    position = PositionRecord.from_json(restored.data["position"])
    if position.entry(restored.step).global_batch != batch:
        position = position.change_batch(at_step=restored.step, global_batch=batch)
    state = from_portable(restored.state, abstract, program)
    state, base = with_base(
        state, restored, init_from=config.train.init_from, program=program, coordination=peers
    )
    return state, position, restored.step, base


def other_dataset(restored: Restored, data: Dataset) -> str:
    """Says that a step belongs to other data."""
    return (
        f"Step {restored.step} was trained on dataset {restored.dataset_digest[:12]}, but "
        f"DataConfig now names {data.digest[:12]} ({data.manifest.name}): files, tokenizer, "
        "chat template or layout differ."
    )


def describe_run(run: Run) -> None:
    """Prints where parameters live and where the run stands."""
    mesh = run.program.mesh
    rows = parameter_rows(run.program)
    run.say(table.show(rows))
    count = sum(math.prod(row.shape) for row in rows)
    own = sum(math.prod(row.shape) for row in rows if is_adapter(row.name))
    trained = f", of which {own:,} adapters' are trained" if own else ""
    run.say(
        f"{count:,} parameters{trained}; mesh {describe(mesh)}; attempt {run.directory.attempt} "
        f"from step {run.start_step}"
    )
    run.say(run.data.describe())
    if line := describe_pipeline(run.program):
        run.say(line)
    if message := moved_schedule(run):
        logging.warning("%s", message)
    for warning in layout_warnings(run.config.rules, sizes=axis_sizes(mesh), rows=rows):
        logging.warning("%s", warning)


def layout_warnings(
    rules: RulesConfig, *, sizes: Mapping[str, int], rows: Sequence[table.Row]
) -> Iterator[str]:
    """Yields what is possible and rarely meant."""
    if sizes["tensor"] > 1 and not rules.sequence_parallel:
        yield (
            "RulesConfig.sequence_parallel=False: every device of a tensor group keeps the whole "
            "residual stream, which is only good for comparisons."
        )
    share = table.replicated_share(rows)
    if math.prod(sizes.values()) > 1 and share > rules.max_replicated:
        yield (
            f"{share:.1%} of the parameter bytes are replicated on every device, more than "
            f"RulesConfig.max_replicated={rules.max_replicated:.1%}."
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
