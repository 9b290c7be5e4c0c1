"""One compiled training step against the same step on one device.

The step is the trainer's own. Its gradients are read from an optimizer that keeps the last
gradients as its state in front of SGD, so that they are seen apart from the update.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from models.decoder_config import DecoderConfig
from partitioning.mesh_config import ContextLayout, MeshConfig, PipelineConfig, RulesConfig
from partitioning.sequence_layout import dealt_columns
from trainer.certificate import programs
from trainer.paths import path_of
from trainer.program import Program
from trainer.state import abstract_state, init_state, off_devices, on_devices
from trainer.step import build_train_step

TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 4e-2}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A row of the table.

    Attributes:
      name: what is special about it.
      rules: rule set in configs/partitioning.
      mesh: sizes.
      sequence_parallel: switches ``RulesConfig.sequence_parallel``.
      layout: ``RulesConfig.context_layout``.
      batch: "packed" or "padded".
      microbatches: gradient accumulation, or what fills the pipeline.
      pipeline: schedule and chunks.
      execution: changes of the decoder that must not change numbers.
      model: changes of the decoder that do; the one-device step has them too.
      dtype: of parameters and activations.
      activations: their own dtype, in which case the step is compared with one in float64.
    """

    name: str
    rules: str = "fsdp"
    mesh: MeshConfig
    sequence_parallel: bool = True
    layout: ContextLayout = "zigzag"
    batch: str = "packed"
    microbatches: int = 1
    pipeline: PipelineConfig = PipelineConfig()  # noqa: RUF009 - frozen
    execution: tuple[tuple[str, Any], ...] = ()
    model: tuple[tuple[str, Any], ...] = ()
    dtype: str = "float64"
    activations: str | None = None

    @property
    def precision(self) -> str:
        """The dtype that decides how far off the step may be."""
        return self.activations or self.dtype

    def decoder(self) -> DecoderConfig:
        """Returns the decoder of this row."""
        changes = dict(self.model) | dict(self.execution)
        return programs.decoder(dtype=self.precision, param_dtype=self.dtype, **changes)

    def reference(self) -> "Case":
        """Returns the same step on one device, in one piece, nothing recomputed or scanned."""
        fixed = (("remat", "none"), ("scan_layers", False), ("loss_chunks", 1))
        return dataclasses.replace(
            self,
            name="one device",
            rules="ddp",
            mesh=MeshConfig(),
            sequence_parallel=True,
            dtype="float64" if self.activations else self.dtype,
            activations=None,
            # What a mixture of experts reports and balances is no sum over microbatches, nor are
            # gradients whose products are rounded by the largest value of a microbatch.
            microbatches=self.microbatches
            if {"experts", "matmul"} & dict(self.model).keys()
            else 1,
            layout="zigzag",
            pipeline=PipelineConfig(),
            execution=fixed,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one step returned, on the host: name -> array."""

    loss: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    parameters: dict[str, np.ndarray]


def outcome(
    case: Case, *, program: Program | None = None, batch: dict[str, np.ndarray] | None = None
) -> Outcome:
    """Runs one step from the initial parameters of the one-device program."""
    program = keep_gradients(program or program_of(case))
    batch = programs.batch(case.batch) if batch is None else batch
    start = initial(case.reference())

    def placed(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        value = start.get(path_of(path), np.zeros(leaf.shape))
        return jax.device_put(value.astype(leaf.dtype), leaf.sharding)

    state = jax.tree_util.tree_map_with_path(placed, abstract_state(program))
    state = on_devices(state, program)
    columns = dealt_columns(
        layout=program.shard.layout, length=programs.LENGTH, shards=program.shard.context
    )
    if columns is not None:
        batch = {name: array[:, columns] for name, array in batch.items()}
    with fast_compilation(case.dtype == "float64"):
        state, metrics = build_train_step(program)(state, batch)
    group = off_devices(state, program).groups[program.trained]
    return Outcome(
        loss=flat({name: metrics[name] for name in ("loss", "weight", "grad_norm", "sums")}),
        gradients=flat(group.optimizer[0]),
        parameters=flat(group.parameters),
    )


@functools.cache
def on_one_device(case: Case) -> Outcome:
    """Returns the outcome of ``case.reference()``."""
    return outcome(case)


@functools.cache
def initial(reference: Case) -> dict[str, np.ndarray]:
    """Returns path in the state -> initial parameter on the host.

    Adapters' second matrices, which start as zeros, are drawn: else the first would learn nothing.
    """
    found = flat(jax.device_get(init_state(program_of(reference))))
    random = np.random.default_rng(0)
    return {
        path: 0.1 * random.standard_normal(value.shape) if path.endswith("/adapter/b") else value
        for path, value in found.items()
        if "/parameters/" in path
    }


@contextlib.contextmanager
def fast_compilation(wanted: bool) -> Iterator[None]:
    """Leaves out LLVM's optimisations, which know nothing of shardings; XLA's own stay on."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", wanted)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def program_of(case: Case) -> Program:
    """Returns the program of a row."""
    rules: RulesConfig = dataclasses.replace(
        programs.rules(case.rules),
        sequence_parallel=case.sequence_parallel,
        context_layout=case.layout,
    )
    return programs.program(
        case.decoder(),
        mesh=case.mesh,
        rules=rules,
        train={"microbatches": case.microbatches},
        pipeline=case.pipeline,
        z_loss=1e-3,
    )


def keep_gradients(program: Program) -> Program:
    """Returns the program with the last gradients as the first part of its optimizer's state."""
    keep = optax.GradientTransformation(
        lambda parameters: jax.tree.map(jnp.zeros_like, parameters), lambda g, _, __: (g, g)
    )
    return dataclasses.replace(program, optimizer=optax.chain(keep, program.optimizer))


def errors(found: Outcome, expected: Outcome) -> dict[str, tuple[str, float]]:
    """Returns, for loss, gradients and parameters, the worst leaf and its relative error."""
    return {
        field.name: _worst(getattr(found, field.name), getattr(expected, field.name))
        for field in dataclasses.fields(Outcome)
    }


def flat(tree: Any) -> dict[str, np.ndarray]:
    """Returns path -> host array."""
    return {path_of(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


def _worst(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> tuple[str, float]:
    assert found.keys() == expected.keys()
    assert all(found[name].shape == value.shape for name, value in expected.items())
    relative = {}
    for name, value in expected.items():
        largest = np.abs(value).max()
        if name in ("sums/correct", "sums/dropped"):  # counts, and possibly none
            largest = max(largest, 1.0)
        assert largest > 0, f"{name} is all zero: it would agree with anything"
        relative[name] = float(np.abs(found[name] - value).max() / largest)
    return max(relative.items(), key=lambda pair: pair[1] if pair[1] == pair[1] else np.inf)
