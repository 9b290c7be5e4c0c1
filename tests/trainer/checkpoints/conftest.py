import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.trainer.checkpoints import object_stores


@pytest.fixture(scope="session")
def s3_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with (
        object_stores.seaweed(tmp_path_factory.mktemp("seaweed")) as settings,
        object_stores.environment(settings),
    ):
        yield "s3://ckpt"


@pytest.fixture(scope="session")
def gs_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with (
        object_stores.fake_gcs(tmp_path_factory.mktemp("gcs")) as settings,
        object_stores.environment(settings),
    ):
        yield "gs://ckpt"


@pytest.fixture(params=["s3", "gs"])
def bucket_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def run_dir(tmp_path: pathlib.Path) -> Any:
    from trainer.checkpoints.root import open_root

    return open_root(tmp_path / "run")
