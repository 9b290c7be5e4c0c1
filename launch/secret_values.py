"""Values of secrets: read on the host, handed to the processes, kept out of everything else.

A reference is all that a job file, a script, a record or a log ever holds. Standard library only.
"""

import dataclasses
import json
import os
import pathlib
import stat
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence

from launch.spec import Secret, SecretForm

_HIDDEN = "[secret]"


class SecretError(ValueError):
    """A secret cannot be read; the message holds its reference, never its value."""


@dataclasses.dataclass(frozen=True)
class SecretValues:
    """Secrets of one host.

    Attributes:
      variables: variables for the processes.
    """

    variables: Mapping[str, str]
    _values: tuple[str, ...] = dataclasses.field(repr=False)

    def hide(self, text: str) -> str:
        """Returns a text without any of the values."""
        for value in self._values:
            text = text.replace(value, _HIDDEN)
        return text


NONE = SecretValues({}, ())
"""No secrets."""


def read(secrets: Sequence[Secret], *, folder: pathlib.Path) -> SecretValues:
    """Reads secrets; those of form FILE are written to ``folder``, readable by this user only.

    References k8s: are only read to be hidden: Kubernetes has put them where they belong.

    Raises:
      SecretError: one is missing, or a file that others may read.
    """
    variables, values = {}, []
    for secret in secrets:
        kind, _, where = secret.ref.partition(":")
        if kind == "k8s":
            values.extend(_placed(secret))
            continue
        value = _from_file(secret.ref, where) if kind == "file" else _from_variable(secret, where)
        values.append(value)
        if secret.form is SecretForm.ENV:
            variables[secret.name] = value
        else:
            variables[f"{secret.name}_FILE"] = str(_write(folder, secret.name, value))
    return SecretValues(variables, tuple(_lines(values)))


def _from_file(ref: str, where: str) -> str:
    path = pathlib.Path(where)
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SecretError(f"Secret {ref} cannot be read: {type(error).__name__}.") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SecretError(f"Secret {ref} may be read by others. Run chmod 600 {where}.")
    return text.removesuffix("\n")


def _from_variable(secret: Secret, where: str) -> str:
    try:
        return os.environ[where]
    except KeyError:
        raise SecretError(
            f"Secret {secret.ref}: variable {where} is not set on this host."
        ) from None


def _placed(secret: Secret) -> list[str]:
    """Returns what Kubernetes has given to this container; nothing where it has not."""
    if secret.form is SecretForm.ENV:
        return [os.environ[secret.name]] if secret.name in os.environ else []
    path = pathlib.Path(os.environ.get(f"{secret.name}_FILE", ""))
    return [path.read_text(encoding="utf-8", errors="replace")] if path.is_file() else []


def _write(folder: pathlib.Path, name: str, value: str) -> pathlib.Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / name
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(value)
    return path


def _lines(values: Iterable[str]) -> list[str]:
    """Longest first, whole and line by line: a value of several lines is rarely shown whole."""
    parts = {part for value in values for part in (value, *value.splitlines()) if len(part) >= 4}
    return sorted({form for part in parts for form in _written(part)}, key=len, reverse=True)


def _written(text: str) -> Iterator[str]:
    """Yields a text as messages hold it: as it is, inside of quotes, and in an address."""
    yield text
    yield repr(text)[1:-1]
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield urllib.parse.quote(text)
    yield urllib.parse.quote(text, safe="")
    yield urllib.parse.quote_plus(text)
