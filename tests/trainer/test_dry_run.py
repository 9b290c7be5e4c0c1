"""A dry run says before anything is paid whether a run can work, why not, and what to change."""

import dataclasses
import functools
import json
import pathlib
import subprocess
import sys

import pytest

from launch.contract import ExitCode, Finding, Verdict
from partitioning import targets
from partitioning.traffic_check import AxisVerdict
from tests.partitioning import record_programs
from trainer import dry_run, dry_run_compile
from trainer.config import load
from trainer.deviceless import CompiledStep, Memory, target_program
from trainer.dry_run_report import DryRun, as_json, show
from trainer.fleet import load_cluster

FILES = ("configs/runs/llama3_8b_8.gin",)
SMALL = (
    "DecoderConfig.vocab_size=512",
    "DecoderConfig.embed_dim=256",
    "DecoderConfig.layers=9",
    "DecoderConfig.heads=8",
    "DecoderConfig.kv_heads=8",
    "DecoderConfig.head_dim=64",
    "DecoderConfig.mlp_dim=512",
    "DataConfig.sequence_length=128",
)


@functools.cache
def eight_b(cluster: str, *bindings: str) -> DryRun:
    return dry_run.examine(FILES, bindings, cluster=load_cluster(cluster))


def examined(cluster: str, *bindings: str) -> DryRun:
    """A dry run of a model that is small enough for CPU."""
    return eight_b(cluster, *SMALL, *bindings)


def told(found: DryRun, about: str) -> str:
    return "\n".join(f"{f.verdict}: {f.message}" for f in found.findings if f.about == about)


def test_a_run_that_fits_has_every_part_of_the_answer():
    found = eight_b("h100_8")
    assert (found.fits, found.exit_code, found.compiler) == (True, ExitCode.DONE, "cuda")
    assert found.memory is not None
    assert found.memory.temporary
    assert found.memory.needed >= sum(found.memory.state.values()) + found.memory.temporary
    (axis,) = (verdict for verdict in found.traffic if verdict.judged)
    assert (axis.axes, axis.agrees) == (("fsdp",), True)
    assert found.flops is not None
    assert found.flops.causal < found.flops.full
    assert found.flops.hardware
    assert found.predicted is not None
    assert found.outlook is not None
    assert {row.name for row in found.table} >= {"embedding", "head/kernel"}
    text = show(found)
    assert "compiled for h100" in text
    assert "embedding" in text
    assert text.splitlines()[-1].startswith("It fits: ")


def test_state_by_group_is_what_the_formula_says():
    memory = eight_b("h100_8").memory
    assert memory is not None
    assert memory.formula is not None
    assert memory.state["parameters"] == memory.formula.part("parameters")
    moments = memory.formula.part("optimizer_state")
    assert memory.state["optimizer_state"] == pytest.approx(moments, rel=1e-5)  # and a counter
    assert memory.batch == pytest.approx(memory.formula.part("batch"), rel=0.01)


KEYS = {
    "version", "fits", "exit_code", "cluster", "chip", "devices", "mesh", "compiler", "memory",
    "traffic", "flops", "findings", "predicted", "checkpoint", "sharding",
}  # fmt: skip


def test_the_object_has_its_keys_whatever_happened():
    good = json.loads(as_json(eight_b("h100_8")))
    bad = json.loads(as_json(examined("h100_8", "MeshConfig.fsdp=16")))
    assert set(good) == set(bad) == KEYS
    assert (good["fits"], bad["fits"]) == (True, False)
    assert (good["exit_code"], bad["exit_code"]) == (0, 64)
    assert good["memory"]["needed"] > good["memory"]["formula"]["parts"]["parameters"] > 0
    assert good["traffic"][0]["ratio"] == pytest.approx(1.0, rel=0.1)
    assert good["predicted"]["cost"] > 0
    assert good["checkpoint"]["interval_steps"] > 0
    assert [f["verdict"] for f in bad["findings"]] == ["error"]


def test_cuda_says_nothing_of_memory_so_that_the_dry_run_compares(recorded):
    found = recorded(temporary=80 * 2**30)
    assert not found.memory.fits
    (error,) = about(found, "memory")
    assert error.verdict is Verdict.ERROR
    assert "does not fit into h100: 85.9 GB (80 GiB) of 82.48 GB" in error.message
    assert "as compiled; 2.5 GB" in error.message
    assert "To make room: " in error.message
    report = dataclasses.replace(eight_b("h100_8"), memory=found.memory, findings=found.findings)
    assert report.exit_code == ExitCode.CONFIGURATION
    assert show(report).endswith("It cannot work: 1 error(s), above.")


