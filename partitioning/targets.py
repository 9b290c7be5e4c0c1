"""Chips that programs are compiled for without having them.

A target gives devices that exist only for the compiler: a mesh of them, ``jit(...).lower`` on
shapes that carry shardings of that mesh, and ``compile`` work as on the real machine; running does
not. The compilers come in wheels that are kept apart (``make aot`` installs them into
``.venv/aot``), because jax greets a GPU or TPU plugin on its own path with an attempt to use it.

May import jax, and of this package the mesh configuration only.
"""

import dataclasses
import functools
import importlib.resources
import math
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any, Literal

import jax
from jax.experimental import topologies

GIB = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A kind of chip.

    Attributes:
      name: what ``--target`` takes.
      platform: who compiles.
      memory: bytes of one device; 0 where it does not matter.
      per_host: GPU: devices of one host.
      torus: TPU: dimensions of the torus that chips form.
      per_chip: TPU: devices of one chip.
    """

    name: str
    platform: Literal["cuda", "tpu", "cpu"]
    memory: int
    per_host: int = 8
    torus: int = 0
    per_chip: int = 1


TARGETS = {
    target.name: target
    for target in (
        Target(name="h100", platform="cuda", memory=84_978_434_048),
        Target(name="v4", platform="tpu", memory=16 * GIB, torus=3, per_chip=2),
        Target(name="v5e", platform="tpu", memory=16 * GIB, torus=2),
        Target(name="v5p", platform="tpu", memory=95 * GIB, torus=3),
        Target(name="v6e", platform="tpu", memory=32 * GIB, torus=2),
        Target(name="tpu7x", platform="tpu", memory=96 * GIB, torus=3, per_chip=2),
        Target(name="cpu", platform="cpu", memory=0),
    )
}


class CompilerMissing(ValueError):
    """The compiler for a target is not installed."""


def target_devices(name: str, *, devices: int, slices: int = 1) -> Sequence[jax.Device]:
    """Returns devices of a target, for ``build_mesh``.

    Args:
      name: a key of TARGETS; a TPU's may be followed by its torus, as in ``v5p:8x16x16``.
      devices: how many in all.
      slices: TPU: groups that are joined by the data-centre network only.

    Raises:
      CompilerMissing: the compiler's wheel is not installed.
      ValueError: the target is unknown, or has no such number of devices.
    """
    name, _, torus = name.partition(":")
    if name not in TARGETS:
        raise ValueError(f"Unknown target {name!r}; known: {', '.join(TARGETS)}.")
    target = TARGETS[name]
    if target.platform == "cuda":
        return _cuda_devices(target, devices=devices)
    if target.platform == "tpu":
        return _tpu_devices(target, torus=torus, devices=devices, slices=slices)
    found = jax.devices("cpu")
    if len(found) < devices:
        raise ValueError(
            f"The cpu target has {len(found)} virtual device(s), {devices} are needed: set "
            "jax_num_cpu_devices before jax starts."
        )
    return found[:devices]


def torus_shape(devices: int, *, dimensions: int) -> tuple[int, ...]:
    """Returns the most cubic torus of a power of two of chips, shortest side first.

    Raises:
      ValueError: ``devices`` is not a power of two; such tori exist, but must be named.
    """
    exponent = devices.bit_length() - 1
    if devices < 1 or 2**exponent != devices:
        raise ValueError(
            f"{devices} chips are not a power of two: name the torus, as in v5p:8x8x12."
        )
    base, extra = divmod(exponent, dimensions)
    if dimensions == 3 and exponent == 2:
        return (2, 2, 1)  # a host's tray, the smallest that exists
    return tuple(2 ** (base + (i >= dimensions - extra)) for i in range(dimensions))


def compiler_directory() -> pathlib.Path:
    """Returns where ``make aot`` puts compilers."""
    return pathlib.Path(sys.prefix) / "aot"


def _cuda_devices(target: Target, *, devices: int) -> Sequence[jax.Device]:
    from jax._src.lib import xla_client  # no public name makes a topology without a backend

    per_host = min(devices, target.per_host)
    if devices < 1 or devices % per_host:
        raise ValueError(f"{devices} devices are not a multiple of {per_host} in each host.")
    folder = importlib.resources.files("partitioning")
    description = folder.joinpath(f"{target.name}.textproto").read_text()
    wanted = {
        "target_config": description,
        "topology": f"1x{devices // per_host}x{per_host}",
    }
    compiler = _cuda_compiler()
    if compiler is None:
        return topologies.get_topology_desc(platform="cuda", topology_name="", **wanted).devices
    topology: Any = xla_client.make_c_api_device_topology(compiler, "", **wanted)
    return topologies.TopologyDescription(topology._make_compile_only_devices()).devices


@functools.cache
def _cuda_compiler() -> Any:
    """Loads XLA's CUDA compiler beside jax's backends, so that none of them is looked for.

    Returns None on a machine with GPUs, where jax has it already: a second one is not possible.
    """
    from jax._src.lib import xla_client

    jax.devices("cpu")  # makes jax look for plugins now rather than after ours
    if xla_client.pjrt_plugin_loaded("cuda"):
        return None
    interface = xla_client.load_pjrt_plugin_dynamically("cuda", str(_cuda_library()))
    xla_client.initialize_pjrt_plugin("cuda")
    return interface


def _cuda_library() -> pathlib.Path:
    return _library("jax_plugins/xla_cuda12/xla_cuda_plugin.so", wheel="jax-cuda12-pjrt")


def _tpu_devices(target: Target, *, torus: str, devices: int, slices: int) -> Sequence[jax.Device]:
    chips, left = divmod(devices, slices * target.per_chip)
    if left or not chips:
        raise ValueError(
            f"{devices} devices do not make {slices} slice(s) of {target.name} chips with "
            f"{target.per_chip} device(s) each."
        )
    shape = torus or "x".join(map(str, torus_shape(chips, dimensions=target.torus)))
    if math.prod(map(int, shape.split("x"))) != chips:
        raise ValueError(f"The torus {shape} does not have {chips} chips.")
    library = _library("libtpu/libtpu.so", wheel="libtpu")
    # Read when the compiler is loaded: no metadata server is asked, no other process is shut out.
    os.environ.setdefault("TPU_LIBRARY_PATH", str(library))
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-16")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    several = {"num_slices": slices} if slices > 1 else {}
    return topologies.get_topology_desc(
        platform="tpu", topology_name=f"{target.name}:{shape}", **several
    ).devices


def _library(path: str, *, wheel: str) -> pathlib.Path:
    """Finds a file of a wheel: where ``make aot`` puts it, else on the ordinary path."""
    apart = compiler_directory() / path
    if apart.exists():
        return apart
    for folder in map(pathlib.Path, sys.path):
        if (folder / path).is_file():
            return folder / path
    raise CompilerMissing(f"The compiler for this target, {wheel}, is not here: run `make aot`.")
