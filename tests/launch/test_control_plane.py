"""What the old API server of the tests is given of the schemas is what it takes."""

import json
import pathlib
from typing import Any

import pytest

from tests.launch import control_plane, kubernetes_schemas


def parts(schema: Any) -> list[dict[str, Any]]:
    """Returns a schema and all schemas inside it."""
    if isinstance(schema, list):
        return [part for item in schema for part in parts(item)]
    if not isinstance(schema, dict):
        return []
    return [schema, *(part for value in schema.values() for part in parts(value))]


@pytest.mark.parametrize("path", sorted(control_plane.CRDS.glob("*.json")), ids=lambda p: p.stem)
def test_definitions_hold_nothing_that_is_newer(path: pathlib.Path) -> None:
    definition = control_plane.crd(json.loads(path.read_text()))
    assert kubernetes_schemas.problems(definition) == []
    (version,) = definition["spec"]["versions"]
    for part in parts(version["schema"]["openAPIV3Schema"]):
        assert "x-kubernetes-validations" not in part
        assert not (isinstance(part.get("type"), str) and part.get("default") == "")
        keys = part.get("x-kubernetes-list-map-keys", [])
        fields = part["items"]["properties"] if keys else {}
        for key in keys:
            needed = key in part["items"].get("required", [])
            assert needed or "default" in fields[key], f"{key} of a list may be left out"


def test_statuses_are_changed_apart() -> None:
    for kind in ("JobSet", "Workload"):
        kept = json.loads((control_plane.CRDS / f"{kind}.json").read_text())
        (version,) = control_plane.crd(kept)["spec"]["versions"]
        assert version["subresources"] == {"status": {}}
