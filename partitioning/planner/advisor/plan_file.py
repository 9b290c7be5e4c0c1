"""Writes a plan as a gin file that ``trainer.main`` takes. Imports no jax."""

import dataclasses
import pathlib
from collections.abc import Sequence

from partitioning.mesh_config import AXES
from partitioning.planner.advisor.search import Candidate
from partitioning.planner.inputs import rule_file

_PARTS = ("configs/data/token_shards.gin",)
_DATA = """\
# What must be set: tokens written by `python -m input_pipeline.prepare`, steps and learning rate.
TokenShards.path = 'data/tokens'
TrainConfig.steps = 10000
ScheduleConfig.peak = 1e-4
ScheduleConfig.warmup_steps = 500
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """What the user described the model with.

    Attributes:
      files: gin files.
      bindings: of the command line.
      is_run: whether they describe a whole run.
      cluster: name of the cluster.
      devices: how many it has.
    """

    files: tuple[str, ...]
    bindings: tuple[str, ...]
    is_run: bool
    cluster: str
    devices: int


def gin_text(candidate: Candidate, *, source: Source, every: int = 0) -> str:
    """Returns the text of a run file; the user's own files are included, not copied.

    Args:
      candidate: the plan.
      source: what the user described.
      every: steps between checkpoints, where the user's files describe no run.
    """
    plan, layout = candidate.plan, candidate.layout
    lines = [*_heading(candidate, source), ""]
    if not source.is_run:
        lines += [_DATA, *_saving(every), "RunConfig.task = @LanguageModel()"]
    files = [*source.files, rule_file(layout.rules), *(() if source.is_run else _PARTS)]
    lines += [f"include {name!r}" for name in files]
    lines += list(source.bindings)
    lines += [f"MeshConfig.{axis} = {plan.sizes[axis]}" for axis in AXES]
    lines += [
        f"DataConfig.global_batch = {plan.work.rows}",
        f"DataConfig.sequence_length = {plan.work.length}",
        f"TrainConfig.microbatches = {plan.work.microbatches}",
        f"PipelineConfig.schedule = {plan.work.pipeline.schedule!r}",
        f"PipelineConfig.chunks = {plan.work.pipeline.chunks}",
        f"DecoderConfig.remat = {plan.model.remat!r}",
        f"DecoderConfig.loss_chunks = {plan.model.loss_chunks}",
        f"DecoderConfig.context_attention = {plan.model.context_attention!r}",
    ]
    if plan.model.scan_layers is not None:
        lines.append(f"DecoderConfig.scan_layers = {plan.model.scan_layers}")
    if plan.optimizer.offload:
        lines.append(f"{type(plan.optimizer).__name__}.offload = True")
    return "\n".join(lines) + "\n"


def _saving(every: int) -> tuple[str, ...]:
    if not every:
        return ()
    about = "# Loses least at this cluster's rate of failures; 0 saves only at the end."
    return (about, f"CheckpointConfig.every = {every}", "")


def check_free(path: pathlib.Path) -> None:
    """Raises ValueError if no file can be written there, so that nobody searches in vain."""
    try:
        write(path, "")
        path.unlink()
    except UnicodeEncodeError as error:
        raise ValueError(f"--out={path!a} is no name of a file: {error.reason}.") from None


def write(path: pathlib.Path, text: str) -> None:
    """Writes a gin file.

    Raises:
      ValueError: there is a file already, or the folder does not exist.
    """
    try:
        with path.open("x") as file:
            file.write(text)
    except FileExistsError:
        raise ValueError(f"--out={path} exists already; name another file.") from None
    except OSError as error:
        shown_path = str(path)[:400]
        raise ValueError(f"--out={shown_path} cannot be written: {error.strerror}.") from None


def _heading(candidate: Candidate, source: Source) -> Sequence[str]:
    plan, predicted = candidate.plan, candidate.prediction
    return (
        f"# {plan.mesh} on {source.cluster}: predicted {candidate.seconds:.3f} s a step, "
        f"MFU {100 * predicted.mfu:.1f}%,",
        f"# {candidate.memory.total / 1e9:.1f} of {candidate.memory.limit / 1e9:.1f} GB a device. "
        "Checked by the compiler with:",
        "#",
        "#   python -m trainer.main --mode=dry_run "
        f"--cluster={source.cluster} --gin_file=THIS_FILE",
    )