def test_a_tpu_s_refusal_is_read_and_explained():
    found = dry_run.examine(
        FILES, ("MeshConfig.fsdp=4",), cluster=load_cluster("v5e_4"), quick=True
    )
    assert (found.fits, found.compiler) == (False, "tpu")
    said = told(found, "memory")
    assert "error: does not fit into v5e" in said
    assert "of 16.91 GB (15.75 GiB)" in said
    assert "DecoderConfig.remat = 'full'" in said
    assert found.memory is not None
    assert found.memory.needed > 100 * 2**30
    assert not found.counted
    assert found.predicted is not None


def test_without_the_compiler_cpu_tells_what_it_can(monkeypatch, tmp_path):
    monkeypatch.setattr(targets, "compiler_directory", lambda: tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found = dry_run.examine(FILES, (), cluster=load_cluster("h100_8"), quick=True)
    assert (found.compiler, found.fits, found.table) == ("cpu", True, ())
    assert "run `make aot`" in told(found, "compiler")
    assert "by formula" in told(found, "memory")
    assert found.memory is not None
    assert found.memory.temporary is None
    assert found.memory.state == eight_b("h100_8").memory.state
    plain = json.loads(as_json(found))
    assert plain["traffic"][0]["counted"] is None
    assert plain["traffic"][0]["formula"] > 0
    assert "compiled for CPU" in show(found)


def test_a_chip_that_xla_needs_at_hand_says_so_and_what_cpu_lacks_is_left_out():
    bindings = ("AdamW.offload=True", "DecoderConfig.remat='save:query;offload:mlp_up'",
                "DecoderConfig.attention='cudnn'")  # fmt: skip
    found = examined("mi300x_8", *bindings)
    assert found.compiler == "cpu"
    said = told(found, "compiler")
    assert "XLA cannot compile for mi300x without the device" in said
    for name in ("AdamW.offload", "DecoderConfig.remat", "DecoderConfig.attention='cudnn'"):
        assert name in said
    assert found.memory is not None
    assert found.memory.host > 0
    assert found.memory.state["optimizer_state"] == 4  # a counter
    assert "ok" in told(found, "host memory")


@pytest.mark.parametrize(
    ("cluster", "bindings", "about", "expected"),
    [
        ("h100_16", (), "mesh", "The cluster may be --cluster=h100_8."),
        ("h100_8", ("DataConfig.global_batch=60",), "configuration", "multiple of 64"),
        ("h100_8", ("DecoderConfig.layer=4",), "configuration", "layers"),
        ("h100_8", ("DecoderConfig.head_dim=300",), "compiler", "DecoderConfig.attention = 'xla'"),
        ("v5p_12", ("MeshConfig.fsdp=12", "DataConfig.global_batch=96"), "configuration", "torus"),
    ],
)
def test_what_cannot_work_is_an_error_with_the_reason(cluster, bindings, about, expected):
    found = examined(cluster, *bindings)
    assert found.exit_code == ExitCode.CONFIGURATION
    assert f"{Verdict.ERROR}: " in told(found, about)
    assert expected in told(found, about)


def test_a_cluster_that_never_fails_stays_json(tmp_path):
    path = tmp_path / "ours.gin"
    path.write_text("include 'configs/clusters/mi300x.gin'\nClusterConfig.failures = 0.0\n")
    checkpoint = json.loads(as_json(examined(str(path))), parse_constant=pytest.fail)["checkpoint"]
    assert (checkpoint["interval_seconds"], checkpoint["interval_steps"]) == ("Infinity", 0)


def test_a_file_of_ones_own_is_named_by_what_it_has_to_say(tmp_path):
    path = tmp_path / "ours.gin"
    path.write_text("include 'configs/clusters/h100.gin'\nClusterConfig.name = 'ours'\n")
    said = told(examined(str(path), "MeshConfig.fsdp=16"), "mesh")
    assert "ClusterConfig.devices = 16" in said
    assert "ours_16" not in said


def test_unwise_layouts_are_named_by_the_dry_run_too():
    found = examined("mi300x_8")
    assert "128 tokens on each device" in told(found, "batch")
    assert "TrainConfig.steps=10000" in told(found, "price")


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch):
    """Has a recorded program stand for what a compiler would say; needs none."""
    of = record_programs.PROGRAMS["v5e_2slices_data2_fsdp4"]
    program = target_program(of.run, target="cpu", devices=8)

    def compiled(**memory: int) -> dry_run_compile.Compiled:
        said = {"arguments": 10**6, "outputs": 10**6, "aliased": 10**6, "temporary": 10**6}
        step = CompiledStep(
            program=program,
            mesh=of.shape,
            text=record_programs.text("v5e_2slices_data2_fsdp4"),
            memory=Memory(**{**said, **memory}),
            complaints=("gather.1 (bf16[8]) in embed is replicated",),
        )
        monkeypatch.setattr(dry_run_compile, "compile_train_step", lambda *_, **__: step)
        return dry_run_compile.compiled(
            program,
            run=of.run,
            cluster=load_cluster("h100_8"),
            tier="cuda",
            quick=True,
            formula=None,
        )

    return compiled


