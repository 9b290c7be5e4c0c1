"""A teams file becomes what a cluster's owner applies; what is wrong with it is told at once."""

import json
import os
import pathlib
import shlex
import subprocess
from typing import Any

import pytest
import yaml

from launch import admin
from launch.admin_kubernetes import cluster_objects
from launch.engines import kubernetes_names as names
from launch.engines import kubernetes_objects
from launch.main import main
from launch.spec import Priority, Resources, Spot, SpotUse
from launch.spec_problems import SpecError
from launch.teams import Accelerator, Team, TeamsFile
from tests.launch import kubernetes_jobs as jobs
from tests.launch import kubernetes_schemas as schemas
from tests.launch.kubernetes_server import ApiServer

EXAMPLE = pathlib.Path(__file__).parents[2] / "configs" / "clusters" / "teams.yaml"
SMALL = """
version: 1
accelerators:
  - {kind: h100}
teams:
  - {name: research, quotas: [{kind: h100, hosts: 2}]}
"""


def objects(path: pathlib.Path = EXAMPLE) -> list[dict[str, Any]]:
    files = admin.render(path, engine="kubernetes").files
    return [
        obj
        for name, text in files.items()
        if name.endswith(".yaml")
        for obj in yaml.safe_load_all(text)
    ]


def one(kind: str, name: str, path: pathlib.Path = EXAMPLE) -> dict[str, Any]:
    (found,) = (o for o in objects(path) if o["kind"] == kind and o["metadata"]["name"] == name)
    return found


def written(folder: pathlib.Path, text: str) -> pathlib.Path:
    path = folder / "teams.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", ["", SMALL])
def test_every_object_is_valid_against_the_closed_schemas(
    tmp_path: pathlib.Path, text: str
) -> None:
    path = written(tmp_path, text) if text else EXAMPLE
    found = objects(path)
    assert {o["kind"] for o in found} >= {"ClusterQueue", "LocalQueue", "ResourceFlavor", "Cohort"}
    for obj in found:
        assert schemas.problems(obj) == [], obj["kind"]


@pytest.mark.parametrize(
    ("kind", "name", "change", "words"),
    [
        ("ClusterQueue", "research", {"cohortName": None}, "borrowingLimit must be nil"),
        ("ClusterQueue", "research", {"cohort": "x"}, "cohort"),
        ("Topology", "lockstep", {"levels": [{"nodeLabel": "a"}] * 2}, "unique"),
        ("ResourceFlavor", "h100", {"nodeLabels": {}}, "at least one nodeLabel"),
        ("LocalQueue", "research", {"clusterQueues": "x"}, "clusterQueues"),
    ],
)
def test_errors_that_are_planted_are_found(
    kind: str, name: str, change: dict[str, Any], words: str
) -> None:
    broken = one(kind, "foundation" if "cohortName" in change else name)
    broken["spec"].update(change)
    broken["spec"] = {k: v for k, v in broken["spec"].items() if v is not None}
    assert any(words in problem for problem in schemas.problems(broken))


def test_five_priorities_have_five_values_in_their_order() -> None:
    values = [one("WorkloadPriorityClass", priority.value)["value"] for priority in Priority]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 5


def test_a_teams_own_hosts_come_back_and_idle_ones_are_lent() -> None:
    spec = one("ClusterQueue", "research")["spec"]
    assert spec["cohortName"] == "training"
    assert spec["preemption"]["reclaimWithinCohort"] == "Any"
    assert spec["fairSharing"] == {"weight": "1"}
    (group,) = spec["resourceGroups"]
    quotas = {f["name"]: {r["name"]: r for r in f["resources"]} for f in group["flavors"]}
    gpu = quotas["h100"]["nvidia.com/gpu"]
    assert (gpu["nominalQuota"], gpu["lendingLimit"]) == ("128", "96")
    assert "borrowingLimit" not in gpu
    assert quotas["h100"]["memory"]["nominalQuota"] == f"{16 * 1900}Gi"
    assert quotas["h100-spot"]["nvidia.com/gpu"]["nominalQuota"] == "64"
    other = one("ClusterQueue", "foundation")["spec"]["resourceGroups"][0]["flavors"][-1]
    assert other["resources"][0]["borrowingLimit"] == "64"


