"""What parameters and their gradients move; see traffic.py, and traffic_step.py for the letters.

Imports neither jax nor flax.
"""

import math
from collections.abc import Iterator

from models.lora_config import is_adapter
from partitioning.rules import optimizer_rules
from partitioning.traffic_step import REPLICAS, STAGE, Step, stored_width
from partitioning.transfers import Transfer


class Weight:
    """One parameter: where it lives, and what that costs."""

    def __init__(self, step: Step, *, name: str, axes: tuple[str, ...], shape: tuple[int, ...]):
        """Resolves the rules for it.

        Raises:
          ValueError: a rule does not fit.
        """
        self.step, self.name, self.axes = step, name, axes
        self.elements = math.prod(shape)
        here = step.split(axes, shape, table=step.rules.parameters, name=name)
        state = step.split(axes, shape, table=optimizer_rules(step.rules), name=name)
        self.own = set().union(*here.values())
        self.state = set().union(*state.values())
        self.repeated = STAGE in here.get("layers", set())
        self.is_router = axes[-1] == "experts"
        # Stages and experts differ in what they hold: neither gathered nor summed over these.
        apart = here.get("layers", set()) | (
            set() if self.is_router else here.get("experts", set())
        )
        self.apart = apart
        self.local = self.own - apart

    def transfers(self) -> Iterator[Transfer]:
        """Yields everything that the parameter moves; beside adapters the others only gather."""
        yield from self.gathers()
        if self.step.model.lora is not None and not is_adapter(self.name):
            return
        yield from self.reductions()
        yield self.step.move(
            "all-gather",
            axes=self.state - self.own,
            payload=self.elements / self.step.ways(self.own) * self.param_width,
            why=f"{self.part}: updated parameters",
            per_block=self.part == "blocks",
            before="end",
        )

    def gathers(self) -> Iterator[Transfer]:
        """Fully sharded data parallelism (ZeRO-3, Rajbhandari et al., 2020).

        The tokens' axes that also split a parameter gather it wherever it is used: all-gather,
        payload ``P b / t``, per run (see Step.uses)

          * once per forward pass of a block and once for its backward pass, in which
            recomputation and both products of the gradient share one gather;
          * not again for experts where nothing is computed again: what their shard_map gathered is
            kept for the backward pass, at the price of that memory;
          * once more for the attention sublayer's last product where its output is computed again:
            compilers do not merge the gathers for that and for its gradient;
          * once per forward pass for the embedding, whose backward pass does not read the table,
            and for the head, which all chunks of the loss and the backward pass share.

        What all stages read is gathered over ``stage`` once per step, as parameters are stored.
        """
        step = self.step
        gathered = self.local & step.token_axes
        rest = (self.local - gathered - {STAGE}) | self.apart
        yield step.move(
            "all-gather",
            axes=gathered,
            payload=self.elements / step.ways(rest) * step.width * self.times,
            why=f"{self.part}: gathered where used",
            per_block=self.part == "blocks",
        )
        yield step.move(
            "all-gather",
            axes=self.local & {STAGE},
            payload=self.elements / step.ways(self.own - {STAGE}) * self.param_width,
            why=f"{self.part}: for all stages",
            per_block=self.part == "blocks",
        )

    def reductions(self) -> Iterator[Transfer]:
        """Gradients are sums over the tokens' axes.

        Reduce-scatter over those that split the optimizer's state, payload ``P b / t`` per run (C
        times for the head, whose gradient is reduced chunk by chunk), and all-reduce of what is
        left over the others. Norms are float32 and, under sequence parallelism, also sums over
        ``tensor``.

        With several microbatches replicas add up once per step, after all of them, in float32 at
        least (replicas.py); so do stages for what all of them read, and these come first.
        """
        step = self.step
        left = self.summed - self.apart
        wide = max(4, step.width)
        narrow = wide if self.part == "norms" or self.is_router else step.width
        waiting = [] if step.schedule is None else [{STAGE} - self.apart]
        waiting += [{REPLICAS} & left] if step.work.microbatches > 1 else []
        left |= set().union(*waiting)
        rounds = [(left.difference(*waiting), narrow * self.reduced), *((w, wide) for w in waiting)]
        for axes, bytes_each in rounds:
            scattered = self.state & axes
            size = self.elements / step.ways((self.own | self.state) - left) * bytes_each
            yield step.move(
                "reduce-scatter",
                axes=scattered,
                payload=size,
                why=f"{self.part}: gradients to who updates them",
                per_block=self.part == "blocks",
            )
            yield step.move(
                "all-reduce",
                axes=axes - scattered,
                payload=size / step.ways(scattered),
                why=f"{self.part}: gradients summed",
                per_block=self.part == "blocks",
            )
            left -= axes

    @property
    def times(self) -> float:
        """Gathers per step."""
        uses = [self.step.uses(place) for place in self.places]
        if "vocab" in self.axes:
            return sum(use.runs * use.forward for use in uses)
        out = self.axes[-3:] == ("heads", "head_dim", "embed")
        again = out and self.step.recomputes_value("attention_out")
        kept = "experts" in self.axes and not self.is_router and not self.step.recomputes
        backward = again + (0 if kept else 1)
        return sum(use.runs * (use.forward + backward) for use in uses)

    @property
    def reduced(self) -> float:
        """Reductions per step."""
        chunks = self.step.model.loss_chunks if "vocab" in self.axes else 1
        return sum(
            self.step.uses(place).runs * (chunks if place == "head" else 1) for place in self.places
        )

    @property
    def places(self) -> tuple[str, ...]:
        """Parts of the model that read it."""
        if "vocab" not in self.axes:
            named = [part for part in ("prefix", "suffix") if f"stacks/{part}/" in self.name]
            return tuple(named) or (("pattern",) if "layers" in self.axes else ("head",))
        if self.axes[0] != "vocab":
            return ("head",)
        return ("embedding", "head") if self.step.model.tied_embedding else ("embedding",)

    @property
    def part(self) -> str:
        """What the parameter is called in the terms."""
        if "vocab" in self.axes:
            return "embedding" if self.axes[0] == "vocab" else "head"
        return "norms" if "norm" in self.axes else "blocks"

    @property
    def summed(self) -> set[str]:
        """Mesh axes over which the gradient is a sum: all that split rows or sequence."""
        own = self.step.axes_of("act_length_residual") if "norm" in self.axes else set()
        return self.step.token_axes | own

    @property
    def param_width(self) -> int:
        """Bytes of an element as it is stored."""
        return stored_width(self.step.model, self.name)
