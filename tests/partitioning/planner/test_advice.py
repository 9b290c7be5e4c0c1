"""The advisor through its front door: sane plans, honest refusals, files that the trainer takes."""

import functools
import itertools
import json
import math
import pathlib
import re
import subprocess
import sys

import pytest

from partitioning.planner import __main__ as planner
from partitioning.planner.advisor.drawing import draw, link_of
from partitioning.planner.advisor.search_space import OFFLOADED
from trainer.fleet import load_cluster
from trainer.layout_checks import Where
from trainer.readiness import examine

CASES = {
    "7b_8": ("mistral_7b", "h100_8", "512K", "8192"),
    "8b_8": ("llama3_8b", "h100_8", "512K", "8192"),
    "70b_512": ("llama3_70b", "h100_512", "4M", "8192"),
    "175b_2048": ("gpt3_175b", "h100_2048", "4M", "2048"),
    "200b_2048": ("dense_200b", "h100_2048", "4M", "8192"),
    "mixtral_64": ("mixtral_8x7b", "h100_64", "2M", "4096"),
    "8b_128k": ("llama3_8b", "h100_64", "4M", "128K"),
    "405b_16384": ("llama3_405b", "h100_16384", "16M", "8192"),
    "70b_v5p": ("llama3_70b", "v5p_512", "4M", "8192"),
}


def arguments(case: str, *more: str) -> list[str]:
    model, cluster, batch, length = CASES[case]
    return [
        "advise",
        f"--gin_file=configs/models/{model}.gin",
        f"--cluster={cluster}",
        f"--tokens_per_batch={batch}",
        f"--seq_len={length}",
        *more,
    ]


