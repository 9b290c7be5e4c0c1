"""Checks parsed statements against the schema before anything is built.

Imports the other configuration modules and no jax. Every statement is checked, also one that a
later statement overrides: names, scopes, macros, references and types. All problems are collected.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from trainer.config_errors import COMMAND_LINE, Location, Problem, nearest
from trainer.config_parser import MacroUse, Parsed, RawReference, Statement
from trainer.config_schema import Schema, documentation, hints
from trainer.config_types import Reference, TypeMismatch, conform


@dataclasses.dataclass(frozen=True)
class Binding:
    """A checked binding that nothing overrides.

    Attributes:
      scope: scope names, outermost first.
      cls: class whose field is bound.
      field: name of the field.
      value: literal of the field's type, with `Reference` inside; macros are resolved.
      location: where it is bound.
      macros: the macros that its value went through, with the place of each definition.
    """

    scope: tuple[str, ...]
    cls: str
    field: str
    value: Any
    location: Location
    macros: tuple[tuple[str, Location], ...] = ()

    @property
    def name(self) -> str:
        """Left-hand side as it is written in a file."""
        return "/".join((*self.scope, f"{self.cls}.{self.field}"))

    @property
    def source(self) -> str:
        """Where the value comes from, for people."""
        via = "".join(f" via %{name} at {location}" for name, location in self.macros)
        return f"{self.location}{via}"


@dataclasses.dataclass(frozen=True)
class Checked:
    """What is left of the statements after the checks.

    Attributes:
      bindings: those that nothing overrides.
      problems: everything that is wrong.
      replaced: classes that an overridden binding asked for; their own bindings stay behind
        without effect where a run takes another optimizer than the file that it includes.
    """

    bindings: tuple[Binding, ...]
    problems: tuple[Problem, ...]
    replaced: frozenset[str]


def check(parsed: Parsed, *, schema: Schema) -> Checked:
    """Checks every statement; the bindings are complete only where there is no problem."""
    return _Lint(parsed, schema).check()


class _UnresolvedError(Exception):
    """A value holds something whose problem is already recorded."""


class _Lint:
    def __init__(self, parsed: Parsed, schema: Schema) -> None:
        self.schema = schema
        self.problems = list(parsed.problems)
        self.whole = not parsed.problems
        self.statements = parsed.statements
        self.macros = {s.selector: s for s in parsed.statements if s.is_macro}
        self.used_macros: set[str] = set()
        self.scopes = schema.scopes()
        for statement in self.statements:
            for part in _parts(statement.value):
                if isinstance(part, RawReference):
                    self.scopes.update(part.scopes)

    def check(self) -> Checked:
        effective: dict[tuple[tuple[str, ...], str, str], Binding] = {}
        replaced: set[str] = set()
        for statement in self.statements:
            if statement.is_macro:
                self._check_macro_name(statement)
                continue
            binding = self._binding(statement)
            if binding is not None:
                key = (binding.scope, binding.cls, binding.field)
                if key in effective:
                    before = _parts(effective.pop(key).value)
                    replaced.update(p.cls.__name__ for p in before if isinstance(p, Reference))
                effective[key] = binding
        self._check_overridden()
        self._check_unused_macros(tuple(effective.values()))
        problems = tuple(dict.fromkeys(self.problems))
        return Checked(tuple(effective.values()), problems, frozenset(replaced))

    def _report(self, message: str, location: Location, near: tuple[str, ...] = ()) -> None:
        self.problems.append(Problem(message, location, near))

    def _binding(self, statement: Statement) -> Binding | None:
        known = self._check_scopes(statement.scope, statement.location)
        cls = self._class(statement.selector, statement)
        if cls is None:
            return None
        if statement.parameter not in hints(cls):
            fields = {field.name for field in dataclasses.fields(cls)}
            near = nearest(statement.parameter, among=fields)
            listed = "" if near else f" It has: {', '.join(sorted(fields))}."
            self._report(
                f"{statement.selector} has no parameter {statement.parameter!r}.{listed}",
                statement.location,
                near,
            )
            return None
        macros: dict[str, Location] = {}
        try:
            value = self._resolve(statement.value, statement, macros, ())
            value = conform(value, hints(cls)[statement.parameter])
        except _UnresolvedError:
            return None
        except TypeMismatch as mismatch:
            self._report_mismatch(statement, cls, str(mismatch), macros)
            return None
        if not known:
            return None
        return Binding(
            scope=statement.scope,
            cls=statement.selector,
            field=statement.parameter,
            value=value,
            location=statement.location,
            macros=tuple(macros.items()),
        )

    def _report_mismatch(
        self, statement: Statement, cls: type, mismatch: str, macros: dict[str, Location]
    ) -> None:
        via = "".join(f" (%{name} is set at {place})" for name, place in macros.items())
        text = documentation(cls).get(statement.parameter, "")
        meaning = f" {statement.parameter}: {text}" if text else ""
        self._report(f"{statement.name}: {mismatch}{via}.{meaning}", statement.location)

    def _check_scopes(self, scopes: tuple[str, ...], location: Location) -> bool:
        unknown = [scope for scope in scopes if scope not in self.scopes]
        for scope in unknown:
            self._report(
                f"There is no scope {scope!r}; the scopes are the names of the fields that hold "
                f"configurables: {', '.join(sorted(self.scopes))}.",
                location,
                nearest(scope, among=self.scopes),
            )
        return not unknown

    def _class(self, name: str, statement: Statement) -> type | None:
        if name in self.schema.classes:
            return self.schema.classes[name]
        near = nearest(name, among=self.schema.classes)
        self._report(
            f"There is no configurable {name!r}. One of your own is registered when its module is "
            "imported: add 'import the.module' to the gin file.",
            statement.location,
            near,
        )
        return None

    def _resolve(
        self,
        value: Any,
        statement: Statement,
        macros: dict[str, Location],
        path: tuple[str, ...],
    ) -> Any:
        """Replaces macros and looks up references; records each macro that was met."""
        match value:
            case MacroUse(name):
                return self._resolve_macro(name, statement, macros, path)
            case RawReference():
                return self._resolve_reference(value, statement)
            case list() | tuple():
                items = [self._resolve(item, statement, macros, path) for item in value]
                return type(value)(items)
        return value

    def _resolve_macro(
        self,
        name: str,
        statement: Statement,
        macros: dict[str, Location],
        path: tuple[str, ...],
    ) -> Any:
        self.used_macros.add(name)
        if name == "gin.REQUIRED":
            self._report(
                f"{statement.name} must be given: --gin.{statement.name}=VALUE.",
                statement.location,
            )
            raise _UnresolvedError
        if name in path:
            cycle = " -> ".join(f"%{macro}" for macro in (*path, name))
            self._report(f"Macros refer to one another: {cycle}.", statement.location)
            raise _UnresolvedError
        if name not in self.macros:
            self._report(
                f"There is no macro %{name}; define it: {name} = VALUE.",
                statement.location,
                tuple(f"%{near}" for near in nearest(name, among=self.macros)),
            )
            raise _UnresolvedError
        definition = self.macros[name]
        macros[name] = definition.location
        return self._resolve(definition.value, definition, macros, (*path, name))

    def _resolve_reference(self, reference: RawReference, statement: Statement) -> Reference:
        cls = self._class(reference.selector, statement)
        if cls is None:
            raise _UnresolvedError
        if not reference.evaluate:
            self._report(
                f"{statement.name} = @{reference.name}: write @{reference.name}() with brackets; "
                "fields hold built configurations, not classes.",
                statement.location,
            )
            raise _UnresolvedError
        return Reference(cls, reference.scopes)

    def _check_macro_name(self, statement: Statement) -> None:
        if statement.scope:
            self._report(
                f"{statement.name}: a macro has no scope; write {statement.selector} = VALUE.",
                statement.location,
            )
            self.used_macros.add(statement.selector)
        elif statement.selector in self.schema.classes:
            self._report(
                f"{statement.name} is a configurable, not a macro; bind one of its parameters.",
                statement.location,
            )
            self.used_macros.add(statement.selector)

    def _check_overridden(self) -> None:
        """A binding that its own file, or a file included after it, undoes is a mistake."""
        latest: dict[tuple[tuple[str, ...], str, str], Statement] = {}
        for statement in self.statements:
            key = (statement.scope, statement.selector, statement.parameter)
            earlier = latest.get(key)
            latest[key] = statement
            if earlier is None or earlier.location == statement.location or not earlier.chain:
                continue
            if statement.chain[: len(earlier.chain)] == earlier.chain:
                self._report(
                    f"{statement.name} is set again at {statement.location}, which undoes this "
                    "line. Remove one, or put the include before this line.",
                    earlier.location,
                )

    def _check_unused_macros(self, bindings: tuple[Binding, ...]) -> None:
        if not self.whole:
            return  # a statement that could not be read may use it
        for statement in self.statements:
            if statement.is_macro:  # a macro used only by a used macro counts as used
                parts = _parts(statement.value)
                self.used_macros.update(p.name for p in parts if isinstance(p, MacroUse))
        effective = {name for binding in bindings for name, _ in binding.macros}
        for name, statement in self.macros.items():
            at_all = name in self.used_macros
            if at_all and (statement.location is not COMMAND_LINE or name in effective):
                continue
            reason = "every use of it is overridden" if at_all else "nothing uses it"
            names = set(self.schema.parameters()) | set(self.macros) - {name}
            near = nearest(
                name, among={*names, *(key.split(".")[1] for key in names if "." in key)}
            )
            self._report(f"The macro {name} has no effect: {reason}.", statement.location, near)


def _parts(value: Any) -> Iterator[Any]:
    """Yields what a value consists of, lists and tuples taken apart."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _parts(item)
    else:
        yield value
