"""An API server small enough for tests: stores objects, lists by label, merges patches.

It knows the few paths that the engine uses, refuses objects that a real server would refuse (see
kubernetes_schemas), and does of the controllers' work only what deletion needs. Transitions that
JobSet, Kueue and kubelets would cause are caused by tests, which change the stored status.
"""

import copy
import http.server
import json
import pathlib
import re
import threading
import urllib.parse
import uuid
from collections.abc import Callable
from typing import Any

import yaml

from tests.launch import kubernetes_schemas as schemas

Object = dict[str, Any]

KINDS = {
    "configmaps": ("v1", "ConfigMap"),
    "pods": ("v1", "Pod"),
    "jobs": ("batch/v1", "Job"),
    "deployments": ("apps/v1", "Deployment"),
    "networkpolicies": ("networking.k8s.io/v1", "NetworkPolicy"),
    "jobsets": ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    "workloads": ("kueue.x-k8s.io/v1beta2", "Workload"),
}
_PATH = re.compile(
    r"/apis?/(?P<group>.+)/namespaces/(?P<namespace>[^/]+)/(?P<plural>[a-z]+)"
    r"(/(?P<name>[^/]+)(/(?P<part>status|log))?)?"
)
MERGE = "application/merge-patch+json"


class Answer(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class ApiServer:
    """A server; use as a context manager.

    Attributes:
      objects: (kind, namespace, name) -> object as stored.
      logs: name of a pod -> what it has written.
      requests: "METHOD path" of all requests, in order.
      failures: answers to give instead of the next ones, as (status, message); 0 drops the
        connection.
      versions: API group -> versions that are served.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.logs: dict[str, str] = {}
        self.requests: list[str] = []
        self.failures: list[tuple[int, str]] = []
        self.versions = {"jobset.x-k8s.io": ["v1alpha2"], "kueue.x-k8s.io": ["v1beta2"]}
        self.git_version = "v1.33.4"
        self.lock = threading.RLock()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> "ApiServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def kubeconfig(self, folder: pathlib.Path) -> pathlib.Path:
        """Writes a kubeconfig that leads here."""
        path = folder / "kubeconfig"
        server = f"http://127.0.0.1:{self._server.server_address[1]}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": {"server": server}}],
            "users": [{"name": "ada", "user": {"token": "not-a-secret"}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "ada"}}],
            "current-context": "fake",
        }
        path.write_text(yaml.safe_dump(config))
        return path

    def put(self, obj: Object) -> Object:
        """Stores an object as a controller would have made it."""
        with self.lock:
            stored = copy.deepcopy(obj)
            stored["metadata"].setdefault("uid", str(uuid.uuid4()))
            metadata = stored["metadata"]
            self.objects[stored["kind"], metadata["namespace"], metadata["name"]] = stored
            return stored

    def change(self, kind: str, name: str, change: Callable[[Object], object]) -> None:
        """Changes a stored object in place."""
        with self.lock:
            (found,) = (o for (k, _, n), o in self.objects.items() if (k, n) == (kind, name))
            change(found)

    def names(self, kind: str) -> list[str]:
        """Returns the names of the stored objects of a kind."""
        with self.lock:
            return sorted(name for k, _, name in self.objects if k == kind)

    def answer(self, method: str, target: str, body: bytes, content_type: str) -> Object | str:
        """Returns the answer to a request.

        Raises:
          Answer: it is an error.
        """
        url = urllib.parse.urlsplit(target)
        query = dict(urllib.parse.parse_qsl(url.query))
        if url.path == "/version/":
            return {"major": "1", "minor": "33", "gitVersion": self.git_version} | dict.fromkeys(
                ("gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"), ""
            )
        if url.path == "/apis/":
            return _groups(self.versions)
        match = _PATH.fullmatch(url.path)
        if not match or match["plural"] not in KINDS:
            raise Answer(404, "the server could not find the requested resource")
        api_version, kind = KINDS[match["plural"]]
        group = match["group"].partition("/")[0]
        if group in self.versions and match["group"].partition("/")[2] not in self.versions[group]:
            raise Answer(404, "the server could not find the requested resource")
        if match["part"] == "log":
            return self._log(match["name"])
        if method == "POST":
            return self._create(api_version, kind, match["namespace"], json.loads(body))
        if not match["name"]:
            return self._list(api_version, kind, match["namespace"], query)
        key = (kind, match["namespace"], match["name"])
        if key not in self.objects:
            raise Answer(404, f'{match["plural"]} "{match["name"]}" not found')
        if method == "DELETE":
            return self._delete(key)
        if method == "PATCH":
            return self._patch(key, json.loads(body), content_type)
        return self.objects[key]

    def _create(self, api_version: str, kind: str, namespace: str, obj: Object) -> Object:
        if (obj["apiVersion"], obj["kind"]) != (api_version, kind):
            raise Answer(400, f"the object is {obj['apiVersion']} {obj['kind']}, not {kind}")
        if obj["metadata"].get("namespace", namespace) != namespace:
            raise Answer(400, "the namespace of the object does not match the request's")
        if (kind, namespace, obj["metadata"]["name"]) in self.objects:
            raise Answer(409, f'"{obj["metadata"]["name"]}" already exists')
        if problems := schemas.problems(obj):
            raise Answer(422, f"{kind} is invalid: {'; '.join(problems)}")
        return self.put(obj)

    def _list(self, api_version: str, kind: str, namespace: str, query: dict[str, str]) -> Object:
        wanted = [pair.split("=", 1) for pair in query.get("labelSelector", "").split(",") if pair]
        items = [
            obj
            for (k, space, _), obj in self.objects.items()
            if (k, space) == (kind, namespace)
            and all(obj["metadata"].get("labels", {}).get(key) == value for key, value in wanted)
        ]
        return {"apiVersion": api_version, "kind": f"{kind}List", "metadata": {}, "items": items}

    def _patch(self, key: tuple[str, str, str], change: Object, content_type: str) -> Object:
        if content_type != MERGE:
            raise Answer(415, f"{content_type} is not {MERGE}")
        if self.objects[key].get("immutable") and {"data", "binaryData"} & set(change):
            raise Answer(422, "field is immutable when `immutable` is set")
        self.objects[key] = merged(self.objects[key], change)
        return self.objects[key]

    def _delete(self, key: tuple[str, str, str]) -> Object:
        """Removes an object and what it owns, all the way down."""
        gone = self.objects.pop(key)
        for other, obj in list(self.objects.items()):
            owners = [owner["uid"] for owner in obj["metadata"].get("ownerReferences", [])]
            if gone["metadata"]["uid"] in owners and other in self.objects:
                self._delete(other)
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def _log(self, name: str) -> str:
        if name not in self.logs:
            raise Answer(400, f'container "main" in pod "{name}" is waiting to start')
        return self.logs[name]


def merged(obj: Any, change: Any) -> Any:
    """Returns a JSON merge patch (RFC 7396) applied."""
    if not isinstance(change, dict) or not isinstance(obj, dict):
        return change
    found = dict(obj)
    for key, value in change.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key, {}), value)
    return found


def _groups(versions: dict[str, list[str]]) -> Object:
    groups = [
        {
            "name": name,
            "versions": [{"groupVersion": f"{name}/{v}", "version": v} for v in served],
        }
        for name, served in versions.items()
    ]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def _handler(server: ApiServer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # an answer in one piece; in two, the second waits for the first's receipt

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            with server.lock:
                server.requests.append(f"{self.command} {self.path}")
                try:
                    if server.failures:
                        raise Answer(*server.failures.pop(0))
                    content_type = self.headers.get("Content-Type", "")
                    found = server.answer(self.command, self.path, body, content_type)
                    status = 201 if self.command == "POST" else 200
                    text = found if isinstance(found, str) else json.dumps(found)
                except Answer as answer:
                    status = answer.status
                    text = json.dumps({"kind": "Status", "message": answer.message, "code": status})
            if not status:
                self.close_connection = True
                return
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_DELETE = _serve

        def log_message(self, *_: object) -> None:
            pass

    return Handler
