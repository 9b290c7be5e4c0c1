"""The API server that tests talk to: a small one of their own, or the one of LOCKSTEP_KUBECONFIG.

Neither has the controllers of JobSet and Kueue, nor nodes: what those would do, tests do, by the
same two means on both: they make objects and they change statuses.
"""

import copy
import os
import pathlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from tests.launch.kubernetes_server import KINDS, ApiServer, merged

Object = dict[str, Any]
REAL = os.environ.get("LOCKSTEP_KUBECONFIG", "")


class Cluster(Protocol):
    """What tests do to a cluster.

    Attributes:
      kubeconfig: leads to it.
      namespace: of this test alone.
    """

    kubeconfig: pathlib.Path
    namespace: str

    def make(self, obj: Object) -> Object:
        """Makes an object as a controller would, its status included."""

    def change(self, kind: str, name: str, change: Object) -> None:
        """Merges a change into an object; of one with a status only that, or all but that."""

    def names(self, kind: str) -> list[str]:
        """Returns the names of the objects of a kind."""


class Fake:
    """The server of kubernetes_server."""

    def __init__(self, server: ApiServer, folder: pathlib.Path) -> None:
        self.server, self.namespace = server, "research"
        self.kubeconfig = server.kubeconfig(folder)

    def make(self, obj: Object) -> Object:
        obj["metadata"]["namespace"] = self.namespace
        return self.server.put(obj)

    def change(self, kind: str, name: str, change: Object) -> None:
        def apply(stored: Object) -> None:
            stored.update(merged(stored, change))

        self.server.change(kind, name, apply)

    def names(self, kind: str) -> list[str]:
        return self.server.names(kind)


class Real:
    """A server that somebody has started (docs/kubernetes.md), with JobSet's and Kueue's CRDs."""

    def __init__(self, kubeconfig: str) -> None:
        from kubernetes import client, config

        self.kubeconfig = pathlib.Path(kubeconfig)
        self.namespace = f"lockstep-{uuid.uuid4().hex[:8]}"
        api = config.new_client_from_config(kubeconfig)
        self._core, self._custom = client.CoreV1Api(api), client.CustomObjectsApi(api)
        self._core.create_namespace({"metadata": {"name": self.namespace}})

    def close(self) -> None:
        self._core.delete_namespace(self.namespace)

    def make(self, obj: Object) -> Object:
        made = copy.deepcopy(obj)
        made["metadata"]["namespace"] = self.namespace
        status = made.pop("status", None)
        if made["kind"] == "Pod":
            self._core.create_namespaced_pod(self.namespace, made)
        else:
            self._custom.create_namespaced_custom_object(*self._place(made["kind"]), made)
        if status:
            self.change(made["kind"], made["metadata"]["name"], {"status": status})
        return made

    def change(self, kind: str, name: str, change: Object) -> None:
        part = "_status" if "status" in change else ""
        merge = {"_content_type": "application/merge-patch+json"}
        if kind == "Pod":
            call = getattr(self._core, f"patch_namespaced_pod{part}")
            call(name, self.namespace, change, **merge)
        else:
            call = getattr(self._custom, f"patch_namespaced_custom_object{part}")
            call(*self._place(kind), name, change, **merge)

    def names(self, kind: str) -> list[str]:
        if kind == "ConfigMap":
            items = self._core.list_namespaced_config_map(self.namespace).items
            return sorted(i.metadata.name for i in items if i.metadata.name.startswith("train"))
        found = self._custom.list_namespaced_custom_object(*self._place(kind))
        return sorted(item["metadata"]["name"] for item in found["items"])

    def _place(self, kind: str) -> tuple[str, str, str, str]:
        for plural, (api_version, name) in KINDS.items():
            if name == kind:
                group, _, version = api_version.rpartition("/")
                return group, version, self.namespace, plural
        raise LookupError(kind)


@contextmanager
def cluster(folder: pathlib.Path) -> Iterator[Cluster]:
    """Yields the cluster to test with, in a namespace of its own."""
    if REAL:
        real = Real(REAL)
        try:
            yield real
        finally:
            real.close()
        return
    with ApiServer() as server:
        yield Fake(server, folder)


def condition(kind: str, status: str, reason: str, message: str) -> Object:
    """Returns a condition as all of them look."""
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-11-30T09:00:00Z",
    }


def pod(name: str, *, labels: dict[str, str], status: Object, node: str = "node-1") -> Object:
    """Returns a pod with one container."""
    containers = [{"name": "main", "image": "example/x"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": node, "containers": containers, "restartPolicy": "Never"},
        "status": status,
    }


def ended(code: int, *, at: str = "2026-11-30T09:00:00Z", message: str = "") -> Object:
    """Returns the status of a pod whose container has ended."""
    how = {"exitCode": code, "finishedAt": at, "startedAt": at, "message": message}
    return {"phase": "Failed" if code else "Succeeded"} | _container({"terminated": how})


def running() -> Object:
    """Returns the status of a pod that runs."""
    return {"phase": "Running"} | _container({"running": {"startedAt": "2026-11-30T09:00:00Z"}})


def waiting(reason: str, message: str = "") -> Object:
    """Returns the status of a pod whose container does not start."""
    return {"phase": "Pending"} | _container({"waiting": {"reason": reason, "message": message}})


def _container(state: Object) -> Object:
    status = {
        "name": "main",
        "state": state,
        "ready": "running" in state,
        "restartCount": 0,
        "image": "example/x",
        "imageID": "",
    }
    return {"containerStatuses": [status]}