def test_a_queue_covers_all_that_jobs_ask_for_in_one_group() -> None:
    spec = jobs.spec(
        resources=Resources(
            accelerator="h100", hosts=1, per_host=8, cpus_per_host=96, memory_gib=1024
        )
    )
    (replicated,) = kubernetes_objects.jobset(jobs.job(spec))["spec"]["replicatedJobs"]
    (main,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    (group,) = one("ClusterQueue", "research")["spec"]["resourceGroups"]
    assert set(main["resources"]["requests"]) <= set(group["coveredResources"])


@pytest.mark.parametrize(
    ("use", "fits"),
    [
        (SpotUse.NEVER, ["h100"]),
        (SpotUse.ALLOW, ["h100", "h100-spot"]),
        (SpotUse.REQUIRE, ["h100-spot"]),
    ],
)
def test_jobs_and_flavors_agree_on_kinds_and_on_what_can_be_taken_back(
    use: SpotUse, fits: list[str]
) -> None:
    """Kueue's rule: labels of a flavor that a job selects must agree, its taints be tolerated."""
    (replicated,) = kubernetes_objects.jobset(jobs.job(jobs.spec(spot=Spot(use=use))))["spec"][
        "replicatedJobs"
    ]
    pod = replicated["template"]["spec"]["template"]["spec"]
    tolerated = {t["key"] for t in pod["tolerations"]}
    found = []
    for flavor in (o for o in objects() if o["kind"] == "ResourceFlavor"):
        spec = flavor["spec"]
        agree = all(
            spec["nodeLabels"].get(key, value) == value
            for key, value in pod["nodeSelector"].items()
        )
        taints = {taint["key"] for taint in spec.get("nodeTaints", [])}
        if agree and taints <= tolerated:
            found.append(flavor["metadata"]["name"])
    assert found == fits


def test_job_files_name_the_queue_and_namespace_of_their_team() -> None:
    queue = one("LocalQueue", "research")
    found = kubernetes_objects.jobset(jobs.job())["metadata"]
    assert found["namespace"] == queue["metadata"]["namespace"]
    assert found["labels"][names.QUEUE_LABEL] == queue["metadata"]["name"]


def test_namespaces_are_closed_and_restricted() -> None:
    labels = one("Namespace", "research")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    (policy,) = (
        o
        for o in objects()
        if o["kind"] == "NetworkPolicy" and o["metadata"]["namespace"] == "research"
    )
    assert policy["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]}


def test_topology_has_the_labels_that_job_files_name() -> None:
    levels = [level["nodeLabel"] for level in one("Topology", "lockstep")["spec"]["levels"]]
    options = jobs.spec().kubernetes
    assert levels == [options.block_label, options.rack_label, "kubernetes.io/hostname"]
    script = admin.render(EXAMPLE, engine="kubernetes").files["label_nodes.sh"]
    assert f"{options.rack_label}=rack-3 {options.block_label}=block-2" in script
    assert not any(o["kind"] == "Topology" for o in objects_of_small())


def objects_of_small() -> list[dict[str, Any]]:
    given = TeamsFile(accelerators=(Accelerator(kind="h100"),), teams=(Team(name="research"),))
    return cluster_objects(given)


def slurm(path: pathlib.Path = EXAMPLE) -> dict[str, str]:
    return dict(admin.render(path, engine="slurm").files)


def test_slurms_commands_run_as_a_script_and_can_be_run_again(tmp_path: pathlib.Path) -> None:
    fake = tmp_path / "sacctmgr"
    fake.write_text(
        '#!/bin/sh\nfor word; do printf "%s|" "$word"; done >>"$OUT"; echo >>"$OUT"\n'
        'case " $* " in *" add "*) exit 1;; esac\n'
    )
    fake.chmod(0o755)
    out = tmp_path / "out"
    script = tmp_path / "accounts.sh"
    script.write_text(slurm()["accounts.sh"])
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "OUT": str(out)}
    subprocess.run(["sh", str(script)], env=env, check=True, timeout=60)
    calls = [line.rstrip("|").split("|") for line in out.read_text().splitlines()]
    assert all(call[0] == "--immediate" for call in calls)
    changed = {call[3]: call[5:] for call in calls if call[1:3] == ["modify", "qos"]}
    assert list(changed) == ["preemptible", "low", "normal", "high", "critical"]
    assert "preempt=preemptible,low,normal" in changed["high"]
    assert not any(word.startswith("preempt=") for word in changed["preemptible"])
    assert all("gracetime=300" in words for words in changed.values())
    assert ["--immediate", "add", "user", "ada", "account=foundation", "cluster=lake"] in calls


def test_a_limit_on_borrowing_is_a_limit_of_the_account() -> None:
    lines = [shlex.split(line) for line in slurm()["accounts.sh"].splitlines()]
    (foundation,) = (line for line in lines if "name=foundation" in line)
    assert "grptres=gres/gpu:a100=96" in foundation
    assert "fairshare=3" in foundation
    (research,) = (line for line in lines if "name=research" in line)
    assert not any(word.startswith("grptres") for word in research)


def test_slurms_configuration_counts_each_kind_and_preempts_by_quality() -> None:
    text = slurm()["slurm.conf.part"]
    assert "AccountingStorageTRES=gres/gpu,gres/gpu:h100,gres/gpu:a100" in text
    assert "PreemptType=preempt/qos" in text
    assert "AccountingStorageEnforce=associations,limits,qos" in text


def test_slurms_tree_has_every_node_once_below_one_root() -> None:
    lines = slurm()["topology.conf"].splitlines()
    assert lines[-1] == "SwitchName=all Switches=block-1,block-2"
    nodes = [n for line in lines if "Nodes=" in line for n in line.split("Nodes=")[1].split(",")]
    assert sorted(nodes) == [f"node-{i}" for i in range(1, 7)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("kind: h100}]", "kind: h10}]"), "there are h100. Did you mean h100"),
        (("hosts: 2", "host: 2"), "no such key"),
        (("hosts: 2", "hosts: two"), "hosts"),
        (("hosts: 2", "hosts: -2"), "must be at least 0"),
        (("name: research", "name: My Team"), "lower-case"),
        (("{kind: h100}", "{kind: h100, hosts: 1}"), "the teams own 2 hosts"),
        (("hosts: 2", "hosts: 2, lend: 3"), "but it owns 2"),
        (("hosts: 2", "hosts: 2, spot: 1"), "h100 has no spot"),
        (("version: 1", "version: 2"), "this software reads version: 1"),
        (("teams:", "teams: []\nignored:"), "name at least one"),
        (("{kind: h100}", "{kind: h100, others: {a/b: many}}"), "a number for each host"),
        (("version: 1", "version: 1\ntopology: {racks: [{name: r}]}"), "a name and nodes"),
        (
            (
                "version: 1",
                "version: 1\ntopology: {racks: [{name: r, nodes: [a]}, {name: s, nodes: [a]}]}",
            ),
            "a are in two racks",
        ),
    ],
)
def test_what_is_wrong_is_told_with_line_and_key(
    tmp_path: pathlib.Path, change: tuple[str, str], words: str
) -> None:
    text = SMALL.replace("[{kind: h100, hosts: 2}]", "[{hosts: 2, kind: h100}]")
    assert change[0] in text
    path = written(tmp_path, text.replace(*change))
    with pytest.raises(SpecError) as error:
        admin.load(path)
    assert words in str(error.value)
    assert f"{path}:" in str(error.value)


