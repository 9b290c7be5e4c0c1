"""What one run is, as a tree of frozen dataclasses (no jax). Gin binds their fields."""

import dataclasses
from typing import Literal

from input_pipeline.data_config import DataConfig
from models.decoder_config import DecoderConfig
from partitioning.mesh_config import MeshConfig, PipelineConfig, RulesConfig
from trainer.optimizer_config import AdamW, OptimizerConfig, ScheduleConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """Base of every task: what is computed from a batch. See trainer/task.py."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModel(TaskConfig):
    """Next-token prediction with a decoder.

    Attributes:
      model: the decoder.
      z_loss: weight of ``log(Z)^2``, which keeps the logits' scale in check (PaLM, section 5).
    """

    model: DecoderConfig
    z_loss: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The step and the loop.

    Attributes:
      steps: length of the run, in optimizer steps.
      microbatches: parts that a global batch is cut into, to save memory or to fill the stages of
        a pipeline; the gradient is the same.
      clip_norm: global gradient norm above which gradients are scaled down; None never clips.
      skip_nonfinite: leave the state as it is when a gradient is not finite, and count it.
      max_nonfinite: consecutive skipped steps after which the run stops with exit code 97.
      ema_decay: decay of the exponential moving average of the parameters; None keeps none.
      frozen: regular expressions of parameter paths that are not trained.
      parameter_seed: seed of the initial parameters.
      dropout_seed: seed of dropout.
      init_from: checkpoint step whose parameters the run starts from; None starts afresh.
    """

    steps: int
    microbatches: int = 1
    clip_norm: float | None = 1.0
    skip_nonfinite: bool = True
    max_nonfinite: int = 10
    ema_decay: float | None = None
    frozen: tuple[str, ...] = ()
    parameter_seed: int = 0
    dropout_seed: int = 1
    init_from: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """When and on how much held-out data the run is measured.

    Attributes:
      every: steps between evaluations; 0 evaluates only at the end.
      max_batches: batches per evaluation; None takes the whole held-out set.
      sample_tokens: length of the continuation printed at the end; 0 prints none.
    """

    every: int = 0
    max_batches: int | None = None
    sample_tokens: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When steps are saved and which are kept.

    Attributes:
      every: steps between saves; 0 saves only at the end and on preemption.
      keep_latest: how many of the newest steps stay.
      keep_best: how many of the best steps by ``best_metric`` stay.
      best_metric: evaluation metric for ``keep_best``; lower is better.
      keep_every: also keep each step that is a multiple of this; 0 keeps none for that reason.
      compress: zstd; smaller files for more CPU time in the background.
      save_timeout_s: seconds that a save may take in the background before it has failed.
      verify: compare digests: of each step right after it was written, and before a restore;
        without it only missing files and damaged manifests are noticed.
    """

    every: int = 0
    keep_latest: int = 2
    keep_best: int = 0
    best_metric: str = "loss"
    keep_every: int = 0
    compress: bool = True
    save_timeout_s: float = 1800.0
    verify: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """What is written while the run goes on.

    Attributes:
      every: steps between rows of the console and of TensorBoard; metrics.jsonl has every step.
      tensorboard: write TensorBoard event files.
      mfu: convention of the printed MFU: "causal" counts half of the attention square, "full"
        all of it.
    """

    every: int = 10
    tensorboard: bool = True
    mfu: Literal["causal", "full"] = "causal"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that defines a run. Each field is built from the gin bindings of its class.

    Attributes:
      task: what is learned.
      data: what is learned from; its source keeps a held-out split for evaluation.
      mesh: how devices are arranged.
      pipeline: how microbatches pass through pipeline stages, where the mesh has several.
      rules: what is sharded over them.
      optimizer: how gradients change parameters.
      schedule: learning rate by step.
      train: the step and the loop.
      evaluation: when held-out data is scored.
      checkpoint: when steps are saved and kept.
      logging: what is printed and written.
    """

    task: TaskConfig
    data: DataConfig
    mesh: MeshConfig
    pipeline: PipelineConfig
    rules: RulesConfig
    optimizer: OptimizerConfig = dataclasses.field(default_factory=AdamW)
    schedule: ScheduleConfig
    train: TrainConfig
    evaluation: EvaluationConfig
    checkpoint: CheckpointConfig
    logging: LoggingConfig
