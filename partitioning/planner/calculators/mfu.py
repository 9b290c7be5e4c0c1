"""Model FLOPs, and the share of a chip's peak that they reach. Standard library only.

Two conventions: 6 FLOP per parameter and token (2 forward, 4 backward; Kaplan et al. 2020), and the
same with the products of attention that no parameter takes part in (Chowdhery et al. 2022, PaLM,
appendix B). What is computed again counts in neither; it does in hardware FLOPs utilisation.
"""

import dataclasses
import math
from collections.abc import Iterable

H100_BF16 = 989e12
"""Dense bfloat16 FLOP/s of an H100 SXM, as the chapter rounds it."""

_LABELS = (
    (math.nextafter(0.70, 1), "outstanding: best in class only"),
    (0.60, "excellent: near the state of practice"),
    (0.45, "good: well configured"),
    (0.30, "suboptimal: worth tuning, usually overlap or bubble"),
    (0.0, "critical: look at all six layers"),
)


def attention_flops(layers: int, *, width: int, length: int, causal: bool = False) -> float:
    """Returns FLOP per token of attention's two products, forward and backward: 12 L d s."""
    return 12 * layers * width * length / (2 if causal else 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """What a run has, and what one token asks of it.

    Attributes:
      parameters: of the model; those that a token uses, for a mixture of experts.
      devices: how many.
      peak: FLOP/s of each.
      attention: FLOP per token beyond 6 per parameter; 0 leaves them out.
    """

    parameters: float
    devices: int
    peak: float = H100_BF16
    attention: float = 0.0

    @property
    def ceiling(self) -> float:
        """Tokens/s at the peak."""
        return self.devices * self.peak / (6 * self.parameters + self.attention)

    def mfu(self, tokens_per_second: float) -> float:
        """Returns the share of the peak that so many tokens/s reach."""
        return tokens_per_second / self.ceiling

    def tokens_per_second(self, mfu: float) -> float:
        """Returns tokens/s at a share of the peak."""
        return mfu * self.ceiling


def label(mfu: float) -> str:
    """Returns the chapter's word for it; a boundary is in the better range, but 70% is no more."""
    return next(words for least, words in _LABELS if mfu >= least)


def added(losses: Iterable[float]) -> float:
    """Returns what is left if losses are subtracted from the whole, as a waterfall is drawn."""
    return 1 - sum(losses)


def multiplied(losses: Iterable[float]) -> float:
    """Returns what is left if each takes its share of what the ones before left."""
    return math.prod(1 - loss for loss in losses)
