"""A user with a home, a folder and an engine of his own."""

import pathlib

import pytest

from launch.engines.engine import ENGINES
from tests.launch import toy_engine
from tests.launch.door import Door


@pytest.fixture
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The working directory of somebody who has submitted nothing yet."""
    for name in ("home", "toy", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(toy_engine.FOLDER, str(tmp_path / "toy"))
    monkeypatch.setitem(ENGINES, "toy", toy_engine.NAME)
    monkeypatch.setitem(ENGINES, "supervised_toy", toy_engine.NAME.replace("Toy", "SupervisedToy"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def door(capsys: pytest.CaptureFixture[str], here: pathlib.Path) -> Door:
    return Door(capsys, here)
