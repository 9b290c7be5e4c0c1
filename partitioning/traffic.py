"""What a decoder's train step must move between devices, from formulas.

Plain arithmetic over the configuration, for planning and to hold a compiled program against: see
collectives.py for what is counted, and its definitions of payload and wire. Imports neither jax
nor flax.

Left out, because they are far below a thousandth of the rest: sums over the vocabulary of one
number per token, the gradient norm, and metrics.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping

from models.decoder_config import DecoderConfig
from partitioning.mesh_config import AXES, RulesConfig
from partitioning.rules import activation_rules, assign, mesh_axes, optimizer_rules

Parameters = Mapping[str, tuple[tuple[str, ...], tuple[int, ...]]]
"""Path -> (logical axes, shape), a stack's ``layers`` dimension included."""

_WIDTH = {"float64": 8, "float32": 4, "bfloat16": 2}
_ONE_WAY = ("collective-permute", "collective-broadcast", "send")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """What one step computes.

    Attributes:
      rows: of the global batch.
      length: tokens of a row.
      microbatches: parts of the global batch that run one after the other.
    """

    rows: int
    length: int
    microbatches: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transfer:
    """Bytes that one device takes part in moving per step, for one reason.

    Attributes:
      kind: as in collectives.KINDS.
      axes: mesh axes that it spans, outermost first.
      group: devices that exchange with each other.
      payload: bytes per step, as collectives.py defines them.
      why: what is moved.
    """

    kind: str
    axes: tuple[str, ...]
    group: int
    payload: float
    why: str

    @property
    def wire(self) -> float:
        """Bytes that one device sends per step, in a ring."""
        return wire_bytes(self.kind, payload=self.payload, group=self.group)


