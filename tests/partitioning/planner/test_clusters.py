"""Cluster files: all load, and the rates are those that measured MFU is computed with."""

import dataclasses
import pathlib
import re

import pytest

from partitioning.targets import TARGETS
from trainer.fleet import cluster_names, load_cluster, load_fleet
from trainer.hardware import peak_flops

NAMES = cluster_names()


@pytest.mark.parametrize("name", NAMES)
def test_a_cluster_is_complete_and_plausible(name: str) -> None:
    for pool in load_fleet(name).pools:
        chip = pool.chip
        assert pool.links[0].devices in (pool.per_host, *(n for n in (256, 4096, 6144, 18432)))
        assert pool.links[-1].devices == 0
        assert [link.bandwidth for link in pool.links] == sorted(
            (link.bandwidth for link in pool.links), reverse=True
        )
        assert 0 < chip.reserved < 0.06 * chip.memory
        assert chip.peak_flops <= chip.peak_flops_8bit <= 2.1 * chip.peak_flops
        for share in (chip.matmul_efficiency, chip.attention_efficiency, chip.overlap):
            assert 0 < share < 1


@pytest.mark.parametrize("name", NAMES)
def test_peaks_are_those_that_mfu_is_measured_with(name: str) -> None:
    for pool in load_fleet(name).pools:
        assert peak_flops(pool.chip.device_kind) == pool.chip.peak_flops


@pytest.mark.parametrize("name", NAMES)
def test_a_chip_that_there_is_a_compiler_for_names_it(name: str) -> None:
    for pool in load_fleet(name).pools:
        expected = pool.chip.name if pool.chip.name in TARGETS else pool.chip.target
        assert pool.chip.target == expected
        if pool.chip.name in TARGETS:
            assert pool.chip.memory == TARGETS[pool.chip.name].memory
        assert pool.chip.target in {*TARGETS, ""}


def test_a_fleet_has_its_clusters_as_their_own_files_do() -> None:
    for pool in load_fleet("mixed").pools:
        alone = load_cluster(f"{pool.name}_{pool.devices}")
        assert pool == dataclasses.replace(alone, per_host=pool.per_host)


def test_the_example_in_the_guide_is_a_cluster(tmp_path: pathlib.Path) -> None:
    page = pathlib.Path("docs/calibration.md").read_text()
    (example,) = re.findall(r"```gin\n(.*?)```", page, re.DOTALL)
    assert len(example.strip().splitlines()) <= 10
    path = tmp_path / "ours.gin"
    path.write_text(example)
    found = load_cluster(str(path))
    assert (found.name, found.devices, found.chip.name) == ("ours", 1024, "h100")


def test_no_name_of_a_kind_reads_like_another_kind_and_a_number() -> None:
    """h100_96 would be 96 devices to everyone, and the H100 with 96 GB to the file of that name."""
    names = cluster_names()
    for name in names:
        kind, _, count = name.rpartition("_")
        assert not (count.isdigit() and kind), name