def test_everything_wrong_is_told_at_once(tmp_path: pathlib.Path) -> None:
    text = SMALL.replace("hosts: 2", "hosts: -2, lent: 3").replace("research", "R")
    with pytest.raises(SpecError) as error:
        admin.load(written(tmp_path, text))
    assert len(error.value.problems) == 3


def test_this_machine_has_nothing_to_be_owned() -> None:
    with pytest.raises(ValueError, match="kubernetes, slurm"):
        admin.render(EXAMPLE, engine="local")


def test_the_command_prints_or_writes_what_is_rendered(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["admin", "render", str(EXAMPLE), "--engine=slurm"]) == 0
    printed = capsys.readouterr()
    assert all(text.rstrip() in printed.out for text in slurm().values())
    assert "sh accounts.sh" in printed.err
    assert main(["admin", "render", str(EXAMPLE), f"--into={tmp_path}/new"]) == 0
    files = admin.render(EXAMPLE, engine="kubernetes").files
    assert {p.name: p.read_text() for p in (tmp_path / "new").iterdir()} == dict(files)
    capsys.readouterr()
    assert main(["admin", "render", str(EXAMPLE), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == dict(files)


@pytest.mark.parametrize("words", [["render"], ["render", "none.yaml"]])
def test_the_command_says_what_is_missing(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["admin", *words]) == 64
    assert capsys.readouterr().err


@pytest.mark.parametrize(("served", "code"), [(["v1beta2"], 0), (["v1beta1"], 64)])
def test_preflight_leaves_with_what_it_found(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    served: list[str],
    code: int,
) -> None:
    with ApiServer() as server:
        server.versions["kueue.x-k8s.io"] = served
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        assert main(["admin", "preflight", "--namespace=research"]) == code
    assert "Kubernetes 1.33.4" in capsys.readouterr().out
