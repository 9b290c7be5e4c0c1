"""Teams as Kueue's objects: quotas, cohort, flavors, topology, priorities; closed namespaces."""

from typing import Any

from launch import manifests
from launch.engines import kubernetes_names as names
from launch.engines.engine import Rendered
from launch.spec import Priority
from launch.teams import PRIORITY_VALUES, Accelerator, ClusterTopology, Quota, Team, TeamsFile

Object = dict[str, Any]
_KUEUE = f"{names.KUEUE_GROUP}/{names.KUEUE_VERSION}"
_TOPOLOGY = "lockstep"
_HOSTNAME = "kubernetes.io/hostname"
_RESERVED = "reserved"
_MEANINGS = {
    Priority.CRITICAL: "stops everything below when it needs the hosts",
    Priority.HIGH: "before normal work",
    Priority.NORMAL: "where a job file says nothing",
    Priority.LOW: "after normal work",
    Priority.PREEMPTIBLE: "may be stopped, after a save, for any other",
}


def render(given: TeamsFile) -> Rendered:
    """Returns one file for the cluster, one for each team, and labels where racks are known."""
    files = {"cluster.yaml": manifests.text(cluster_objects(given))}
    for team in given.teams:
        files[f"team-{team.name}.yaml"] = manifests.text(team_objects(given, team))
    applied = tuple(word for name in files for word in ("--filename", name))
    if given.topology is not None and given.topology.racks:
        files["label_nodes.sh"] = _label_nodes(given.topology)
    return Rendered(files=files, command=("kubectl", "apply", "--server-side", *applied))


def cluster_objects(given: TeamsFile) -> list[Object]:
    """Returns what all teams share."""
    found = [_priority(priority) for priority in Priority]
    if given.topology is not None:
        found.append(_topology(given.topology))
    found += [flavor for kind in given.accelerators for flavor in _flavors(given, kind)]
    found.append(_object("Cohort", given.cohort, spec={}))
    return found


def team_objects(given: TeamsFile, team: Team) -> list[Object]:
    """Returns a team's namespace, its quota and the queue that job files name."""
    return [
        _namespace(team),
        _closed(team),
        _cluster_queue(given, team),
        _object("LocalQueue", team.name, namespace=team.name, spec={"clusterQueue": team.name}),
    ]


def _object(kind: str, name: str, *, namespace: str = "", **content: Any) -> Object:
    metadata: Object = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    metadata["labels"] = {"app.kubernetes.io/managed-by": "lockstep"}
    return {"apiVersion": _KUEUE, "kind": kind, "metadata": metadata, **content}


def _priority(priority: Priority) -> Object:
    value = PRIORITY_VALUES[priority]
    return _object(
        "WorkloadPriorityClass", priority.value, value=value, description=_MEANINGS[priority]
    )


def _topology(topology: ClusterTopology) -> Object:
    labels = [topology.block_label, topology.rack_label, _HOSTNAME]
    levels = [{"nodeLabel": label} for label in labels if label]
    return _object("Topology", _TOPOLOGY, spec={"levels": levels})


def _flavors(given: TeamsFile, kind: Accelerator) -> list[Object]:
    """Returns the flavor of a kind, and after it the one of its hosts that can be taken back.

    Kueue tries flavors in the order of the queue. Jobs that don't tolerate the taint never get the
    second; nodes are told apart by a label, so that a place in the first is none of the second.
    """
    labels = dict(kind.node_labels) or {names.ACCELERATOR_LABEL: kind.kind}
    if not kind.spot:
        return [_flavor(given, kind.kind, labels)]
    taint = {"key": names.CAPACITY_LABEL, "value": names.SPOT, "effect": "NoSchedule"}
    return [
        _flavor(given, kind.kind, labels | {names.CAPACITY_LABEL: _RESERVED}),
        _flavor(
            given,
            _spot_name(kind.kind),
            labels | {names.CAPACITY_LABEL: names.SPOT},
            nodeTaints=[taint],
        ),
    ]


def _flavor(given: TeamsFile, name: str, labels: dict[str, str], **more: Any) -> Object:
    spec: Object = {"nodeLabels": labels, **more}
    if given.topology is not None:
        spec["topologyName"] = _TOPOLOGY
    return _object("ResourceFlavor", name, spec=spec)


def _cluster_queue(given: TeamsFile, team: Team) -> Object:
    """Returns a team's quota: its own always comes back, whatever others run on it."""
    flavors = []
    for kind in given.accelerators:
        quota = next((q for q in team.quotas if q.kind == kind.kind), Quota(kind=kind.kind))
        flavors.append(_flavor_quota(given, kind, kind.kind, quota))
        if kind.spot:
            spot = Quota(kind=kind.kind, hosts=quota.spot)
            flavors.append(_flavor_quota(given, kind, _spot_name(kind.kind), spot))
    group = {"coveredResources": _covered(given), "flavors": flavors}
    spec = {
        "cohortName": given.cohort,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": team.name}},
        "queueingStrategy": "BestEffortFIFO",
        "fairSharing": {"weight": str(team.weight)},
        "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
        "resourceGroups": [group],
    }
    return _object("ClusterQueue", team.name, spec=spec)


def _covered(given: TeamsFile) -> list[str]:
    """Returns all resources in one group: a pod's flavor must be one and the same for all of them.

    A resource that a job asks for and a queue does not cover keeps the job out for ever.
    """
    own = [kind.resource for kind in given.accelerators]
    others = [name for kind in given.accelerators for name in kind.others]
    return list(dict.fromkeys([*own, "cpu", "memory", *others]))


def _flavor_quota(given: TeamsFile, kind: Accelerator, flavor: str, quota: Quota) -> Object:
    each = {
        "cpu": (kind.cpus_per_host, ""),
        "memory": (kind.memory_gib_per_host, "Gi"),
        **{name: (int(text), "") for name, text in kind.others.items()},
    }
    if kind.resource != "cpu":
        each[kind.resource] = (kind.per_host, "")
    resources = []
    for name in _covered(given):
        size, unit = each.get(name, (0, ""))
        entry: Object = {"name": name, "nominalQuota": f"{size * quota.hosts}{unit}"}
        if quota.borrow is not None:
            entry["borrowingLimit"] = f"{size * quota.borrow}{unit}"
        if quota.lend is not None:
            entry["lendingLimit"] = f"{size * quota.lend}{unit}"
        resources.append(entry)
    return {"name": flavor, "resources": resources}


def _spot_name(kind: str) -> str:
    return f"{kind}-{names.SPOT}"


def _namespace(team: Team) -> Object:
    levels = ("enforce", "warn", "audit")
    security = {f"pod-security.kubernetes.io/{level}": "restricted" for level in levels}
    labels = {"app.kubernetes.io/managed-by": "lockstep", names.TEAM_LABEL: team.name, **security}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": team.name, "labels": labels},
    }


def _closed(team: Team) -> Object:
    """Returns the rule that lets nobody in; each run's own rule opens it to the run's pods."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "lockstep-closed", "namespace": team.name},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
    }


def _label_nodes(topology: ClusterTopology) -> str:
    lines = ["#!/bin/sh", "set -eu"]
    for rack in topology.racks:
        labels = [f"{topology.rack_label}={rack.name}"]
        if rack.block and topology.block_label:
            labels.append(f"{topology.block_label}={rack.block}")
        lines += [
            f"kubectl label node --overwrite {node} {' '.join(labels)}" for node in rack.nodes
        ]
    return "\n".join(lines) + "\n"
