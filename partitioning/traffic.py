"""What a decoder's train step must move between devices, from formulas.

Plain arithmetic over the configuration, for planning and to hold a compiled program against: see
collectives.py for what is counted, and its definitions of payload and wire. The formulas and their
derivations stand in traffic_weights.py and traffic_activations.py, what they count with in
traffic_step.py. Imports neither jax nor flax.

Left out, because they are far below a thousandth of the rest: sums over the vocabulary of one
number per token, counts of the experts' tokens, the gradient norm, and metrics.
"""

from collections.abc import Mapping

from models.decoder_config import DecoderConfig
from partitioning.mesh_config import RulesConfig
from partitioning.traffic_activations import activations
from partitioning.traffic_step import Step, Work
from partitioning.traffic_weights import Weight
from partitioning.transfers import Transfer, merged

Parameters = Mapping[str, tuple[tuple[str, ...], tuple[int, ...]]]
"""Path -> (logical axes, shape), a stack's ``layers`` dimension included."""


def expected(
    model: DecoderConfig,
    *,
    parameters: Parameters,
    sizes: Mapping[str, int],
    rules: RulesConfig,
    work: Work,
) -> tuple[Transfer, ...]:
    """Returns everything that a train step moves, one entry per kind, axes and reason.

    Args:
      model: the decoder.
      parameters: its parameters (trainer.program.Program.axes).
      sizes: devices on each mesh axis.
      rules: what is sharded over them.
      work: the batch, and how it passes through stages.

    Raises:
      ValueError: a rule does not fit a parameter, or the microbatches the stages.
    """
    step = Step(model=model, sizes=dict(sizes), rules=rules, work=work)
    moved = [
        transfer
        for name, (axes, shape) in parameters.items()
        for transfer in Weight(step, name=name, axes=axes, shape=shape).transfers()
    ]
    return merged((*moved, *activations(step)))


def branch_shares(
    model: DecoderConfig, *, sizes: Mapping[str, int], rules: RulesConfig, work: Work
) -> tuple[float, ...]:
    """Returns how much of the time a pipeline takes a branch, by the depth of its nesting.

    The text of a program does not say how often a ``conditional`` takes its branch. Stages that
    skip idle ticks run a piece in V x M of them; what only the first or last piece does stands in a
    branch inside, which the stage that has that piece takes M times.
    """
    step = Step(model=model, sizes=dict(sizes), rules=rules, work=work)
    if step.schedule is None:
        return ()
    skips_pieces, skips_edges = step.skips
    ticks, microbatches = step.schedule.ticks, work.microbatches
    pieces = (step.schedule.chunks * microbatches / ticks,) if skips_pieces else ()
    return pieces + ((microbatches / ticks,) if skips_edges else ())
