"""Whether Kubernetes, JobSet and Kueue would take an object: their own schemas, closed, and CEL.

A real API server drops unknown fields of custom resources in silence; here they are errors.
"""

import functools
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import celpy
import jsonschema
import kubernetes_validate

CRDS = pathlib.Path(__file__).parent / "crds"
KUBERNETES = "1.32"
"""Version against whose schemas core objects are checked; it has all fields that are rendered."""

Object = dict[str, Any]


def problems(obj: Object) -> list[str]:
    """Returns what is wrong with an object of any kind that Lockstep renders."""
    definition = definitions().get((obj["apiVersion"], obj["kind"]))
    if definition is None:
        try:
            kubernetes_validate.validate(obj, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            return [f"{'.'.join(str(part) for part in error.path)}: {error.message}"]
        return []
    found = [
        f"{'.'.join(str(part) for part in error.absolute_path)}: {error.message[:200]}"
        for error in closed_validator(obj["kind"]).iter_errors(obj)
    ]
    found += doubles(definition["schema"], obj)
    return found or list(broken_rules(definition["schema"], obj))


@functools.cache
def definitions() -> dict[tuple[str, str], Any]:
    """Returns (apiVersion, kind) -> definition."""
    found = [json.loads(path.read_text()) for path in sorted(CRDS.glob("*.json"))]
    return {(f"{d['group']}/{d['version']}", d["kind"]): d for d in found}


@functools.cache
def closed_validator(kind: str) -> jsonschema.Draft202012Validator:
    """Returns a validator to which fields that the schema does not name are errors."""
    (schema,) = (d["schema"] for (_, k), d in definitions().items() if k == kind)
    closed = _closed(schema)
    closed["properties"]["metadata"] = {"type": "object", "required": ["name"]}
    return jsonschema.Draft202012Validator(closed)


def _closed(schema: Any) -> Any:
    """Returns a structural schema as JSON Schema: Kubernetes' extensions put into its words."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        pattern = {"pattern": schema["pattern"]} if "pattern" in schema else {}
        return {"anyOf": [{"type": "integer"}, {"type": "string"}], **pattern}
    found = {
        key: _closed(value) for key, value in schema.items() if not key.startswith("x-kubernetes-")
    }
    free = schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(found.get("properties"), dict) and "type" in found and not free:
        found.setdefault("additionalProperties", False)
    if found.pop("nullable", None) is True and isinstance(found.get("type"), str):
        found["type"] = [found["type"], "null"]
    return found


def doubles(schema: Any, value: Any, where: str = "") -> Iterator[str]:
    """Yields every list in which two items have the same key, which the API server refuses."""
    if isinstance(value, dict):
        for key, part in value.items():
            below = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            if isinstance(below, dict):
                yield from doubles(below, part, f"{where}.{key}")
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        keys = schema.get("x-kubernetes-list-map-keys", ())
        found = [tuple(item.get(key) for key in keys) for item in value if keys]
        if len(found) != len(set(found)):
            yield f"{where.lstrip('.')}: two items have the same {', '.join(keys)}"
        for index, part in enumerate(value):
            yield from doubles(schema["items"], part, f"{where}[{index}]")


def rules(schema: Any, value: Any, where: str = "") -> Iterator[tuple[str, Object, Any]]:
    """Yields every CEL rule that applies to a value or a part of it, with that part."""
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" not in rule["rule"]:  # what may change, not what may be
            yield where, rule, value
    if isinstance(value, dict):
        for key, part in value.items():
            below = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            if isinstance(below, dict):
                yield from rules(below, part, f"{where}.{key}")
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for index, part in enumerate(value):
            yield from rules(schema["items"], part, f"{where}[{index}]")


def with_defaults(schema: Any, value: Any) -> Any:
    """Returns a value with the defaults that an API server fills in before it looks at rules."""
    if isinstance(value, dict):
        found = dict(value)
        for key, below in schema.get("properties", {}).items():
            if key not in found and "default" in below:
                found[key] = below["default"]
            if key in found:
                found[key] = with_defaults(below, found[key])
        return found
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [with_defaults(schema["items"], part) for part in value]
    return value


@functools.cache
def program(rule: str) -> Any:
    """Returns a compiled rule."""
    environment = celpy.Environment()
    return environment.program(environment.compile(rule))


def broken_rules(schema: Any, obj: Object) -> Iterator[str]:
    """Yields the message of every rule that an object breaks."""
    for where, rule, part in rules(schema, with_defaults(schema, obj)):
        if not program(rule["rule"]).evaluate({"self": celpy.json_to_cel(part)}):
            yield f"{where.lstrip('.')}: {rule.get('message', rule['rule'])}"
