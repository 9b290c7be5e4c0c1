"""What can be said of a run before it has devices: configuration, sizes, data, directory. No jax.

Everything is looked at, also after something was wrong, so that all of it is told at once.
"""

import dataclasses
import pathlib
import queue
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence

from input_pipeline.conversation_encoder import template_of
from input_pipeline.corpus import find_files
from input_pipeline.data_config import (
    Conversations,
    JsonLines,
    TextFiles,
    TokenizerFile,
    TokenShards,
)
from input_pipeline.manifest import Manifest
from input_pipeline.token_store import StoreRecord
from input_pipeline.tokenizer_folder import TokenizerFolder, read_folder, tokenizer_file
from launch.contract import Finding, Verdict
from partitioning.planner.decoder_parameters import parameters
from trainer.base_checks import base_finding, check_base, has_adapters
from trainer.checkpoints.root import Root, open_root
from trainer.config import LoadedConfig, load
from trainer.config_errors import ConfigError
from trainer.context_length import check_context
from trainer.layout_checks import Where, layout_findings
from trainer.run_config import LanguageModel, RunConfig
from trainer.run_directory import Request, check_readable
from trainer.run_records import read_run
from trainer.size_checks import (
    check_batch,
    check_expert_count,
    check_loss_chunks,
    check_processes,
    check_stages,
)

DIRECTORY_S = 20.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Directory:
    """Where a run is to live.

    Attributes:
      url: the run directory: a path, gs:// or s3://.
      run_id: name that the run will have; empty takes any.
      allow_change: keys of the configuration that may differ from the last attempt's.
    """

    url: str
    run_id: str = ""
    allow_change: tuple[str, ...] = ()


def examine(
    files: Sequence[str],
    bindings: Sequence[str],
    *,
    devices: int,
    processes: int,
    directory: Directory | None = None,
    where: Where | None = None,
) -> list[Finding]:
    """Returns everything that can be known about a run on so many devices.

    Args:
      files: gin files.
      bindings: ``NAME=VALUE``.
      devices: devices of the run.
      processes: processes that they are spread over.
      directory: where it is to live; None leaves that out.
      where: the devices; None if only their number is known.
    """
    try:
        loaded = load(files, bindings)
    except ConfigError as error:
        return [_error("configuration", str(problem)) for problem in error.problems]
    run = loaded.run
    found = [_ok("configuration", f"{type(run.task).__name__}, {run.train.steps} steps")]
    found += _sizes(run, devices=devices, processes=processes)
    found += _data(run)
    url = run.train.init_from
    if url is not None:
        found += _in_time(lambda: [base_finding(run, url=url)], about="init_from", url=url)
    if directory is not None:
        look = lambda: list(_directory(loaded, directory))  # noqa: E731
        found += _in_time(look, about="checkpoint", url=directory.url)
    if not any(finding.verdict is Verdict.ERROR and finding.about in _LAYOUT for finding in found):
        found += layout_findings(run, devices=devices, where=where or Where())
    return found


def _sizes(run: RunConfig, *, devices: int, processes: int) -> Iterator[Finding]:
    try:
        check_processes(devices=devices, processes=processes)
        sizes = run.mesh.sizes(devices)
    except ValueError as error:
        yield _error("mesh", str(error))
        return
    used = " x ".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1)
    spread = f"{devices} device(s) in {processes} process(es)"
    yield _ok("mesh", f"{used or 'one device'} on {spread}")
    for about, check in _size_checks(run, sizes):
        try:
            check()
        except ValueError as error:
            yield _error(about, str(error))
        else:
            yield _ok(about, _SIZES_FIT[about])


_LAYOUT = ("mesh", "batch", "model", "pipeline")
_SIZES_FIT = {
    "batch": "divides over the mesh and its microbatches",
    "model": "rows and experts divide over their axes",
    "pipeline": "layers and microbatches fill the stages",
}


def _size_checks(
    run: RunConfig, sizes: Mapping[str, int]
) -> Iterator[tuple[str, Callable[[], None]]]:
    yield "batch", lambda: check_batch(run, sizes=sizes)
    yield "model", lambda: _check_model(run, sizes)
    if isinstance(run.task, LanguageModel):
        repeats = run.task.model.repeats
        yield "pipeline", lambda: check_stages(run, stages=sizes["stage"], repeats=repeats)


def _check_model(run: RunConfig, sizes: Mapping[str, int]) -> None:
    check_base(run, adapted=has_adapters(run))
    check_loss_chunks(run)
    check_context(run, sizes=sizes)
    if isinstance(run.task, LanguageModel):
        check_expert_count(run.task.model, devices=sizes["expert"])
        parameters(run.task.model)  # raises where adapters have no kernel to stand beside