def wire_bytes(kind: str, *, payload: float, group: int) -> float:
    """Returns what one device sends in a ring of ``group`` devices.

    An all-gather passes every device's share on to the next, ``g - 1`` times ``payload / g``; a
    reduce-scatter and an all-to-all send as much; an all-reduce is a reduce-scatter and an
    all-gather (Patarasuk and Yuan, 2009). A permutation sends its payload.
    """
    if kind in _ONE_WAY:
        return payload
    return payload * (group - 1) / group * (2 if kind == "all-reduce" else 1)


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
      work: the batch.

    Raises:
      ValueError: a rule does not fit a parameter.
    """
    step = _Step(model=model, sizes=dict(sizes), rules=rules, work=work)
    moved = [
        t for name, (axes, shape) in parameters.items() for t in step.weight(name, axes, shape)
    ]
    return merged((*moved, *step.activations()))


def merged(transfers: Iterable[Transfer]) -> tuple[Transfer, ...]:
    """Adds up transfers of the same kind, axes and reason; drops what moves nothing."""
    total: dict[tuple[str, tuple[str, ...], str], Transfer] = {}
    for transfer in transfers:
        key = (transfer.kind, transfer.axes, transfer.why)
        before = total[key].payload if key in total else 0.0
        total[key] = dataclasses.replace(transfer, payload=before + transfer.payload)
    return tuple(t for t in total.values() if t.payload and t.group > 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Step:
    """The terms of one step; every method states its formula.

    Letters: P elements of a parameter, b bytes per element (b of activations unless said), M
    microbatches, C chunks of the loss, L blocks, t size of ``tensor``, and A = rows / (data x fsdp
    x expert) x length / context x embed_dim x b, the residual stream of one tensor group for the
    whole step.
    """

    model: DecoderConfig
    sizes: dict[str, int]
    rules: RulesConfig
    work: Work

    def weight(
        self, name: str, axes: tuple[str, ...], shape: tuple[int, ...]
    ) -> Iterator[Transfer]:
        """Parameters that are split over the batch's axes, and every gradient.

        The batch's axes S that also split a parameter (fully sharded data parallelism; ZeRO-3,
        Rajbhandari et al., 2020) gather it wherever it is used: all-gather, payload ``P b / t``
        in the activations' dtype, per microbatch

          * twice for a block: forward, and backward, where recomputation and both products of the
            gradient share one gather;
          * once more for the attention sublayer's last product where its output is computed again:
            compilers do not merge the gathers for that and for its gradient;
          * once for the embedding, whose backward pass does not read the table;
          * once for the head, or 2 C times where the loss goes through the sequence in C > 1
            chunks, forward and again backward.

        Gradients are sums over the batch's axes (and ``context``): reduce-scatter over those that
        split the optimizer's state, payload ``P b / t`` per microbatch (C times for the head,
        whose gradient is reduced chunk by chunk), and all-reduce of what is left over the others.
        Norms are float32 and, under sequence parallelism, also sums over ``tensor``.

        Where the optimizer's state is split over axes that the parameter is not (ZeRO-1), the
        updated parameter is gathered once per step: ``P b`` in the parameters' dtype.
        """
        own = self._split(axes, shape, table=self.rules.parameters, name=name)
        state = self._split(axes, shape, table=optimizer_rules(self.rules), name=name)
        local = own - self._expert(axes, shape, name=name)
        elements = math.prod(shape)
        times, reductions = self._uses(axes)
        gathered = local & self._batch
        yield self._move(
            "all-gather",
            axes=gathered,
            payload=elements / self._ways(own - gathered) * self._width * times,
            why=f"{self._part(axes)}: gathered where used",
        )
        summed = self._summed(axes) - (own - local)
        scattered = state & summed
        norm = "norm" in axes
        width = max(4, self._width) if norm else self._width
        size = elements / self._ways((own | state) - scattered - gathered) * width * reductions
        yield self._move(
            "reduce-scatter",
            axes=scattered,
            payload=size,
            why=f"{self._part(axes)}: gradients to who updates them",
        )
        yield self._move(
            "all-reduce",
            axes=summed - scattered,
            payload=size / self._ways(scattered),
            why=f"{self._part(axes)}: gradients summed",
        )
        yield self._move(
            "all-gather",
            axes=state - own,
            payload=elements / self._ways(own) * _WIDTH[self.model.param_dtype],
            why=f"{self._part(axes)}: updated parameters",
        )

    def activations(self) -> Iterator[Transfer]:
        """Tensor parallelism (Shoeybi et al., 2019; Korthikanti et al., 2022).

        Each block has two pairs of column- and row-split products. Without sequence parallelism
        the output of each pair is a sum over ``tensor``, and so is the gradient of its input:
        all-reduce, ``A`` each: 2 forward, 2 backward, and 1 more where the backward pass computes
        the attention sublayer's output again (it does unless "attention_out" is saved).

        With sequence parallelism each of these is a reduce-scatter, and each pair's input (and
        each output's gradient) is gathered, all ``A``: 2 + 2 per block and direction. Where
        anything is recomputed the inputs are gathered once more (2), because they are not saved.

        The embedding splits its vocabulary: one sum forward. The head's input is gathered, and
        its gradient summed: reduce-scattered at once, or all-reduced chunk by chunk.

        Keys and values whose heads ``tensor`` does not divide are computed whole by every device
        of the group. Their gradients are gathered, ``2 A kv_heads head_dim / embed_dim`` per
        block, and make the sum that the queries' gradient needs an all-reduce.
        """
        tensor = self.sizes["tensor"]
        if tensor == 1:
            return
        model, whole = self.model, self._residual
        recomputed = model.remat_choices is not None
        again = 1 if self._recomputes_attention else 0
        replicated = 1 if model.kv_heads % tensor else 0
        blocks = model.layers * whole
        head = "all-reduce" if model.loss_chunks > 1 else "reduce-scatter"
        assert model.head_dim is not None
        share = 2 * model.kv_heads * model.head_dim / model.embed_dim
        yield self._over_tensor(
            "all-gather", replicated * share * blocks, why="blocks: gradients of keys and values"
        )
        if not self._sequence_parallel:
            yield self._over_tensor("all-reduce", (4 + again) * blocks, why="blocks: sums")
            yield self._over_tensor("all-reduce", whole, why="embedding: sum over the vocabulary")
            yield self._over_tensor("all-reduce", whole, why="head: gradient of its input")
        else:
            inputs = (4 + (2 if recomputed else 0)) * blocks
            yield self._over_tensor("all-gather", inputs, why="blocks: inputs of products")
            sums = (4 - replicated + again) * blocks
            yield self._over_tensor("reduce-scatter", sums, why="blocks: sums")
            yield self._over_tensor("all-reduce", replicated * blocks, why="blocks: sums")
            yield self._over_tensor(
                "reduce-scatter", whole, why="embedding: sum over the vocabulary"
            )
            yield self._over_tensor("all-gather", whole, why="embedding: gradient of its output")
            yield self._over_tensor("all-gather", whole, why="head: its input")
            yield self._over_tensor(head, whole, why="head: gradient of its input")

    def _over_tensor(self, kind: str, payload: float, *, why: str) -> Transfer:
        return self._move(kind, axes={"tensor"}, payload=payload, why=why)

    def _move(self, kind: str, *, axes: set[str], payload: float, why: str) -> Transfer:
        ordered = tuple(axis for axis in AXES if axis in axes)
        return Transfer(kind=kind, axes=ordered, group=self._ways(axes), payload=payload, why=why)

    def _ways(self, axes: Iterable[str]) -> int:
        return math.prod(self.sizes[axis] for axis in axes)

    def _split(
        self, axes: tuple[str, ...], shape: tuple[int, ...], *, table: tuple, name: str
    ) -> set[str]:
        entries, _ = assign(axes, shape=shape, rules=table, sizes=self.sizes, name=name)
        return {axis for entry in entries for axis in entry}

    def _expert(self, axes: tuple[str, ...], shape: tuple[int, ...], *, name: str) -> set[str]:
        """Mesh axes that hold different experts: what they split is never gathered or summed."""
        entries, _ = assign(
            axes, shape=shape, rules=self.rules.parameters, sizes=self.sizes, name=name
        )
        return {a for logical, entry in zip(axes, entries) if logical == "experts" for a in entry}

    def _uses(self, axes: tuple[str, ...]) -> tuple[int, int]:
        """Returns gathers and reductions of a parameter per step."""
        microbatches, chunks = self.work.microbatches, self.model.loss_chunks
        if "vocab" not in axes:
            again = self._recomputes_attention and axes[-3:] == ("heads", "head_dim", "embed")
            return (3 if again else 2) * microbatches, microbatches
        head = (1, 1) if chunks == 1 else (2 * chunks, chunks)
        if axes[0] != "vocab":
            return head[0] * microbatches, head[1] * microbatches
        if not self.model.tied_embedding:
            return microbatches, microbatches
        return (1 + head[0]) * microbatches, (1 + head[1]) * microbatches

    def _part(self, axes: tuple[str, ...]) -> str:
        if "vocab" in axes:
            return "embedding" if axes[0] == "vocab" else "head"
        return "norms" if "norm" in axes else "blocks"

    @property
    def _recomputes_attention(self) -> bool:
        """Whether the backward pass computes the attention sublayer's output again."""
        choices = self.model.remat_choices
        return choices is not None and "attention_out" not in choices.kept

    def _summed(self, axes: tuple[str, ...]) -> set[str]:
        """Mesh axes over which a gradient is a sum: all that split the batch or the sequence."""
        length = self._axes_of("act_length")
        own = self._axes_of("act_length_residual") if "norm" in axes else set()
        return self._batch | length | own

    @property
    def _batch(self) -> set[str]:
        return self._axes_of("act_batch")

    @property
    def _sequence_parallel(self) -> bool:
        return "tensor" in self._axes_of("act_length_residual")

    def _axes_of(self, logical: str) -> set[str]:
        rule = next(rule for rule in activation_rules(self.rules) if rule[0] == logical)
        return {axis for axis in mesh_axes(rule[1]) if self.sizes[axis] > 1}

    @property
    def _width(self) -> int:
        return _WIDTH[self.model.dtype]

    @property
    def _residual(self) -> float:
        tokens = self.work.rows * self.work.length
        ways = self._ways(self._batch | self._axes_of("act_length"))
        return tokens / ways * self.model.embed_dim * self._width
