"""Chips that programs are compiled for without having them.

A target gives devices that exist only for the compiler: a mesh of them, ``jit(...).lower`` on
shapes that carry shardings of that mesh, and ``compile`` work as on the real machine; running does
not. The compilers come in wheels that are kept apart (``make aot`` installs them into
``.venv/aot``), because jax greets a GPU or TPU plugin on its own path with an attempt to use it.

Loads jax only when devices are asked for, so that programs without it may look at the table.
"""

import dataclasses
import functools
import importlib.resources
import math
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import jax

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
      options: TPU: what else its topology is made with.
    """

    name: str
    platform: Literal["cuda", "tpu", "cpu"]
    memory: int
    per_host: int = 8
    torus: int = 0
    per_chip: int = 1
    options: tuple[tuple[str, str], ...] = ()


_MEGACORE = (("chip_config_name", "megacore"),)
"""The two cores of a v4 chip as one device, as jobs get them."""

TARGETS = {
    target.name: target
    for target in (
        Target(name="a100_40gb", platform="cuda", memory=42_331_013_120),
        Target(name="a100_80gb", platform="cuda", memory=85_100_068_864),
        Target(name="h100", platform="cuda", memory=84_978_434_048),
        Target(name="h200", platform="cuda", memory=150_121_545_728),
        Target(name="b200", platform="cuda", memory=191_514_411_008),
        Target(name="v4", platform="tpu", memory=32 * GIB, torus=3, options=_MEGACORE),
        Target(name="v5e", platform="tpu", memory=16 * GIB, torus=2),
        Target(name="v5p", platform="tpu", memory=95 * GIB, torus=3),
        Target(name="v6e", platform="tpu", memory=32 * GIB, torus=2),
        Target(name="tpu7x", platform="tpu", memory=96 * GIB, torus=3, per_chip=2),
        Target(name="cpu", platform="cpu", memory=0),
    )
}


class CompilerMissing(ValueError):
    """The compiler for a target is not installed."""


def has_compiler(name: str) -> bool:
    """Whether programs can be compiled for a target here; a name that is none has no compiler."""
    target = TARGETS.get(name)
    return target is not None and (target.platform == "cpu" or _find(target.platform) is not None)


def target_devices(name: str, *, devices: int, slices: int = 1) -> Sequence["jax.Device"]:
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
    import jax

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


def _cuda_devices(target: Target, *, devices: int) -> Sequence["jax.Device"]:
    from jax._src.lib import xla_client  # no public name makes a topology without a backend
    from jax.experimental import topologies

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
    import jax
    from jax._src.lib import xla_client

    jax.devices("cpu")  # makes jax look for plugins now rather than after ours
    if xla_client.pjrt_plugin_loaded("cuda"):
        return None
    interface = xla_client.load_pjrt_plugin_dynamically("cuda", str(_library("cuda")))
    xla_client.initialize_pjrt_plugin("cuda")
    return interface


def _tpu_devices(
    target: Target, *, torus: str, devices: int, slices: int
) -> Sequence["jax.Device"]:
    from jax.experimental import topologies

    chips, left = divmod(devices, slices * target.per_chip)
    if left or not chips:
        raise ValueError(
            f"{devices} devices do not make {slices} slice(s) of {target.name} chips with "
            f"{target.per_chip} device(s) each."
        )
    shape = torus or "x".join(map(str, torus_shape(chips, dimensions=target.torus)))
    if math.prod(map(int, shape.split("x"))) != chips:
        raise ValueError(f"The torus {shape} does not have {chips} chips.")
    library = _library("tpu")
    # Read when the compiler is loaded: no metadata server is asked, no other process is shut out.
    os.environ.setdefault("TPU_LIBRARY_PATH", str(library))
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-16")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    options: dict[str, Any] = dict(target.options)
    if slices > 1:
        options["num_slices"] = slices
    return topologies.get_topology_desc(
        platform="tpu", topology_name=f"{target.name}:{shape}", **options
    ).devices


_LIBRARIES = {
    "cuda": ("jax-cuda12-pjrt", "jax_plugins/xla_cuda12/xla_cuda_plugin.so"),
    "tpu": ("libtpu", "libtpu/libtpu.so"),
}
"""Platform -> wheel of the compiler, and its library in it."""


def _find(platform: str) -> pathlib.Path | None:
    """Looks where ``make aot`` puts compilers, then on the ordinary path."""
    _, path = _LIBRARIES[platform]
    folders = (compiler_directory(), *map(pathlib.Path, sys.path))
    return next((folder / path for folder in folders if (folder / path).is_file()), None)


def _library(platform: str) -> pathlib.Path:
    found = _find(platform)
    if found is None:
        wheel, _ = _LIBRARIES[platform]
        raise CompilerMissing(f"The compiler for {platform}, {wheel}, is not here: run `make aot`.")
    return found
