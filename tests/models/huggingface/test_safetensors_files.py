"""Folders that are damaged, incomplete or hostile are refused, by name; whole ones are read."""

import contextlib
import json
import os
import pathlib
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from models.huggingface.safetensors_files import (
    FolderWriter,
    Planned,
    Stored,
    TensorFolder,
    check,
    check_range,
    dtype_of,
)
from models.huggingface.source import open_source
from tests.models.huggingface.folders import write_folder

INDEX = "model.safetensors.index.json"


def change_index(folder: pathlib.Path, **files: str) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] |= files
    (folder / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_was_written_is_read(tmp_path: pathlib.Path, files: int, dtype: str) -> None:
    tensors = write_folder(tmp_path / "model", dtype=dtype, files=files)
    folder = TensorFolder(tmp_path / "model")
    assert folder.tensors.keys() == tensors.keys()
    for name, values in tensors.items():
        found = folder.read(name, tuple(slice(None) for _ in values.shape))
        assert found.dtype == values.dtype
        np.testing.assert_array_equal(found, values)


def test_the_one_file_of_a_folder_may_have_any_name(tmp_path: pathlib.Path) -> None:
    write_folder(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "model" / "weights.safetensors")
    assert TensorFolder(tmp_path / "model").tensors


def test_files_of_a_download_cache_are_links(tmp_path: pathlib.Path) -> None:
    write_folder(tmp_path / "model", files=2)
    for path in list((tmp_path / "model").glob("*.safetensors")):
        blob = tmp_path / f"blob-{path.stem}"
        path.rename(blob)
        path.symlink_to(blob)
    assert TensorFolder(tmp_path / "model").tensors


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_a_file_that_ends_early_is_named(tmp_path: pathlib.Path, kept: int) -> None:
    write_folder(tmp_path / "model", files=2)
    path = sorted((tmp_path / "model").glob("*.safetensors"))[1]
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=f"{path.name}: not a whole safetensors file"):
        TensorFolder(tmp_path / "model")


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_damaged_header_is_refused_or_harmless(tmp_path_factory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("damaged") / "model"
    write_folder(folder)
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    end = 8 + struct.unpack("<Q", content[:8])[0]
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    source = None
    with contextlib.suppress(ValueError):
        source = open_source(folder)
    if source is None:
        return
    for tensor in source.tensors(source.config):
        shape = source.stored.read(tensor.name, (slice(None),) * len(tensor.their_shape)).shape
        assert shape == tensor.their_shape


@pytest.mark.parametrize(
    "file",
    ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", ".safetensors/.."],
)
def test_an_index_leads_nowhere_else(tmp_path: pathlib.Path, file: str) -> None:
    write_folder(tmp_path / "outside")
    (tmp_path / "outside" / "model.safetensors").rename(tmp_path / "outside.safetensors")
    write_folder(tmp_path / "model", files=2)
    change_index(tmp_path / "model", **{"model.norm.weight": file})
    with pytest.raises(ValueError, match="only files of this folder are read"):
        TensorFolder(tmp_path / "model")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "no index of tensors"),
        ("[]", "no index of tensors"),
        ('{"weight_map": {}}', "empty"),
        ('{"weight_map": {"a": 3}}', "no text"),
        ('{"weight_map": {"a": "model.bin"}}', "runs the code in it"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "'gone.safetensors', which is missing"),
        ("[" * 100_000, "no index of tensors"),
    ],
)
def test_a_bad_index_is_named(tmp_path: pathlib.Path, content: str, said: str) -> None:
    write_folder(tmp_path / "model", files=2)
    (tmp_path / "model" / INDEX).write_text(content)
    with pytest.raises(ValueError, match=said) as raised:
        TensorFolder(tmp_path / "model")
    assert INDEX in str(raised.value)


def test_an_index_that_its_files_do_not_keep_is_refused(tmp_path: pathlib.Path) -> None:
    write_folder(tmp_path / "model", files=2)
    change_index(tmp_path / "model", **{"model.unknown": "model-00001-of-00002.safetensors"})
    with pytest.raises(ValueError, match=r"model\.unknown should be in .* but is nowhere"):
        TensorFolder(tmp_path / "model")


def test_a_tensor_in_two_files_is_refused(tmp_path: pathlib.Path) -> None:
    tensors = write_folder(tmp_path / "model", files=2)
    second = tmp_path / "model" / "model-00002-of-00002.safetensors"
    save_file(tensors, second)
    with pytest.raises(ValueError, match="and again in"):
        TensorFolder(tmp_path / "model")


def test_parts_without_an_index_are_refused(tmp_path: pathlib.Path) -> None:
    write_folder(tmp_path / "model", files=2)
    (tmp_path / "model" / INDEX).unlink()
    with pytest.raises(ValueError, match=f"but no {INDEX}"):
        TensorFolder(tmp_path / "model")


