"""``python -m launch.main``: the front door of the launcher; see its --help."""

import argparse
import dataclasses
import io
import os
import pathlib
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from launch import admin, arguments, run_logs, run_view, steering, story, submission
from launch.console import remark, say, say_json
from launch.engines.engine import EngineError, EngineRefused, EngineState, engine_named
from launch.engines.kubernetes import Kubernetes
from launch.exit_codes import ExitCode
from launch.findings import Report, Verdict
from launch.jobs import JobError, Options, job_text
from launch.journal import Journal
from launch.own_code import importable
from launch.patience import Patience
from launch.records import ContractError
from launch.run_index import RunIndex, UnknownRunError
from launch.run_logs import NoLogsError
from launch.snapshot import SnapshotError
from launch.spec import JOB_FILE, Job
from launch.spec_problems import SpecError
from launch.steering import SteeringError
from launch.submission import Submitted, write_files
from launch.validate import Validated, validate

WATCH_S = 2.0
_USER_ERRORS = (
    SpecError,
    JobError,
    SnapshotError,
    UnknownRunError,
    ContractError,
    SteeringError,
    NoLogsError,
)
_LONGEST = 1000
_CLEAR = "\x1b[2J\x1b[H"
Arguments = argparse.Namespace


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    _print_anything()
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == [arguments.PLAN]:
        _plan(argv[1:])
    given = arguments.parser().parse_args(argv)
    try:
        return _COMMANDS[given.command](given)
    except _USER_ERRORS as error:
        return _failed(given, str(error), code=ExitCode.CONFIGURATION)
    except EngineRefused as error:
        return _failed(given, str(error), code=ExitCode.CONFIGURATION)
    except EngineError as error:
        return _failed(given, str(error), code=ExitCode.ENGINE_UNREACHABLE)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            return _reader_left()
        return _failed(given, _of_files(error), code=ExitCode.CONFIGURATION)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)


def _plan(argv: Sequence[str]) -> NoReturn:
    """Becomes the planner, which has a command line of its own."""
    command = [sys.executable, "-m", "partitioning.planner", *argv]
    os.execve(sys.executable, command, importable(os.environ))


def _validate(given: Arguments) -> int:
    report = _checked(given, compiling=None if given.no_compile else _compiling).report
    say(report.as_json() if given.json else report.show())
    return int(report.exit_code)


def _render(given: Arguments) -> int:
    checked = _checked(given, slow=False)
    if _refused(given, checked.report):
        return int(ExitCode.CONFIGURATION)
    assert checked.resolved is not None
    engine = engine_named(given.engine)
    rendered = [(job, engine.render(job)) for job in checked.resolved.jobs]
    if given.json:
        jobs = [
            {
                "run_id": job.run_id,
                "job": dataclasses.asdict(job),
                "files": dict(made.files),
                "command": list(made.command),
            }
            for job, made in rendered
        ]
        say_json({"jobs": jobs})
        return 0
    for job, made in rendered:
        say(f"# ---- {job.job_dir}/{JOB_FILE}\n{job_text(job).rstrip()}")
        for name, text in made.files.items():
            say(f"# ---- {job.job_dir}/rendered/{name}\n{_for_terminals(text.rstrip())}")
        say(f"# ---- run {job.run_id} is submitted with: {shlex.join(made.command)}")
    if given.run_id is None:
        remark(f"For these very names: submit --run_id={rendered[0][0].run_id}")
    return 0


def _submit(given: Arguments) -> int:
    checked = _checked(given, slow=not given.no_validate)
    if _refused(given, checked.report):
        return int(ExitCode.CONFIGURATION)
    assert checked.resolved is not None
    engine = engine_named(given.engine)
    done = submission.submit(
        checked.resolved,
        engine=engine,
        text=checked.text,
        index=_index(),
        now=time.time(),
    )
    if given.json and not given.wait:
        say_json({"runs": [_as_dict(one) for one in done]})
    tell = remark if given.json else say
    for one in done:
        tell(_what_next(one))
    if not given.wait:
        return 0
    jobs = [one.job for one in done]
    with submission.leaving_it_running(jobs, say=remark):
        code = submission.wait(jobs, engine=engine, report=tell)
    if given.json:
        say_json({"runs": [_as_dict(one) for one in done], "exit_code": code})
    return code


def _status(given: Arguments) -> int:
    if given.run is None:
        entries = run_view.listing(_index(), most=given.most)
        if given.json:
            say_json({"runs": entries})
        else:
            say(run_view.show_listing(entries))
        return 0
    job = _index().find(given.run)
    patience = Patience(job, engine=run_view.engine_of(job))
    while True:
        view = run_view.look(job, standing=patience.standing())
        if given.json:
            if view.is_final or not given.watch:
                say_json(view.as_dict())
        else:
            again = given.watch and sys.stdout.isatty()
            say(f"{_CLEAR if again else ''}{view.show()}")
        if view.is_final or not given.watch:
            return 0
        time.sleep(WATCH_S)


def _logs(given: Arguments) -> int:
    job = _index().find(given.run)
    engine = run_view.engine_of(job)
    if given.follow:
        if given.json:
            message = "--follow prints lines as they come, --json one object; keep one of the two."
            return _failed(given, message, code=ExitCode.CONFIGURATION)
        ended = Patience(job, engine=engine).is_final
        run_logs.follow(job, engine=engine, rank=given.rank, ended=ended, say=say)
        return 0
    lines = run_logs.show(
        job, engine=engine, attempt=given.attempt, rank=given.rank, lines=given.lines
    )
    if given.json:
        say_json({"run_id": job.run_id, "lines": list(lines)})
        return 0
    for line in lines:
        say(line)
    return 0


