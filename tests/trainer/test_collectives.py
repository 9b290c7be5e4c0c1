"""``python -m trainer.collectives`` says what a run moves; its exit status, if that is right."""

import dataclasses
import json
import subprocess
import sys

import pytest

from launch.contract import ExitCode
from partitioning.traffic_check import AxisVerdict
from trainer import collectives
from trainer.config import load

COMMAND = (sys.executable, "-m", "trainer.collectives")
SMALL = (
    "--gin_file=configs/runs/llama3_8b_8.gin",
    "--gin.DecoderConfig.vocab_size=512",
    "--gin.DecoderConfig.embed_dim=256",
    "--gin.DecoderConfig.layers=9",
    "--gin.DecoderConfig.heads=8",
    "--gin.DecoderConfig.kv_heads=8",
    "--gin.DecoderConfig.mlp_dim=512",
    "--gin.DataConfig.sequence_length=128",
)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)


def test_a_layout_that_agrees_leaves_with_0_and_prints_one_object():
    done = run(*SMALL, "--target=h100", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["passes"] is True
    assert found["mesh"] == {"fsdp": 8}
    (axis,) = (axis for axis in found["axes"] if axis["judged"])
    assert axis["axes"] == ["fsdp"]
    assert axis["counted"] == pytest.approx(axis["formula"], rel=0.1)
    assert found["memory"]["peak"] < found["device_memory"]


def test_cpu_leaves_with_1_and_says_why():
    done = run(*SMALL, "--target=cpu")
    assert done.returncode == 1, done.stderr
    assert "DIFFERS" in done.stdout
    assert "compile for an accelerator" in done.stdout
    assert "Memory, GiB: arguments" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gin_file=configs/runs/llama3_8b_8.gin", "--target=abacus"), "Unknown target"),
        (("--gin_file=configs/runs/llama3_8b_8.gin", "--gin.MeshConfig.fsdp=7"), "global_batch"),
        (("--gin_file=configs/runs/quickstart.gin",), "--devices"),
        (("--gin_file=nowhere.gin",), "nowhere.gin"),
        (("--tarmac=h100",), "tarmac"),
    ],
)
def test_what_is_not_possible_leaves_with_64(arguments, said):
    done = run(*arguments)
    assert done.returncode == ExitCode.CONFIGURATION, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_help_shows_the_flags():
    done = run("--help")
    assert done.returncode == 0
    assert "--target" in done.stdout


REPORT = collectives.Report(
    target="h100",
    mesh={"fsdp": 8},
    rows=(),
    axes=(),
    formula=(),
    memory={"peak": 2**30},
    device_memory=2**31,
    complaints=(),
)


def verdict(*, judged: bool, agrees: bool) -> AxisVerdict:
    return AxisVerdict(
        axes=("fsdp",), counted=2.0, formula=1.0, judged=judged, agrees=agrees, notes=("because",)
    )


def test_a_report_passes_only_without_judged_differences_and_complaints():
    for judged, agrees in ((True, True), (False, False), (False, True)):
        axes = (verdict(judged=judged, agrees=agrees),)
        assert dataclasses.replace(REPORT, axes=axes).passes
    assert not dataclasses.replace(REPORT, axes=(verdict(judged=True, agrees=False),)).passes
    assert not dataclasses.replace(REPORT, complaints=("gather.1 is replicated",)).passes


def test_the_text_shows_reasons_and_complaints():
    found = dataclasses.replace(
        REPORT, axes=(verdict(judged=True, agrees=False),), complaints=("gather.1 is replicated",)
    )
    text = collectives.show(found)
    assert "ratio 2.0000: DIFFERS" in text
    assert "    because" in text
    assert "Replicated in order to move: gather.1" in text
    assert "peak 1.00 of 2.0" in text


def test_tasks_without_formulas_are_refused():
    run_config = load(["configs/runs/llama3_8b_8.gin"]).run
    with pytest.raises(ValueError, match="LanguageModel"):
        collectives.report(dataclasses.replace(run_config, task=object()), target="h100")
