"""Devices of chips that are not there: how many, how arranged, and what is said if there are none.

Programs compiled for them are in tests/trainer/test_deviceless.py.
"""

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioning import targets
from partitioning.mesh import build_mesh
from partitioning.mesh_config import MeshConfig


@given(st.integers(0, 14), st.sampled_from([2, 3]))
def test_a_torus_has_its_chips_and_is_as_cubic_as_can_be(exponent, dimensions):
    shape = targets.torus_shape(2**exponent, dimensions=dimensions)
    assert math.prod(shape) == 2**exponent
    assert len(shape) == dimensions
    assert max(shape) <= 2 * min(shape)


def test_other_tori_have_to_be_named():
    with pytest.raises(ValueError, match="name the torus"):
        targets.torus_shape(12, dimensions=3)


def test_an_unknown_target_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'abacus'.*h100"):
        targets.target_devices("abacus", devices=8)


def test_a_target_without_its_compiler_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(targets, "compiler_directory", lambda: tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(targets, "_cuda_compiler", lambda: targets._library("cuda"))
    assert not targets.has_compiler("h100")
    assert targets.has_compiler("cpu")
    assert not targets.has_compiler("abacus")
    with pytest.raises(targets.CompilerMissing, match="make aot"):
        targets.target_devices("h100", devices=8)
    with pytest.raises(targets.CompilerMissing, match="libtpu"):
        targets.target_devices("v5p", devices=8)


@pytest.mark.parametrize("devices", [0, 12])
def test_hosts_are_full(devices):
    with pytest.raises(ValueError, match="multiple of"):
        targets.target_devices("h100", devices=devices)


def test_tpu_chips_are_counted_before_their_compiler_is_looked_for():
    with pytest.raises(ValueError, match="2 device"):
        targets.target_devices("tpu7x", devices=9)
    with pytest.raises(ValueError, match="does not have 8 chips"):
        targets.target_devices("v5p:2x2x4", devices=8)


def test_virtual_cpus_must_be_there():
    assert len(targets.target_devices("cpu", devices=8)) == 8
    with pytest.raises(ValueError, match="8 virtual"):
        targets.target_devices("cpu", devices=9)


@pytest.mark.parametrize(("devices", "hosts"), [(1, 1), (8, 1), (512, 64)])
def test_h100_devices_stand_in_hosts_of_eight(devices, hosts):
    found = targets.target_devices("h100", devices=devices)
    assert len(found) == devices
    assert {device.device_kind for device in found} == {"NVIDIA H100 80GB HBM3"}
    assert len({device.process_index for device in found}) == hosts


def test_tensor_stays_inside_a_host():
    mesh = build_mesh(
        MeshConfig(fsdp=4, tensor=8), devices=targets.target_devices("h100", devices=32)
    )
    for group in mesh.devices.reshape(4, 8):
        assert len({device.process_index for device in group}) == 1


ORDINARY = """
import sys
import jax
from partitioning import targets
from trainer import main
jax.devices()
files = [getattr(module, "__file__", None) or "" for module in sys.modules.values()]
print([name for name in files if name.startswith(str(targets.compiler_directory()))])
"""


def test_an_ordinary_run_does_not_know_of_the_compilers():
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": "."}
    done = subprocess.run(
        [sys.executable, "-c", ORDINARY],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert done.stdout.strip() == "[]"
    assert "plugin" not in done.stderr
    assert "Traceback" not in done.stderr
