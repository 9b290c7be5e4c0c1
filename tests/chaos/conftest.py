"""Runs of fake ranks, ended with their test."""

from collections.abc import Callable, Iterator

import pytest

from tests.chaos.harness import FakeRun, fake_run


@pytest.fixture
def chaos(tmp_path) -> Iterator[Callable[..., FakeRun]]:
    """Makes a run; see `tests.chaos.harness.fake_run`."""
    made: list[FakeRun] = []

    def make(**options: object) -> FakeRun:
        folder = tmp_path / f"run{len(made)}"
        folder.mkdir()
        made.append(fake_run(folder, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for run in made:
        run.end()
