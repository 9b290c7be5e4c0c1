"""Plans are ranked again by what the compiler says; one is really compiled, the others pretend."""

import functools
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable

import pytest

from partitioning.planner import __main__ as planner
from partitioning.planner.advisor import verification
from partitioning.planner.advisor.plan_file import Source
from partitioning.planner.advisor.search import Evaluations, Outcome, search
from partitioning.planner.advisor.search_space import RULE_SETS, Question
from partitioning.planner.inputs import load_inputs, rule_file
from trainer.fleet import load_cluster

FILE = "configs/models/llama3_8b.gin"
SOURCE = Source(files=(FILE,), bindings=(), is_run=False, cluster="h100_8", devices=8)


@functools.cache
def outcome() -> Outcome:
    parts = load_inputs([FILE])
    cluster = load_cluster("h100_8")
    tables = {name: load_inputs([FILE, rule_file(name)]).rules for name in RULE_SETS}
    asked = Question(
        model=parts.model,
        optimizer=parts.optimizer,
        tables=tables,
        cluster=cluster,
        rows=64,
        length=8192,
    )
    return search(asked, evaluations=Evaluations(cluster))


def pretend(answer: Callable[[int], dict | str]):
    """A compiler: ``answer`` to the n-th plan, or words on stderr if it is a text."""
    asked = []

    def run(command, **_):
        (file,) = (word.split("=", 1)[1] for word in command if word.startswith("--gin_file="))
        asked.append(pathlib.Path(file).read_text())
        found = answer(len(asked))
        text = "" if isinstance(found, str) else json.dumps(found)
        said = found if isinstance(found, str) else ""
        return subprocess.CompletedProcess(command, 0, stdout=text, stderr=said)

    return run, asked


def compiled(*, fits: bool = True, ratio: float = 1.0) -> dict:
    axes = ("fsdp", "data", "tensor")
    traffic = [{"axes": [axis], "counted": 100.0 * ratio, "formula": 100.0} for axis in axes]
    return {"fits": fits, "memory": {"needed": 70e9}, "traffic": traffic}


def verified(monkeypatch, answer, *, most: int = 3):
    run, asked = pretend(answer)
    monkeypatch.setattr(verification.subprocess, "run", run)
    found, said = verification.verified(outcome(), most=most, source=SOURCE, rank="time")
    return found, said, asked


def test_what_does_not_fit_after_all_is_left_out(monkeypatch) -> None:
    found, said, asked = verified(monkeypatch, lambda n: compiled(fits=n != 1))
    assert len(asked) == 3
    assert "does NOT fit" in said[0]
    assert outcome().fitting[0].plan not in [c.plan for c in found.fitting]
    assert len(found.fitting) == len(outcome().fitting) - 1


def test_more_bytes_than_the_formula_says_move_a_plan_down(monkeypatch) -> None:
    first = outcome().fitting[0]
    found, said, _ = verified(monkeypatch, lambda n: compiled(ratio=50.0 if n == 1 else 1.0))
    assert found.fitting[0].plan != first.plan
    moved = next(c for c in found.fitting if c.plan == first.plan)
    exposed = sum(q.value for q in first.prediction.waterfall if q.name == "exposed_fsdp")
    assert exposed > 0
    assert moved.seconds == pytest.approx(first.seconds + 49 * exposed)
    assert "70.0 GB" in said[0]


def test_what_could_not_be_compiled_stays_behind_what_could(monkeypatch) -> None:
    answers = {1: "the compiler is not here: run `make aot`"}
    found, said, _ = verified(monkeypatch, lambda n: answers.get(n, compiled()))
    assert said[0] == "Plan 1: not verified: the compiler is not here: run `make aot`"
    assert found.fitting[2].plan == outcome().fitting[0].plan


def test_where_nothing_was_counted_the_prediction_stays(monkeypatch) -> None:
    uncounted = compiled()
    uncounted["traffic"] = [{**row, "counted": None} for row in uncounted["traffic"]]
    found, _, _ = verified(monkeypatch, lambda _: uncounted, most=1)
    assert found.fitting[0].seconds == pytest.approx(outcome().fitting[0].seconds)


def test_each_plan_is_compiled_from_the_file_that_would_be_written(monkeypatch) -> None:
    _, _, asked = verified(monkeypatch, lambda _: compiled(), most=2)
    for text, candidate in zip(asked, outcome().fitting, strict=False):
        assert f"MeshConfig.fsdp = {candidate.plan.sizes['fsdp']}\n" in text
        assert f"DecoderConfig.remat = {candidate.plan.model.remat!r}" in text


def test_a_real_compiler_verifies_a_small_plan(capsys) -> None:
    code = planner.main(
        [
            "advise",
            "--gin_file=configs/models/tiny.gin",
            "--gin_bindings=DecoderConfig.dtype='bfloat16'",
            "--cluster=h100_8",
            "--tokens_per_batch=64K",
            "--seq_len=1024",
            "--verify=1",
            "--top=1",
        ]
    )
    out, _ = capsys.readouterr()
    assert code == 0
    assert "compiled, " in out, out
    assert "by formula, fits" in out


def test_the_planner_loads_no_jax_to_verify() -> None:
    program = (
        "import sys, partitioning.planner.commands.advise; "
        "print(*({'jax', 'flax', 'numpy.random'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "jax" not in done.stdout
