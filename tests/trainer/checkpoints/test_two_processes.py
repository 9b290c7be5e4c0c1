"""Steps written by two processes and read by one, and the other way round."""

import pathlib
import socket
import subprocess
import sys
import uuid

import pytest
from jax.sharding import PartitionSpec as P

from tests.trainer.checkpoints import states
from trainer.checkpoints.layout import StepName
from trainer.checkpoints.root import open_root
from trainer.checkpoints.store import CheckpointStore
from trainer.run_config import CheckpointConfig

pytestmark = pytest.mark.slow
REPOSITORY = pathlib.Path(__file__).parents[3]


# Its own host name and an own, empty disk at the staging path, as on another host.
OTHER_HOST = """
hostname "$1" && mount -t tmpfs tmpfs "$2" && echo "127.0.0.1 $1" >"$2/hosts" &&
mount --bind "$2/hosts" /etc/hosts && shift 2 && exec "$@"
"""


def on_host(number: int, staging: pathlib.Path) -> list[str]:
    """The prefix of a command that makes it run as if on a host of its own."""
    staging.mkdir(exist_ok=True)
    return ["unshare", "-m", "-u", "sh", "-c", OTHER_HOST, "sh", f"host{number}", str(staging)]


def gang(url: str, action: str, staging: pathlib.Path, *, hosts: bool = False) -> list[str]:
    """Runs two processes, each on a host of its own if asked; returns what each printed last."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    module = "tests.trainer.checkpoints.two_processes"
    ranks = [
        subprocess.Popen(
            [
                *(on_host(r, staging) if hosts else []),
                *(sys.executable, "-m", module, str(r), "2", str(port), url, action, str(staging)),
            ],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=240) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, (_, errors) in zip(ranks, outputs, strict=True):
        assert rank.returncode == 0, errors
    return [out.strip().splitlines()[-1] for out, _ in outputs]


@pytest.mark.parametrize("kind", ["path", "s3", "s3 from two hosts"])
def test_two_processes_save_and_agree_and_one_process_restores(
    kind: str, tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> None:
    url = str(tmp_path / "run")
    staging = tmp_path / "staging"
    hosts = kind == "s3 from two hosts"
    if hosts and subprocess.run([*on_host(0, staging), "true"], capture_output=True).returncode:
        pytest.skip("separate mounts and host names are not permitted here")
    if kind != "path":
        url = f"{request.getfixturevalue('s3_url')}/two/{uuid.uuid4().hex}"
    assert gang(url, "1:save", staging, hosts=hosts) == ["restored None aside []"] * 2
    run = open_root(url)
    reader = CheckpointStore(run, attempt=None, config=CheckpointConfig(), staging=staging)
    assert reader.steps() == (StepName(20, 1), StepName(30, 1))
    target = states.abstract(states.make(), over=states.mesh(2, 4), spec=P("b", "a"))
    restored = reader.restore(target)
    assert restored is not None
    assert states.equal(restored.state, states.make(30))
    checkpoints = run.child("checkpoints")
    piece = next(k for k in checkpoints.list("30.a1/") if "/c/" in k or "process_1/d/" in k)
    data = bytearray(checkpoints.read(piece) or b"")
    data[len(data) // 2] ^= 1
    checkpoints.write(piece, bytes(data))
    assert gang(url, "2:", staging, hosts=hosts) == ["restored 20.a1 aside ['30.a1']"] * 2


def test_one_process_saves_and_two_restore(tmp_path: pathlib.Path) -> None:
    states.saved(open_root(tmp_path / "run"), 10)
    answers = gang(str(tmp_path / "run"), "2:", tmp_path / "staging")
    assert answers == ["restored 10.a1 aside []"] * 2