def run(*argv: str, capsys) -> tuple[int, str, str]:
    code = planner.main(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


@functools.cache
def advised(case: str, *more: str) -> dict:
    """The first pool of the JSON that ``advise`` prints, and its exit status."""
    done = subprocess.run(
        [sys.executable, "-m", "partitioning.planner", *arguments(case, "--json", *more)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return {**json.loads(done.stdout)["pools"][0], "code": done.returncode}


@pytest.mark.parametrize("case", CASES)
def test_plans_use_all_devices_fit_and_are_ranked(case: str) -> None:
    found = advised(case)
    assert (found["code"], found["fits"]) == (0, True)
    axes = ("data", "stage", "fsdp", "expert", "context", "tensor")
    seconds = [plan["seconds"] for plan in found["plans"]]
    assert 0 < len(seconds) <= 10
    assert all(a <= b * 1.01 for a, b in itertools.pairwise(seconds))
    for plan in found["plans"]:
        assert math.prod(plan[axis] for axis in axes) == found["devices"]
        assert plan["memory_total"] <= plan["memory_limit"]
        assert plan["memory_total"] == pytest.approx(sum(plan["memory"].values()))
        assert plan["seconds"] == pytest.approx(sum(plan["waterfall"].values()))
        assert 0.1 < plan["mfu"] < 0.75
        rows = found["rows"]
        assert rows % (plan["data"] * plan["fsdp"] * plan["expert"] * plan["microbatches"]) == 0


@pytest.mark.parametrize("case", CASES)
def test_the_written_file_is_a_run_that_the_trainer_would_start(case: str, tmp_path) -> None:
    out = tmp_path / "plan.gin"
    found = advised(case, f"--out={out}")
    checked = examine([str(out)], [], devices=found["devices"], processes=found["devices"] // 8)
    wrong = [f for f in checked if f.verdict == "error" and f.about != "data"]
    assert wrong == []


def test_the_written_run_saves_as_often_as_loses_least(tmp_path, capsys) -> None:
    out = tmp_path / "plan.gin"
    assert run(*arguments("70b_512", f"--out={out}"), capsys=capsys)[0] == 0
    cluster = load_cluster("h100_512")
    checked = examine([str(out)], [], devices=512, processes=64, where=Where(cluster=cluster))
    (found,) = (f for f in checked if f.about == "interval")
    assert found.verdict == "ok"
    every = re.search(r"^CheckpointConfig.every = (\d+)$", out.read_text(), re.MULTILINE)
    assert every is not None
    assert f"CheckpointConfig.every={every[1]} loses least" in found.message


@pytest.mark.parametrize(
    ("fixed", "value"), [("tensor", 8), ("stage", 4), ("remat", "full"), ("microbatches", 8)]
)
def test_what_is_fixed_is_kept_and_its_cost_is_shown(fixed: str, value: int | str) -> None:
    found = advised("70b_512", f"--fix={fixed}={value}")
    assert found["plans"]
    assert {plan[fixed] for plan in found["plans"]} == {value}
    costs = {each["name"]: each["factor"] for each in found["constraints"]}
    assert costs[f"--fix={fixed}={value}"] >= 0.995
    free = advised("70b_512")["plans"][0]["seconds"]
    best = found["plans"][0]["seconds"]
    assert costs[f"--fix={fixed}={value}"] == pytest.approx(best / free, rel=0.01)


def test_memory_is_a_constraint_with_a_price() -> None:
    small = advised("8b_8")
    (memory,) = (each for each in small["constraints"] if "memory" in each["name"])
    assert memory["factor"] >= 1.0


def test_the_impossible_is_refused_with_the_number_that_breaks(capsys) -> None:
    code, out, _ = run(
        "advise",
        "--gin_file=configs/models/llama3_70b.gin",
        "--cluster=h100_8",
        "--tokens_per_batch=1M",
        capsys=capsys,
    )
    assert code == 64
    assert "Nothing fits." in out
    assert "on a device that has 84.98 GB (79.14 GiB)" in out
    assert "optimizer state" in out
    assert "--fix=offload=1" in out


def test_a_fixed_value_that_cannot_fit_is_an_error_with_gigabytes(capsys) -> None:
    code, out, _ = run(
        *arguments("70b_512", "--fix=fsdp=1", "--fix=tensor=1", "--fix=stage=1"), capsys=capsys
    )
    assert code == 64
    assert "of 85.0 GB" in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--fix=tensor=7"], "No plan divides: 512 devices"),
        (["--fix=tensors=8"], "write NAME=VALUE with one of"),
        (["--fix=tensor=0"], "positive whole number"),
        (["--fix=tensor=4", "--fix=tensor=8"], "given twice"),
        (["--cluster=h1000"], "unknown. Known:"),
        (["--gin_bindings=DecoderConfig.layer=3"], "no parameter 'layer'"),
        (["--seq_len=8M"], "less than one row"),
        (["--out=/no/such/folder/plan.gin"], "cannot be written"),
    ],
    ids=str,
)
def test_mistakes_are_told_in_words(argv: list[str], said: str, capsys) -> None:
    given = arguments("70b_512")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["planner"])
        try:
            code = planner.main([*given, *argv])
        except SystemExit as leaving:
            code = leaving.code
    out, err = capsys.readouterr()
    assert code == 64
    assert said in err + out


def test_a_batch_that_a_model_file_does_not_say_is_asked_for(capsys) -> None:
    code, _, err = run(
        "advise", "--gin_file=configs/models/llama3_8b.gin", "--cluster=h100_8", capsys=capsys
    )
    assert code == 64
    assert "--tokens_per_batch is missing" in err


def test_a_file_that_exists_is_not_overwritten_nor_searched_for(
    tmp_path: pathlib.Path, capsys, monkeypatch
) -> None:
    monkeypatch.delattr("partitioning.planner.commands.advise.search")
    out = tmp_path / "plan.gin"
    out.write_text("mine")
    code, _, err = run(*arguments("8b_8", f"--out={out}"), capsys=capsys)
    assert code == 64
    assert "exists already" in err
    assert out.read_text() == "mine"


def test_a_run_file_gives_batch_and_length_and_is_included_not_copied(
    tmp_path: pathlib.Path, capsys
) -> None:
    out = tmp_path / "plan.gin"
    code, shown, _ = run(
        "advise",
        "--gin_file=configs/runs/llama3_8b_8.gin",
        "--cluster=h100_8",
        f"--out={out}",
        capsys=capsys,
    )
    assert code == 0
    assert "include 'configs/runs/llama3_8b_8.gin'" in out.read_text()
    checked = examine([str(out)], [], devices=8, processes=1)
    assert [f for f in checked if f.verdict == "error" and f.about != "data"] == []
    assert f"Written: {out}" in shown


def test_rows_that_are_no_whole_number_are_said(capsys) -> None:
    code, out, _ = run(*arguments("8b_8", "--seq_len=6000"), capsys=capsys)
    assert code == 0
    assert "524,288 tokens are no whole number of rows: 87 rows" in out


def test_a_mixed_fleet_is_ranked_by_pool() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "partitioning.planner", "advise", "--json"),
            *("--gin_file=configs/models/llama3_8b.gin", "--cluster=mixed"),
            *("--tokens_per_batch=2M", "--rank=money"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    pools = json.loads(done.stdout)["pools"]
    assert len(pools) > 1
    costs = [pool["plans"][0]["usd_per_1e9_tokens"] for pool in pools if pool["fits"]]
    assert costs == sorted(costs)


def test_offloading_everything_is_a_name_that_the_trainer_knows(capsys) -> None:
    found = advised("70b_512", f"--fix=remat={OFFLOADED}")
    assert {plan["remat"] for plan in found["plans"]} == {OFFLOADED}


def test_the_drawing_shows_axes_on_links_and_devices_on_hosts() -> None:
    cluster = load_cluster("h100_512")
    sizes = {"data": 16, "stage": 4, "fsdp": 1, "expert": 1, "context": 1, "tensor": 8}
    assert draw(sizes, cluster=cluster) == (
        pathlib.Path(__file__).parent / "golden/drawing.txt"
    ).read_text().rstrip("\n")
    assert link_of("tensor", sizes, cluster=cluster).name == "nvlink"
    assert link_of("stage", sizes, cluster=cluster).name == "infiniband"


def test_money_also_looks_at_fewer_devices_and_says_how_pools_compare(capsys) -> None:
    code, out, _ = run(*arguments("8b_128k", "--rank=money", "--fix=tensor=8"), capsys=capsys)
    assert code == 0
    head, _, rest = out.partition("\n\n")
    devices = [int(line.split()[0]) for line in head.splitlines()[1:]]
    assert sorted(devices) == [8, 16, 32, 64]
    assert f"{devices[0]} x h100 (h100)" in rest, "the cheapest is shown in full"
    costs = [float(line.split()[6]) for line in head.splitlines()[1:]]
    assert costs == sorted(costs)
