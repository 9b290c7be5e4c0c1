"""A real Kubernetes API server on loopback, without nodes, for tests that are asked to use one.

    python -m tests.launch.control_plane build --folder DIR    # once; eleven minutes of CPU, 2.5 GB
    python -m tests.launch.control_plane up --folder DIR       # seconds; prints what to set
    python -m tests.launch.control_plane down --folder DIR

For Debian 12, as root. Kubernetes is built from Debian's source package alone, which holds all that
it needs: version 1.20, so old that it knows no CEL and no indexed Jobs, but its API server, garbage
collector and object store are real. The resources of JobSet and Kueue are made of the schemas in
tests/launch/crds; their controllers are not there.
"""

import argparse
import contextlib
import json
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

import yaml

CRDS = pathlib.Path(__file__).parent / "crds"
SOURCES = pathlib.Path("/etc/apt/sources.list.d/debian.sources")
PACKAGES = (
    "golang-go",
    "etcd-server",
    "dpkg-dev",
    "golang-github-modern-go-reflect2-dev",
    "openssl",
)
PROGRAMS = ("kube-apiserver", "kube-controller-manager")
PORT = 26443
_START_S = 120.0
_WITH_STATUS = ("JobSet", "Workload")


class Lab:
    """The folder that everything lies in."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder.resolve()
        self.programs, self.pki = self.folder / "bin", self.folder / "pki"
        self.source = self.folder / "go" / "src" / "k8s.io" / "kubernetes"
        self.kubeconfig = self.folder / "kubeconfig"

    def build(self) -> None:
        """Makes the programs, unless they are there."""
        if all((self.programs / name).exists() for name in PROGRAMS):
            return
        self.programs.mkdir(parents=True, exist_ok=True)
        apt = ["apt-get", "install", "--yes", "--no-install-recommends", *PACKAGES]
        run(apt, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
        if not self.source.exists():
            self._fetch()
        self._replace_reflect2()
        if not (self.source / "pkg/generated/openapi/zz_generated.openapi.go").exists():
            self._generate_openapi()
        for name in PROGRAMS:
            self._go("build", "-trimpath", f"-ldflags={self._version()}", "-o",
                     str(self.programs / name), f"./cmd/{name}")  # fmt: skip

    def up(self) -> None:
        """Starts what is not running, and makes the resources of JobSet and Kueue."""
        self._keys()
        etcd = f"http://127.0.0.1:{PORT - 4000}"
        peers = f"http://127.0.0.1:{PORT - 4001}"
        self._start("etcd", [
            "etcd", f"--data-dir={self.folder}/etcd", f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}", f"--listen-peer-urls={peers}",
            "--max-request-bytes=8388608", "--unsafe-no-fsync",
        ])  # fmt: skip
        self._start("apiserver", [
            str(self.programs / "kube-apiserver"), f"--etcd-servers={etcd}",
            f"--secure-port={PORT}", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
            f"--tls-cert-file={self.pki}/tls.crt", f"--tls-private-key-file={self.pki}/tls.key",
            f"--token-auth-file={self.pki}/tokens.csv", "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.pki}/sa.key",
            f"--service-account-signing-key-file={self.pki}/sa.key",
            "--service-cluster-ip-range=10.96.0.0/24", "--disable-admission-plugins=ServiceAccount",
        ])  # fmt: skip
        wait_for(lambda: self._get("/readyz") == b"ok", what="the API server")
        self._start("controllers", [
            str(self.programs / "kube-controller-manager"), f"--kubeconfig={self.kubeconfig}",
            "--leader-elect=false", "--port=0", f"--secure-port={PORT + 1}",
            "--bind-address=127.0.0.1", f"--cert-dir={self.pki}",
            "--controllers=garbagecollector,namespace",  # pods are the tests' own
        ])  # fmt: skip
        self._make_definitions()

    def down(self) -> None:
        """Ends what runs; the folder stays."""
        for path in sorted(self.folder.glob("*.pid"), reverse=True):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.read_text()), signal.SIGTERM)
            path.unlink()

    def _fetch(self) -> None:
        """Unpacks Debian's source package; the machine's own lists of packages stay as they are."""
        lists, parts = self.folder / "apt" / "lists", self.folder / "apt" / "parts"
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        parts.mkdir(exist_ok=True)
        deb_src = SOURCES.read_text().replace("Types: deb\n", "Types: deb-src\n")
        (parts / "src.sources").write_text(deb_src)
        options = [f"--option=Dir::Etc::sourceparts={parts}", f"--option=Dir::State::lists={lists}",
                   "--option=Dir::Etc::sourcelist=/dev/null"]  # fmt: skip
        run(["apt-get", *options, "update"])
        work = self.folder / "unpacked"
        work.mkdir(exist_ok=True)
        run(["apt-get", *options, "source", "kubernetes"], cwd=work)
        (unpacked,) = work.glob("kubernetes-1.*/")
        self.source.parent.mkdir(parents=True, exist_ok=True)
        unpacked.rename(self.source)

    def _replace_reflect2(self) -> None:
        """The vendored version crashes when built with Go 1.18 or later; Debian's does not."""
        vendored = self.source / "vendor/github.com/modern-go/reflect2"
        packaged = pathlib.Path("/usr/share/gocode/src/github.com/modern-go/reflect2")
        shutil.rmtree(vendored)
        tests = shutil.ignore_patterns("*_test.go")
        shutil.copytree(packaged, vendored, ignore=tests)

    def _generate_openapi(self) -> None:
        """Makes a file that releases have and the source package has not."""
        generator = self.programs / "openapi-gen"
        self._go("build", "-o", str(generator), "./vendor/k8s.io/kube-openapi/cmd/openapi-gen")
        packages = set()
        for top in ("pkg", "staging/src/k8s.io", "cmd", "plugin"):
            for path in (self.source / top).rglob("*.go"):
                inside = path.parent.relative_to(self.source)
                skipped = {"testdata", "_examples", "code-generator"} & set(inside.parts)
                sample = any(part.startswith("sample-") for part in inside.parts)
                if skipped or sample or b"+k8s:openapi-gen=" not in path.read_bytes():
                    continue
                staged = inside.parts[:2] == ("staging", "src")
                name = "/".join(inside.parts[2:]) if staged else f"k8s.io/kubernetes/{inside}"
                packages.add(name)
        run(
            [str(generator), f"--input-dirs={','.join(sorted(packages))}",
             "--output-package=k8s.io/kubernetes/pkg/generated/openapi",
             "--output-file-base=zz_generated.openapi",
             "--go-header-file=hack/boilerplate/boilerplate.generatego.txt",
             f"--report-filename={self.folder}/openapi-violations.txt"],
            cwd=self.source, env=self._go_environment(),
        )  # fmt: skip

    def _version(self) -> str:
        names = {"gitVersion": "v1.20.2", "gitMajor": "1", "gitMinor": "20"}
        packages = ("component-base/version", "client-go/pkg/version")
        flags = [
            f"-X=k8s.io/kubernetes/vendor/k8s.io/{package}.{name}={value}"
            for package in packages
            for name, value in names.items()
        ]
        return " ".join(["-s", "-w", *flags])

    def _go(self, *arguments: str) -> None:
        run(["go", *arguments], cwd=self.source, env=self._go_environment())

    def _go_environment(self) -> dict[str, str]:
        own = {"GOPATH": f"{self.folder}/go", "GOCACHE": f"{self.folder}/gocache", "GOPROXY": "off",
               "GO111MODULE": "off", "GOFLAGS": "-p=2"}  # fmt: skip
        return {**os.environ, **own}

    def _keys(self) -> None:
        """Makes keys, a token and a kubeconfig, unless they are there."""
        self.pki.mkdir(parents=True, exist_ok=True)
        if self.kubeconfig.exists():
            return
        run(["openssl", "genrsa", "-out", f"{self.pki}/sa.key", "2048"])
        run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30",
             "-subj", "/CN=lab", "-addext", "subjectAltName=IP:127.0.0.1",
             "-keyout", f"{self.pki}/tls.key", "-out", f"{self.pki}/tls.crt"])  # fmt: skip
        token = secrets.token_hex(16)
        (self.pki / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
        cluster = {
            "server": f"https://127.0.0.1:{PORT}",
            "certificate-authority": f"{self.pki}/tls.crt",
        }
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "admin"}}],
            "current-context": "lab",
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))
        self.kubeconfig.chmod(0o600)

    def _start(self, name: str, command: Sequence[str]) -> None:
        path = self.folder / f"{name}.pid"
        if path.exists() and pathlib.Path(f"/proc/{path.read_text()}").exists():
            return
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        path.write_text(str(process.pid))

    def _get(self, path: str) -> bytes:
        import ssl

        context = ssl.create_default_context(cafile=f"{self.pki}/tls.crt")
        token = (self.pki / "tokens.csv").read_text().partition(",")[0]
        request = urllib.request.Request(
            f"https://127.0.0.1:{PORT}{path}", headers={"Authorization": f"Bearer {token}"}
        )
        try:
            with urllib.request.urlopen(request, context=context, timeout=5) as answer:
                found: bytes = answer.read()
                return found
        except OSError:
            return b""

    def _make_definitions(self) -> None:
        from kubernetes import client, config

        api = client.ApiextensionsV1Api(config.new_client_from_config(str(self.kubeconfig)))
        there = {item.metadata.name for item in api.list_custom_resource_definition().items}
        for path in sorted(CRDS.glob("*.json")):
            definition = crd(json.loads(path.read_text()))
            if definition["metadata"]["name"] not in there:
                api.create_custom_resource_definition(definition)
        served = [f"/apis/{g}" for g in ("jobset.x-k8s.io/v1alpha2", "kueue.x-k8s.io/v1beta2")]
        wait_for(lambda: all(self._get(path) for path in served), what="JobSet's and Kueue's API")


