"""docs/slurm.md says what is submitted."""

import dataclasses
import pathlib
import re
import shlex

from launch import jobs, spec_reader
from launch.engines.slurm import Slurm
from launch.jobs import Options
from launch.run_index import RunIndex
from launch.spec import Topology, TopologyLevel
from tests.docs import pages
from tests.slurm import __main__ as commands
from trainer.config_parser import REPOSITORY

PAGE = (REPOSITORY / "docs" / "slurm.md").read_text()


def test_the_job_on_the_page_renders_to_the_options_on_the_page(tmp_path: pathlib.Path) -> None:
    example, *_ = [each for each in pages.examples("slurm") if each.kind == "yaml"]
    file = tmp_path / "job.yaml"
    file.write_text(example.text)
    spec = spec_reader.load(file, engine="slurm").spec
    assert Slurm().refusals(spec) == []
    blocks = dataclasses.replace(spec, topology=Topology(level=TopologyLevel.BLOCK))
    rendered = [
        shlex.join(Slurm().render(jobs.resolve(each, options=options(tmp_path)).jobs[0]).command)
        for each in (spec, blocks)
    ]
    table = PAGE.split("## What is submitted")[1].split("\n## ")[0]
    named = {
        name
        for row in re.findall(r"^\| (`--.*?) \|", table, re.MULTILINE)
        for name in re.findall(r"--[a-z-]+", row)
    }
    assert named
    assert [name for name in sorted(named) if name not in " ".join(rendered)] == []


def options(folder: pathlib.Path) -> Options:
    return Options(engine="slurm", index=RunIndex(folder / "index"), folder=folder)


def test_the_commands_of_the_laboratory_are_those_on_the_page() -> None:
    shown = set(re.findall(r"tests\.slurm (\w+)", PAGE))
    assert shown == {"up", "env", "status", "cut", "off", "down"}
    assert set(commands.FAULTS) == {"cut", "mend", "off", "on"}
