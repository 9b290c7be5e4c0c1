"""Tensors on a mesh: the same everywhere, each device filled with its own part, one at a time."""

import dataclasses
import math
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from models.huggingface import loading
from models.huggingface.source import open_source
from partitioning.mesh import build_mesh
from partitioning.mesh_config import MeshConfig
from tests.models.huggingface.folders import SMALL, SPARSE, write_folder
from trainer.importing import abstract_parameters

MESHES = (
    MeshConfig(fsdp=8),
    MeshConfig(tensor=2, fsdp=4),
    MeshConfig(stage=2, fsdp=2, tensor=2),
    MeshConfig(data=4, stage=2),
)
SPARSE_MESHES = (MeshConfig(expert=4, tensor=2), MeshConfig(stage=2, expert=2, fsdp=2))


def loaded(folder: pathlib.Path, config, mesh: MeshConfig) -> dict[str, jax.Array]:
    source = open_source(folder)
    devices = math.prod(mesh.sizes(8).values())
    abstract = abstract_parameters(config, mesh=build_mesh(mesh, devices=jax.devices()[:devices]))
    return loading.load(source.stored, source.tensors(config), abstract)


@pytest.mark.parametrize(("config", "meshes"), [(SMALL, MESHES), (SPARSE, SPARSE_MESHES)])
def test_every_mesh_gives_the_tensors_of_the_files(tmp_path, config, meshes) -> None:
    tensors = write_folder(tmp_path / "model", config, dtype="bfloat16", files=3)
    source = open_source(tmp_path / "model")
    for mesh in meshes:
        found = loaded(tmp_path / "model", config, mesh)
        for tensor in source.tensors(config):
            values = np.asarray(found[tensor.path])[tensor.at]
            expected = tensors[tensor.name].astype(np.float32)
            np.testing.assert_array_equal(tensor.layout.to_theirs(values), expected)
        kernel = found["stacks/pattern/blocks/0/attention/query/kernel"]
        share = math.prod(mesh.sizes(8)[axis] for axis in ("stage", "fsdp", "tensor"))
        assert kernel.addressable_shards[0].data.size == kernel.size // share


def test_a_process_reads_what_its_devices_need(tmp_path, monkeypatch) -> None:
    """As of two processes: of a sharding over eight devices, one that addresses four."""
    write_folder(tmp_path / "model")
    source = open_source(tmp_path / "model")
    mesh = build_mesh(MeshConfig(stage=2, fsdp=4))
    abstract = abstract_parameters(SMALL, mesh=mesh)
    here = set(mesh.devices.reshape(2, -1)[0])  # the first stage
    read: list[str] = []
    real = loading.read_part

    def noted(folder, tensor, part):
        read.append(tensor.name)
        return real(folder, tensor, part)

    monkeypatch.setattr(loading, "read_part", noted)
    monkeypatch.setattr(
        jax.sharding.NamedSharding,
        "addressable_devices_indices_map",
        lambda self, shape: {d: i for d, i in self.devices_indices_map(shape).items() if d in here},
    )
    monkeypatch.setattr(jax, "make_array_from_single_device_arrays", lambda *parts: parts[2])
    parts = loading.load(source.stored, source.tensors(SMALL), abstract)
    layers = {name.split(".")[2] for name in read if "layers" in name}
    assert layers == {"0", "1"}
    assert len(parts["stacks/pattern/blocks/0/mlp/up/kernel"]) == 4


def test_the_type_is_that_of_the_parameters(tmp_path) -> None:
    write_folder(tmp_path / "model", dtype="float16")
    source = open_source(tmp_path / "model")
    abstract = {
        path: jax.ShapeDtypeStruct(like.shape, jnp.bfloat16, sharding=like.sharding)
        for path, like in abstract_parameters(SMALL, mesh=build_mesh(MeshConfig(fsdp=8))).items()
    }
    found = loading.load(source.stored, source.tensors(SMALL), abstract)
    assert {str(array.dtype) for array in found.values()} == {"bfloat16"}


def test_a_number_beyond_the_type_of_the_parameters_is_refused(tmp_path) -> None:
    tensors = write_folder(tmp_path / "model")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name][2, 3] = -3.4e38
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    source = open_source(tmp_path / "model")
    config = dataclasses.replace(SMALL, param_dtype="bfloat16")
    abstract = abstract_parameters(config, mesh=build_mesh(MeshConfig(fsdp=8)))
    with pytest.raises(ValueError, match=f"{name} has 1 number.* which bfloat16 cannot hold"):
        loading.load(source.stored, source.tensors(SMALL), abstract)


def test_progress_ends_with_all_bytes(tmp_path) -> None:
    write_folder(tmp_path / "model")
    source = open_source(tmp_path / "model")
    abstract = abstract_parameters(SMALL, mesh=build_mesh(MeshConfig(fsdp=8)))
    seen: list[tuple[int, int]] = []
    loading.load(
        source.stored,
        source.tensors(SMALL),
        abstract,
        progress=lambda done, of: seen.append((done, of)),
    )
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] == sum(x.bytes for x in source.stored.tensors.values())


PEAK = """
import pathlib, re, sys
import jax
from models.huggingface import loading
from models.huggingface.source import open_source
from partitioning.mesh import build_mesh
from partitioning.mesh_config import MeshConfig
from tests.models.huggingface.test_loading import LARGE
from trainer.importing import abstract_parameters

def resident():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024

source = open_source(pathlib.Path(sys.argv[1]))
abstract = abstract_parameters(LARGE, mesh=build_mesh(MeshConfig()))
small = {"final_norm/scale": abstract["final_norm/scale"]}
only = [t for t in source.tensors(LARGE) if t.path in small]
loading.load(source.stored, only, small)
before = resident()
loaded = loading.load(source.stored, source.tensors(LARGE), abstract)
print(resident() - before, sum(array.nbytes for array in loaded.values()))
"""

LARGE = type(SMALL)(
    vocab_size=4096, embed_dim=1024, layers=8, heads=8, kv_heads=2, mlp_dim=4096, head_dim=128
)


def test_a_process_holds_the_parameters_and_one_tensor(tmp_path) -> None:
    tensors = write_folder(tmp_path / "model", LARGE, dtype="bfloat16", files=2)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path / "model")],
        capture_output=True,
        text=True,
        check=True,
    )
    grown, parameters = map(int, done.stdout.split())
    largest = max(values.nbytes for values in tensors.values())
    files = sum(values.nbytes for values in tensors.values())
    slack = 60e6  # compiled programs, the allocator's own
    assert parameters > 500e6
    assert files > 250e6  # a second copy would show
    assert grown < parameters + 4 * largest + slack
