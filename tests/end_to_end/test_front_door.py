"""What ``python -m trainer.main`` refuses, and how it says so; and leaving from the keyboard."""

import json
import pathlib
import re
import shlex
import shutil
import signal
import subprocess

import pytest

from launch.contract import Environment, ExitCode
from tests.end_to_end.runs import REPOSITORY, Scene, make_scene, read_only, wait_for

pytestmark = pytest.mark.slow

SHORT = "--gin.TrainConfig.steps=8"
LONG = ("--gin.TrainConfig.steps=100000", "--gin.EvaluationConfig.every=0")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Holds ``done``, a run of eight steps, with steps 4 and 8 saved."""
    scene = make_scene(tmp_path_factory.mktemp("front_door"))
    scene.run("done", SHORT)
    return scene


def _files(folder: pathlib.Path) -> dict[str, tuple[int, int]]:
    stats = {str(p.relative_to(folder)): p.stat() for p in folder.rglob("*")}
    return {name: (stat.st_mtime_ns, stat.st_size) for name, stat in stats.items()}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nope"], "nope"),
        (["--mode=dance"], "should be one of"),
        (["--gin.TrainConfig.stepz=3"], "stepz"),
        (["--gin.TrainConfig.steps='3'"], "steps"),
        (["--profile_steps=5"], "give FIRST:LAST"),
        (["--profile_steps=5:4"], "at most LAST"),
        (["--checkpoint=8"], "--checkpoint is for --mode=eval"),
        (["--prompt=hello"], "--chat are for --mode=generate"),
        (["--run_dir="], "--run_dir is missing"),
        (["--resume=must"], "--resume=must, but"),
        (["--mode=eval"], "holds no run"),
        (["--run_dir=s4://bucket/run"], "s4"),
        (["--gin.DataConfig.global_batch=5", "--cpu_devices=2"], "multiple of 2"),
        (["--gin.MeshConfig.stage=2", "--cpu_devices=2"], "take at least 2, better 8"),
        (["--gin.MeshConfig.expert=2", "--cpu_devices=2"], "dimension 'experts'"),
        (["--gin.DecoderConfig.loss_chunks=7"], "does not divide DataConfig.sequence_length=16"),
        (["--gin.DecoderConfig.dtype='float64'"], "set JAX_ENABLE_X64=1"),
        (["--gin.TrainConfig.frozen=('.*',)"], "nothing is trained"),
        (
            ["--gin.CheckpointConfig.keep_best=1", "--gin.CheckpointConfig.best_metric='speed'"],
            "'speed' is no metric of this run's evaluations",
        ),
        (["--gin.TrainConfig.steps=0"], "TrainConfig.steps=0: it must be at least 1"),
        (["--gin.DecoderConfig.vocab_size=7"], "at least 61"),
        (["--gin.TrainConfig.init_from='/no/such/run'"], "/no/such/run holds no checkpoint"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_mistake_on_the_command_line_is_one_message_and_64(
    scene: Scene, arguments: list[str], words: str
) -> None:
    name = re.sub(r"\W", "", words)
    text = scene.run(name, *arguments, expect=ExitCode.CONFIGURATION)
    assert words in text
    assert "Traceback" not in text


def test_the_configuration_is_printed_with_its_sources_and_nothing_else_happens(
    scene: Scene,
) -> None:
    code, out, err = scene.run_apart("printed", "--print_config", "--gin.TrainConfig.steps=7")
    assert (code, err) == (0, "")
    (line,) = [line for line in out.splitlines() if line.startswith("TrainConfig.steps")]
    assert line.split("#")[0].strip() == "TrainConfig.steps = 7"
    assert "command line" in line
    assert not (scene.folder / "printed").exists()


def test_versions_are_printed(scene: Scene) -> None:
    code, out, _ = scene.run_apart("printed", "--version")
    names = {line.split()[0] for line in out.splitlines()}
    wanted = {"jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "python", "platform"}
    assert (code, names & wanted) == (0, wanted)


def test_a_run_with_data_workers_ends_with_nothing_on_stderr(scene: Scene) -> None:
    workers = ("--gin.DataConfig.workers=2", "--gin.DataConfig.prefetch=0")
    code, _, err = scene.run_apart("workers", "--gin.TrainConfig.steps=2", *workers)
    assert (code, err) == (0, "")
    assert scene.losses("workers") == scene.losses("done")[:2]


@pytest.mark.parametrize("ending", ["| head -1", "<&- >&- 2>&-"])
def test_a_run_goes_on_without_anybody_to_read_what_it_prints(scene: Scene, ending: str) -> None:
    name = re.sub(r"\W", "", ending) or "closed"
    command = shlex.join(scene.command(name, SHORT))
    subprocess.run(["sh", "-c", f"{command} {ending}"], cwd=REPOSITORY, capture_output=True)
    folder = scene.folder / name
    reason = json.loads((folder / "attempts/1/reason.json").read_text())
    losses = scene.losses(name)
    assert (reason["code"], reason["saved_step"]) == (ExitCode.DONE, losses[-1][0])
    assert losses == scene.losses("done")


def test_a_launchers_state_folder_is_made_or_named(scene: Scene) -> None:
    shutil.rmtree(scene.folder / "state", ignore_errors=True)
    variables = Environment(
        run_id="state",
        attempt=1,
        coordinator="127.0.0.1:1",
        num_processes=1,
        process_id=0,
        state_dir=str(scene.folder / "state/of/host"),
    ).variables()
    process = scene.start("state_made", SHORT, environ=variables)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    variables["LAUNCH_STATE_DIR"] = str(scene.gin)
    process = scene.start("state_named", SHORT, environ=variables)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == ExitCode.CONFIGURATION
    assert f"LAUNCH_STATE_DIR={str(scene.gin)!r} cannot be made" in output


def test_a_finished_run_says_so_and_never_is_refused(scene: Scene) -> None:
    scene.copy("done", "again")
    assert "This run is complete: 8 steps.\n" in scene.run("again", SHORT)
    assert "8 steps. TrainConfig.steps=7 is less" in scene.run("again", "--gin.TrainConfig.steps=7")
    text = scene.run("again", SHORT, "--resume=never", expect=ExitCode.CONFIGURATION)
    assert "--resume=never, but" in text
    assert "step 9/9" in scene.run("again", "--gin.TrainConfig.steps=9", "--resume=must")


def test_a_directory_that_is_not_ours_is_refused_and_left_alone(scene: Scene) -> None:
    foreign = scene.folder / "foreign"
    (foreign / "checkpoints/100").mkdir(parents=True)
    text = scene.run("foreign", expect=ExitCode.CONFIGURATION)
    assert "holds checkpoints but no run.json: it is not a run of Lockstep" in text
    assert _files(foreign).keys() == {"checkpoints", "checkpoints/100"}


def test_evaluating_prints_one_object_and_leaves_the_run_as_it_was(scene: Scene) -> None:
    before = _files(scene.folder / "done")
    with read_only(scene.folder / "done"):
        newest = scene.run_apart("done", SHORT, "--mode=eval")
        older = scene.run_apart("done", SHORT, "--mode=eval", "--checkpoint=4")
        absent = scene.run_apart("done", SHORT, "--mode=eval", "--checkpoint=5")
    assert newest[0] == older[0] == 0, newest[2] + older[2]
    wanted = scene.rows("done", "eval")[8]
    assert json.loads(newest[1]) == {k: v for k, v in wanted.items() if k != "kind"}
    assert json.loads(older[1])["step"] == 4
    assert absent[0] == ExitCode.CONFIGURATION
    assert "has no step 5; steps that can be restored: 4.a1, 8.a1" in absent[2]
    assert _files(scene.folder / "done") == before


def test_evaluating_with_another_model_than_the_runs_is_refused(scene: Scene) -> None:
    other = "--gin.DecoderConfig.rope_base=5.0"
    text = scene.run("done", SHORT, other, "--mode=eval", expect=ExitCode.CONFIGURATION)
    assert "--allow_change=DecoderConfig.rope_base" in text


def test_a_live_run_is_not_joined_by_a_second_can_be_evaluated_and_leaves_on_an_interrupt(
    scene: Scene,
) -> None:
    live = scene.start("live", *LONG)
    wait_for(live, "step 6/")
    text = scene.run("live", *LONG, expect=ExitCode.CONFIGURATION)
    assert f"is in use by process {live.pid} on" in text
    code, out, err = scene.run_apart("live", *LONG, "--mode=eval")
    assert code == 0, err
    assert json.loads(out)["step"] >= 4
    assert live.poll() is None
    live.send_signal(signal.SIGINT)
    text, _ = live.communicate(timeout=300)
    assert live.returncode == ExitCode.INTERRUPTED, text
    assert "Traceback" not in text
    assert text.rstrip().endswith("KeyboardInterrupt")
    folder = scene.folder / "live"
    assert [p.name for p in (folder / "attempts").iterdir()] == ["1"]
    assert json.loads((folder / "attempts/1/reason.json").read_text())["code"] == 130
    last = max(scene.rows("live"))
    text = scene.run("live", f"--gin.TrainConfig.steps={last + 2}", LONG[1])
    assert sorted(scene.rows("live")) == list(range(1, last + 3))


def test_parameters_of_a_run_or_a_step_are_a_start_and_what_does_not_fit_is_named(
    scene: Scene,
) -> None:
    run, step = scene.folder / "done", scene.folder / "done/checkpoints/4.a1"
    one = "--gin.TrainConfig.steps=1"
    for name, url in (("from_run", run), ("from_step", step)):
        scene.run(name, one, f"--gin.TrainConfig.init_from='{url}'")
    first = {name: scene.losses(name)[0][1] for name in ("from_run", "from_step", "done")}
    assert first["from_run"] < first["from_step"] < first["done"]
    start = f"--gin.TrainConfig.init_from='{run}'"
    text = scene.run(
        "missing", one, start, "--gin.DecoderConfig.qkv_bias=True", expect=ExitCode.CONFIGURATION
    )
    assert "missing: stacks/pattern/blocks/0/attention/query/bias" in text
    text = scene.run(
        "shape", one, start, "--gin.DecoderConfig.mlp_dim=32", expect=ExitCode.CONFIGURATION
    )
    assert "mlp/up/kernel is stored as float32[2,32,64], wanted float32[2,32,32]" in text


def test_a_platform_that_is_not_there_ends_the_run_before_it_touches_anything(
    scene: Scene,
) -> None:
    text = scene.run("platform", "--platform=tpu", expect=ExitCode.INFRASTRUCTURE)
    assert "--platform=tpu, but jax runs on cpu" in text
    assert "JAX_PLATFORMS=cpu is set" in text
    assert "Traceback" not in text
    assert not (scene.folder / "platform").exists()


@pytest.mark.parametrize("kind", ["a file", "read-only"])
def test_a_cache_that_cannot_be_written_costs_a_warning(scene: Scene, kind: str) -> None:
    cache = scene.folder / kind.replace(" ", "_")
    arguments = (SHORT, f"--cache_dir={cache}")
    if kind == "a file":
        cache.write_text("")
        text = scene.run(f"cache_{cache.name}", *arguments)
    else:
        cache.mkdir()
        with read_only(cache):
            text = scene.run(f"cache_{cache.name}", *arguments)
    assert text.count("Compiled programs are not kept") == 1
    assert scene.losses(f"cache_{cache.name}") == scene.losses("done")


def test_damaged_compiled_programs_cost_a_warning_and_another_compilation(scene: Scene) -> None:
    cache = scene.copy("cache", "damaged_cache")
    programs = [p for p in (cache / "programs").rglob("*-cache") if p.is_file()]
    assert programs
    for number, path in enumerate(programs):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2] if number % 2 else b"\0" * len(data))
    scene.run("recompiled", SHORT, f"--cache_dir={cache}")
    assert scene.losses("recompiled") == scene.losses("done")
