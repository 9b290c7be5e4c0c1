"""Folders that must be new appear once, and whoever made another is told so."""

import threading
from pathlib import Path

import pytest

from input_pipeline.cache import make_new


def test_what_makes_a_folder_says_what_it_made(tmp_path: Path) -> None:
    assert make_new(tmp_path / "new", make=lambda partial: partial.is_dir()) is True
    assert (tmp_path / "new").is_dir()


def test_of_two_that_make_a_folder_at_once_one_is_refused(tmp_path: Path) -> None:
    inside, done = threading.Event(), threading.Event()

    def slow(partial: Path) -> None:
        inside.set()
        assert done.wait(30)
        (partial / "by").write_text("the first")

    first = threading.Thread(target=make_new, args=(tmp_path / "new",), kwargs={"make": slow})
    first.start()
    assert inside.wait(30)
    threading.Timer(0.1, done.set).start()
    with pytest.raises(ValueError, match="exists already"):
        make_new(tmp_path / "new", make=lambda partial: (partial / "by").write_text("the second"))
    first.join()
    assert (tmp_path / "new" / "by").read_text() == "the first"


def test_a_file_is_in_the_way_as_a_folder_is(tmp_path: Path) -> None:
    (tmp_path / "new").write_text("")
    with pytest.raises(ValueError, match="exists already"):
        make_new(tmp_path / "new", make=lambda _: None)
