"""Ranks stay where their host stays, and every device has exactly one process."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from launch.orders import Host
from launch.placement import cast, places
from launch.spec import Checkpoint, JobSpec, Owner, Resources, Topology, Workload


def spec_of(
    *,
    hosts: int,
    min_hosts: int | None = None,
    max_hosts: int | None = None,
    slices: int = 1,
    processes: int = 1,
    accelerator: str = "h100",
    per_host: int = 8,
) -> JobSpec:
    return JobSpec(
        name="job",
        owner=Owner(team="t"),
        workload=Workload(command=("true",), processes_per_host=processes),
        resources=Resources(
            accelerator=accelerator,
            hosts=hosts,
            per_host=per_host,
            min_hosts=min_hosts,
            max_hosts=max_hosts,
        ),
        topology=Topology(slices=slices),
        checkpoint=Checkpoint(root="/r"),
    )


def hosts_named(names: str) -> list[Host]:
    return [Host(name=name, address=name) for name in names]


def names_of(hosts: tuple[Host, ...]) -> str:
    return "".join(host.name for host in hosts)


def test_a_spare_takes_the_place_of_the_lost_host():
    spec = spec_of(hosts=3)
    first = cast(hosts_named("abcd"), spec=spec)
    assert (names_of(first.active), names_of(first.spares)) == ("abc", "d")
    second = cast(hosts_named("acd"), spec=spec, before=["a", "b", "c"])
    assert names_of(second.active) == "adc"


def test_too_few_hosts_are_none():
    assert cast(hosts_named("ab"), spec=spec_of(hosts=3)) is None


def test_an_elastic_run_takes_what_there_is():
    spec = spec_of(hosts=2, min_hosts=1, max_hosts=4)
    assert names_of(cast(hosts_named("abcdef"), spec=spec).active) == "abcd"
    assert names_of(cast(hosts_named("a"), spec=spec).active) == "a"
    assert names_of(cast(hosts_named("abcd"), spec=spec, at_most=3).active) == "abc"


def test_slices_stay_equal():
    spec = spec_of(hosts=4, min_hosts=2, slices=2)
    found = cast(hosts_named("abc"), spec=spec)
    assert [(host.name, host.slice_id) for host in found.active] == [("a", 0), ("b", 1)]


def test_one_process_takes_all_devices_without_naming_them():
    [place] = places(hosts_named("a"), spec=spec_of(hosts=1))
    assert place.devices == ()


def test_a_cpu_is_told_how_many_devices_it_has():
    [place] = places(hosts_named("a"), spec=spec_of(hosts=1, accelerator="cpu", per_host=4))
    assert place.devices == (0, 1, 2, 3)


@given(st.integers(1, 6), st.sampled_from([1, 2, 4, 8]))
def test_devices_are_dealt_out_evenly(hosts, processes):
    spec = spec_of(hosts=hosts, processes=processes, accelerator="cpu")
    found = places(hosts_named("abcdef"[:hosts]), spec=spec)
    assert [place.rank for place in found] == list(range(hosts * processes))
    for name in "abcdef"[:hosts]:
        own = [device for place in found if place.host == name for device in place.devices]
        assert own == list(range(8))


@given(
    st.lists(st.sampled_from("abcdefgh"), unique=True),
    st.lists(st.sampled_from("abcdefgh"), unique=True),
    st.integers(1, 6),
    st.integers(1, 3),
)
def test_whoever_stays_keeps_its_rank(before, usable, hosts, slices):
    hosts = hosts * slices
    spec = spec_of(hosts=hosts, min_hosts=slices, slices=slices)
    found = cast(hosts_named("".join(usable)), spec=spec, before=before)
    if found is None:
        assert len(usable) < slices
        return
    active = [host.name for host in found.active]
    assert len(active) % slices == 0
    assert len(active) <= hosts
    assert sorted([*active, *names_of(found.spares)]) == sorted(usable)
    for rank, name in enumerate(before[: len(active)]):
        if name in usable:
            assert active[rank] == name
    sizes = [sum(host.slice_id == n for host in found.active) for n in range(slices)]
    assert len(set(sizes)) == 1
    assert dataclasses.replace(found.active[0]) == found.active[0]
