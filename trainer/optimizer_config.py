"""Optimizers and learning-rate schedules as plain data (no jax, no optax)."""

import dataclasses
from typing import Literal

_LAST_DIGIT = 2.0**-8
"""Largest relative change that rounding to bfloat16 may undo."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Base of every optimizer.

    Attributes:
      weight_decay: decoupled decay, multiplied by the learning rate.
      decay_exclude: regular expressions of parameter paths (``layers/norm/scale``) without decay.
      groups: triples (path pattern, learning-rate factor, weight-decay factor); the first pattern
        that matches a parameter's path applies.
      moment_dtype: dtype of moments and momentum between steps; the update is always computed in
        32 bits or more. "float32" keeps more where parameters have more.
      offload: keep the state in host memory between updates.
    """

    weight_decay: float = 0.0
    decay_exclude: tuple[str, ...] = (r"(^|/)(scale|bias)$",)
    groups: tuple[tuple[str, float, float], ...] = ()
    moment_dtype: Literal["float32", "bfloat16"] = "float32"
    offload: bool = False

    def __post_init__(self) -> None:
        if self.moment_dtype == "bfloat16":
            self._check_decays()

    def _check_decays(self) -> None:
        """Refuses a decay whose steps bfloat16, with 8 bits of significance, would round away."""
        for name in ("b1", "b2", "momentum"):
            if getattr(self, name, 0.0) > 1 - _LAST_DIGIT:
                raise ValueError(
                    f"{type(self).__name__}.moment_dtype='bfloat16' with {name}="
                    f"{getattr(self, name)}: a step changes that moment by less than its last "
                    f"digit, so that it would never fall. Take {name}={1 - _LAST_DIGIT} or less, "
                    "or moment_dtype='float32'."
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW(OptimizerConfig):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019).

    Attributes:
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added to the root of the second moment.
    """

    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adafactor(OptimizerConfig):
    """Adam with a factored second moment (Shazeer and Stern, 2018).

    Attributes:
      decay_rate: exponent of the second moment's decay.
      min_dim_to_factor: matrices with a smaller side keep a full second moment.
      clip_threshold: root mean square above which an update is scaled down.
    """

    decay_rate: float = 0.8
    min_dim_to_factor: int = 128
    clip_threshold: float = 1.0

    def _check_decays(self) -> None:
        raise ValueError(
            "Adafactor.moment_dtype='bfloat16': its decay approaches 1 as the run goes on, and its "
            "second moment would stop moving; factored, it is small anyway. Take 'float32'."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lion(OptimizerConfig):
    """Sign of an interpolated momentum (Chen et al., 2023).

    Attributes:
      b1: weight of the momentum in the update.
      b2: decay of the momentum.
    """

    b1: float = 0.9
    b2: float = 0.99


@dataclasses.dataclass(frozen=True, kw_only=True)
class Muon(OptimizerConfig):
    """Orthogonalised momentum for matrices, AdamW for the rest (Jordan et al., 2024).

    Attributes:
      momentum: decay of the momentum.
      steps: Newton-Schulz iterations.
      b1: AdamW's first decay, for embeddings, head, norms and biases.
      b2: AdamW's second decay.
    """

    momentum: float = 0.95
    steps: int = 5
    b1: float = 0.9
    b2: float = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGD(OptimizerConfig):
    """Stochastic gradient descent.

    Attributes:
      momentum: decay of the momentum; 0 keeps none.
    """

    momentum: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Learning rate as a pure function of the step.

    Attributes:
      name: "constant", "linear" and "cosine" decay to ``final_ratio`` at ``decay_steps``; "wsd"
        is flat until ``cooldown_steps`` before it; "rsqrt" falls as one over the root of the step.
      peak: highest learning rate, reached at the end of the warm-up.
      warmup_steps: steps of linear growth from 0.
      decay_steps: step at which the decay ends; None takes ``TrainConfig.steps``.
      cooldown_steps: steps of linear decay at the end of "wsd".
      final_ratio: learning rate at the end, as a share of ``peak``.
    """

    peak: float
    name: Literal["constant", "linear", "cosine", "wsd", "rsqrt"] = "cosine"
    warmup_steps: int = 0
    decay_steps: int | None = None
    cooldown_steps: int = 0
    final_ratio: float = 0.1
