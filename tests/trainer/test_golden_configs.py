"""The resolved configuration of every run file, so that an accident shows up in review.

``UPDATE_GOLDEN=1 python -m pytest tests/trainer/test_golden_configs.py`` rewrites them.
"""

import os
import pathlib

import pytest

from partitioning.planner.hardware import ClusterConfig
from trainer import config, config_lint, config_parser, config_record, config_schema, fleet
from trainer.config_parser import REPOSITORY

GOLDEN = pathlib.Path(__file__).parent / "golden"
RUNS = sorted((REPOSITORY / "configs" / "runs").glob("**/*.gin"))


@pytest.mark.parametrize("run", RUNS, ids=lambda path: path.stem)
def test_a_run_file_resolves_to_what_is_committed(run):
    text = config_record.describe(config.load([str(run)]), sources=False)
    golden = GOLDEN / f"{run.stem}.gin"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text(), f"{run.name} changed; if that is meant, UPDATE_GOLDEN=1"


def test_every_golden_configuration_has_its_run_file():
    assert {path.stem for path in GOLDEN.glob("*.gin")} <= {path.stem for path in RUNS}


PARTS = sorted(path for path in (REPOSITORY / "configs").glob("*/*.gin") if path not in RUNS)


@pytest.mark.parametrize("part", PARTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_part_binds_only_what_exists_with_the_right_types(part):
    is_cluster = part.parent.name == "clusters"
    schema = fleet.schema(ClusterConfig) if is_cluster else config_schema.standard()
    checked = config_lint.check(config_parser.read([str(part)]), schema=schema)
    assert not checked.problems, "\n".join(map(str, checked.problems))
