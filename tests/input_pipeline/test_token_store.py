"""Token shards read back exactly, notice damage, and are cheap to hand to a worker."""

import itertools
import json
import pickle
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from input_pipeline.manifest import Manifest
from input_pipeline.token_store import StoreRecord, TokenStore, ranges
from input_pipeline.token_writer import SplitWriter, write_tokens

DOCUMENTS = st.lists(st.lists(st.integers(0, 299), max_size=9), max_size=12)


def written(folder, documents, *, parts=1, vocab=300, shard=1 << 28, weights=None) -> StoreRecord:
    writer = SplitWriter(folder, split="train", vocab_size=vocab, shard_tokens=shard)
    for start in range(0, len(documents), parts):
        some = documents[start : start + parts]
        tokens = np.array([t for document in some for t in document], np.int64)
        learned = None
        if weights is not None:
            learned = np.array([w for one in weights[start : start + parts] for w in one], bool)
        writer.append(tokens, lengths=np.array([len(d) for d in some], np.int64), weights=learned)
    record = StoreRecord.of(
        Manifest(name="test", source="test", licence="CC0-1.0", files=()),
        tokenizer=None,
        vocab_size=vocab,
        splits={"train": writer.finish(text_bytes=7)},
    )
    record.write(folder)
    return record


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(documents=DOCUMENTS, parts=st.integers(1, 4), shard=st.integers(1, 12), data=st.data())
def test_documents_read_back_in_any_order(tmp_path_factory, documents, parts, shard, data) -> None:
    folder = tmp_path_factory.mktemp("store")
    record = written(folder, documents, parts=parts, shard=shard)
    assert StoreRecord.read(folder) == record
    store = TokenStore(folder, split="train")
    assert len(store) == len(documents)
    if not documents:
        return
    some = np.array(data.draw(st.lists(st.integers(0, len(documents) - 1))), np.int64)
    got = store.read(some)
    assert got["tokens"].tolist() == [t for i in some for t in documents[i]]
    assert got["lengths"].tolist() == [len(documents[i]) for i in some]
    # Documents do not span files, and files end soon after they are full.
    edges = np.cumsum([0, *(len(d) for d in documents)])
    starts = np.cumsum([0, *(s.entries for s in record.splits["train"].shards)])
    assert set(starts.tolist()) <= set(edges.tolist())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(documents=DOCUMENTS, parts=st.integers(1, 4), shard=st.integers(1, 12), data=st.data())
def test_weights_read_back_beside_their_tokens(
    tmp_path_factory, documents, parts, shard, data
) -> None:
    count = sum(map(len, documents))
    flat = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    edges = np.cumsum([0, *map(len, documents)]).tolist()
    weights = [flat[a:b] for a, b in itertools.pairwise(edges)]
    folder = tmp_path_factory.mktemp("store")
    record = written(folder, documents, parts=parts, shard=shard, weights=weights)
    assert StoreRecord.read(folder) == record
    store = TokenStore(folder, split="train", verify=True)
    assert store.weights(np.arange(count)).tolist() == flat
    if documents:
        assert store.split.learned == sum(flat)
        assert record.version == 2


def test_weights_are_part_of_the_digest_and_stores_without_them_keep_theirs(tmp_path) -> None:
    documents = [[1, 2, 3]]
    digests = [
        written(tmp_path / str(number), documents, weights=weights).digest
        for number, weights in enumerate([None, [[0, 1, 1]], [[0, 0, 1]]])
    ]
    assert len(set(digests)) == 3
    # As it was before stores had weights.
    assert digests[0] == "1773fa736f8c2e7bffe6d65d91b2cac2fda172e9b7559363ea57fac085b1efda"
    value = json.loads((tmp_path / "0" / "manifest.json").read_text())
    assert "weights" not in value["splits"]["train"]


def test_documents_with_and_without_weights_do_not_mix(tmp_path) -> None:
    one = {"tokens": np.array([1, 2]), "lengths": np.array([2])}
    weights = np.array([False, True])
    bare = SplitWriter(tmp_path / "bare", split="train", vocab_size=9)
    bare.append(**one)
    with pytest.raises(ValueError, match="have weights; those before them have none"):
        bare.append(**one, weights=weights)
    weighted = SplitWriter(tmp_path / "weighted", split="train", vocab_size=9)
    weighted.append(**one, weights=weights)
    with pytest.raises(ValueError, match="have no weights; those before them have"):
        weighted.append(**one)
    with pytest.raises(ValueError, match="2 tokens, but 1 weights"):
        weighted.append(**one, weights=weights[:1])


