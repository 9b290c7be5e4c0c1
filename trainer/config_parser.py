"""Reads gin files and command-line bindings into statements that know where they stand.

Uses gin's own `ConfigParser`, statement by statement, so that the language is gin's while every
problem has a file and a line. Imports gin and trainer.config_errors only; knows no configurable.
Nothing here is global: reading twice gives the same statements.
"""

import dataclasses
import importlib
import importlib.util  # gin 0.5 uses it on a missing include, and forgets to import it
import io
import pathlib
import re
import tokenize
from collections.abc import Iterator, Sequence
from typing import Any

from gin import config_parser as gin_parser

from trainer.config_errors import COMMAND_LINE, Location, Problem

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent


@dataclasses.dataclass(frozen=True)
class MacroUse:
    """``%NAME`` inside a value."""

    name: str


@dataclasses.dataclass(frozen=True)
class RawReference:
    """``@scope/Name()`` inside a value; ``evaluate`` is whether the brackets are there."""

    name: str
    evaluate: bool

    @property
    def scopes(self) -> tuple[str, ...]:
        """The part before the last slash."""
        return tuple(self.name.split("/")[:-1])

    @property
    def selector(self) -> str:
        """The part after the last slash."""
        return self.name.split("/")[-1]


@dataclasses.dataclass(frozen=True)
class Statement:
    """One binding.

    Attributes:
      scope: scope names, outermost first.
      selector: class name, or the macro's name.
      parameter: field name; empty for a macro.
      value: Python literal with `MacroUse` and `RawReference` inside.
      location: where it is written.
      chain: files through which it was reached, outermost first; empty on the command line.
    """

    scope: tuple[str, ...]
    selector: str
    parameter: str
    value: Any
    location: Location
    chain: tuple[str, ...]

    @property
    def is_macro(self) -> bool:
        """Whether this defines a macro."""
        return not self.parameter

    @property
    def name(self) -> str:
        """The left-hand side as it was written."""
        name = "/".join((*self.scope, self.selector))
        return f"{name}.{self.parameter}" if self.parameter else name


@dataclasses.dataclass(frozen=True)
class Parsed:
    """Everything that was read, and what could not be."""

    statements: tuple[Statement, ...]
    problems: tuple[Problem, ...]


def read(files: Sequence[str], *, bindings: Sequence[str] = ()) -> Parsed:
    """Reads ``files`` in order, then ``bindings`` as given on the command line.

    Includes are looked up in the working directory, then in the repository, then beside the
    including file. ``import`` statements are carried out.
    """
    reader = _Reader()
    for index, file in enumerate(files):
        reader.include(file, COMMAND_LINE, chain=(f"#{index}",))
    for binding in bindings:
        reader.parse(binding, COMMAND_LINE.file, chain=())
    return Parsed(tuple(reader.statements), tuple(reader.problems))


def rewrite_arguments(argv: Sequence[str]) -> list[str]:
    """Turns ``--gin.NAME=VALUE`` into ``--gin_bindings=NAME=VALUE``, which absl can parse.

    The order of all bindings stays as given; arguments after ``--`` are left alone.
    """
    arguments = list(argv)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    for index, argument in enumerate(arguments[:end]):
        if match := re.match(r"--?gin\.(.*)", argument, re.DOTALL):
            arguments[index] = f"--gin_bindings={match[1]}"
    return arguments


class _Delegate(gin_parser.ParserDelegate):
    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> RawReference:
        return RawReference(scoped_configurable_name, evaluate)

    def macro(self, macro_name: str) -> MacroUse:
        return MacroUse(macro_name)


