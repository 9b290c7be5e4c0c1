"""What a cluster runs, against what the engine needs and what is known not to work."""

import dataclasses
import re

from launch.engines import kubernetes_names as names
from launch.engines.kubernetes_client import Api

Version = tuple[int, int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Need:
    """The oldest version of a part that does what is rendered.

    Attributes:
      part: its name.
      oldest: version.
      why: what an older one lacks.
    """

    part: str
    oldest: Version
    why: str


NEEDS = (
    Need(
        part="Kubernetes",
        oldest=(1, 28, 0),
        why="Jobs know no podReplacementPolicy, so that a pod may start while its like still runs",
    ),
    Need(
        part="JobSet",
        oldest=(0, 10, 0),
        why="failure rules know no onJobFailureMessagePatterns: every failure would be restarted, "
        "also a user's error",
    ),
    Need(
        part="Kueue",
        oldest=(0, 15, 0),
        why="kueue.x-k8s.io/v1beta2 is not served",
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BadPair:
    """Two versions that were reported not to work together.

    Attributes:
      jobset: JobSet's versions, the first and the first that is well again.
      kueue: Kueue's.
      symptom: what is seen.
      source: where it is reported.
    """

    jobset: tuple[Version, Version]
    kueue: tuple[Version, Version]
    symptom: str
    source: str


BAD_PAIRS = (
    BadPair(
        jobset=((0, 7, 0), (0, 7, 1)),
        kueue=((0, 0, 0), (0, 9, 0)),
        symptom="a JobSet stays suspended after Kueue has admitted it",
        source="kubernetes-sigs/kueue#3349",
    ),
)


def report(api: Api) -> list[str]:
    """Returns one line per part and per trouble; a line of trouble begins with ``WRONG``.

    Raises:
      EngineError: the API server cannot be reached.
    """
    found = {
        "Kubernetes": parsed(api.server()),
        "JobSet": _controller(api, "jobset-system", "jobset-controller-manager"),
        "Kueue": _controller(api, "kueue-system", "kueue-controller-manager"),
    }
    lines = [f"{part} {shown(version)}" for part, version in found.items()]
    for part, group, wanted in (
        ("JobSet", names.JOBSET_GROUP, names.JOBSET_VERSION),
        ("Kueue", names.KUEUE_GROUP, names.KUEUE_VERSION),
    ):
        served = api.versions(group)
        if wanted not in served:
            lines.append(
                f"WRONG {part}: {group}/{wanted} is not served; there is {served or 'none'}"
            )
    return lines + troubles(found)


def troubles(found: dict[str, Version | None]) -> list[str]:
    """Returns what is wrong with versions, as far as they are known."""
    lines = []
    for need in NEEDS:
        version = found.get(need.part)
        if version is not None and version < need.oldest:
            oldest = shown(need.oldest)
            lines.append(f"WRONG {need.part} {shown(version)} is older than {oldest}: {need.why}")
    jobset, kueue = found.get("JobSet"), found.get("Kueue")
    for pair in BAD_PAIRS:
        if jobset and kueue and _within(jobset, pair.jobset) and _within(kueue, pair.kueue):
            together = f"JobSet {shown(jobset)} with Kueue {shown(kueue)}"
            lines.append(f"WRONG {together}: {pair.symptom} ({pair.source})")
    return lines


def parsed(text: str) -> Version | None:
    """Returns the version in a text such as v1.33.4+k3s1 or an image's name; None without one."""
    match = re.search(r"v(\d+)\.(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def shown(version: Version | None) -> str:
    """Returns a version for people."""
    return ".".join(map(str, version)) if version else "of unknown version (may not be looked at)"


def _controller(api: Api, namespace: str, deployment: str) -> Version | None:
    image = api.image(namespace, deployment)
    return parsed(image) if image else None


def _within(version: Version, span: tuple[Version, Version]) -> bool:
    return span[0] <= version < span[1]
