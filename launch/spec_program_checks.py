"""What is wrong with the program of a job: its arguments, its variables, its secrets.

Part of `launch.spec_checks`. A secret's value is never repeated in a message.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from launch.spec import JobSpec, SecretForm
from launch.spec_problems import Problem, Severity

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEY)$", re.IGNORECASE
)
_SECRET_FLAG = re.compile(r"--?[\w-]*(token|api[_-]?key|secret|password)(=.+)?", re.IGNORECASE)
_SECRET_REFERENCE = re.compile(r"secrets\[\d+\]\.ref")
_NOT_SECRET = re.compile(r"(/.*)?", re.DOTALL)  # nothing, or the path of a file
_REFERENCE = re.compile(r"file:/.+|env:[A-Za-z_][A-Za-z0-9_]*|k8s:[a-z0-9][-a-z0-9.]*/[-._\w]+")
REFERENCES = "file:/path, env:NAME or k8s:secret/key"
_OURS = ("run_dir", "gin_file", "gin_bindings")
_SET_BY_LAUNCHER = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
)


def may_be_secret(path: str) -> bool:
    """Whether a key of a job file may hold a secret, so that no message repeats its value."""
    if _SECRET_REFERENCE.fullmatch(path):
        return True
    name = path.removeprefix("workload.env.")
    return name != path and _SECRET_NAME.search(name) is not None


def _workload(spec: JobSpec) -> Iterator[Problem]:
    work = spec.workload
    if work.command:
        yield from (
            Problem(
                path=f"workload.{key}",
                also=("workload.command",),
                message=f"{key} are for Lockstep's trainer, but workload.command runs another "
                "program; keep one of the two.",
            )
            for key in ("gin_files", "gin_bindings", "flags")
            if getattr(work, key)
        )
        if not work.command[0]:
            yield Problem(path="workload.command[0]", message="the program has no name.")
    elif not work.gin_files:
        yield Problem(
            path="workload",
            message="there is nothing to run: give gin_files for Lockstep's trainer, or command "
            "for any program.",
        )
    for index, binding in enumerate(work.gin_bindings):
        if not re.match(r"\s*[\w./]+\s*=", binding):
            yield Problem(
                path=f"workload.gin_bindings[{index}]",
                message=f"given {binding!r}; a binding reads NAME=VALUE, such as "
                "TrainConfig.steps=20.",
            )


def _flags(spec: JobSpec) -> Iterator[Problem]:
    for index, flag in enumerate(spec.workload.flags):
        path, name = f"workload.flags[{index}]", flag.lstrip("-").partition("=")[0]
        if not flag.startswith("-"):
            given = "" if _value_of_secret(spec.workload.flags, index) else f"given {flag!r}; "
            yield Problem(path=path, message=f"{given}a flag reads --name=value.")
        elif name == "run_dir":
            yield Problem(
                path=path, message="--run_dir is set by the launcher, from checkpoint.root."
            )
        elif name in _OURS or name.startswith("gin."):
            key = "gin_files" if name == "gin_file" else "gin_bindings"
            yield Problem(path=path, message=f"{flag!r} belongs under workload.{key}.")
    for key in ("flags", "command"):
        for index, argument in enumerate(getattr(spec.workload, key)):
            before = _value_of_secret(getattr(spec.workload, key), index)
            if before or ("=" in argument and _SECRET_FLAG.fullmatch(argument)):
                name = before or argument.partition("=")[0]
                yield Problem(
                    path=f"workload.{key}[{index}]",
                    message=f"{name} looks like a secret, and arguments are seen by everyone on "
                    "the host; name it under secrets: and read the variable in the program.",
                    severity=Severity.WARNING,
                )


def _value_of_secret(arguments: Sequence[str], index: int) -> str:
    """Returns the flag before an argument that is its value, where that looks secret; else ""."""
    before = arguments[index - 1] if index else ""
    alone = "=" not in before and _SECRET_FLAG.fullmatch(before)
    return before if alone and not arguments[index].startswith("-") else ""


def _environment(spec: JobSpec) -> Iterator[Problem]:
    for name, value in spec.workload.env.items():
        path = f"workload.env.{name}"
        if not VARIABLE.fullmatch(name):
            yield Problem(
                path=path,
                message=f"{name!r} is no name of a variable: letters, digits and _, no digit "
                "first.",
            )
        elif name.startswith("LAUNCH_") or name in _SET_BY_LAUNCHER:
            yield Problem(path=path, message=f"{name} is set by the launcher; leave it out.")
        elif _SECRET_NAME.search(name) and not _NOT_SECRET.fullmatch(value):
            yield Problem(
                path=path,
                message=f"{name} looks like a secret, and this file is copied into records; give "
                f"secrets: [{{name: {name}, ref: ...}}] with {REFERENCES}.",
            )


def _secrets(spec: JobSpec) -> Iterator[Problem]:
    seen = set(spec.workload.env)
    for index, secret in enumerate(spec.secrets):
        path = f"secrets[{index}]"
        if not VARIABLE.fullmatch(secret.name) or secret.name.startswith("LAUNCH_"):
            yield Problem(
                path=f"{path}.name",
                message=f"given {secret.name!r}; a name is that of a variable: letters, digits "
                "and _, and not LAUNCH_.",
            )
        if not _REFERENCE.fullmatch(secret.ref):
            yield Problem(path=f"{path}.ref", message=_bad_reference(secret.ref))
        variable = f"{secret.name}_FILE" if secret.form is SecretForm.FILE else secret.name
        if variable in seen:
            yield Problem(path=f"{path}.name", message=f"{variable} is set twice; keep one.")
        seen.add(variable)


def _bad_reference(ref: str) -> str:
    """Says what is wrong without repeating what may be the secret itself."""
    kind, colon, _ = ref.partition(":")
    if colon and kind in ("file", "env", "k8s"):
        return f"given {ref!r}; a reference is {REFERENCES}."
    return (
        f"this is no reference but looks like the value itself; take {REFERENCES}, and change the "
        "secret if this file was shared."
    )


def references_of_engine(spec: JobSpec, *, engine: str) -> Iterator[Problem]:
    """Yields what is wrong with secrets that the engine cannot read."""
    for index, secret in enumerate(spec.secrets):
        if secret.ref.startswith("k8s:") and engine != "kubernetes":
            yield Problem(
                path=f"secrets[{index}].ref",
                message=f"{secret.ref!r} is a Secret of Kubernetes, which engine {engine} does "
                "not have; take file:/path or env:NAME.",
            )


PROGRAM_CHECKS: tuple[Callable[[JobSpec], Iterator[Problem]], ...] = (
    _workload,
    _flags,
    _environment,
    _secrets,
)