class _Reader:
    def __init__(self) -> None:
        self.statements: list[Statement] = []
        self.problems: list[Problem] = []

    def include(self, name: str, location: Location, *, chain: tuple[str, ...]) -> None:
        searched = _candidates(name, location)
        try:
            path = next((path for path in searched if path.is_file()), None)
        except OSError as error:  # a name too long for the file system
            self.problems.append(Problem(f"{name[:80]!r}: {error.strerror}.", location))
            return
        if path is None:
            self.problems.append(
                Problem(
                    f"There is no file {name!r}; searched "
                    f"{', '.join(str(path) for path in searched)}.",
                    location,
                )
            )
            return
        shown = _shown(path)
        if shown in chain:
            cycle = " -> ".join((*chain[chain.index(shown) :], shown))
            self.problems.append(Problem(f"Files include one another: {cycle}.", location))
            return
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            self.problems.append(Problem(f"{path} cannot be read: {error}.", location))
            return
        self.parse(text, shown, chain=(*chain, shown))

    def parse(self, text: str, file: str, *, chain: tuple[str, ...]) -> None:
        for statement in self._gin_statements(text, file):
            location = _location(file, statement.location.line_num)
            match statement:
                case gin_parser.BindingStatement(scope, selector, parameter, value, _):
                    scopes = tuple(scope.split("/")) if scope else ()
                    self.statements.append(
                        Statement(scopes, selector, parameter, value, location, chain)
                    )
                case gin_parser.IncludeStatement(name, _):
                    self.include(name, location, chain=chain)
                case gin_parser.ImportStatement():
                    self._import(statement.module, statement.is_from, location)

    def _import(self, module: str, is_from: bool, location: Location) -> None:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            parent = module.rpartition(".")[0]
            if is_from and parent and error.name == module:
                # ``from package import name`` also imports a class, as in Python.
                self._import(parent, False, location)
                return
            self.problems.append(
                Problem(f"import {module}: {error}. Is it on PYTHONPATH?", location)
            )
        except ImportError as error:
            self.problems.append(Problem(f"import {module}: {error}.", location))

    def _gin_statements(self, text: str, file: str) -> Iterator[Any]:
        """Yields gin's statements; after an error goes on at the next line that can start one."""
        lines = text.splitlines(keepends=True)
        start = 0
        while start < len(lines):
            padded = "\n" * start + "".join(lines[start:])
            try:
                yield from gin_parser.ConfigParser(io.StringIO(padded), _Delegate())
                return
            except SyntaxError as error:
                line, message = error.lineno or start + 1, error.msg
            except tokenize.TokenError as error:
                message, (line, _) = error.args
            line = max(start + 1, min(line, len(lines)))
            head = _head(lines, start=start, line=line)
            self.problems.append(_syntax_problem(message, file, lines, line=line, head=head))
            start = _next_start(lines, after=line)


def _candidates(name: str, location: Location) -> list[pathlib.Path]:
    path = pathlib.Path(name).expanduser()
    if path.is_absolute():
        return [path]
    folders = [pathlib.Path.cwd(), REPOSITORY]
    if location is not COMMAND_LINE:
        including = pathlib.Path(location.file)
        folders.append((including if including.is_absolute() else REPOSITORY / including).parent)
    return list(dict.fromkeys(folder / path for folder in folders))


def _shown(path: pathlib.Path) -> str:
    """Relative to the repository where it is inside, so that records do not name a machine."""
    resolved = path.resolve()
    if resolved.is_relative_to(REPOSITORY):
        return resolved.relative_to(REPOSITORY).as_posix()
    return str(resolved)


def _location(file: str, line: int) -> Location:
    return COMMAND_LINE if file == COMMAND_LINE.file else Location(file, line)


def _head(lines: list[str], *, start: int, line: int) -> str:
    """Left-hand side of the statement that ``line`` belongs to."""
    for index in range(line - 1, start - 1, -1):
        if match := re.match(r"([A-Za-z_][\w./]*)\s*[=:]", lines[index]):
            return match[1]
        if re.match(r"[^\s)\]}#]", lines[index]):
            return ""  # a statement of its own without a left-hand side
    return ""


def _next_start(lines: list[str], *, after: int) -> int:
    starts = (i for i in range(after, len(lines)) if re.match(r"[A-Za-z_]", lines[i]))
    return next(starts, len(lines))


def _syntax_problem(message: str, file: str, lines: list[str], *, line: int, head: str) -> Problem:
    location = _location(file, line)
    about = head or lines[line - 1].strip()
    if bare := re.search(r"Failed to parse token '(.*)'", message, re.DOTALL):
        word = bare[1]
        if word.lower() in ("true", "false", "none", "null"):
            literal = {"true": "True", "false": "False"}.get(word.lower(), "None")
            return Problem(f"{about}: {word} is not a gin value; write {literal}.", location)
        return Problem(
            f"{about}: {word} is not a gin value; a string needs quotes: "
            f"{_quoted(about, word, location)}",
            location,
        )
    if "Expected newline" in message:
        given = lines[line - 1].partition("=")[2].strip() or lines[line - 1].strip()
        return Problem(
            f"{about}: {given} is more than one value. Gin has no expressions (write the result), "
            f"and a string needs quotes: {_quoted(about, given, location)}",
            location,
        )
    if "unterminated string" in message:
        return Problem(f"{about}: a quote is missing ({message}).", location)
    if "EOF in multi-line" in message:
        return Problem(f"{about}: a bracket is not closed.", location)
    return Problem(f"{about}: {message.strip()}", location)


def _quoted(head: str, word: str, location: Location) -> str:
    word = word.strip("\"'")
    if location is COMMAND_LINE:
        return f"--gin.{head}='\"{word}\"'"
    return f'{head} = "{word}"'
