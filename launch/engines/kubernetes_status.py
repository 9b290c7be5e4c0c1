"""What JobSet, Kueue, Jobs and pods say of a run, as one `Standing`. Standard library only."""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any

from launch.engines import kubernetes_names as names
from launch.engines.engine import EngineState, Standing
from launch.exit_codes import RetryClass, ending

Object = dict[str, Any]

_EXIT_CODE = re.compile(r"failed with exit code (\d+) matching")
_HELD = frozenset({RetryClass.HOLD, RetryClass.NO_PROGRESS})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """What the API server has of a run.

    Attributes:
      jobset: the JobSet.
      workload: Kueue's object for it; None where Kueue has made none.
      jobs: its child Jobs.
      pods: its pods.
    """

    jobset: Object
    workload: Object | None = None
    jobs: Sequence[Object] = ()
    pods: Sequence[Object] = ()


def standing(seen: Seen) -> Standing:
    """Returns where a run stands."""
    metadata = seen.jobset["metadata"]
    engine_id = f"{metadata['namespace']}/{metadata['name']}"
    state, detail, code = _judge(seen)
    return Standing(state=state, engine_id=engine_id, detail=detail, exit_code=code)


def _judge(seen: Seen) -> tuple[EngineState, str, int | None]:
    if "deletionTimestamp" in seen.jobset["metadata"]:
        return EngineState.RUNNING, "is being deleted; its pods have their grace", None
    terminal = _status(seen.jobset).get("terminalState")
    if terminal == "Completed":
        return EngineState.ENDED, f"complete{_restarts(seen.jobset)}", 0
    if terminal == "Failed":
        return _failed(seen)
    if seen.workload and seen.workload["spec"].get("active", True) is False:
        why = _reason(_condition(seen.workload, "Evicted"))
        return EngineState.HELD, f"held by Kueue{why}; resume queues it again", None
    if seen.jobset["spec"].get("suspend"):
        return EngineState.QUEUED, _queued(seen), None
    return _started(seen)


def _failed(seen: Seen) -> tuple[EngineState, str, int | None]:
    """Returns how a set that is not restarted any more ended; a code that holds is HELD."""
    condition = _condition(seen.jobset, "Failed") or {}
    job = _first_failed(seen.jobs)
    why = _condition(job, "Failed") if job else None
    message = why["message"] if why else condition.get("message", "")
    code = exit_code(message)
    if code is None:
        code = next((c for c in map(pod_exit_code, seen.pods) if c), None)
    held = code is not None and ending(code).retry in _HELD
    last_words = [words for pod in failed_first(seen.pods) if (words := pod_last_words(pod))]
    meaning = f"{ending(code).meaning}: " if code is not None else ""
    detail = f"{meaning}{(last_words or [message or 'failed'])[0]}{_restarts(seen.jobset)}"
    return EngineState.HELD if held else EngineState.ENDED, detail, code


def _queued(seen: Seen) -> str:
    """Returns why a suspended set waits, in Kueue's words."""
    queue = seen.jobset["metadata"].get("labels", {}).get(names.QUEUE_LABEL, "")
    where = f"suspended by queue {queue}" if queue else "suspended; it names no queue"
    if seen.workload is None:
        return (
            f"{where}: Kueue has not taken it up yet. Where this stays so, Kueue does not run, "
            "does not know JobSet, or their versions do not go together"
        )
    admitted = _condition(seen.workload, "Admitted")
    if admitted and admitted["status"] == "True":
        return f"{where}: admitted, to be started{_restarts(seen.jobset)}"
    evicted = _condition(seen.workload, "Evicted")
    if evicted and evicted["status"] == "True":
        return f"{where}: evicted{_reason(evicted)}{_restarts(seen.jobset)}"
    reserved = _condition(seen.workload, "QuotaReserved")
    if reserved and reserved["status"] == "True":
        return f"{where}: quota reserved, admission checks are not through"
    return f"{where}{_reason(reserved)}{_restarts(seen.jobset)}"


