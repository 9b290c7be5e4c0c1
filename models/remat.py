"""What a block's backward pass finds of its forward pass: kept, in host memory, or computed again.

Imports neither jax nor models, so that the planner reads it in milliseconds. The values are named
where they are computed (``checkpoint_name`` in attention.py, layers.py and experts.py); stack.py
applies the choice.
"""

import dataclasses
from typing import Self

SELECTIVE = ("query", "key", "value", "attention", "attention_out", "mlp_up", "mlp_gate")
"""Outputs of products with parameters, and of attention: of what costs, only scores are redone."""

SAVEABLE = (*SELECTIVE, "expert_in", "expert_out")
"""Values of a block that have a name.

The last two are a mixture of experts': rows as the experts read them and as they came back, so that
neither of the forward exchanges happens again. Together they are as large as the rest.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remat:
    """What happens to each named value; those in neither list are computed again.

    Attributes:
      save: kept in device memory.
      offload: moved to host memory and brought back for the backward pass.
    """

    save: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[str, ...]:
        """Values that are not computed again."""
        return self.save + self.offload

    @classmethod
    def parse(cls, policy: str) -> Self | None:
        """Reads DecoderConfig.remat; None where everything is kept, "none".

        Raises:
          ValueError: it is none of the forms, or a name is unknown or stands twice.
        """
        if policy == "none":
            return None
        named = {"full": cls(), "selective": cls(save=SELECTIVE)}.get(policy)
        if named is not None:
            return named
        choices: dict[str, tuple[str, ...]] = {}
        for clause in policy.split(";"):
            choice, _, names = clause.partition(":")
            if choice not in ("save", "offload") or choice in choices:
                raise ValueError(_forms(policy))
            choices[choice] = tuple(names.split(","))
        given = [name for names in choices.values() for name in names]
        wrong = sorted({n for n in given if n not in SAVEABLE or given.count(n) > 1})
        if wrong:
            raise ValueError(f"{_forms(policy)} Unknown or twice: {', '.join(map(repr, wrong))}.")
        return cls(**choices)


def _forms(policy: str) -> str:
    return (
        f"DecoderConfig.remat={policy!r}: allowed are 'none', 'selective', 'full', and 'save:' or "
        f"'offload:' with names, or both as in 'save:attention;offload:mlp_up,mlp_gate'. Names: "
        f"{', '.join(SAVEABLE)}."
    )