def _explain(given: Arguments) -> int:
    job = _index().find(given.run)
    entries = Journal(job.job_dir).entries()
    view = run_view.look(job, standing=run_view.engine_of(job).standing(job))
    if given.json:
        told = [{**dataclasses.asdict(e), "told": story.told(e)} for e in entries]
        summary = dataclasses.asdict(story.Summary.of(entries))
        say_json({**view.as_dict(), "summary": summary, "events": told})
        return 0
    say("\n".join([f"Run {job.run_id} of job {job.spec.name}.", *story.tell(entries)]))
    next_action = view.status.next_action if view.status else view.standing.detail
    say(f"\nNow: {view.state}.{f' Next: {next_action}.' if next_action else ''}")
    return 0


def _cancel(given: Arguments) -> int:
    job = _index().find(given.run)
    return _done(given, job, steering.cancel(job, engine=run_view.engine_of(job)))


def _drain(given: Arguments) -> int:
    job = _index().find(given.run)
    return _done(given, job, steering.drain(job, engine=run_view.engine_of(job)))


def _resume(given: Arguments) -> int:
    job = _index().find(given.run)
    standing = steering.resume(job, engine=run_view.engine_of(job))
    return _done(given, job, f"{job.run_id} goes on: {standing.state}.")


def _admin(given: Arguments) -> int:
    if given.action == "preflight":
        lines = Kubernetes().preflight(given.namespace)
        if given.json:
            say_json({"lines": lines})
        else:
            say("\n".join(lines))
        wrong = any(line.startswith("WRONG") for line in lines)
        return int(ExitCode.CONFIGURATION) if wrong else 0
    if given.teams is None:
        return _failed(given, "admin render needs TEAMS.yaml.", code=ExitCode.CONFIGURATION)
    made = admin.render(pathlib.Path(given.teams), engine=given.engine)
    if given.json:
        say_json({"files": dict(made.files), "command": list(made.command)})
    elif given.into is None:
        for name, text in made.files.items():
            say(f"# ---- {name}\n{text.rstrip()}")
    else:
        write_files(made, folder=pathlib.Path(given.into))
        say(f"{', '.join(made.files)} are in {given.into}.")
    remark(f"To be looked at, and then applied there with: {shlex.join(made.command)}")
    return 0


_COMMANDS: Mapping[str, Callable[[Arguments], int]] = {
    "validate": _validate,
    "render": _render,
    "submit": _submit,
    "status": _status,
    "logs": _logs,
    "explain": _explain,
    "cancel": _cancel,
    "drain": _drain,
    "resume": _resume,
    "admin": _admin,
}


def _for_terminals(text: str) -> str:
    """Cuts what is no text for people (programs in base64), and only where people read it."""
    if not sys.stdout.isatty():
        return text
    lines = text.splitlines()
    return "\n".join(
        line if len(line) <= _LONGEST else f"{line[:60]}... ({len(line)} characters)"
        for line in lines
    )


def _index() -> RunIndex:
    return RunIndex.of(os.environ)


def _compiling(cluster: str) -> None:
    remark(
        f"Compiling the step for {cluster}, usually in under a minute; --no_compile leaves it out."
    )


def _checked(
    given: Arguments, *, slow: bool = True, compiling: Callable[[str], None] | None = None
) -> Validated:
    options = Options(
        engine=given.engine, index=_index(), run_id=given.run_id, job_dir=given.job_dir
    )
    return validate(pathlib.Path(given.job), options=options, slow=slow, compiling=compiling)


def _refused(given: Arguments, report: Report) -> bool:
    """Says what is wrong before a submission, and whether it keeps the job from it."""
    if report.errors and given.json:
        say(report.as_json())
    else:
        for finding in report.findings:
            if finding.verdict in (Verdict.ERROR, Verdict.WARNING):
                remark(f"{finding.verdict}: {finding.about}: {finding.message}")
        if report.errors:
            remark("Nothing was submitted.")
    return bool(report.errors)


def _what_next(one: Submitted) -> str:
    job, standing = one.job, one.standing
    done = {
        "new": f"Submitted {job.run_id} to {job.engine}",
        "again": f"{job.run_id} goes on, on {job.engine}",
        "already": f"{job.run_id} is there already; nothing was changed",
    }[one.how]
    named = standing.engine_id and one.how != "already"
    engine_id = f" as {standing.engine_id}" if named else ""
    detail = f" ({standing.detail})" if standing.detail else ""
    lines = [f"{done}{engine_id}: {standing.state}{detail}."]
    if standing.state is not EngineState.ENDED:
        for command in ("status", "logs", "explain", "cancel"):
            lines.append(f"  {arguments.PROGRAM} {command} {job.run_id}")
    return "\n".join(lines)


def _as_dict(one: Submitted) -> dict[str, object]:
    return {
        "run_id": one.job.run_id,
        "how": one.how,
        "job_dir": one.job.job_dir,
        "run_dir": one.job.spec.checkpoint.root,
        "engine": one.job.engine,
        "standing": dataclasses.asdict(one.standing),
    }


def _done(given: Arguments, job: Job, text: str) -> int:
    if given.json:
        say_json({"run_id": job.run_id, "done": given.command, "message": text})
    else:
        say(text)
    return 0


def _failed(given: Arguments, message: str, *, code: ExitCode) -> int:
    if given.json:
        say_json({"error": message, "exit_code": int(code)})
    else:
        remark(message)
    return int(code)


def _of_files(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}."


def _print_anything() -> None:
    """Names of files need not be text, and terminals need not know every letter."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _reader_left() -> int:
    """Whoever read the output has closed it (``| head``); what is left of it goes nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    return 0


def _stop(number: int, _: Any) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)  # so that what was started to check a job ends, too
    sys.exit(main())