def _data(run: RunConfig) -> Iterator[Finding]:
    """Looks that the data is there; does not read it, which may take hours."""
    source, tokenizer = run.data.source, run.data.tokenizer
    try:
        match source:
            case TokenShards():
                yield _store(run, StoreRecord.read(pathlib.Path(source.path)))
            case TextFiles() | JsonLines() | Conversations():
                yield _text(source)
            case _:
                yield _ok("data", f"{type(source).__name__} has no files of its own")
    except (ValueError, OSError) as error:
        yield _error("data", f"{type(source).__name__}: {error}")
    except (AttributeError, KeyError, TypeError) as error:
        yield _error("data", f"{type(source).__name__}: manifest.json is damaged ({error!r}).")
    try:
        folder = TokenizerFolder()
        if isinstance(tokenizer, TokenizerFile):
            tokenizer_file(path := pathlib.Path(tokenizer.path))
            folder = read_folder(path) if path.is_dir() else folder
        if isinstance(source, Conversations):
            template_of(source, conventions=folder.conventions, special=None)
    except (ValueError, OSError) as error:
        yield _error("data", str(error))


def _store(run: RunConfig, record: StoreRecord) -> Finding:
    name, licence = record.manifest.name, record.manifest.licence
    if isinstance(run.task, LanguageModel) and run.task.model.vocab_size < record.vocab_size:
        raise ValueError(
            f"dataset {name!r} has {record.vocab_size} tokens, more than "
            f"DecoderConfig.vocab_size={run.task.model.vocab_size}."
        )
    return _ok("data", f"{name}, licence {licence}, version {record.digest[:12]}")


def _text(source: TextFiles | JsonLines | Conversations) -> Finding:
    """Raises ValueError where files or the licence are missing."""
    kind = type(source).__name__
    root = pathlib.Path(source.root)
    files = find_files(root, patterns=source.files, owner=kind)
    manifest = Manifest(name=root.name, source=kind, licence=source.licence, files=())
    return _ok("data", f"{len(files)} files in {root}, licence {manifest.licence}")


def _in_time(look: Callable[[], list[Finding]], *, about: str, url: str) -> list[Finding]:
    """Looks at a place, but not for longer than a person waits: stores retry for minutes.

    The thread that still waits then is left behind; whoever calls this ends the process without it.
    """
    answer: queue.Queue[list[Finding] | BaseException] = queue.Queue()

    def run() -> None:
        try:
            answer.put(look())
        except BaseException as error:  # noqa: BLE001 (handed to whoever waits, who raises it)
            answer.put(error)

    threading.Thread(target=run, name=about, daemon=True).start()
    try:
        found = answer.get(timeout=DIRECTORY_S)
    except queue.Empty:
        message = f"{url} did not answer within {DIRECTORY_S:g} s; not looked at."
        return [Finding(about=about, verdict=Verdict.WARNING, message=message)]
    if isinstance(found, BaseException):
        raise found
    return found


def _directory(loaded: LoadedConfig, directory: Directory) -> Iterator[Finding]:
    """Looks whose the directory is, whether it can be written, and what has changed since."""
    try:
        root = open_root(directory.url)
        record = read_run(root)
        if "://" in directory.url:
            _probe(root)
    except (ValueError, OSError) as error:
        yield _error("checkpoint", str(error))
        return
    if record is None:
        yield _ok("checkpoint", f"{directory.url} holds nothing yet")
        return
    if directory.run_id not in ("", record.run_id):
        yield _error(
            "checkpoint",
            f"{directory.url} holds run {record.run_id!r}, not {directory.run_id!r}. Take another "
            "directory, or go on with that run under its name.",
        )
        return
    yield _ok("checkpoint", f"{directory.url} holds run {record.run_id}")
    yield from _changes(loaded, directory, root)


def _changes(loaded: LoadedConfig, directory: Directory, root: Root) -> Iterator[Finding]:
    request = Request(allow_change=directory.allow_change)
    try:
        for change in check_readable(root, loaded=loaded, request=request):
            yield Finding(about="checkpoint", verdict=Verdict.INFO, message=f"changes {change}")
    except ConfigError as error:
        yield from (_error("checkpoint", str(problem)) for problem in error.problems)
    except (ValueError, OSError) as error:
        yield _error("checkpoint", str(error))


def _probe(root: Root) -> None:
    """Writes a small object and removes it; raises OSError where that is not permitted."""
    key = f"probe-{uuid.uuid4().hex}"
    root.write(key, key.encode())
    root.remove(key)


def _ok(about: str, message: str) -> Finding:
    return Finding(about=about, verdict=Verdict.OK, message=f"{message}.")


def _error(about: str, message: str) -> Finding:
    return Finding(about=about, verdict=Verdict.ERROR, message=message)