def about(found: dry_run_compile.Compiled, name: str) -> list[Finding]:
    return [finding for finding in found.findings if finding.about == name]


def test_a_recorded_program_is_counted_and_its_complaint_named(recorded):
    found = recorded()
    agrees = {verdict.axes: verdict.agrees for verdict in found.traffic if verdict.judged}
    assert agrees == {("data",): True, ("fsdp",): False}
    (axis,) = about(found, "traffic")
    assert "over fsdp the compiled step sends 35.8 MB" in axis.message
    assert "reduces to everyone where a reduce-scatter would do" in axis.message
    (complaint,) = about(found, "partitioner")
    assert "involuntary rematerialization: gather.1" in complaint.message
    assert [finding.verdict for finding in about(found, "memory")] == [Verdict.OK]


def test_more_than_jax_takes_by_default_names_the_variable(recorded):
    (fits, more) = about(recorded(temporary=int(0.8 * 80 * 2**30)), "memory")
    assert fits.verdict is Verdict.OK
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.83" in more.message


def test_the_compiler_s_own_peak_counts_where_it_is_higher(recorded):
    assert recorded(reported=5 * 10**6).memory.needed == 5 * 10**6
    assert recorded(reported=1).memory.needed == 2 * 10**6


def test_an_axis_that_disagrees_names_the_largest_collectives():
    verdict = AxisVerdict(
        axes=("fsdp",), counted=2e9, formula=1e9, judged=True, agrees=False, notes=("all-gather x",)
    )
    (found,) = dry_run_compile._disagreements((verdict,))
    assert "over fsdp the compiled step sends 2 GB" in found.message
    assert "all-gather x" in found.message
    for passes in ({"agrees": True}, {"judged": False}):
        assert list(dry_run_compile._disagreements((dataclasses.replace(verdict, **passes),))) == []


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainer.main", "--mode=dry_run", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=pathlib.Path(__file__).parents[2],
    )


def test_llama3_8b_on_eight_h100_through_the_front_door():
    done = command(f"--gin_file={FILES[0]}", "--cluster=h100_8", "--json")
    assert done.returncode == 0, done.stderr
    assert "Compiling for 8 x h100" in done.stderr
    found = json.loads(done.stdout)
    assert found["fits"] is True
    formula = found["memory"]["formula"]["total"] - found["memory"]["reserved"]
    assert found["memory"]["needed"] == pytest.approx(formula, rel=0.10)
    assert 0.3 < found["predicted"]["mfu"] < 0.6


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "--mode=dry_run needs --cluster"),
        (("--cluster=abacus",), "--cluster=abacus: unknown"),
        (("--cluster=h100_512",), "It cannot work on h100_512: mesh."),
    ],
)
def test_what_is_not_possible_leaves_with_64_and_no_traceback(flags, said):
    done = command(f"--gin_file={FILES[0]}", *flags)
    assert done.returncode == ExitCode.CONFIGURATION
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_configurations_are_checked_without_a_compiler():
    run = load(FILES, SMALL).run
    kept, left_out = dry_run_compile.for_cpu(run)
    assert (kept, left_out) == (run, ())
