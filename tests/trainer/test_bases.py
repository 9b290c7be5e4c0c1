"""The base of adapters is what and where it was, or the error says whose base is missing."""

import pathlib
import shutil

import pytest

from tests.models.huggingface.folders import write_folder
from trainer.bases import Base, base_of, recorded_base
from trainer.importing import import_folder


@pytest.fixture(params=["folder", "import"])
def base(request, tmp_path: pathlib.Path) -> Base:
    """A base of either kind, at tmp_path / "base"."""
    folder = tmp_path / ("base" if request.param == "folder" else "model")
    write_folder(folder)
    if request.param == "import":
        import_folder(folder, tmp_path / "base")
    return base_of(str(tmp_path / "base"))


def test_a_base_that_came_back_or_is_a_link_is_the_base(base: Base, tmp_path: pathlib.Path) -> None:
    assert recorded_base(base, adapters="runs/lora") == base
    (tmp_path / "base").rename(tmp_path / "moved")
    (tmp_path / "base").symlink_to(tmp_path / "moved")
    assert recorded_base(base, adapters="runs/lora").fingerprint == base.fingerprint


def test_a_base_that_is_gone_is_said_with_whose_it_was(base: Base, tmp_path: pathlib.Path) -> None:
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(
        ValueError, match=r"^runs/lora holds adapters of .*/base.* any more.*\n.*link"
    ):
        recorded_base(base, adapters="runs/lora")


def test_a_base_that_changed_is_no_base(base: Base, tmp_path: pathlib.Path) -> None:
    shutil.rmtree(tmp_path / "base")
    write_folder(tmp_path / "other", scale=2.0)
    if "checkpoints" in base.url:
        import_folder(tmp_path / "other", tmp_path / "base")
    else:
        (tmp_path / "other").rename(tmp_path / "base")
    with pytest.raises(ValueError, match=r"^runs/lora holds adapters of .*has changed since"):
        recorded_base(base, adapters="runs/lora")
