"""Meshes: every factorization, what is left, racks and slices, neighbours on one host."""

import dataclasses
import itertools
import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from partitioning.mesh import automatic_part, axis_sizes, build_mesh, describe
from partitioning.mesh_config import AXES, MeshConfig


@dataclasses.dataclass(frozen=True)
class Device:
    """What build_mesh asks of a device."""

    id: int
    process_index: int = 0
    slice_index: int | None = None
    platform: str = "gpu"
    device_kind: str = "fake"


def cluster(*, slices=1, hosts, per_host):
    """Returns devices in an order that nobody should rely on."""
    total = slices * hosts * per_host
    devices = [
        Device(
            id=i,
            process_index=i // per_host,
            slice_index=i // (hosts * per_host) if slices > 1 else None,
        )
        for i in range(total)
    ]
    return devices[::-1]


FACTORIZATIONS = [
    sizes for sizes in itertools.product((1, 2, 4, 8), repeat=len(AXES)) if math.prod(sizes) == 8
]


def test_every_factorization_of_eight_devices_makes_its_mesh():
    """P008: what was asked for is what is made, on every platform alike."""
    assert len(FACTORIZATIONS) == 56
    for sizes in FACTORIZATIONS:
        config = MeshConfig(**dict(zip(AXES, sizes, strict=True)))
        mesh = build_mesh(config)
        assert tuple(axis_sizes(mesh).items()) == tuple(zip(AXES, sizes, strict=True))
        assert [device.id for device in mesh.devices.flat] == [d.id for d in jax.devices()]
        assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}


@given(st.sampled_from(FACTORIZATIONS), st.integers(0, len(AXES) - 1))
def test_minus_one_takes_what_is_left(sizes, free):
    given_sizes = [-1 if i == free else size for i, size in enumerate(sizes)]
    config = MeshConfig(**dict(zip(AXES, given_sizes, strict=True)))
    assert tuple(config.sizes(8).values()) == sizes


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MeshConfig(data=3), "Mesh data=3 needs 3 devices, but there are 8"),
        (MeshConfig(data=2, tensor=2), "Mesh data=2 x tensor=2 needs 4 devices, but there are 8"),
        (MeshConfig(fsdp=-1, tensor=3), "needs a multiple of 3 devices, but there are 8"),
        (
            MeshConfig(fsdp=-1, data=-1),
            r"only one axis .* given data and fsdp. Give .*MeshConfig.fsdp=1",
        ),
        (MeshConfig(fsdp=0), "MeshConfig.fsdp=0: sizes are positive"),
        (MeshConfig(fsdp=-2), "MeshConfig.fsdp=-2"),
        (MeshConfig(), "Mesh 1 needs 1 devices"),
        (MeshConfig(data=8, outer=(("dta", 2),)), "MeshConfig.outer names 'dta'; mesh axes: data"),
        (MeshConfig(data=8, outer=(("data", 3),)), "3 does not divide data=8"),
        (MeshConfig(data=8, outer=(("data", 0),)), "0 does not divide data=8"),
    ],
    ids=str,
)
def test_a_mesh_that_does_not_fit_is_refused_with_its_numbers(config, message):
    with pytest.raises(ValueError, match=message):
        build_mesh(config)


def test_tensor_neighbours_share_a_host_whatever_order_devices_come_in():
    mesh = build_mesh(MeshConfig(fsdp=4, tensor=4), devices=cluster(hosts=4, per_host=4))
    hosts = np.vectorize(lambda device: device.process_index)(mesh.devices).reshape(4, 4)
    assert (hosts == hosts[:, :1]).all()
    assert sorted(hosts[:, 0]) == [0, 1, 2, 3]


def slices_along(mesh, axis):
    """Returns, for every line along ``axis``, the slices that it visits."""
    grid = np.vectorize(lambda device: device.slice_index)(mesh.devices)
    lines = np.moveaxis(grid, AXES.index(axis), -1).reshape(-1, mesh.shape[axis])
    return [set(line) for line in lines]


def test_the_outer_part_of_an_axis_crosses_slices_and_nothing_else_does():
    config = MeshConfig(data=4, fsdp=2, tensor=4, outer=(("data", 2),))
    mesh = build_mesh(config, devices=cluster(slices=2, hosts=4, per_host=4))
    assert all(len(seen) == 1 for axis in ("fsdp", "tensor") for seen in slices_along(mesh, axis))
    assert all(len(seen) == 2 for seen in slices_along(mesh, "data"))
    grid = np.vectorize(lambda device: device.slice_index)(mesh.devices)
    assert (np.diff(grid.reshape(4, -1)[:, 0]) >= 0).all()  # outer first: 0 0 1 1


def test_an_axis_that_is_all_outer_has_one_device_per_slice():
    config = MeshConfig(stage=4, fsdp=8, outer=(("stage", 4),))
    mesh = build_mesh(config, devices=cluster(slices=4, hosts=2, per_host=4))
    assert all(len(seen) == 4 for seen in slices_along(mesh, "stage"))
    assert all(len(seen) == 1 for seen in slices_along(mesh, "fsdp"))


def test_without_slices_outer_crosses_equal_blocks_of_hosts():
    config = MeshConfig(data=2, fsdp=8, outer=(("data", 2),))
    mesh = build_mesh(config, devices=cluster(hosts=4, per_host=4))
    hosts = np.vectorize(lambda device: device.process_index)(mesh.devices).reshape(2, 8)
    assert set(hosts[0]) == {0, 1}
    assert set(hosts[1]) == {2, 3}


def test_every_device_is_used_once():
    devices = cluster(slices=2, hosts=2, per_host=8)
    config = MeshConfig(data=2, fsdp=4, tensor=4, outer=(("data", 2),))
    mesh = build_mesh(config, devices=devices)
    assert sorted(device.id for device in mesh.devices.flat) == list(range(32))


def test_slices_without_outer_are_refused_with_what_to_write():
    with pytest.raises(ValueError, match=r"in 2 slice\(s\).*MeshConfig.outer = \(\('data', 2\),\)"):
        build_mesh(MeshConfig(data=16), devices=cluster(slices=2, hosts=2, per_host=4))


def test_slices_of_unequal_size_are_refused():
    devices = [Device(id=i, slice_index=0 if i < 3 else 1) for i in range(8)]
    with pytest.raises(ValueError, match="slices of 3 and 5 devices"):
        build_mesh(MeshConfig(data=8, outer=(("data", 2),)), devices=devices)


def test_the_description_names_sizes_devices_and_processes():
    mesh = build_mesh(MeshConfig(fsdp=4, tensor=4), devices=cluster(hosts=4, per_host=4))
    assert describe(mesh) == "fsdp=4 x tensor=4 on 16 x fake, 4 process(es)"
    alone = build_mesh(MeshConfig(), devices=jax.devices()[:1])
    assert describe(alone) == "one device on 1 x cpu, 1 process(es)"


def test_inside_a_shard_map_a_sharding_loses_the_axes_that_are_split_and_may_be_named():
    mesh = build_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    whole = NamedSharding(mesh, PartitionSpec(("data", "fsdp"), None, "tensor"))
    assert automatic_part(whole) == whole
    inside = []

    def local(x):
        inside.append(automatic_part(whole))
        return jax.lax.with_sharding_constraint(x, inside[-1])

    spec = PartitionSpec("data")
    jax.jit(
        jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, axis_names={"data"})
    ).lower(np.zeros((4, 2, 2)))
    assert inside[-1].spec == PartitionSpec(("fsdp",), None, ("tensor",))
