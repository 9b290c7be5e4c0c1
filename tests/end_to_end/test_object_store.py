"""A run whose directory is an object store, through the front door."""

import json
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.end_to_end.runs import REPOSITORY, Scene, make_scene
from tests.trainer.checkpoints import object_stores
from trainer.checkpoints.root import open_root


def _run(scene: Scene, url: str, home: pathlib.Path, *arguments: str) -> subprocess.Popen[str]:
    """Starts the run on a host of its own: with no local files of an earlier attempt."""
    home.mkdir(exist_ok=True)
    command = [
        *(sys.executable, "-m", "trainer.main", f"--gin_file={scene.gin}"),
        *(f"--run_dir={url}", f"--cache_dir={scene.folder / 'cache'}", *arguments),
    ]
    return subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={**object_stores.os.environ, "HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_killed_run_goes_on_from_an_object_store_on_another_host(
    tmp_path: pathlib.Path, scheme: str
) -> None:
    scene = make_scene(tmp_path)
    scene.run("local")
    server = object_stores.seaweed if scheme == "s3" else object_stores.fake_gcs
    (tmp_path / "server").mkdir()
    with server(tmp_path / "server") as settings, object_stores.environment(settings):
        url = f"{scheme}://ckpt/{scheme}-run"
        first = _run(scene, url, tmp_path / "host1")
        assert first.stdout is not None
        next(line for line in first.stdout if line.startswith("step 13/"))
        first.send_signal(signal.SIGKILL)
        first.communicate()
        second = _run(scene, url, tmp_path / "host2", "--take_over")
        text, _ = second.communicate(timeout=300)
        assert second.returncode == 0, text
        root = open_root(url)
        data = root.read("metrics.jsonl")
        assert data is not None
        assert root.read("summary.json") is not None
    rows = [json.loads(line) for line in data.decode().splitlines()]
    losses = [(row["step"], row["loss"]) for row in rows if row["kind"] == "train"]
    assert losses == scene.losses("local")
