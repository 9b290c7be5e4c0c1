"""Names, labels and paths of the Kubernetes engine, in one place. Standard library only."""

import hashlib
import re

from launch.spec import Job, JobSpec

JOBSET_GROUP, JOBSET_VERSION = "jobset.x-k8s.io", "v1alpha2"
KUEUE_GROUP, KUEUE_VERSION = "kueue.x-k8s.io", "v1beta2"

REPLICATED_JOB = "host"
"""Name of the JobSet's one replicated Job: one pod of it is one host of the run."""
CONTAINER = "main"

RUN_LABEL = "lockstep/run"
RUN_ANNOTATION = "lockstep/run-id"
TEAM_LABEL = "lockstep/team"
TRIAL_LABEL = "lockstep/trial"
USER_ANNOTATION = "lockstep/user"
DIGEST_ANNOTATION = "lockstep/code-digest"
ACCELERATOR_LABEL = "lockstep/accelerator"
"""Node label that the cluster's owner sets: which kind of accelerator a node has."""
CAPACITY_LABEL = "lockstep/capacity"
"""Node label and taint that the cluster's owner sets on nodes that can be taken back: spot."""
SPOT = "spot"

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
WALLTIME_LABEL = "kueue.x-k8s.io/max-exec-time-seconds"
WORKLOAD_OF_LABEL = "kueue.x-k8s.io/job-uid"
REQUIRED_TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"
PREFERRED_TOPOLOGY = "kueue.x-k8s.io/podset-preferred-topology"
SLICE_TOPOLOGY = "kueue.x-k8s.io/podset-slice-required-topology"
SLICE_SIZE = "kueue.x-k8s.io/podset-slice-size"

JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
JOBSET_UID_LABEL = "jobset.sigs.k8s.io/jobset-uid"
RESTART_LABEL = "jobset.sigs.k8s.io/restart-attempt"
JOB_INDEX_LABEL = "jobset.sigs.k8s.io/job-index"

CONFIG_DIR = "/lockstep/config"
SECRETS_DIR = "/lockstep/secrets"
STATE_DIR = "/lockstep/state"
JOB_FILE, AGENT_FILE = "job.json", "lockstep.pyz"

_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LONGEST = 63


def namespace(job: Job) -> str:
    """Returns the namespace of a job: named, or the team's."""
    return job.spec.kubernetes.namespace or job.spec.owner.team


def pod_count(spec: JobSpec) -> int:
    """Returns how many pods a run has: one for each host, and one for each spare."""
    return spec.resources.hosts + spec.recovery.spares


def jobset_name(job: Job) -> str:
    """Returns the name of a run's objects.

    It is the run's id where that makes a name; JobSet refuses a set whose longest pod name has more
    than 63 characters, so a longer id is cut and ends in a digest of the whole.
    """
    pods = pod_count(job.spec)
    longest_pod = len(f"-{REPLICATED_JOB}-{job.spec.topology.slices}-{pods}-abcde")
    room = _LONGEST - longest_pod
    name = re.sub(r"[^a-z0-9-]+", "-", job.run_id.lower()).strip("-")
    if not name[:1].isalpha():
        name = f"r{name}"
    if name == job.run_id and len(name) <= room:
        return name
    digest = hashlib.sha256(job.run_id.encode()).hexdigest()[:8]
    return f"{name[: room - len(digest) - 1].rstrip('-')}-{digest}"


def label_value(text: str) -> str:
    """Returns a text as a label's value; a digest where it cannot be one."""
    if not text or _LABEL_VALUE.fullmatch(text):
        return text
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def labels(job: Job) -> dict[str, str]:
    """Returns the labels of all of a run's objects and pods."""
    return {
        "app.kubernetes.io/managed-by": "lockstep",
        RUN_LABEL: jobset_name(job),
        TEAM_LABEL: label_value(job.spec.owner.team),
        TRIAL_LABEL: str(job.trial),
    }


def coordinator_host(job: Job) -> str:
    """Returns the name by which all pods of a run reach its first."""
    name = jobset_name(job)
    return f"{name}-{REPLICATED_JOB}-0-0.{name}"


def literal(text: str) -> str:
    """Returns a text that Kubernetes' expansion of $(NAME) in values and arguments leaves alone."""
    return text.replace("$", "$$")
