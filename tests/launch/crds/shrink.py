"""Makes the small schemas beside this file of the CustomResourceDefinitions of JobSet and Kueue.

    python tests/launch/crds/shrink.py FOLDER

FOLDER holds one folder per project and version (jobset-v0.12.0, kueue-v0.19.2) with the files of
its config/components/crd/bases and its LICENSE. Kept are the version that Lockstep uses and
everything that decides whether an object is valid; descriptions, other versions and printer columns
go, and compact JSON replaces YAML.
"""

import json
import pathlib
import shutil
import sys
from typing import Any

import yaml

HERE = pathlib.Path(__file__).parent
VERSIONS = {"jobset.x-k8s.io": "v1alpha2", "kueue.x-k8s.io": "v1beta2"}
KINDS = (
    "JobSet",
    "ClusterQueue",
    "Cohort",
    "LocalQueue",
    "ResourceFlavor",
    "Topology",
    "Workload",
    "WorkloadPriorityClass",
)
COMMENTS = ("description", "externalDocs", "example")


def bare(schema: Any, *, names: bool = False) -> Any:
    """Returns a schema without comments; ``names``: keys are names of fields."""
    if isinstance(schema, list):
        return [bare(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: bare(value, names=key in ("properties", "patternProperties") and not names)
        for key, value in schema.items()
        if names or key not in COMMENTS
    }


def main(folder: pathlib.Path) -> None:
    """Writes schemas and licences."""
    for project in sorted(path for path in folder.iterdir() if path.is_dir()):
        shutil.copy(project / "LICENSE", HERE / f"{project.name}.LICENSE")
        for path in sorted(project.glob("*.yaml")):
            definition = yaml.load(path.read_text(), yaml.CSafeLoader)["spec"]
            kind, group = definition["names"]["kind"], definition["group"]
            if kind not in KINDS:
                continue
            (version,) = (v for v in definition["versions"] if v["name"] == VERSIONS[group])
            kept = {
                "group": group,
                "version": version["name"],
                "kind": kind,
                "plural": definition["names"]["plural"],
                "scope": definition["scope"],
                "from": f"{project.name}/{path.name}",
                "schema": bare(version["schema"]["openAPIV3Schema"]),
            }
            text = json.dumps(kept, separators=(",", ":"), sort_keys=True) + "\n"
            (HERE / f"{kind}.json").write_text(text)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
