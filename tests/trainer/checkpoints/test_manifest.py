import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.checkpoints.memory_root import MemoryRoot
from trainer.checkpoints import manifest
from trainer.checkpoints.layout import StepName
from trainer.checkpoints.manifest import FileRecord, Leaf, Manifest

NAMES = st.builds(StepName, st.integers(0, 10**9), st.integers(0, 10**4))
MANIFESTS = st.builds(
    Manifest,
    name=NAMES,
    parent=st.none() | NAMES,
    dataset_digest=st.text(max_size=10),
    accepted=st.lists(NAMES, max_size=3).map(tuple),
    files=st.dictionaries(
        st.text(max_size=10), st.builds(FileRecord, st.integers(0), st.text(max_size=5)), max_size=3
    ),
    tree=st.dictionaries(
        st.text(max_size=10),
        st.builds(Leaf, st.lists(st.integers(0), max_size=3).map(tuple), st.just("bfloat16")),
        max_size=3,
    ),
)
FILES = {"state/a": b"a" * 5000, "state/b": b"", "data.json": b"{}"}


def _step() -> tuple[MemoryRoot, Manifest]:
    name = StepName(10, 1)
    root = MemoryRoot({name.key(path): data for path, data in FILES.items()})
    found = Manifest(
        name=name,
        parent=None,
        dataset_digest="",
        accepted=(),
        files={path: manifest.digest([data]) for path, data in FILES.items()},
        tree={},
    )
    root.write(name.key("MANIFEST.json"), manifest.encode(found))
    return root, found


@given(MANIFESTS)
def test_a_manifest_reads_back_equal(given: Manifest) -> None:
    assert manifest.decode(manifest.encode(given)) == given


@given(MANIFESTS, st.data())
def test_no_flipped_bit_of_a_manifest_goes_unnoticed(given: Manifest, data: st.DataObject) -> None:
    encoded = manifest.encode(given)
    place = data.draw(st.integers(0, len(encoded) - 1))
    flipped = bytes([encoded[place] ^ (1 << data.draw(st.integers(0, 7)))])
    damaged = encoded[:place] + flipped + encoded[place + 1 :]
    try:
        read = manifest.decode(damaged)
    except ValueError:
        return
    assert read == given  # white space, or the same character written otherwise


@given(MANIFESTS, st.data())
def test_no_shortened_manifest_is_read(given: Manifest, data: st.DataObject) -> None:
    encoded = manifest.encode(given)
    with pytest.raises(ValueError):
        manifest.decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


def test_a_manifest_of_another_step_is_no_manifest() -> None:
    root, found = _step()
    root.write("20.a1/MANIFEST.json", manifest.encode(found))
    with pytest.raises(ValueError, match=r"is of step 10\.a1"):
        manifest.read(root, StepName(20, 1))


def test_a_manifest_of_a_later_version_is_refused_by_number() -> None:
    with pytest.raises(ValueError, match="version 2; this code reads 1"):
        manifest.decode(manifest.sign({"version": 2}))


@given(st.dictionaries(st.text(max_size=4), st.integers(0, 99), max_size=20), st.integers(1, 5))
def test_each_file_is_verified_by_exactly_one_process(sizes: dict[str, int], parts: int) -> None:
    files = {path: FileRecord(size, "") for path, size in sizes.items()}
    shares = [manifest.share(files, part=part, parts=parts) for part in range(parts)]
    assert sorted(path for share in shares for path in share) == sorted(files)
    loads = [sum(sizes[path] for path in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes.values(), default=0) + len(sizes)


@given(st.integers(0, 5000 * 8 - 1))
def test_every_flipped_bit_of_a_file_is_named(bit: int) -> None:
    root, found = _step()
    data = bytearray(FILES["state/a"])
    data[bit // 8] ^= 1 << bit % 8
    root.write("10.a1/state/a", bytes(data))
    (line,) = manifest.faults(root, found, sorted(found.files))
    assert line.startswith("state/a has changed: SHA-256")


def test_missing_and_resized_files_are_named_and_whole_ones_are_not() -> None:
    root, found = _step()
    assert manifest.faults(root, found, sorted(found.files)) == []
    root.write("10.a1/state/b", b"more")
    root.remove("10.a1/data.json")
    assert manifest.faults(root, found, sorted(found.files)) == [
        "data.json is missing",
        "state/b has 4 bytes, written were 0",
    ]
    assert manifest.faults(root, found, sorted(found.files), contents=False) == [
        "data.json is missing"
    ]