class Runs:
    """Unpickling it would leave a file."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def __reduce__(self):
        return (pathlib.Path.touch, (self.path,))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.safetensors"])
def test_no_pickle_is_ever_run(tmp_path: pathlib.Path, name: str) -> None:
    write_folder(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    (tmp_path / "model" / name).write_bytes(pickle.dumps(Runs(tmp_path / "ran")))
    with pytest.raises(ValueError, match=name):
        open_source(tmp_path / "model")
    assert not (tmp_path / "ran").exists()


def test_all_differences_are_said_at_once(tmp_path: pathlib.Path) -> None:
    tensors = write_folder(tmp_path / "model")
    del tensors["model.norm.weight"]
    tensors["surprise"] = np.zeros(3, np.float32)
    tensors["lm_head.weight"] = tensors["lm_head.weight"].T.copy()
    tensors["model.layers.0.mlp.up_proj.weight"] = np.zeros((24, 16), np.int8)
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    with pytest.raises(ValueError, match="does not hold the model") as raised:
        open_source(tmp_path / "model")
    for said in (
        "1 missing:\n    model.norm.weight (16,)",
        "1 not part of this model:\n    surprise (3,)",
        "lm_head.weight is (16, 96), the configuration says (96, 16)",
        "model.layers.0.mlp.up_proj.weight is I8",
    ):
        assert said in str(raised.value)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "loop", "device", "nested"])
def test_what_is_no_file_is_refused_at_once(tmp_path: pathlib.Path, file: str, kind: str) -> None:
    write_folder(tmp_path / "model")
    path = tmp_path / "model" / file
    path.unlink()
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "nested":
            path.write_text("[" * 100_000)
        case _:
            path.symlink_to(path if kind == "loop" else "/dev/zero")
    with pytest.raises(ValueError, match=file):
        open_source(tmp_path / "model")


def test_names_out_of_a_file_do_not_steer_a_terminal() -> None:
    found = dict.fromkeys(("\x1b[2J", "b"), Stored(pathlib.Path("a"), "F32", (1,)))
    with pytest.raises(ValueError, match=r"'\\x1b\[2J' \(1,\)\n    b \(1,\)"):
        check(found, {}, where="model")


CONVERSIONS = [("float32", "float16"), ("bfloat16", "float16"), ("float32", "bfloat16")]
CONVERSIONS += [("float64", "float32"), ("float16", "bfloat16"), ("bfloat16", "float32")]


@given(
    conversion=st.sampled_from(CONVERSIONS),
    numbers=st.lists(st.floats() | st.sampled_from((65504.0, 65519.0, 65520.0, 3.39e38, 3.4e38))),
)
def test_a_number_that_becomes_infinite_is_refused_and_no_other(conversion, numbers) -> None:
    stored, wanted = map(dtype_of, conversion)
    with np.errstate(over="ignore"):
        values = np.asarray(numbers, np.float64).astype(stored)
        lost = np.isfinite(values) & np.isinf(values.astype(wanted))
    expected = (
        pytest.raises(ValueError, match="weight has") if lost.any() else contextlib.nullcontext()
    )
    with expected:
        check_range(values, wanted, name="weight")


def test_a_writer_refuses_what_its_type_cannot_hold(tmp_path: pathlib.Path) -> None:
    writer = FolderWriter(tmp_path, [Planned("a", (2,))], dtype="float16")
    with pytest.raises(ValueError, match=r"a has 1 number\(s\) up to 7e\+04, which float16"):
        writer.write("a", np.asarray([1, 7e4], np.float32))


def test_long_lists_of_differences_are_cut() -> None:
    wanted = {f"layer {i}": (1,) for i in range(100)}
    with pytest.raises(ValueError, match="100 missing") as raised:
        check({}, wanted, where="here")
    assert "and 92 more" in str(raised.value)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_folder_without_a_part_says_what_is_there(tmp_path: pathlib.Path, name: str) -> None:
    write_folder(tmp_path / "model")
    (tmp_path / "model" / name).unlink()
    with pytest.raises(ValueError, match=str(tmp_path / "model")):
        open_source(tmp_path / "model")
    with pytest.raises(ValueError, match="no such folder"):
        open_source(tmp_path / "nowhere")


@settings(max_examples=50, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(1, 6), max_size=3), min_size=1, max_size=6),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    most=st.integers(1, 2000),
    seed=st.integers(0, 99),
)
def test_files_written_in_any_order_are_what_safetensors_reads(
    tmp_path_factory, shapes: list[list[int]], dtype: str, most: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("written")
    draw = np.random.default_rng(seed)
    planned = [Planned(f"t{i}", tuple(shape)) for i, shape in enumerate(shapes)]
    values = {each.name: draw.standard_normal(each.shape).astype(np.float32) for each in planned}
    writer = FolderWriter(folder, planned, dtype=dtype, shard_bytes=most)
    for number in draw.permutation(len(planned)):
        writer.write(planned[number].name, np.asarray(values[planned[number].name]))
    writer.close()
    assert sorted(path.name for path in folder.glob("*.safetensors")) == sorted(writer.files)
    found = TensorFolder(folder)
    for each in planned:
        read = found.read(each.name, (slice(None),) * len(each.shape))
        np.testing.assert_array_equal(read, values[each.name].astype(read.dtype))
        assert (str(read.dtype), read.shape) == (dtype, each.shape)
    if dtype == "float32":
        assert load_file(folder / writer.files[0])
