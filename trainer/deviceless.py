"""Compiles a run's train step for chips that are not there, and keeps what the compiler says.

The one way from a configuration to a compiled step without devices: what collectives, the dry run
and checks of plans look at is what this returns. Nothing is allocated and nothing runs.
"""

import contextlib
import dataclasses
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh

from partitioning.collectives import MeshShape
from partitioning.mesh import axis_sizes
from partitioning.mesh_config import AXES
from partitioning.target_cudnn import kernels_of
from partitioning.targets import target_devices
from trainer.assembly import checked_program
from trainer.program import Program
from trainer.run_config import RunConfig
from trainer.state import abstract_batch, abstract_state
from trainer.step import build_train_step

_QUICK: Mapping[str, Mapping[str, Any]] = {
    "gpu": {"xla_gpu_enable_triton_gemm": False, "xla_backend_optimization_level": 0},
    "tpu": {"optimization_level": "O0", "memory_fitting_level": "O0"},
    "cpu": {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True},
}
"""Options under which a compiler makes the same collectives in less time, and slower kernels."""

_COMPLAINT = re.compile(r"Involuntary full rematerialization[^\n]*")
_MOVED = re.compile(r"from sharding (.*?) to (.*?) efficiently for HLO operation %?(\S+) = (\S+)")
_SOURCE = re.compile(r'op_name="([^"]*)"')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one device.

    Attributes:
      arguments: state and batch.
      outputs: new state and metrics; mostly in the arguments' place.
      aliased: share of the outputs that takes the arguments' place.
      temporary: everything between.
      host: temporaries in host memory, which count for no other.
      reported: peak by the compiler's own account, which may leave some of these out, and with
        ``host`` in it.
    """

    arguments: int
    outputs: int
    aliased: int
    temporary: int
    host: int = 0
    reported: int = 0

    @property
    def peak(self) -> int:
        """Bytes that must be free before the step: arguments, outputs of their own, temporaries."""
        summed = self.arguments + self.outputs - self.aliased + self.temporary
        return max(summed, self.reported - self.host)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompiledStep:
    """A train step for a target.

    Attributes:
      program: what was compiled.
      mesh: how its devices are numbered.
      text: the compiled program.
      memory: of one device.
      complaints: where the partitioner says that it replicates an array in order to move it.
    """

    program: Program
    mesh: MeshShape
    text: str
    memory: Memory
    complaints: tuple[str, ...]


def device_count(run: RunConfig) -> int:
    """Returns the devices of a run whose mesh leaves no axis open.

    Raises:
      ValueError: an axis is -1, so that the number of devices has to be given.
    """
    count = 1
    for axis in AXES:
        size = getattr(run.mesh, axis)
        if size == -1:
            raise ValueError(
                f"MeshConfig.{axis}=-1 takes what is left: say of how many devices, with "
                f"--devices or MeshConfig.{axis}."
            )
        count *= size
    return count


def target_program(
    run: RunConfig, *, target: str, devices: int | None = None, slices: int = 1
) -> Program:
    """Returns the program of ``run`` on devices of ``target`` (see partitioning/targets.py).

    Raises:
      ValueError: target, mesh, rules, model, schedule and batch do not fit together.
    """
    count = device_count(run) if devices is None else devices
    return checked_program(run, devices=target_devices(target, devices=count, slices=slices))


def compile_train_step(program: Program, *, run: RunConfig, quick: bool = False) -> CompiledStep:
    """Compiles the train step of ``program`` for the devices of its mesh.

    What the compiler writes to the process's stderr meanwhile is read, not shown.

    Args:
      program: from ``target_program``.
      run: gives batch and length.
      quick: the same collectives in less time, with slower kernels.

    Raises:
      jax.errors.JaxRuntimeError: the compiler refuses; TPU's does where memory does not suffice.
    """
    rows, length = run.data.global_batch, run.data.sequence_length
    batch = abstract_batch(program, rows=rows, length=length)
    device = program.mesh.devices.flat[0]
    options = dict(_QUICK[device.platform]) if quick else None
    said: list[str] = []
    with kernels_of(device), without_cache(), captured_stderr(said):
        lowered = build_train_step(program).lower(abstract_state(program), batch)
        compiled = lowered.compile(compiler_options=options)
    stats, text = compiled.memory_analysis(), compiled.as_text()
    assert stats is not None
    assert text is not None
    return CompiledStep(
        program=program,
        mesh=mesh_shape(program.mesh, run=run),
        text=text,
        memory=Memory(
            arguments=stats.argument_size_in_bytes,
            outputs=stats.output_size_in_bytes,
            aliased=stats.alias_size_in_bytes,
            temporary=stats.temp_size_in_bytes,
            host=stats.host_temp_size_in_bytes,
            reported=stats.peak_memory_in_bytes,
        ),
        complaints=complaints("".join(said)),
    )


def mesh_shape(mesh: Mesh, *, run: RunConfig) -> MeshShape:
    """Returns sizes of the axes, and which part of them crosses TPU slices."""
    slices = {getattr(device, "slice_index", None) for device in mesh.devices.flat}
    outer = dict(run.mesh.outer) if len(slices) > 1 else {}
    return MeshShape(sizes=axis_sizes(mesh), outer=outer)


def complaints(text: str) -> tuple[str, ...]:
    """Returns one line for each array that the partitioner replicates in order to move it."""
    found = []
    for line in _COMPLAINT.findall(text):
        moved, source = _MOVED.search(line), _SOURCE.search(line)
        if moved is None:
            found.append(line)
            continue
        before, after, name, kind = moved.groups()
        where = f" in {source[1]}" if source else ""
        found.append(f"{name} ({kind}){where} is replicated on its way from {before} to {after}")
    return tuple(dict.fromkeys(found))


@contextlib.contextmanager
def without_cache() -> Iterator[None]:
    """Switches jax's compilation cache off.

    A program that comes out of it makes no complaints, and one for devices that are not there
    cannot be read back.
    """
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # it remembers whether it is in use
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


@contextlib.contextmanager
def captured_stderr(said: list[str]) -> Iterator[None]:
    """Reads what C++ code writes to file descriptor 2; appended to ``said`` at the end.

    If the code inside raises, the text is written to stderr after all: it may hold the reason.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        failed = True
        try:
            yield
            failed = False
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            text = file.read().decode(errors="replace")
            said.append(text)
            if failed:
                sys.stderr.write(text)
