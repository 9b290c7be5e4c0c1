import errno
import os
import pathlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from trainer.checkpoints import root as root_module
from trainer.checkpoints.object_root import ObjectRoot, open_bucket
from trainer.checkpoints.root import LocalRoot, Root, check_key, open_root

MakeRoot = Callable[[], Root]


@pytest.fixture(params=["local", "local without links", "object"])
def make_root(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> MakeRoot:
    """Opens the same place again and again, as several processes do."""
    if request.param == "object":
        monkeypatch.chdir(tmp_path)  # the path of an object root is relative
        return lambda: ObjectRoot("file://", spec={"driver": "file"}, path="o")
    if request.param == "local without links":

        def refuse(*args: object) -> None:
            raise OSError(errno.EPERM, "no links here")

        monkeypatch.setattr(os, "link", refuse)
    return lambda: open_root(tmp_path / "o")


def test_of_many_creators_one_wins_and_its_bytes_stay(make_root: MakeRoot) -> None:
    winners: list[int] = []
    ready = threading.Barrier(8)

    def create(number: int) -> None:
        root = make_root()
        ready.wait()
        if root.create("claims/1", b"%d" % number):
            winners.append(number)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 1
    assert make_root().read("claims/1") == b"%d" % winners[0]


def test_a_file_is_written_replaced_read_listed_and_removed(make_root: MakeRoot) -> None:
    root = make_root()
    assert root.read("a/b.json") is None
    root.write("a/b.json", b"one")
    root.write("a/b.json", b"two")
    root.write("a/c/d", b"")
    root.write("ab", b"x")
    assert root.read("a/b.json") == b"two"
    assert b"".join(root.chunks("a/b.json", cold=True)) == b"two"
    assert root.list() == ("a/b.json", "a/c/d", "ab")
    assert root.list("a/") == ("a/b.json", "a/c/d")
    assert root.children() == ("a", "ab")
    assert root.children("a/") == ("b.json", "c")
    assert root.child("a").read("c/d") == b""
    root.remove("a/b.json")
    root.remove("a/b.json")
    assert root.list("a/") == ("a/c/d",)
    with pytest.raises(FileNotFoundError):
        list(root.chunks("a/b.json"))


def test_delete_takes_one_directory_and_can_be_repeated(make_root: MakeRoot) -> None:
    root = make_root()
    for key in ("10.a1/MANIFEST.json", "10.a1/state/x", "10.a12/x", "10.a1.json"):
        root.write(key, b"x")
    root.delete("10.a1/", first="MANIFEST.json")
    root.delete("10.a1/", first="MANIFEST.json")
    assert root.list() == ("10.a1.json", "10.a12/x")


def test_a_local_file_goes_up_and_comes_down_equal(
    make_root: MakeRoot, tmp_path: pathlib.Path
) -> None:
    source, root = tmp_path / "source", make_root()
    source.write_bytes(b"MANIFEST" * 1000)
    root.put_file("z/y", source)
    assert b"".join(root.chunks("z/y")) == source.read_bytes()


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/./b", "a/"])
def test_a_key_cannot_leave_its_root(key: str) -> None:
    with pytest.raises(ValueError, match="below a root"):
        check_key(key)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://host/x", r"'ftp://host/x' has the scheme 'ftp'; a root is a path, gs://"),
        ("s3:///x", r"'s3:///x' has no bucket; write s3://bucket/path"),
        ("gs://", r"has no bucket; write gs://bucket/path"),
    ],
)
def test_a_url_that_is_no_root_is_an_error_that_says_what_is(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        open_root(url)


def test_opening_a_root_makes_nothing(tmp_path: pathlib.Path) -> None:
    assert open_root(tmp_path / "new").list() == ()
    assert open_root(f"file://{tmp_path}/new").children() == ()
    assert not (tmp_path / "new").exists()


def test_a_crash_in_the_middle_of_a_write_leaves_the_old_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = LocalRoot(tmp_path)
    root.write("a", b"old")

    def crash(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(root_module.os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        root.write("a", b"new")
    assert root.read("a") == b"old"
    assert root.list() == ("a",)


class Flaky:
    """A key-value store that fails some times first."""

    def __init__(self, errors: list[Exception]) -> None:
        self.errors = errors
        self.calls = 0

    def read(self, key: str) -> "Flaky":
        self.calls += 1
        return self

    def result(self, timeout: float) -> Any:
        if self.errors:
            raise self.errors.pop(0)

        class Found:
            state, value = "value", b"data"

        return Found()


def _flaky(errors: list[Exception]) -> tuple[ObjectRoot, Flaky, list[float]]:
    waits: list[float] = []
    root = ObjectRoot("s3://b", spec={"driver": "memory"}, path="run", wait=waits.append)
    store = Flaky(errors)
    root._store = store
    return root, store, waits


def test_a_passing_error_is_tried_again_with_growing_waits() -> None:
    root, store, waits = _flaky(
        [ValueError("UNAVAILABLE: busy"), TimeoutError(), ValueError("ABORTED: x")]
    )
    assert root.read("a") == b"data"
    assert store.calls == 4
    assert waits == sorted(waits)
    assert waits[2] > waits[0]


def test_an_error_that_stays_names_the_url_and_the_tries() -> None:
    root, store, _ = _flaky([ValueError("UNAVAILABLE: busy")] * 9)
    with pytest.raises(OSError, match=r"s3://b/run: could not read a \(try 5\): UNAVAILABLE"):
        root.read("a")
    assert store.calls == 5


def test_a_refusal_is_not_tried_again() -> None:
    root, store, _ = _flaky([ValueError("PERMISSION_DENIED: no")])
    with pytest.raises(OSError, match=r"s3://b/run: could not read a .*PERMISSION_DENIED"):
        root.read("a")
    assert store.calls == 1


def test_the_endpoint_of_s3_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:8")
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    root = open_bucket("s3://bucket/a/run/")
    assert root.url == "s3://bucket/a/run"
    assert root._spec["endpoint"] == "http://127.0.0.1:8"
    assert root._spec["aws_region"] == "us-east-1"
