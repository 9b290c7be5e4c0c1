"""Device meshes: six named axes, innermost axes on devices that are close to each other."""

import collections
import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from partitioning.mesh_config import AXES, MeshConfig
from partitioning.rules import mesh_axes


def build_mesh(config: MeshConfig, *, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Arranges devices so that ``tensor`` varies fastest and ``data`` slowest.

    Without ``config.outer`` devices are taken host by host, so that the inner axes stay inside a
    host. With it, the named part of an axis crosses slices (or, without slices, equal blocks of
    hosts), and everything else stays inside one.

    Args:
      config: sizes of the axes.
      devices: devices of all processes; None takes ``jax.devices()``.

    Raises:
      ValueError: sizes do not match the devices, or ``outer`` does not match the slices.
    """
    ordered = sorted(devices or jax.devices(), key=lambda d: (_slice(d), d.process_index, d.id))
    sizes = config.sizes(len(ordered))
    outer = _outer_sizes(config, sizes=sizes)
    blocks = math.prod(outer.values())
    _check_slices(ordered, blocks=blocks)
    inner = tuple(sizes[axis] // outer[axis] for axis in AXES)
    shape = tuple(outer[axis] for axis in AXES) + inner
    arranged = np.asarray([*_inner_order(ordered, inner=inner, blocks=blocks)]).reshape(shape)
    # Interleave (outer, inner) of each axis, outer first, then merge each pair.
    order = [part for i in range(len(AXES)) for part in (i, i + len(AXES))]
    grid = arranged.transpose(order).reshape(tuple(sizes[axis] for axis in AXES))
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def axis_sizes(mesh: Mesh) -> dict[str, int]:
    """Returns axis -> number of devices."""
    return dict(mesh.shape)


def current_mesh(mesh: Mesh) -> Mesh | AbstractMesh:
    """Returns what shardings must name here: inside a ``shard_map`` its view of ``mesh``."""
    inside = jax.sharding.get_abstract_mesh()
    return mesh if inside.empty else inside


def automatic_sizes(mesh: Mesh) -> dict[str, int]:
    """Returns axis -> number of devices; 1 for axes that an enclosing ``shard_map`` has split."""
    inside = jax.sharding.get_abstract_mesh()
    manual = () if inside.empty else inside.manual_axes
    return {axis: 1 if axis in manual else size for axis, size in mesh.shape.items()}


def is_per_rank(mesh: Mesh) -> bool:
    """Whether the code that runs here is mapped over every axis, those of one device included.

    Where an axis of one device is left to the partitioner, it still partitions.
    """
    inside = jax.sharding.get_abstract_mesh()
    return not inside.empty and set(inside.manual_axes) == set(mesh.axis_names)


def automatic_part(sharding: NamedSharding) -> NamedSharding:
    """Returns a sharding as code must name it here: without axes that are already split."""
    assert isinstance(sharding.mesh, Mesh)
    sizes = automatic_sizes(sharding.mesh)
    split = tuple(axis for axis, size in sizes.items() if size == 1)
    return NamedSharding(current_mesh(sharding.mesh), without_axes(sharding.spec, split))


def without_axes(spec: PartitionSpec, axes: Sequence[str]) -> PartitionSpec:
    """Returns ``spec`` without some mesh axes."""
    entries = (tuple(axis for axis in mesh_axes(entry) if axis not in axes) for entry in spec)
    return PartitionSpec(*(entry or None for entry in entries))


def describe(mesh: Mesh) -> str:
    """Returns one line: sizes of the axes in use and the devices, e.g. ``fsdp=8 on 8 x cpu``."""
    used = " x ".join(f"{axis}={size}" for axis, size in mesh.shape.items() if size > 1)
    kind = mesh.devices.flat[0].device_kind
    hosts = len({device.process_index for device in mesh.devices.flat})
    return f"{used or 'one device'} on {mesh.size} x {kind}, {hosts} process(es)"


def _slice(device: jax.Device) -> int:
    index = getattr(device, "slice_index", 0)
    return 0 if index is None else int(index)


def _outer_sizes(config: MeshConfig, *, sizes: dict[str, int]) -> dict[str, int]:
    outer = dict.fromkeys(AXES, 1)
    for axis, factor in config.outer:
        if axis not in AXES:
            raise ValueError(f"MeshConfig.outer names {axis!r}; mesh axes: {', '.join(AXES)}.")
        if factor < 1 or sizes[axis] % factor:
            raise ValueError(f"MeshConfig.outer: {factor} does not divide {axis}={sizes[axis]}.")
        outer[axis] = factor
    return outer


def _check_slices(devices: Sequence[jax.Device], *, blocks: int) -> None:
    sizes = collections.Counter(_slice(device) for device in devices)
    if len(set(sizes.values())) > 1:
        raise ValueError(
            f"A mesh over slices of {' and '.join(map(str, sizes.values()))} devices is not "
            "possible; take slices of equal size."
        )
    slices = len(sizes)
    if len(devices) % blocks or (slices > 1 and blocks % slices):
        raise ValueError(
            f"MeshConfig.outer makes {blocks} block(s), but there are {len(devices)} devices in "
            f"{slices} slice(s); the product of its factors must be a multiple of the slices, "
            f"for example MeshConfig.outer = (('data', {slices}),)."
        )


def _inner_order(
    devices: Sequence[jax.Device], *, inner: tuple[int, ...], blocks: int
) -> list[jax.Device]:
    """Orders each block; on TPU by the torus, which the plain order would cut through."""
    per_block = len(devices) // blocks
    if devices[0].platform != "tpu":
        return list(devices)
    from jax.experimental import mesh_utils

    return [
        device
        for start in range(0, len(devices), per_block)
        for device in mesh_utils.create_device_mesh(
            inner, devices[start : start + per_block], allow_split_physical_axes=True
        ).flat
    ]
