"""Parameters to score or to generate with: of a step, or of ``TrainConfig.init_from``.

Nothing is written into the run's directory, and neither moments nor gradients need room.
"""

import dataclasses

from launch.contract import ExitCode, Phase
from trainer.assembly import Options
from trainer.bases import Base, base_of, same_base
from trainer.checkpoints.restoring import Restored
from trainer.checkpoints.root import open_root
from trainer.checkpoints.store import CheckpointStore
from trainer.config import LoadedConfig
from trainer.coordination import Coordination
from trainer.distributed import Participant
from trainer.endings import UserError, user_error
from trainer.initial_parameters import initial_parameters
from trainer.optimizer_config import SGD
from trainer.program import ADAPTERS, Program
from trainer.run_config import RunConfig
from trainer.run_directory import check_readable
from trainer.state import (
    TrainState,
    abstract_state,
    from_portable,
    init_state,
    to_portable,
    with_parameters,
)


def untrained(config: RunConfig, *, options: Options) -> RunConfig:
    """Returns the configuration without what only training needs."""
    # Of a run that keeps an average it is the average that is used.
    keeps = config.train.ema_decay if options.run_dir else None
    train = dataclasses.replace(config.train, ema_decay=keeps)
    return dataclasses.replace(config, optimizer=SGD(momentum=0.0), train=train)


def read_state(
    loaded: LoadedConfig, program: Program, *, options: Options, participant: Participant
) -> tuple[TrainState, Restored | None]:
    """Returns the state, and what was restored where it is a step of ``options.run_dir``.

    Args:
      loaded: the configuration.
      program: of what ``untrained`` returns.
      options: the run directory and the step; without a directory ``init_from`` is read.
      participant: this process.

    Raises:
      UserError: step or parameters cannot be used.
      RunDirectoryError: there is no run.
      ConfigError: the run has another configuration.
      CheckpointError: no step is whole.
    """
    participant.progress(Phase.RESTORE)
    peers, init_from = participant.coordination, loaded.run.train.init_from
    if not options.run_dir:
        state, _ = fresh_state(program, init_from, coordination=peers)
        return state, None
    with user_error(ExitCode.CONFIGURATION):
        root = open_root(options.run_dir)
    check_readable(root, loaded=loaded, request=options.request)
    store = CheckpointStore(root, attempt=None, config=loaded.run.checkpoint, coordination=peers)
    abstract = abstract_state(program)
    with user_error(ExitCode.CONFIGURATION):
        restored = store.restore(
            to_portable(abstract, program), step=options.checkpoint, partial=True
        )
    store.close()
    if restored is None:
        raise UserError(f"{options.run_dir} has saved no step yet; there is nothing to read.")
    state = from_portable(restored.state, abstract, program)
    state, _ = with_base(state, restored, init_from=init_from, program=program, coordination=peers)
    return state, restored


def fresh_state(
    program: Program, init_from: str | None, *, coordination: Coordination
) -> tuple[TrainState, Base | None]:
    """Returns the state of step 0, and what its parameters came from, if from anywhere.

    Raises:
      UserError: ``init_from`` names nothing that fits.
      CheckpointError: it is damaged.
    """
    if init_from is None:
        return init_state(program), None
    with user_error(ExitCode.CONFIGURATION):
        base = base_of(init_from, coordination=coordination)
        parameters = initial_parameters(base.url, program, coordination=coordination)
    return init_state(program, parameters), base


def with_base(
    state: TrainState,
    restored: Restored,
    *,
    init_from: str | None,
    program: Program,
    coordination: Coordination,
) -> tuple[TrainState, Base | None]:
    """Completes a restored state with the parameters that its adapters belong to, if it has any.

    Raises:
      UserError: ``init_from`` names another base.
      CheckpointError: it is damaged.
    """
    if program.trained != ADAPTERS:
        return state, None
    assert init_from is not None
    recorded = Base(**restored.data["adapters"]["base"])
    with user_error(ExitCode.CONFIGURATION):
        base = same_base(recorded, init_from)
        parameters = initial_parameters(base.url, program, coordination=coordination)
    return with_parameters(state, parameters), base
