"""``memory`` and ``step`` at the front door."""

import json
import pathlib
import re
import shlex

import pytest

from partitioning.planner.__main__ import main

RUN = ["--gin_file=configs/runs/llama3_70b_512.gin", "--cluster=h100_512"]
MODEL = ["--gin_file=configs/models/llama3_8b.gin", "--cluster=h100"]
WORK = ["--batch_tokens=256k", "--seq_len=8192"]


def answer(capsys: pytest.CaptureFixture[str], *given: str, code: int = 0) -> dict:
    assert main([*given, "--json"]) == code
    return json.loads(capsys.readouterr().out)["sections"]


def refusal(capsys: pytest.CaptureFixture[str], *given: str) -> str:
    assert main([*given]) == 64
    return capsys.readouterr().err


def test_memory_of_a_run_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "memory", *RUN)
    total = sum(part["value"] for part in found["parts"].values())
    assert found["together"]["total"]["value"] == pytest.approx(total)
    assert found["together"]["limit"]["value"] == 84_978_434_048


def test_what_does_not_fit_leaves_with_64_and_says_what_takes_most(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["memory", *MODEL, *WORK, "--batch_tokens=1M"]) == 64
    assert "It does not fit; most takes: activations." in capsys.readouterr().out


def test_the_examples_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    page = pathlib.Path("docs/calibration.md").read_text()
    (script,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    commands = script.replace("\\\n", " ").strip().splitlines()
    for command in commands:
        words = shlex.split(command)
        assert words[:3] == ["python", "-m", "partitioning.planner"]
        assert main(words[3:]) == 0
        assert capsys.readouterr().out


def test_a_gpu_that_jax_does_not_take_whole_is_pointed_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["memory", *MODEL, *WORK, "--batch_tokens=128k"]) == 0
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" in capsys.readouterr().out
    assert main(["memory", *MODEL, *WORK, "--batch_tokens=64k"]) == 0
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in capsys.readouterr().out


def test_a_step_says_where_its_time_goes(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "step", *RUN)
    assert sum(part["value"] for part in found["waterfall"].values()) == pytest.approx(
        found["step"]["seconds"]["value"]
    )
    assert found["tensor"]["exposed"]["value"] == found["waterfall"]["exposed_tensor"]["value"]
    assert found["fsdp"]["infiniband"]["value"] > 10e9
    rate, price = found["step"]["tokens_per_second"]["value"], 512 * 2.0 / 3600
    money = found["step"]["money_per_1e9_tokens"]["value"]
    assert money == pytest.approx(1e9 / rate * price)


def test_a_model_alone_takes_its_plan_from_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = answer(capsys, "step", *MODEL, *WORK, "--mesh=fsdp=8")
    split = answer(capsys, "step", *MODEL, *WORK, "--mesh=fsdp=-1,tensor=4", "--microbatches=2")
    assert "tensor" not in whole
    assert "tensor" in split
    assert whole["step"]["tokens"]["value"] == split["step"]["tokens"]["value"] == 2**18
    again = answer(capsys, "step", *MODEL, *WORK, "--mesh=fsdp=8", "--remat=full")
    took = [found["waterfall"]["recomputation"]["value"] for found in (whole, again)]
    assert took[1] > took[0]


def test_a_run_may_be_asked_about_another_mesh_and_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ("memory", *RUN, "--mesh=fsdp=512", "--batch_tokens=4M")
    more = ("--remat=full", "--gin_bindings=DecoderConfig.loss_chunks=16")
    found = answer(capsys, *given, *more)
    assert found["parts"]["parameters"]["value"] == pytest.approx(4 * 70.55e9 / 512, rel=0.01)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (MODEL, "The files describe no run"),
        ([*MODEL, *WORK, "--mesh=rows=8"], "'rows=8' is not an axis with its size"),
        ([*MODEL, *WORK, "--mesh=fsdp=16"], "needs 16 devices, but there are 8"),
        ([*MODEL, *WORK, "--seq_len=3000"], "is not a multiple of --seq_len=3000"),
        ([*MODEL, *WORK, "--batch_tokens=96k"], "rows of 8192 tokens do not divide into 8"),
        ([*RUN, "--cluster=h100"], "but there are 8"),
        ([*RUN, "--cluster=mixed"], "has several kinds of devices; take one of: h100_512"),
        ([*RUN, "--remat=most"], "DecoderConfig.remat='most'"),
    ],
)
def test_what_does_not_fit_together_is_explained(
    capsys: pytest.CaptureFixture[str], given: list[str], said: str
) -> None:
    for command in ("memory", "step"):
        assert said in refusal(capsys, command, *given)