@pytest.mark.parametrize(("vocab", "kind"), [(65_536, "<u2"), (65_537, "<u4")])
def test_large_vocabularies_take_four_bytes(tmp_path, vocab, kind) -> None:
    written(tmp_path, [[0, vocab - 1]], vocab=vocab)
    store = TokenStore(tmp_path, split="train")
    assert store.record.dtype == kind
    assert store.read(np.array([0]))["tokens"].tolist() == [0, vocab - 1]


@pytest.mark.parametrize("bad", [-1, 300])
def test_a_token_out_of_range_is_refused_with_its_document(tmp_path, bad) -> None:
    with pytest.raises(ValueError, match=f"Document 2 .* holds token {bad}"):
        written(tmp_path, [[1, 2], [], [5, bad], [3]], parts=2)


def test_lengths_that_do_not_add_up_are_refused(tmp_path) -> None:
    writer = SplitWriter(tmp_path, split="train", vocab_size=9)
    with pytest.raises(ValueError, match="3 tokens, but lengths that sum to 2"):
        writer.append(np.array([1, 2, 3]), lengths=np.array([2]))


def test_written_tokens_appear_whole_or_not_at_all(tmp_path) -> None:
    manifest = Manifest(name="test", source="test", licence="CC0-1.0", files=())
    good = (np.array([1, 2, 3]), np.array([1, 2]))
    bad = (np.array([1, 99]), np.array([2]))
    with pytest.raises(ValueError, match="holds token 99"):
        write_tokens(tmp_path / "a", manifest=manifest, vocab_size=9, splits={"train": [good, bad]})
    assert not (tmp_path / "a").exists()
    record = write_tokens(
        tmp_path / "a", manifest=manifest, vocab_size=9, splits={"train": [good, good]}
    )
    assert record.splits["train"].documents == 4
    with pytest.raises(ValueError, match="exists already"):
        write_tokens(tmp_path / "a", manifest=manifest, vocab_size=9, splits={"train": [good]})


def test_the_digest_covers_every_token_and_the_manifest(tmp_path) -> None:
    digests = {
        written(tmp_path / str(number), documents).digest
        for number, documents in enumerate([[[1, 2]], [[1, 3]], [[1], [2]], [[1, 2], []]])
    }
    assert len(digests) == 4
    assert written(tmp_path / "again", [[1, 2]]).digest in digests


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete"])
@pytest.mark.parametrize("name", ["tokens-00000.bin", "offsets.bin", "weights-00000.bin"])
def test_damage_is_named(tmp_path, damage, name) -> None:
    written(tmp_path, [[1, 2, 3]], weights=[[0, 1, 1]])
    path = tmp_path / "train" / name
    content = bytearray(path.read_bytes())
    content[0] ^= 4
    match damage:
        case "flip":
            path.write_bytes(content)
        case "truncate":
            path.write_bytes(content[:-1])
        case "delete":
            path.unlink()
    with pytest.raises(ValueError, match=name):
        TokenStore(tmp_path, split="train")


def test_a_copy_for_a_worker_holds_no_tokens_and_reads_the_same(tmp_path) -> None:
    written(tmp_path, [list(range(200))] * 500)
    store = TokenStore(tmp_path, split="train")
    packed = pickle.dumps(store)
    assert len(packed) < 5000
    copy = pickle.loads(packed)
    assert copy.read(np.array([7]))["tokens"].tolist() == list(range(200))


def test_a_missing_store_says_how_to_make_one(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"no manifest\.json.*input_pipeline\.prepare"):
        TokenStore(tmp_path / "nowhere", split="train")


def test_a_missing_split_is_named(tmp_path) -> None:
    written(tmp_path, [[1, 2]])
    with pytest.raises(ValueError, match=r"no split 'held_out'; it has \['train'\]"):
        TokenStore(tmp_path, split="held_out")


def test_another_version_is_refused(tmp_path) -> None:
    written(tmp_path, [[1, 2]])
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().rsplit('"version": 1', 1)[0] + '"version": 99\n}')
    with pytest.raises(ValueError, match="version 99"):
        TokenStore(tmp_path, split="train")


def test_a_moved_store_is_the_same_dataset(tmp_path) -> None:
    record = written(tmp_path / "a", [[1, 2]])
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert TokenStore(tmp_path / "b", split="train").record.digest == record.digest


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 6)), max_size=9))
def test_ranges_count_up_from_each_start(spans) -> None:
    starts, lengths = (np.array([s[i] for s in spans], np.int64) for i in (0, 1))
    assert ranges(starts, lengths).tolist() == [v for s, n in spans for v in range(s, s + n)]