def crd(kept: dict[str, Any]) -> dict[str, Any]:
    """Returns a CustomResourceDefinition that version 1.20 takes, of one of our schemas."""
    version = {
        "name": kept["version"],
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": for_old_servers(kept["schema"])},
    }
    if kept["kind"] in _WITH_STATUS:
        version["subresources"] = {"status": {}}
    names = {
        "kind": kept["kind"],
        "listKind": f"{kept['kind']}List",
        "plural": kept["plural"],
        "singular": kept["kind"].lower(),
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kept['plural']}.{kept['group']}"},
        "spec": {
            "group": kept["group"],
            "names": names,
            "scope": kept["scope"],
            "versions": [version],
        },
    }


def for_old_servers(schema: Any) -> Any:
    """Returns a schema without rules in CEL and without empty defaults.

    A key of a list that had such a default has to be there instead.
    """
    if isinstance(schema, list):
        return [for_old_servers(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        key: for_old_servers(value)
        for key, value in schema.items()
        if key != "x-kubernetes-validations"
        and not (key == "default" and value == "" and isinstance(schema.get("type"), str))
    }
    item = schema.get("items", {})
    keys = schema.get("x-kubernetes-list-map-keys", ())
    fields = item.get("properties", {}) if isinstance(item, dict) else {}
    emptied = {key for key in keys if fields.get(key, {}).get("default") == ""}
    if emptied:
        found["items"]["required"] = sorted({*item.get("required", ()), *emptied})
    return found


def run(command: Sequence[str], **options: Any) -> None:
    """Runs a program and shows it."""
    print("+", *command[:8], flush=True)
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, **options)


def wait_for(condition: Callable[[], bool], *, what: str) -> None:
    """Returns when something is so."""
    until = time.monotonic() + _START_S
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"{what} is not there after {_START_S:g} s; see the logs.")
        time.sleep(0.1)


def main(argv: Sequence[str]) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m tests.launch.control_plane")
    parser.add_argument("action", choices=("build", "up", "down"))
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    given = parser.parse_args(argv)
    lab = Lab(given.folder)
    {"build": lab.build, "up": lab.up, "down": lab.down}[given.action]()
    if given.action == "up":
        print(f"export LOCKSTEP_KUBECONFIG={lab.kubeconfig}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
