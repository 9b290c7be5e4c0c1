"""Ways of parallelism side by side: the best is 1, the rest is slower or not there."""

import json
import math

import pytest

from partitioning.planner import __main__ as planner
from partitioning.planner.answers import Quantity, shown
from partitioning.planner.commands.compare import WAYS, key


def compared(*argv: str, capsys) -> dict:
    code = planner.main(["compare", *argv, "--json"])
    return {**json.loads(capsys.readouterr().out), "code": code}


def test_each_row_has_the_best_way_and_how_much_slower_the_others_are(capsys):
    small, large = (f"--gin_file=configs/models/{m}.gin" for m in ("llama3_8b", "llama3_70b"))
    found = compared(small, large, "--cluster=h100_8", "--tokens_per_batch=512K", capsys=capsys)
    fits, none = found["sections"]["llama3_8b_h100_8"], found["sections"]["llama3_70b_h100_8"]
    names = [key(way) for way in WAYS]
    ratios = [fits[name]["value"] for name in names if fits[name]["value"] is not None]
    assert min(ratios) == 1.0
    assert len(ratios) > 4
    assert 1.0 < fits["zero-1_stage_tensor"]["value"] < 3.0
    assert {none[name]["value"] for name in ("step", *names)} == {None}
    assert found["code"] == 64, "one of them does not fit"


def test_replicas_of_shards_count_as_sharded(capsys):
    found = compared(
        "--gin_file=configs/models/llama3_8b.gin",
        "--cluster=h100_64",
        "--tokens_per_batch=1M",
        capsys=capsys,
    )
    row = found["sections"]["llama3_8b_h100_64"]
    assert row["fsdp"]["value"] == 1.0
    assert not any("hsdp" in name for name in row)


def test_a_fleet_of_several_pools_is_refused(capsys):
    argv = ["--gin_file=configs/models/llama3_8b.gin", "--cluster=mixed"]
    assert planner.main(["compare", *argv]) == 64
    assert "several kinds of devices" in capsys.readouterr().err


@pytest.mark.parametrize("unit", ["s", "x", "share", "B"])
def test_what_is_not_there_is_shown_as_a_dash(unit):
    assert shown(Quantity(name="none", value=math.nan).value, unit) == "-"
