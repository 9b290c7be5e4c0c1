"""The shape of a mixture-of-experts layer, as plain data.

Imports neither jax nor flax, so that the planner reads it in milliseconds.
"""

import dataclasses
import math
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """A feed-forward layer of which each token uses a few of many experts.

    Attributes:
      count: experts of a layer.
      chosen: experts that each token uses (top-k of the router's softmax).
      mlp_dim: width of one expert.
      renormalize: a token's weights add up to one (Mixtral, Qwen3); False leaves them as the
        softmax over all experts gave them (Switch, Qwen2).
      shared_mlp_dim: width of a feed-forward layer that every token uses besides; 0 for none.
      shared_gate: the shared layer's output is scaled by a learned sigmoid (Qwen2).
      balance_weight: weight of the load-balance loss, which is 1 per layer when all experts get
        equal shares (Fedus et al., 2022, section 2.2).
      z_weight: weight of the mean squared log-normaliser of the router (Zoph et al., 2022).
      capacity: None drops nothing. A number lets each expert take ``capacity`` times its equal
        share of the tokens of one device and drops the rest: later choices before earlier ones,
        then later tokens before earlier ones.
      buffer: rows that the exchange holds from one device for another, in equal shares. None
        takes the worst case, so that nothing is dropped; a smaller number bounds memory.
      matmul: how the experts' products are computed; see models/grouped_matmul.py. "auto" takes
        what is fast on the platform.
      exchange: collective that moves tokens; "ragged_all_to_all" sends no padding and needs a
        GPU or TPU.
    """

    count: int
    chosen: int
    mlp_dim: int
    renormalize: bool = True
    shared_mlp_dim: int = 0
    shared_gate: bool = False
    balance_weight: float = 0.01
    z_weight: float = 0.0
    capacity: float | None = None
    buffer: float | None = None
    matmul: Literal["auto", "padded", "blocked", "ragged", "tokamax"] = "auto"
    exchange: Literal["all_to_all", "ragged_all_to_all"] = "all_to_all"

    def __post_init__(self) -> None:
        for name in ("count", "chosen", "mlp_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"ExpertsConfig.{name}={getattr(self, name)} must be positive.")
        if self.chosen > self.count:
            raise ValueError(
                f"ExpertsConfig.chosen={self.chosen} is more than there are experts "
                f"(ExpertsConfig.count={self.count}); take at most {self.count}."
            )
        if self.chosen == 1 and self.renormalize and self.count > 1:
            raise ValueError(
                "ExpertsConfig.chosen=1 with renormalize=True makes every weight 1, so that the "
                "loss would not train the router; set ExpertsConfig.renormalize=False."
            )
        if self.shared_mlp_dim < 0 or (self.shared_gate and not self.shared_mlp_dim):
            raise ValueError(
                f"ExpertsConfig.shared_mlp_dim={self.shared_mlp_dim} with "
                f"shared_gate={self.shared_gate}: a shared layer needs a positive width."
            )
        for name in ("capacity", "buffer"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"ExpertsConfig.{name}={value} must be positive, or None.")
        if self.capacity is not None and self.buffer is not None:
            raise ValueError(
                f"ExpertsConfig.capacity={self.capacity} bounds the exchange already; set "
                "ExpertsConfig.buffer only without a capacity."
            )


def expert_rows(config: ExpertsConfig, *, tokens: int) -> int:
    """Returns the most rows that one device sends to one expert."""
    if config.capacity is None:
        return tokens
    share = tokens * config.chosen / config.count
    return max(1, min(tokens, math.ceil(config.capacity * share)))


def sent_rows(config: ExpertsConfig, *, tokens: int, devices: int) -> int:
    """Returns the most rows that one device sends to another: S."""
    held = config.count // devices
    worst = min(tokens * min(config.chosen, held), held * expert_rows(config, tokens=tokens))
    if config.buffer is None:
        return worst
    return max(1, min(worst, math.ceil(config.buffer * tokens * config.chosen / devices)))
