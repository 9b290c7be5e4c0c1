"""Low-rank adapters (LoRA; Hu et al., 2021) as plain data, and which parameters they belong to.

Imports neither jax nor flax, so that the planner reads it in milliseconds.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping

NOT_ADAPTERS = "^(?!.*/adapter/)"
"""Pattern of the paths of all parameters that are no adapter's."""

RANK = "rank"
"""Logical axis of the dimension between the two matrices: small, and whole on every device unless
a rule says otherwise (partitioning/rules.py)."""

Axes = tuple[str, ...]
Shape = tuple[int, ...]


def is_adapter(path: str) -> bool:
    """Whether a parameter belongs to an adapter."""
    return re.search(NOT_ADAPTERS, path) is None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Trains ``W + alpha / rank * A B`` in place of ``W``, with W as it is and A B of low rank.

    Attributes:
      rank: columns of A and rows of B.
      alpha: weight of the product, which is divided by the rank so that another rank needs no
        other learning rate.
      targets: regular expressions of the kernels that get adapters, such as
        "attention/query/kernel"; each must match one at least, and no parameter but kernels of
        blocks and their biases.
    """

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = ("attention/(query|key|value|out)/kernel",)

    def __post_init__(self) -> None:
        if not self.targets:
            raise ValueError(
                "LoraConfig.targets=() adapts nothing, so that nothing would be trained; name "
                "kernels, such as ('attention/(query|value)/kernel',)."
            )

    @property
    def scale(self) -> float:
        """What the product of both matrices is multiplied by."""
        return self.alpha / self.rank


def adapters(
    config: LoraConfig | None, parameters: Mapping[str, tuple[Axes, Shape]]
) -> dict[str, tuple[Axes, Shape]]:
    """Returns path -> (logical axes, shape) of the adapters of a decoder.

    Args:
      config: which; None has none.
      parameters: the same of the decoder's own parameters, stacked layers in front.

    Raises:
      ValueError: a target matches nothing, or what can have no adapter.
    """
    found: dict[str, tuple[Axes, Shape]] = {}
    if config is None:
        return found
    for path in targeted(config, parameters):
        axes, shape = parameters[path]
        lead, inputs = 1, len(axes) - 1 - outputs_of(axes)
        cut = lead + inputs
        layer = path.removesuffix("/kernel")
        found[f"{layer}/adapter/a"] = ((*axes[:cut], RANK), (*shape[:cut], config.rank))
        found[f"{layer}/adapter/b"] = (
            (*axes[:lead], RANK, *axes[cut:]),
            (*shape[:lead], config.rank, *shape[cut:]),
        )
    return found


def outputs_of(axes: Axes) -> int:
    """Returns how many of a block's kernel's last dimensions are outputs.

    Kernels lead into the residual stream, ``embed``, or out of it.
    """
    return 1 if axes[-1] == "embed" else len(axes) - 1 - axes.index("embed")


def targeted(config: LoraConfig, paths: Iterable[str]) -> list[str]:
    """Returns the kernels that get adapters, in the order of ``paths``.

    Raises:
      ValueError: a target matches nothing, or what can have no adapter.
    """
    paths = list(paths)
    able = [path for path in paths if path.startswith("stacks/") and path.endswith("/kernel")]
    biases = {f"{path.removesuffix('kernel')}bias" for path in able}
    for target in config.targets:
        matched = [path for path in paths if re.search(target, path)]
        wrong = [path for path in matched if path not in able and path not in biases]
        if matched and not wrong and any(path in able for path in matched):
            continue
        problem = (
            f"matches {wrong[0]}{f' and {len(wrong) - 1} more' if wrong[1:] else ''}, which can "
            "have no adapter"
            if wrong
            else "matches no kernel"
        )
        raise ValueError(
            f"LoraConfig.targets: {target!r} {problem}. Adapters go beside kernels of blocks, not "
            "beside norms, embedding, head, router or routed experts; here there are "
            f"{', '.join(_endings(able))}."
        )
    return [path for path in able if any(re.search(target, path) for target in config.targets)]


def _endings(paths: Iterable[str]) -> list[str]:
    """Paths inside of a block, each once."""
    return list(dict.fromkeys(path.split("/", 4)[-1] for path in paths))
