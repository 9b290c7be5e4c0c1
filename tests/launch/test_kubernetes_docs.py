"""What docs/kubernetes.md says in tables and examples is what the code does."""

import pathlib
import re

import pytest

from launch import arguments, spec_reader
from launch.engines import bundle, kubernetes_objects, kubernetes_preflight
from launch.engines.kubernetes_refusals import refusals
from launch.exit_codes import ExitCode, ending
from tests.launch import kubernetes_jobs as jobs
from tests.launch import kubernetes_schemas as schemas

TEXT = (pathlib.Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}.*?\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def what_jobset_does(code: int) -> str:
    message = f"failed with exit code {code} matching"
    rules = kubernetes_objects.jobset(jobs.job())["spec"]["failurePolicy"]["rules"]
    for rule in rules:
        if re.search(rule.get("onJobFailureMessagePatterns", [""])[0], message):
            action: str = rule["action"]
            break
    return {
        "FailJobSet": "fails the set",
        "RestartJobSet": "restarts the set, counted",
        "RestartJobSetAndIgnoreMaxRestarts": "restarts the set, not counted",
    }[action]


def test_the_table_of_exit_codes_is_the_rules() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \|$", TEXT, re.MULTILINE)
    commands = {ExitCode.DONE, ExitCode.ENGINE_UNREACHABLE, ExitCode.INTERRUPTED}
    expected = [
        (str(int(code)), ending(code).meaning, what_jobset_does(code))
        for code in sorted(set(ExitCode) - commands)
    ]
    assert rows == expected


def test_the_example_is_a_job_that_kubernetes_takes(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "job.yaml"
    (text,) = blocks("yaml")
    path.write_text(text)
    spec = spec_reader.load(path, engine="kubernetes").spec
    assert refusals(spec) == []
    for objects in kubernetes_objects.objects(jobs.job(spec)).values():
        for obj in objects:
            assert schemas.problems(obj) == []


@pytest.mark.parametrize(
    "line",
    [line for block in blocks("console") for line in block.splitlines() if "launch.main" in line],
)
def test_commands_are_those_of_the_front_door(line: str) -> None:
    words = line.partition("#")[0].split()
    assert words[:3] == ["python", "-m", "launch.main"]
    arguments.parser().parse_args(words[3:])


def test_versions_and_sizes_are_those_of_the_code() -> None:
    oldest = {need.part: ".".join(map(str, need.oldest[:2])) for need in kubernetes_preflight.NEEDS}
    for part, version in oldest.items():
        assert f"{part} {version} or newer" in TEXT
    (told,) = re.findall(r"`lockstep.pyz`, (\d+) KB", TEXT)
    assert abs(len(bundle.content()) / 1000 - int(told)) < 15
    assert f"Kubernetes {schemas.KUBERNETES}'s strict schemas" in TEXT
