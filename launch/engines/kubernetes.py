"""The engine kubernetes: a run is a JobSet, queued and placed by Kueue.

JobSet's controller restarts the gang, as the exit codes tell it (kubernetes_objects.py); Kueue
holds it back until all of it fits, and may suspend it for others. docs/kubernetes.md says what a
cluster needs and what was tested against what.
"""

import contextlib
import pathlib
import time

from launch import manifests
from launch.control import Control, Want
from launch.engines import kubernetes_names as names
from launch.engines import kubernetes_objects, kubernetes_refusals, kubernetes_status
from launch.engines.engine import EngineError, EngineState, Rendered, Standing
from launch.engines.kubernetes_client import CONFLICT, Api, Object, Refused
from launch.engines.kubernetes_status import Seen
from launch.pod_output import last_status
from launch.spec import Job, JobSpec

GONE_S = 60.0
"""How long, beyond their grace, deleted pods are waited for."""

_ASK_EVERY_S = 0.5
_LINES = 2000


class Kubernetes:
    """See launch/engines/engine.py."""

    def __init__(self) -> None:
        """Connects to nothing yet."""
        self._apis: dict[str, Api] = {}  # logging in may start a program, which takes a second

    def refusals(self, spec: JobSpec) -> list[str]:
        """Returns what of a job file Kubernetes cannot do, each with what to do instead."""
        return kubernetes_refusals.refusals(spec)

    def render(self, job: Job) -> Rendered:
        """Returns the objects as YAML; kubectl creates them in the order of its arguments."""
        files = {
            name: manifests.text(objects)
            for name, objects in kubernetes_objects.objects(job).items()
        }
        filenames = (word for name in files for word in ("--filename", name))
        return Rendered(files=files, command=("kubectl", "create", *filenames))

    def submit(self, job: Job) -> Standing:
        """Creates what is missing of a run's objects; a set that is there stays as it is.

        Raises:
          EngineError: the API server cannot be reached or refused.
        """
        api = self._api(job)
        found = api.get("JobSet", names.jobset_name(job))
        if found:
            _check_own(found, job)
        *parts, jobset = [
            obj for objects in kubernetes_objects.objects(job).values() for obj in objects
        ]
        for part in parts:
            _ensure(api, part)
        if not found:
            found = _ensure(api, jobset)
        for part in parts:
            _adopt(api, part, owner=found)
        return self.standing(job)

    def standing(self, job: Job) -> Standing:
        """Returns what JobSet, Kueue and the pods say; UNKNOWN where the server does not answer.

        A set that is not there was drained or cancelled where a person has asked for that. What the
        first pod shows of the supervisor's status is kept in the job's folder, where that is not
        the one of the pods.
        """
        try:
            api = self._api(job)
            seen = _look(api, job)
        except EngineError as error:
            return Standing(state=EngineState.UNKNOWN, detail=str(error))
        if seen is not None:
            _keep_status(api, job, seen)
            return kubernetes_status.standing(seen)
        control = Control.read(job.job_dir)
        want = control.want if control else Want.GO_ON
        state = {Want.DRAIN: EngineState.HELD, Want.CANCEL: EngineState.ENDED}
        detail = f"there is no JobSet {names.namespace(job)}/{names.jobset_name(job)}"
        return Standing(state=state.get(want, EngineState.UNKNOWN), detail=detail)

    def cancel(self, job: Job) -> None:
        """Deletes the set, and by it all that it owns; pods get SIGTERM and their grace.

        Raises:
          EngineError: the API server cannot be reached or refused.
        """
        self._api(job).delete("JobSet", names.jobset_name(job))

    def release(self, job: Job) -> Standing:
        """Has Kueue take a held set again, or makes a new one of a set that has ended.

        A new set begins with JobSet's counters at zero. Attempts go on growing, as they are claimed
        by the pods (launch/pod.py). Resources may differ from the set before.

        Raises:
          EngineError: the API server cannot be reached or refused, or pods do not go away.
        """
        api = self._api(job)
        seen = _look(api, job)
        if seen is None:
            return self.submit(job)
        now = kubernetes_status.standing(seen)
        if seen.workload and now.state is EngineState.HELD and now.exit_code is None:
            api.patch("Workload", seen.workload["metadata"]["name"], {"spec": {"active": True}})
            return self.standing(job)
        if now.state not in (EngineState.HELD, EngineState.ENDED):
            return now
        self._remove(api, job)
        return self.submit(job)

    def logs(self, job: Job) -> str | None:
        """Returns the pods' output, the first that failed first; None where there is none here.

        Raises:
          EngineError: the API server cannot be reached or refused.
        """
        if any(pathlib.Path(job.job_dir).glob("attempts/*/logs/*")):
            return None
        api = self._api(job)
        pods = kubernetes_status.failed_first(api.labelled("Pod", labels=_of_run(job)))
        if not pods:
            return None
        texts = []
        for pod in pods:
            name = pod["metadata"]["name"]
            trouble = kubernetes_status.pod_trouble(pod)
            texts.append(f"==> {trouble or name} <==\n{api.log(name)}")
        return "\n".join(texts)

    def preflight(self, namespace: str) -> list[str]:
        """Returns what a cluster runs, and what of it is known not to work."""
        from launch.engines import kubernetes_preflight

        return kubernetes_preflight.report(Api(namespace))

    def _api(self, job: Job) -> Api:
        namespace = names.namespace(job)
        return self._apis.setdefault(namespace, Api(namespace))

    def _remove(self, api: Api, job: Job) -> None:
        """Deletes a run's objects and waits until none is left to be taken for the next one's."""
        name = names.jobset_name(job)
        objects = kubernetes_objects.objects(job).values()
        mine = [(o["kind"], o["metadata"]["name"]) for group in objects for o in group]
        for kind, each in mine:
            api.delete(kind, each)
        end = time.monotonic() + job.spec.runtime.grace_s + GONE_S
        while left := [f"{kind} {each}" for kind, each in mine if api.get(kind, each)]:
            if time.monotonic() > end:
                raise EngineError(
                    f"{', '.join(left)} of {name} do not go away; where a node is lost, its pods "
                    "stay until it is back or an administrator marks it out of service. Then "
                    "resume again."
                )
            time.sleep(_ASK_EVERY_S)


