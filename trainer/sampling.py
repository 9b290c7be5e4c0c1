"""Continues texts token by token, with cached keys and values.

Promises: the continuation of a prompt depends on the parameters, the prompt, its number and the
settings, not on what else is in the batch, on the mesh, or on how far rows are padded.

Rows of a batch end at the same slot, with padding before the shorter prompts: so one index says
where all rows write.

Shape suffixes: B rows, P slots of the prompts, S cache slots, V vocab.
"""

import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.attention import Decoding, Tokens
from models.context import Context
from models.decoder import Decoder
from partitioning.mesh_config import AXES
from trainer.program import Program
from trainer.state import Group, TrainState, off_devices, parameter_shardings, whole

PROMPT_SLOTS = 32
"""Slots for prompts are a multiple of this, so that few lengths are compiled."""

_LOOK_S = 0.005
"""While the runtime waits for devices, Ctrl-C is not heard; between looks it is."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
      count: most tokens of a continuation.
      temperature: divides the logits; 0 takes the most likely token.
      top_k: draw only from the k most likely tokens; None from all.
      top_p: draw only from the most likely tokens that together have this probability (nucleus
        sampling; Holtzman et al., 2020); 1 draws from all.
      stop: tokens that end a continuation.
      seed: of the draws.
      batch: rows that are computed together.
    """

    count: int
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    stop: tuple[int, ...] = ()
    seed: int = 0
    batch: int = 8

    def __post_init__(self) -> None:
        allowed = {
            "count": (self.count >= 0, "at least 0"),
            "temperature": (0 <= self.temperature < float("inf"), "at least 0 and finite"),
            "top_k": (self.top_k is None or self.top_k >= 1, "at least 1, or left out"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "seed": (0 <= self.seed < 2**32, "from 0 to 2^32 - 1"),
            "batch": (self.batch >= 1, "at least 1"),
        }
        for name, (fits, said) in allowed.items():
            if not fits:
                raise ValueError(f"{name}={getattr(self, name)}: it must be {said}.")


@dataclasses.dataclass(frozen=True)
class Continuation:
    """What follows a prompt.

    Attributes:
      tokens: [n] int32, without the token that stopped it.
      stopped: whether a stop token came, rather than the limit.
    """

    tokens: np.ndarray
    stopped: bool


def generate(
    program: Program,
    state: TrainState,
    prompts: Sequence[np.ndarray],
    *,
    sampling: Sampling,
) -> Iterator[Continuation]:
    """Yields the continuation of each prompt, in order, as soon as its batch is done.

    Args:
      program: the run's fixed parts; its task's model is a Decoder.
      state: parameters; the average is taken where there is one.
      prompts: [n] int32 token ids each, at least one.
      sampling: how tokens are chosen.

    Raises:
      ValueError: a prompt is empty, or has a token that the model does not know.
    """
    _check(prompts, vocabulary=program.axes["embedding"][1][0])
    if not sampling.count:
        yield from (Continuation(np.zeros((0,), np.int32), False) for _ in prompts)
        return
    mesh, group = _without_stages(program, whole(state, program, scored=True))
    run = jax.jit(
        functools.partial(_continue, program.graph, sampling=sampling),
        out_shardings=NamedSharding(mesh, PartitionSpec()),
    )
    for first in range(0, len(prompts), sampling.batch):
        rows = prompts[first : first + sampling.batch]
        # The last batch has as many rows as the others, so that it is the same program.
        size = min(sampling.batch, len(prompts))
        filled = [*rows, *[rows[0]] * (size - len(rows))]
        inputs, padding = _aligned(filled)
        numbers = first + np.arange(size, dtype=np.int32)
        found = run(group, inputs, padding, numbers)
        while not found[0].is_ready():
            time.sleep(_LOOK_S)
        tokens, lengths, stopped = jax.device_get(found)
        for row in range(len(rows)):
            yield Continuation(tokens[row, : lengths[row]], bool(stopped[row]))


def _check(prompts: Sequence[np.ndarray], *, vocabulary: int) -> None:
    for number, prompt in enumerate(prompts, 1):
        if not len(prompt):
            raise ValueError(f"Prompt {number} is empty, and this tokenizer has no start token.")
        if not 0 <= min(prompt) <= max(prompt) < vocabulary:
            raise ValueError(
                f"Prompt {number} has token {max(prompt)}, but the model knows {vocabulary} "
                "tokens: the tokenizer belongs to another model."
            )


def _aligned(prompts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns tokens [B, P], all prompts ending at the last slot, and padding before each [B]."""
    longest = max(len(prompt) for prompt in prompts)
    slots = -(-longest // PROMPT_SLOTS) * PROMPT_SLOTS
    padding = np.asarray([slots - len(prompt) for prompt in prompts], np.int32)
    inputs = np.zeros((len(prompts), slots), np.int32)
    for row, prompt in zip(inputs, prompts, strict=True):
        row[slots - len(prompt) :] = prompt
    return inputs, padding


def _without_stages(program: Program, group: Group) -> tuple[Mesh, Group]:
    """Returns a mesh whose stages are shards instead, and the group laid out on it.

    One token passes one stage at a time, so that a pipeline would only wait.
    """
    if program.stages == 1:
        return program.mesh, group
    sizes = {**program.mesh.shape, "stage": 1}
    sizes["fsdp"] *= program.stages
    devices = program.mesh.devices.reshape([sizes[axis] for axis in AXES])
    mesh = Mesh(devices, AXES, axis_types=program.mesh.axis_types)
    parameters = off_devices(group.parameters, program)
    # One parameter at a time: only one is in memory twice.
    moved = jax.tree.map(
        lambda leaf, at: jax.jit(lambda x: x, out_shardings=at)(leaf),
        parameters,
        parameter_shardings(dataclasses.replace(program, mesh=mesh), parameters),
    )
    return mesh, dataclasses.replace(group, parameters=moved)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Written:
    """What the loop carries: number of the token [], tokens [B, count], lengths [B], whether a stop
    token came [B], and the caches."""

    number: jax.Array
    tokens: jax.Array
    lengths: jax.Array
    stopped: jax.Array
    caches: Any


def _continue(
    graph: nnx.GraphDef,
    group: Group,
    inputs_BP: jax.Array,
    padding_B: jax.Array,
    rows_B: jax.Array,
    *,
    sampling: Sampling,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns tokens [B, count], how many there are [B], and whether each was stopped [B]."""
    model = nnx.merge(graph, group.parameters, group.variables)
    assert isinstance(model, Decoder)
    B, P = inputs_BP.shape
    keys_B = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(sampling.seed), rows_B)
    choose = functools.partial(_choose, keys_B=keys_B, sampling=sampling)
    forward = functools.partial(_forward, model, slots=_slots(padding_B, count=P + sampling.count))
    logits_BV, caches = forward(inputs_BP, 0, model.empty_caches(B, P + sampling.count))

    def written(now: _Written, logits_BV: jax.Array, caches: Any) -> _Written:
        token_B = choose(logits_BV, now.number)
        stops = jnp.isin(token_B, jnp.asarray(sampling.stop, jnp.int32))
        goes_on = ~(now.stopped | stops)
        return _Written(
            now.number + 1,
            now.tokens.at[:, now.number].set(jnp.where(goes_on, token_B, 0)),
            now.lengths + goes_on,
            ~goes_on,
            caches,
        )

    def step(now: _Written) -> _Written:
        last_B1 = jax.lax.dynamic_slice_in_dim(now.tokens, now.number - 1, 1, axis=1)
        return written(now, *forward(last_B1, P + now.number - 1, now.caches))

    def unfinished(now: _Written) -> jax.Array:
        return (now.number < sampling.count) & ~now.stopped.all()

    none_B = jnp.zeros((B,), jnp.int32)
    empty = jnp.zeros((B, sampling.count), jnp.int32)
    start = _Written(jnp.zeros((), jnp.int32), empty, none_B, none_B.astype(bool), caches)
    end = jax.lax.while_loop(unfinished, step, written(start, logits_BV, caches))
    return end.tokens, end.lengths, end.stopped


def _slots(padding_B: jax.Array, *, count: int) -> Tokens:
    """Returns where the tokens of all slots stand; a row's first slots are padding."""
    places_BS = jnp.arange(count, dtype=jnp.int32) - padding_B[:, None]
    return Tokens(positions=jnp.maximum(places_BS, 0), segments=(places_BS >= 0).astype(jnp.int32))


def _forward(
    model: Decoder, inputs_BT: jax.Array, start: jax.Array | int, caches: Any, *, slots: Tokens
) -> tuple[jax.Array, Any]:
    """Returns logits [B, V] after the last of the inputs, which begin at a slot, and the caches."""
    # Unconstrained: one token divides over no mesh; the compiler follows the parameters.
    ctx = Context()
    part = functools.partial(
        jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=inputs_BT.shape[1], axis=1
    )
    hidden, caches, _ = model(
        inputs_BT,
        jax.tree.map(part, slots),
        ctx=ctx,
        decoding=Decoding(caches=caches, index=start, tokens=slots),
    )
    return model.logits(hidden[:, -1:], ctx)[:, 0], caches


def _choose(
    logits_BV: jax.Array, number: jax.Array, *, keys_B: jax.Array, sampling: Sampling
) -> jax.Array:
    """Returns a token of each row: [B] int32."""
    if sampling.temperature == 0.0:
        return jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
    # The highest becomes 0: however low the temperature is, that is not infinite.
    logits_BV = logits_BV - jnp.max(logits_BV, axis=-1, keepdims=True)
    temperature = max(sampling.temperature, float(jnp.finfo(logits_BV.dtype).tiny))
    logits_BV = candidates(logits_BV / temperature, top_k=sampling.top_k, top_p=sampling.top_p)
    keys_B = jax.vmap(jax.random.fold_in, (0, None))(keys_B, number)
    return jax.vmap(jax.random.categorical)(keys_B, logits_BV).astype(jnp.int32)


def candidates(logits_BV: jax.Array, *, top_k: int | None, top_p: float) -> jax.Array:
    """Returns logits with -inf for the tokens that are not drawn from; see `Sampling`.

    Tokens as likely as the last that is drawn from are kept, too.
    """
    if top_k is not None and top_k < logits_BV.shape[-1]:
        least = jax.lax.top_k(logits_BV, top_k)[0][:, -1:]
        logits_BV = jnp.where(logits_BV < least, -jnp.inf, logits_BV)
    if top_p < 1.0:
        sorted_BV = -jnp.sort(-logits_BV, axis=-1)
        share_BV = jax.nn.softmax(sorted_BV, axis=-1)
        # A token is kept if those before it do not reach the share: the first always is.
        kept_BV = jnp.cumsum(share_BV, axis=-1) - share_BV < top_p
        least = jnp.min(sorted_BV, axis=-1, keepdims=True, where=kept_BV, initial=jnp.inf)
        logits_BV = jnp.where(logits_BV < least, -jnp.inf, logits_BV)
    return logits_BV
