"""As much of Job controller, JobSet and kubelet as it takes to run a stored JobSet on this machine.

Pods are processes. What they get is read from the stored objects only: command, variables with
Kubernetes' expansion, ConfigMaps and Secrets as files, labels through the downward API. The rules
on exit codes are applied as the controllers' sources do it (docs/kubernetes.md names them).
"""

import base64
import os
import pathlib
import re
import signal
import subprocess
import time
from typing import Any

from tests.launch.kubernetes_jobs import expanded
from tests.launch.kubernetes_server import ApiServer
from tests.launch.pods import PATIENCE_S, free_port, kill_container

Object = dict[str, Any]


class Kubelet:
    """Runs the pods of one JobSet.

    Attributes:
      pods: "slice-index" -> process.
      restarts: of the set, and those of them that count.
      actions: what the failure policy did, in order.
    """

    def __init__(self, server: ApiServer, name: str, folder: pathlib.Path) -> None:
        self._server, self._name, self._folder = server, name, folder
        self._secrets: dict[str, dict[str, str]] = {}
        self._port = free_port()
        self.pods: dict[str, subprocess.Popen[bytes]] = {}
        self.restarts = self.counted = self._made = 0
        self.actions: list[str] = []

    def add_secret(self, name: str, **values: str) -> None:
        """Makes a Secret."""
        self._secrets[name] = values

    def run(self) -> str:
        """Starts the set and does what JobSet does until it is over; returns its terminal state."""
        self.start()
        return self.run_on()

    def run_on(self) -> str:
        """Does what JobSet does from where pods run on."""
        while True:
            message = self._wait()
            if message is None:
                return "Completed"
            action = self._action(message)
            self.actions.append(action)
            if action == "FailJobSet":
                return "Failed"
            self.restarts += 1
            self.counted += action == "RestartJobSet"
            if self.counted > self._jobset()["spec"]["failurePolicy"]["maxRestarts"]:
                return "Failed"
            self.start()

    def start(self) -> None:
        """Makes the pods of the current restart."""
        (replicated,) = self._jobset()["spec"]["replicatedJobs"]
        one = replicated["template"]["spec"]
        for slice_id in range(replicated["replicas"]):
            for index in range(one["completions"]):
                self.pods[f"{slice_id}-{index}"] = self._pod(one["template"], slice_id, index)

    def end(self) -> None:
        """Deletes the pods as BlockingRecreate does: all are gone before others come."""
        for process in self.pods.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.pods.values():
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                kill_container(process)

    def output(self, pod: str) -> str:
        """Returns what a pod has written, over all restarts."""
        return (self._folder / f"{pod}.out").read_text()

    def _jobset(self) -> Object:
        (found,) = (
            o for (k, _, n), o in self._server.objects.items() if (k, n) == ("JobSet", self._name)
        )
        return found

    def _pod(self, template: Object, slice_id: int, index: int) -> subprocess.Popen[bytes]:
        pod = f"{slice_id}-{index}"
        self._made += 1
        root = self._folder / f"pod{self._made}"
        (container,) = template["spec"]["containers"]
        mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
        for volume in template["spec"]["volumes"]:
            self._mount(volume, mounts[volume["name"]], root=root)
        labels = template["metadata"]["labels"] | {
            "jobset.sigs.k8s.io/jobset-uid": self._jobset()["metadata"]["uid"],
            "jobset.sigs.k8s.io/restart-attempt": str(self.restarts),
            "jobset.sigs.k8s.io/job-index": str(slice_id),
        }
        variables = self._variables(container, labels, node=f"node-{pod}")
        variables |= {"JOB_COMPLETION_INDEX": str(index), "LOCKSTEP_PORT": str(self._port)}
        # of this machine: no DNS of the set, and no file system of the pod's own
        variables["LOCKSTEP_COORDINATOR_HOST"] = "127.0.0.1"
        variables["LOCKSTEP_CONFIG"] = f"{root}/lockstep/config"
        for name in ("LOCKSTEP_STATE", *(n for n in variables if n.endswith("_FILE"))):
            variables[name] = f"{root}{variables[name]}"
        command = [expanded(word, variables) for word in container["command"]]
        command = [command[0], *(f"{root}{word}" for word in command[1:])]
        with (self._folder / f"{pod}.out").open("ab") as output:
            return subprocess.Popen(
                command,
                cwd=root,
                env={"PATH": os.environ["PATH"], **variables},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _variables(self, container: Object, labels: dict[str, str], *, node: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for variable in container["env"]:
            source = variable.get("valueFrom", {})
            if "secretKeyRef" in source:
                key = source["secretKeyRef"]
                found[variable["name"]] = self._secrets[key["name"]][key["key"]]
            elif "fieldRef" in source:
                path = source["fieldRef"]["fieldPath"]
                label = re.fullmatch(r"metadata\.labels\['(.+)'\]", path)
                found[variable["name"]] = labels[label[1]] if label else node
            else:
                found[variable["name"]] = expanded(variable["value"], found)
        return found

    def _mount(self, volume: Object, path: str, *, root: pathlib.Path) -> None:
        folder = root / path.lstrip("/")
        folder.mkdir(parents=True)
        for source in volume.get("projected", {}).get("sources", ()):
            if "configMap" in source:
                name = source["configMap"]["name"]
                (found,) = (
                    o
                    for (k, _, n), o in self._server.objects.items()
                    if (k, n) == ("ConfigMap", name)
                )
                for file, text in found.get("data", {}).items():
                    own = text.replace('"/lockstep/', f'"{root}/lockstep/')  # no root of its own
                    (folder / file).write_text(own)
                for file, text in found.get("binaryData", {}).items():
                    (folder / file).write_bytes(base64.b64decode(text))
            else:
                secret = source["secret"]
                for item in secret["items"]:
                    value = self._secrets[secret["name"]][item["key"]]
                    (folder / item["path"]).write_text(value)

    def _wait(self) -> str | None:
        """Returns the message of the first Job that fails; None when all pods have succeeded."""
        until = time.monotonic() + PATIENCE_S
        while any(process.poll() is None for process in self.pods.values()):
            failed = {pod: p.returncode for pod, p in self.pods.items() if p.poll()}
            if failed:
                break
            assert time.monotonic() < until, {pod: self.output(pod) for pod in self.pods}
            time.sleep(0.02)
        failed = {pod: p.returncode for pod, p in self.pods.items() if p.returncode}
        if not failed:
            return None
        messages = [self._message(pod, code) for pod, code in failed.items()]
        self.end()
        return messages[0]

    def _message(self, pod: str, code: int) -> str:
        """Returns what the Job controller says: the first rule of podFailurePolicy that matches."""
        code = 128 - code if code < 0 else code
        (replicated,) = self._jobset()["spec"]["replicatedJobs"]
        policy = replicated["template"]["spec"]["podFailurePolicy"]
        for index, rule in enumerate(policy["rules"]):
            on = rule.get("onExitCodes")
            if on and on["operator"] == "In" and code in on["values"]:
                return (
                    f"Container {on['containerName']} for pod research/{pod} failed with exit code "
                    f"{code} matching {rule['action']} rule at index {index}"
                )
        return "Job has reached the specified backoff limit"

    def _action(self, message: str) -> str:
        """Returns what JobSet does: the first rule that the message matches, else a restart."""
        reason = "PodFailurePolicy" if "matching" in message else "BackoffLimitExceeded"
        for rule in self._jobset()["spec"]["failurePolicy"]["rules"]:
            reasons = rule.get("onJobFailureReasons", [reason])
            patterns = rule.get("onJobFailureMessagePatterns", [""])
            if reason in reasons and any(re.search(pattern, message) for pattern in patterns):
                action: str = rule["action"]
                return action
        return "RestartJobSet"
