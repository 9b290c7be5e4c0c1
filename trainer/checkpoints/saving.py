"""One save: from arrays in a directory to a committed, verified step. Runs in the background.

May import no jax. Promises: MANIFEST.json is written last, by rank 0, after every process has said
that its files are on stable storage; when anything fails the step has no manifest, what was written
of it is removed, and every process learns the reason. A step for which ``commit`` returns is
accepted by every later attempt.
"""

import dataclasses
import json
import os
import pathlib
import shutil
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from absl import logging

from trainer import finite_json
from trainer.checkpoints import fencing, layout, manifest
from trainer.checkpoints.arrays import Writing
from trainer.checkpoints.layout import StepName
from trainer.checkpoints.manifest import FileRecord, Manifest
from trainer.checkpoints.root import Root
from trainer.checkpoints.session import CheckpointError, Deadline, DiskFullError, Session, merge
from trainer.coordination import agree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What is saved beside the arrays.

    Attributes:
      draft: the manifest without its files.
      documents: contents of ``data.json`` and ``metrics.json``.
    """

    draft: Manifest
    documents: Mapping[str, bytes]

    @property
    def name(self) -> StepName:
        """The step."""
        return self.draft.name


def document(value: Mapping[str, Any]) -> bytes:
    """JSON of a mapping, with NaN, Infinity and -Infinity as strings.

    Raises:
      ValueError: something in it is not JSON.
    """
    try:
        return finite_json.dumps(value, indent=1).encode()
    except TypeError as error:
        raise ValueError(f"Only JSON can be saved beside the arrays: {error}") from error


def read_metric(root: Root, name: StepName, metric: str) -> float | None:
    """One number of a step's ``metrics.json``; None where it has none."""
    data = root.read(name.key(layout.METRICS))
    value = json.loads(data).get(metric) if data else None
    return float(value) if isinstance(value, int | float) else None


def commit(session: Session, job: Job, writing: Writing, *, stop: threading.Event) -> None:
    """Waits for the arrays, then publishes and verifies the step.

    Args:
      session: this process's part.
      job: what is saved.
      writing: Orbax's background part.
      stop: set when the caller no longer waits; then nothing is published.

    Raises:
      CheckpointError: on every process, where any of them failed.
      FencedError: a newer attempt exists; whether it accepts this step is its own decision.
    """
    deadline = Deadline(session.config.save_timeout_s)
    tag = f"{session.attempt}/save/{job.name}"
    try:
        found = _commit(session, job, writing, stop=stop, tag=tag, deadline=deadline)
    finally:
        session.drop_staged(job.name)
    if session.config.verify:
        _read_back(session, found, tag, deadline)


def _commit(
    session: Session,
    job: Job,
    writing: Writing,
    *,
    stop: threading.Event,
    tag: str,
    deadline: Deadline,
) -> Manifest:
    try:
        own, fault = _own_records(session, job.name, writing, deadline), ""
    except Exception as error:  # noqa: BLE001  told to every process and raised below
        own, fault = {}, f"rank {session.rank}: {explain(error, session.directory(job.name))}"
    files = {path: [record.bytes, record.sha256] for path, record in own.items()}
    report = json.dumps({"fault": fault, "files": files})
    reports = session.peers.gather(f"{tag}/files", report, timeout_s=deadline.left())
    verdict = _publish(session, job, reports, stop) if session.rank == 0 else None
    verdict = agree(session.peers, f"{tag}/end", verdict, timeout_s=deadline.left())
    if verdict.get("fenced"):
        raise fencing.FencedError(verdict["fault"])
    if verdict["fault"]:
        raise not_written(job.name, verdict["fault"])
    return manifest.decode(verdict["manifest"].encode())


def explain(error: BaseException, path: pathlib.Path) -> str:
    """An error in words, with the free space where a full disk is the reason."""
    text = f"{type(error).__name__}: {error}"
    if not _says_full(text):
        return text
    while not path.exists():
        path = path.parent
    free = shutil.disk_usage(path).free
    return f"the disk of {path} is full ({free:,} bytes free); free some and restart. {text}"


def not_written(name: StepName, reason: str) -> CheckpointError:
    """The error to raise for a step, by what `explain` said on any process."""
    kind = DiskFullError if _says_full(reason) else CheckpointError
    return kind(f"Step {name} was not written: {reason}")


def _says_full(text: str) -> bool:
    return "No space left on device" in text or "Disk quota exceeded" in text


def _own_records(
    session: Session, name: StepName, writing: Writing, deadline: Deadline
) -> dict[str, FileRecord]:
    """Digests what this process answers for, and brings it to the root."""
    writing.result(timeout=deadline.left())
    records = {}
    for path in session.own_files(name):
        source = session.directory(name) / path
        records[path] = manifest.digest(_durable_chunks(source))
        if session.staging:
            session.root.put_file(name.key(path), source)
    return records


def _durable_chunks(path: pathlib.Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as source:
        os.fsync(source.fileno())
        while chunk := source.read(8 * 2**20):
            yield chunk


def _publish(
    session: Session, job: Job, reports: list[str], stop: threading.Event
) -> dict[str, Any]:
    """Rank 0: writes the documents and the manifest, or removes what was written."""
    try:
        parts = [json.loads(report) for report in reports]
        faults = [part["fault"] for part in parts if part["fault"]]
        if stop.is_set():
            faults.append("it took longer than CheckpointConfig.save_timeout_s")
        if faults:
            raise CheckpointError("; ".join(faults))
        records = [{p: FileRecord(*r) for p, r in part["files"].items()} for part in parts]
        data = _write_manifest(session, job, merge(records))
        # Only now is it committed: a newer attempt that claims after this look will accept it.
        fencing.check_newest(session.root, job.name.attempt)
        return {"fault": "", "manifest": data.decode()}
    except fencing.FencedError as error:  # the step stays: the newer attempt may have accepted it
        return {"fault": str(error), "fenced": True}
    except Exception as error:  # noqa: BLE001  told to every process, which raises it
        fault = str(error) if isinstance(error, CheckpointError) else ""
        fault = fault or explain(error, session.directory(job.name))
        return {"fault": fault + _clean_up(session, job.name)}


def _write_manifest(session: Session, job: Job, files: dict[str, FileRecord]) -> bytes:
    for file, contents in job.documents.items():
        session.root.write(job.name.key(file), contents)
        files[file] = manifest.digest([contents])
    data = manifest.encode(dataclasses.replace(job.draft, files=files))
    session.root.write(job.name.key(layout.MANIFEST), data)
    return data


def _clean_up(session: Session, name: StepName) -> str:
    try:
        session.root.delete(name.key(), first=layout.MANIFEST)
    except OSError as error:  # the reason for the failed save matters more
        return f" (and what was written of it could not be removed: {error})"
    return ""


def _read_back(session: Session, found: Manifest, tag: str, deadline: Deadline) -> None:
    """The processes read the files back from storage, each a share."""
    parts = session.peers.process_count
    mine = manifest.share(found.files, part=(session.rank + 1) % parts, parts=parts)
    wrong = manifest.faults(session.root, found, mine)
    wrong = session.agree(f"{tag}/read", wrong, deadline=deadline)
    if not wrong:
        return
    reason = f"read back right after it was written: {'; '.join(wrong)}"
    if session.rank == 0 and session.attempt is not None:
        fencing.set_aside(session.root, found.name, reason=reason, by_attempt=session.attempt)
    logging.error("Step %s set aside: %s", found.name, reason)
    raise CheckpointError(f"Step {found.name} is damaged; {reason}")