def _started(seen: Seen) -> tuple[EngineState, str, int | None]:
    wanted = sum(
        job["replicas"] * job["template"]["spec"]["parallelism"]
        for job in seen.jobset["spec"]["replicatedJobs"]
    )
    running = [pod for pod in seen.pods if _status(pod).get("phase") == "Running"]
    restarts = _restarts(seen.jobset)
    if trouble := next(filter(None, map(pod_trouble, failed_first(seen.pods))), ""):
        return (
            EngineState.RUNNING,
            f"{len(running)} of {wanted} pods run; {trouble}{restarts}",
            None,
        )
    if len(running) < wanted:
        return EngineState.RUNNING, f"starting: {len(running)} of {wanted} pods run{restarts}", None
    return EngineState.RUNNING, f"{wanted} pods run{restarts}", None


def exit_code(message: str) -> int | None:
    """Returns the exit code that a Job's failure message names; None where it names none."""
    found = _EXIT_CODE.search(message)
    return int(found[1]) if found else None


def pod_exit_code(pod: Object) -> int | None:
    """Returns how a pod's container ended; None while it has not."""
    terminated = _container(pod).get("state", {}).get("terminated")
    return terminated["exitCode"] if terminated else None


def pod_last_words(pod: Object) -> str:
    """Returns why a pod's container ended, as it said itself, on one line."""
    terminated = _container(pod).get("state", {}).get("terminated") or {}
    return " ".join(terminated.get("message", "").split())


def pod_trouble(pod: Object) -> str:
    """Returns what keeps a pod from running, or how it failed; empty where all is well."""
    name, status = pod["metadata"]["name"], _status(pod)
    waiting = _container(pod).get("state", {}).get("waiting", {})
    if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
        return f"{name} waits: {waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    code = pod_exit_code(pod)
    if code:
        why = pod_last_words(pod) or ending(code).meaning
        return f"{name} on {_node(pod)} failed with exit code {code}: {why}"
    disrupted = _condition(pod, "DisruptionTarget")
    if disrupted and disrupted["status"] == "True":
        return f"{name} on {_node(pod)} is disrupted{_reason(disrupted)}"
    scheduled = _condition(pod, "PodScheduled")
    if status.get("phase") == "Pending" and scheduled and scheduled["status"] == "False":
        return f"{name} finds no node{_reason(scheduled)}"
    return ""


def failed_first(pods: Iterable[Object]) -> list[Object]:
    """Returns pods in the order in which people want to read them: the first that failed first."""

    def key(pod: Object) -> tuple[bool, str, str]:
        terminated = _container(pod).get("state", {}).get("terminated") or {}
        fine = not terminated.get("exitCode")
        return fine, "" if fine else terminated.get("finishedAt", ""), pod["metadata"]["name"]

    return sorted(pods, key=key)


def _restarts(jobset: Object) -> str:
    status = _status(jobset)
    if not status.get("restarts"):
        return ""
    counted = status.get("restartsCountTowardsMax", 0)
    most = jobset["spec"].get("failurePolicy", {}).get("maxRestarts", 0)
    return f"; restarted {status['restarts']} times, {counted} of them count, at most {most}"


def _first_failed(jobs: Iterable[Object]) -> Object | None:
    """Returns the child Job that failed first; as in JobSet, one with a final code above all."""
    failed = [job for job in jobs if (_condition(job, "Failed") or {}).get("status") == "True"]

    def key(job: Object) -> tuple[bool, str]:
        condition = _condition(job, "Failed") or {}
        code = exit_code(condition.get("message", ""))
        final = code is not None and ending(code).retry in _HELD | {
            RetryClass.USER,
            RetryClass.MEMORY,
        }
        return not final, condition.get("lastTransitionTime", "")

    return min(failed, key=key, default=None)


def _status(obj: Object) -> Object:
    status: Object = obj.get("status") or {}
    return status


def _condition(obj: Object | None, kind: str) -> Object | None:
    conditions = _status(obj).get("conditions", []) if obj else []
    return next((c for c in conditions if c["type"] == kind), None)


def _reason(condition: Object | None) -> str:
    if not condition:
        return ""
    return ": " + ": ".join(filter(None, (condition.get("reason"), condition.get("message"))))


def _container(pod: Object) -> Object:
    found = _status(pod).get("containerStatuses", [])
    return next((c for c in found if c["name"] == names.CONTAINER), {})


def _node(pod: Object) -> str:
    return pod["spec"].get("nodeName", "no node")
