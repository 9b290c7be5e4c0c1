"""What a cluster runs is told, and versions that are known not to work are named."""

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from launch.engines.engine import EngineError
from launch.engines.kubernetes import Kubernetes
from launch.engines.kubernetes_preflight import parsed, troubles
from tests.launch.kubernetes_server import ApiServer


@pytest.fixture
def server(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with ApiServer() as found:
        monkeypatch.setenv("KUBECONFIG", str(found.kubeconfig(tmp_path)))
        yield found


def deployment(name: str, namespace: str, image: str) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "manager", "image": image}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"template": template},
    }


def install(server: ApiServer, *, jobset: str, kueue: str) -> None:
    for part, version in (("jobset", jobset), ("kueue", kueue)):
        image = f"registry.example/{part}/{part}:{version}"
        server.put(deployment(f"{part}-controller-manager", f"{part}-system", image))


def test_a_cluster_that_goes_is_told_without_trouble(server: ApiServer) -> None:
    install(server, jobset="v0.12.0", kueue="v0.19.2")
    assert Kubernetes().preflight("research") == [
        "Kubernetes 1.33.4",
        "JobSet 0.12.0",
        "Kueue 0.19.2",
    ]


def test_old_versions_and_the_known_bad_pair_are_named(server: ApiServer) -> None:
    install(server, jobset="v0.7.0", kueue="v0.8.4")
    server.git_version = "v1.27.3+k3s1"
    server.versions["kueue.x-k8s.io"] = ["v1beta1"]
    wrong = [line for line in Kubernetes().preflight("research") if line.startswith("WRONG")]
    assert [line.split(":")[0] for line in wrong] == [
        "WRONG Kueue",
        "WRONG Kubernetes 1.27.3 is older than 1.28.0",
        "WRONG JobSet 0.7.0 is older than 0.10.0",
        "WRONG Kueue 0.8.4 is older than 0.15.0",
        "WRONG JobSet 0.7.0 with Kueue 0.8.4",
    ]
    assert "v1beta2 is not served; there is ['v1beta1']" in wrong[0]
    assert "kueue#3349" in wrong[-1]


def test_controllers_that_are_not_there_are_told(server: ApiServer) -> None:
    server.versions = {}
    lines = Kubernetes().preflight("research")
    assert [line for line in lines if "is not served; there is none" in line] == lines[3:]
    assert len(lines) == 5


def test_a_user_who_may_not_look_is_told_so_and_no_more(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(server, jobset="v0.1.0", kueue="v0.1.0")
    real = server.answer

    def answer(method: str, target: str, *rest: Any) -> Any:
        if "deployments" in target:
            server.failures.append((403, "forbidden"))
            from tests.launch.kubernetes_server import Answer

            raise Answer(*server.failures.pop())
        return real(method, target, *rest)

    monkeypatch.setattr(server, "answer", answer)
    lines = Kubernetes().preflight("research")
    assert lines[1:] == [
        "JobSet of unknown version (may not be looked at)",
        "Kueue of unknown version (may not be looked at)",
    ]


def test_a_server_that_fails_is_an_error(server: ApiServer) -> None:
    server.failures = [(500, "broken")] * 5
    with pytest.raises(EngineError, match="broken"):
        Kubernetes().preflight("research")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("v1.33.4", (1, 33, 4)),
        ("v1.27.3-gke.100", (1, 27, 3)),
        ("x/y:v0.12.0", (0, 12, 0)),
        ("x", None),
    ],
)
def test_versions_are_read_from_what_servers_and_images_say(text: str, version: Any) -> None:
    assert parsed(text) == version


def test_versions_that_are_not_known_are_no_trouble() -> None:
    assert troubles({"Kubernetes": None, "JobSet": None, "Kueue": None}) == []