def _keep_status(api: Api, job: Job, seen: Seen) -> None:
    """Keeps what the supervisor in the first pod says, for ``status`` and ``submit --wait``."""
    folder = pathlib.Path(job.job_dir)
    first = f"{names.jobset_name(job)}-{names.REPLICATED_JOB}-0-0-"
    pods = [pod["metadata"]["name"] for pod in seen.pods]
    if job.job_dir == job.spec.checkpoint.root or not folder.is_dir():
        return
    for pod in (name for name in pods if name.startswith(first)):
        with contextlib.suppress(EngineError):  # a status is no reason to fail
            if status := last_status(api.log(pod, lines=_LINES)):
                status.write(job.job_dir)


def _of_run(job: Job) -> str:
    return f"{names.RUN_LABEL}={names.jobset_name(job)}"


def _look(api: Api, job: Job) -> Seen | None:
    jobset = api.get("JobSet", names.jobset_name(job))
    if jobset is None:
        return None
    _check_own(jobset, job)
    workloads = api.labelled(
        "Workload", labels=f"{names.WORKLOAD_OF_LABEL}={jobset['metadata']['uid']}"
    )
    return Seen(
        jobset=jobset,
        workload=workloads[-1] if workloads else None,
        jobs=api.labelled("Job", labels=f"{names.JOBSET_LABEL}={names.jobset_name(job)}"),
        pods=api.labelled("Pod", labels=_of_run(job)),
    )


def _check_own(found: Object, job: Job) -> None:
    given = found["metadata"].get("annotations", {}).get(names.RUN_ANNOTATION)
    if given != job.run_id:
        raise EngineError(
            f"There is a JobSet {found['metadata']['name']} already, of the run {given!r}; this is "
            f"{job.run_id!r}. Delete it, or take another name."
        )


def _ensure(api: Api, obj: Object) -> Object:
    """Creates an object, or returns the one that is there."""
    try:
        return api.create(obj)
    except Refused as refused:
        if refused.status != CONFLICT:
            raise
    found = api.get(obj["kind"], obj["metadata"]["name"])
    return found if found is not None else api.create(obj)


def _adopt(api: Api, obj: Object, *, owner: Object) -> None:
    """Has an object go with its set."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": True,
    }
    change = {"metadata": {"ownerReferences": [reference]}}
    api.patch(obj["kind"], obj["metadata"]["name"], change)
