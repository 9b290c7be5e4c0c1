"""Which links a group crosses, and how long that takes."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioning.mesh_config import AXES
from partitioning.planner.cost_model.network import lanes, members_within, passage
from partitioning.transfers import Transfer
from trainer.fleet import load_cluster

CLUSTER = dataclasses.replace(
    load_cluster("h100_512"),
    links=tuple(
        dataclasses.replace(link, efficiency=1.0, latency=0.0)
        for link in load_cluster("h100_512").links
    ),
)
NVLINK, INFINIBAND = (link.bandwidth for link in CLUSTER.links)


def sizes(**given_sizes: int) -> dict[str, int]:
    return dict.fromkeys(AXES, 1) | given_sizes


def taken(kind: str, axis: str, *, payload: float = 1e9, times: float = 1.0, **mesh: int):
    on = sizes(**mesh)
    transfer = Transfer(kind=kind, axes=(axis,), group=on[axis], payload=payload, why="x")
    return passage(transfer, sizes=on, cluster=CLUSTER, times=times)


def slowest(found) -> str:
    return max(found.levels, key=lambda level: level.seconds).link


def test_the_innermost_axis_stays_inside_a_host() -> None:
    found = taken("all-gather", "tensor", tensor=8, fsdp=64)
    assert slowest(found) == "nvlink"
    assert found.seconds == pytest.approx(1e9 * 7 / 8 / NVLINK)


def test_an_axis_outside_of_full_hosts_uses_the_network_alone() -> None:
    found = taken("all-gather", "fsdp", tensor=8, fsdp=64)
    assert slowest(found) == "infiniband"
    assert found.seconds == pytest.approx(1e9 * 63 / 64 / INFINIBAND)


def test_members_of_a_host_share_what_crosses_the_network() -> None:
    found = taken("all-gather", "fsdp", fsdp=16)
    network, host = 1e9 / 8 * 1 / 2 / INFINIBAND, 1e9 * 7 / 8 / NVLINK
    assert found.seconds == pytest.approx(max(network, host))


def test_an_exchange_sends_its_own_rows_over_the_network() -> None:
    found = taken("all-to-all", "expert", expert=16)
    assert [level.link for level in found.levels] == ["nvlink", "infiniband"]
    assert found.levels[-1].sent == pytest.approx(1e9 * 8 / 16)
    assert slowest(found) == "infiniband"


def test_a_permutation_goes_as_far_as_its_neighbour() -> None:
    assert slowest(taken("collective-permute", "stage", stage=4, tensor=8)) == "infiniband"
    assert slowest(taken("collective-permute", "stage", stage=2, tensor=4)) == "nvlink"


def test_a_reduction_to_all_moves_twice_as_much() -> None:
    for mesh in ({"tensor": 8}, {"tensor": 32}):
        gathers, sums = (taken(kind, "tensor", **mesh) for kind in ("all-gather", "all-reduce"))
        assert sums.seconds == pytest.approx(2 * gathers.seconds)


def test_a_torus_offers_more_dimensions_to_larger_groups() -> None:
    flat, cube = (load_cluster(name).links[0] for name in ("v6e", "v5p"))
    assert [lanes(flat, members) for members in (2, 4, 16, 256)] == [1, 1, 2, 2]
    assert [lanes(cube, members) for members in (4, 16, 64, 512)] == [1, 2, 3, 3]


def slow(**latencies: float):
    links = tuple(
        dataclasses.replace(link, latency=latencies.get(link.name, 0.0)) for link in CLUSTER.links
    )
    return dataclasses.replace(CLUSTER, links=links)


@pytest.mark.parametrize(
    ("kind", "axis", "mesh", "hops"),
    [
        ("all-gather", "tensor", {"tensor": 8}, 7),
        ("all-gather", "fsdp", {"fsdp": 64, "tensor": 8}, 63),
        ("reduce-scatter", "fsdp", {"fsdp": 64}, 7 + 7),
        ("collective-permute", "stage", {"stage": 4, "tensor": 8}, 1),
    ],
)
def test_each_operation_takes_a_hop_s_latency_around_the_ring(kind, axis, mesh, hops) -> None:
    on = sizes(**mesh)
    transfer = Transfer(kind=kind, axes=(axis,), group=on[axis], payload=8.0, why="x")
    cluster = slow(nvlink=1e-3, infiniband=1e-3)
    found = passage(transfer, sizes=on, cluster=cluster, times=10)
    assert found.seconds == pytest.approx(10 * hops * 1e-3, rel=1e-3)


def test_a_torus_is_crossed_along_its_dimensions() -> None:
    pod = dataclasses.replace(load_cluster("v6e_256"), links=load_cluster("v6e_256").links)
    on = sizes(fsdp=256)
    transfer = Transfer(kind="all-gather", axes=("fsdp",), group=256, payload=8.0, why="x")
    hop = pod.links[0].latency
    assert passage(transfer, sizes=on, cluster=pod).seconds == pytest.approx(30 * hop, rel=1e-3)


POWERS = st.sampled_from([1, 2, 4, 8, 16])


@given(POWERS, POWERS, POWERS)
def test_members_of_all_levels_are_the_group(data: int, fsdp: int, tensor: int) -> None:
    mesh = sizes(data=data, fsdp=fsdp, tensor=tensor)
    for axes in (("data",), ("fsdp",), ("data", "fsdp"), ("data", "fsdp", "tensor")):
        inside = members_within(axes, sizes=mesh, devices=8)
        whole = members_within(axes, sizes=mesh, devices=0)
        assert inside <= min(8, whole)
        assert whole % inside == 0
    assert members_within(AXES, sizes=mesh, devices=0) == data * fsdp * tensor


@given(st.sampled_from(["all-gather", "all-reduce", "all-to-all"]), st.sampled_from([2, 8, 64]))
def test_twice_the_bytes_take_twice_as_long(kind: str, group: int) -> None:
    one, two = (taken(kind, "fsdp", payload=p, fsdp=group) for p in (1e9, 2e9))
    assert two.seconds == pytest.approx(2 * one.seconds)
