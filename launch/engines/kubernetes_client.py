"""What the Kubernetes engine asks of an API server, through the official client.

Objects go in and out as the JSON that they are. The client is imported when it is first needed: it
is the extra ``kubernetes``, and rendering does without it.
"""

import functools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from launch.engines import kubernetes_names as names
from launch.engines.engine import EngineError

Object = dict[str, Any]
TIMEOUT_S = 20.0
"""Longest wait for one answer."""

_PLACES = {
    "JobSet": (names.JOBSET_GROUP, names.JOBSET_VERSION, "jobsets"),
    "Workload": (names.KUEUE_GROUP, names.KUEUE_VERSION, "workloads"),
    "Job": ("batch", "v1", "jobs"),
    "NetworkPolicy": ("networking.k8s.io", "v1", "networkpolicies"),
}
CONFLICT, GONE = 409, 404
_MERGE = "application/merge-patch+json"


class Refused(EngineError):
    """The API server answered with an error.

    Attributes:
      status: its HTTP status.
    """

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """One namespace of the cluster that the current kubeconfig names, or that this pod is in."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def get(self, kind: str, name: str) -> Object | None:
        """Returns an object; None where there is none.

        Raises:
          EngineError: the server cannot be reached or refused.
        """
        try:
            with _errors(f"read {kind} {name}"):
                if kind == "ConfigMap":
                    return self._plain(self._core.read_namespaced_config_map, name, self.namespace)
                read = self._custom.get_namespaced_custom_object
                return self._plain(read, *self._place(kind), name)
        except Refused as refused:
            if refused.status == GONE:
                return None
            raise

    def create(self, obj: Object) -> Object:
        """Creates an object and returns it as stored.

        Raises:
          EngineError: the server cannot be reached or refused; `Refused` 409: it is there already.
        """
        with _errors(f"create {obj['kind']} {obj['metadata']['name']}"):
            if obj["kind"] == "ConfigMap":
                create = self._core.create_namespaced_config_map
                return self._plain(create, self.namespace, obj, field_validation="Strict")
            create = self._custom.create_namespaced_custom_object
            place = self._place(obj["kind"])
            return self._plain(create, *place, obj, field_validation="Strict")

    def patch(self, kind: str, name: str, change: Object) -> Object:
        """Merges a change into an object."""
        with _errors(f"change {kind} {name}"):
            if kind == "ConfigMap":
                merge = self._core.patch_namespaced_config_map
                return self._plain(merge, name, self.namespace, change, _content_type=_MERGE)
            merge = self._custom.patch_namespaced_custom_object
            return self._plain(merge, *self._place(kind), name, change, _content_type=_MERGE)

    def delete(self, kind: str, name: str) -> bool:
        """Deletes an object and, with their grace, all that it owns; False where there is none."""
        options = {"propagationPolicy": "Foreground"}
        try:
            with _errors(f"delete {kind} {name}"):
                if kind == "ConfigMap":
                    remove = self._core.delete_namespaced_config_map
                    self._plain(remove, name, self.namespace, body=options)
                    return True
                remove = self._custom.delete_namespaced_custom_object
                self._plain(remove, *self._place(kind), name, body=options)
        except Refused as refused:
            if refused.status == GONE:
                return False
            raise
        return True

    def labelled(self, kind: str, *, labels: str) -> list[Object]:
        """Returns objects by their labels, in the order of their names."""
        with _errors(f"list {kind}s"):
            if kind == "Pod":
                pods = self._core.list_namespaced_pod
                found = self._plain(pods, self.namespace, label_selector=labels)
            else:
                listed = self._custom.list_namespaced_custom_object
                found = self._plain(listed, *self._place(kind), label_selector=labels)
        items: list[Object] = found["items"]
        return sorted(items, key=lambda item: item["metadata"]["name"])

    def log(self, pod: str, *, lines: int | None = None) -> str:
        """Returns what a pod has written; empty where it has not started."""
        options = {"container": names.CONTAINER} | ({"tail_lines": lines} if lines else {})
        try:
            with _errors(f"read the log of {pod}"):
                answer = self._core.read_namespaced_pod_log(
                    pod, self.namespace, _preload_content=False, **options, **_LIMIT
                )
                text: str = answer.data.decode(errors="replace")
                return text
        except Refused as refused:
            if refused.status in (400, GONE):  # 400: its container is still waiting to start
                return ""
            raise

    def versions(self, group: str) -> list[str]:
        """Returns which versions of an API group the server serves; none where it has no such."""
        from kubernetes import client

        try:
            with _errors(f"ask for {group}"):
                answer = client.ApisApi(self._client).get_api_versions(**_LIMIT)
        except Refused as refused:
            if refused.status == GONE:
                return []
            raise
        return [v.version for g in answer.groups if g.name == group for v in g.versions]

    def image(self, namespace: str, deployment: str) -> str | None:
        """Returns the image of a controller; None where there is none, or none to be seen."""
        from kubernetes import client

        try:
            with _errors(f"look at {deployment}"):
                read = client.AppsV1Api(self._client).read_namespaced_deployment
                found = self._plain(read, deployment, namespace)
        except Refused as refused:
            if refused.status in (401, 403, GONE):
                return None
            raise
        image: str = found["spec"]["template"]["spec"]["containers"][0]["image"]
        return image

    def server(self) -> str:
        """Returns the version of the API server."""
        from kubernetes import client

        with _errors("ask for the version"):
            version: str = client.VersionApi(self._client).get_code(**_LIMIT).git_version
        return version

    def _place(self, kind: str) -> tuple[str, str, str, str]:
        group, version, plural = _PLACES[kind]
        return group, version, self.namespace, plural

    def _plain(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Object:
        """Returns an answer as JSON; the client's classes drop fields that they don't know."""
        answer = call(*arguments, _preload_content=False, **options, **_LIMIT)
        found: Object = json.loads(answer.data)
        return found

    @functools.cached_property
    def _client(self) -> Any:
        client, config = _package()
        configuration = client.Configuration()
        # looked up here, as the package looks only once, when it is imported
        file = os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
        try:
            if "KUBERNETES_SERVICE_HOST" in os.environ and not os.path.exists(file):
                config.load_incluster_config(client_configuration=configuration)
            else:
                config.load_kube_config(config_file=file, client_configuration=configuration)
        except config.ConfigException as error:
            raise EngineError(
                f"No way to a cluster is configured ({error}). Set KUBECONFIG, or run in a pod."
            ) from None
        configuration.retries = 2
        return client.ApiClient(configuration)

    @functools.cached_property
    def _custom(self) -> Any:
        from kubernetes import client

        return client.CustomObjectsApi(self._client)

    @functools.cached_property
    def _core(self) -> Any:
        from kubernetes import client

        return client.CoreV1Api(self._client)


_LIMIT = {"_request_timeout": TIMEOUT_S}


def _package() -> tuple[Any, Any]:
    try:
        from kubernetes import client, config
    except ImportError:
        raise EngineError(
            "The engine kubernetes needs the package kubernetes: pip install 'lockstep[kubernetes]'"
        ) from None
    return client, config


@contextmanager
def _errors(doing: str) -> Iterator[None]:
    """Turns the client's errors into `EngineError`."""
    _package()
    import urllib3
    from kubernetes.client.exceptions import ApiException

    try:
        yield
    except ApiException as error:
        raise Refused(
            f"Kubernetes refused to {doing}: {_message(error)}", status=error.status or 0
        ) from None
    except urllib3.exceptions.HTTPError as error:
        raise EngineError(f"Kubernetes cannot be reached to {doing}: {error}") from None


def _message(error: Any) -> str:
    """Returns the server's own words."""
    try:
        return f"{json.loads(error.body)['message']} ({error.status})"
    except (TypeError, KeyError, ValueError):
        return f"{error.reason} ({error.status})"
