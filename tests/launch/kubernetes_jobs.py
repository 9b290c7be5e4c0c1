"""Jobs for tests of the Kubernetes engine, and what Kubernetes itself does to what is rendered."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from launch.spec import (
    Checkpoint,
    Code,
    Job,
    JobSpec,
    KubernetesOptions,
    Owner,
    Resources,
    Workload,
)

IMAGE = "registry.example/lockstep@sha256:0123456789abcdef"

HOSTILE = (
    "plain",
    "",
    " two  spaces ",
    "it's",
    'say "hello"',
    "$HOME",
    "$(HOME)",
    "$$(HOME)",
    "$$$",
    "a$",
    "`id`; exit 1 # x",
    "line one\nline two\n",
    "tab\there",
    "\\n is not a newline",
    "{{ jinja }} ${x}",
    "ümläut – 漢字",
    "- looks: like yaml",
    "yes",
    "007",
)
"""Values that break shells, templates, YAML or Kubernetes' expansion where they are not quoted."""


def spec(**changes: Any) -> JobSpec:
    """Returns a job file of two hosts with eight GPUs each."""
    base = JobSpec(
        name="train",
        owner=Owner(team="research", user="ada"),
        workload=Workload(gin_files=("configs/runs/llama3_8b_8.gin",)),
        resources=Resources(accelerator="h100", hosts=2, per_host=8),
        checkpoint=Checkpoint(root="gs://bucket/train"),
        code=Code(image=IMAGE),
    )
    return dataclasses.replace(base, **changes)


def job(spec_of_it: JobSpec | None = None, **changes: Any) -> Job:
    """Returns a run of a job file."""
    base = Job(
        run_id="train-0a1b2c",
        spec=spec_of_it or spec(),
        engine="kubernetes",
        job_dir="/home/ada/.lockstep/train-0a1b2c",
        code_dir="/home/ada/code",
        python="python3",
    )
    return dataclasses.replace(base, **changes)


def on_a_claim(**changes: Any) -> JobSpec:
    """Returns a job file whose checkpoints are on a volume."""
    return spec(
        checkpoint=Checkpoint(root="/runs/team/train"),
        kubernetes=KubernetesOptions(volume_claim="runs"),
        **changes,
    )


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Does what the kubelet does to values and arguments: $(NAME) is replaced, $$ is one $."""

    def replaced(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replaced, text)


def environment(container: Mapping[str, Any]) -> dict[str, str]:
    """Returns a container's literal variables as its process sees them, in their order."""
    found: dict[str, str] = {"HOME": "/root", "x": "wrong"}
    for variable in container["env"]:
        if "value" in variable:
            found[variable["name"]] = expanded(variable["value"], found)
    return found
