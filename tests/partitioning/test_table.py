"""The printed table says where bytes live and what stays whole."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from partitioning import table
from partitioning.mesh import build_mesh
from partitioning.mesh_config import MeshConfig


def row(name, shape, *spec, dtype=jnp.float32, note=""):
    mesh = build_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    leaf = jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))
    return table.row_of(name, leaf, note=note)


ROWS = (
    row("kernel", (64, 32), "fsdp", "tensor"),
    row("both", (1024, 4), ("fsdp", "tensor"), None, dtype=jnp.bfloat16),
    row("scale", (64,), None, note="small"),
    row("step", ()),
)


def test_rows_count_the_bytes_of_one_device():
    assert [r.bytes_per_device for r in ROWS] == [2048, 2048, 256, 4]
    assert [r.bytes_total for r in ROWS] == [8192, 8192, 256, 4]
    assert [r.spec for r in ROWS] == ["fsdp, tensor", "fsdp+tensor, -", "-", "-"]


def test_the_replicated_share_is_of_all_bytes():
    assert table.replicated_share(ROWS) == 260 / 16644
    assert table.replicated_share([]) == 0.0


def test_the_table_reads_as_printed():
    assert table.show(ROWS).splitlines() == [
        "parameter   shape  mesh axes       per device",
        "kernel      64x32  fsdp, tensor      2.00 KiB",
        "both       1024x4  fsdp+tensor, -    2.00 KiB",
        "scale          64  -                    256 B  small",
        "step       scalar  -                      4 B",
        "16.25 KiB in all, 4.25 KiB per device, 1.6% replicated",
    ]


def test_bytes_are_shown_in_the_unit_that_fits():
    shown = [table.show_bytes(n) for n in (0, 1023, 1024, 1.5 * 2**30, 3 * 2**40)]
    assert shown == ["0 B", "1023 B", "1.00 KiB", "1.50 GiB", "3.00 TiB"]
