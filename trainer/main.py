"""``python -m trainer.main``: trains or evaluates one run, described by gin files.

Imports only absl and what reads the command line; jax comes after the configuration is known to
be right, so that ``--help`` and configuration errors are instant.
"""

import os
import pathlib
import sys

from absl import app, flags, logging

from launch.contract import ExitCode, Phase
from trainer.config_parser import rewrite_arguments
from trainer.distributed import Participant, run_guarded
from trainer.startup import StartupClock

_GIN_FILE = flags.DEFINE_multi_string(
    "gin_file", [], "Gin file, for example configs/runs/quickstart.gin; may be repeated."
)
_GIN_BINDINGS = flags.DEFINE_multi_string(
    "gin_bindings", [], "Binding such as TrainConfig.steps=20; --gin.TrainConfig.steps=20 is short."
)
_RUN_DIR = flags.DEFINE_string("run_dir", None, "Where the run lives: a path, gs:// or s3://.")
_MODE = flags.DEFINE_enum(
    "mode", "train", ["train", "eval"], "train to the last step, or score the newest checkpoint."
)
_PRINT_CONFIG = flags.DEFINE_bool(
    "print_config", False, "Print every resolved value with where it comes from, and leave."
)
_RESUME = flags.DEFINE_enum(
    "resume", "auto", ["auto", "never", "must"], "What to do if run_dir already holds a run."
)
_ALLOW_CHANGE = flags.DEFINE_multi_string(
    "allow_change", [], "Configuration key that may differ from the last attempt's."
)
_TAKE_OVER = flags.DEFINE_bool(
    "take_over", False, "The owner of run_dir on another host is known to be dead."
)
_PROFILE_STEPS = flags.DEFINE_string(
    "profile_steps", None, "FIRST:LAST, steps to record with jax.profiler, both included."
)
_CACHE_DIR = flags.DEFINE_string(
    "cache_dir", None, "Prepared data and compiled programs; default ~/.cache/lockstep."
)
_PLATFORM = flags.DEFINE_enum(
    "platform", None, ["cpu", "gpu", "tpu"], "Fail unless jax runs on this; default: any."
)
_CPU_DEVICES = flags.DEFINE_integer(
    "cpu_devices", None, "Pretend that the CPU is this many devices, to try a mesh.", lower_bound=1
)


def main(participant: Participant) -> None:
    """Runs one process from the command line to the end of its mode."""
    clock = StartupClock.of_this_process()
    logging.use_absl_handler()
    logging.set_verbosity(logging.INFO if flags.FLAGS["verbosity"].present else logging.WARNING)
    from trainer.config import load
    from trainer.config_record import describe

    loaded = load(_GIN_FILE.value, _GIN_BINDINGS.value)
    if _PRINT_CONFIG.value:
        print(describe(loaded))  # noqa: T201 - what was asked for
        return
    if not _RUN_DIR.value:
        raise SystemExit("--run_dir is missing: name a directory for the run, gs:// or s3://.")
    cache = pathlib.Path(_CACHE_DIR.value or os.path.expanduser("~/.cache/lockstep"))
    participant.progress(Phase.JOIN)
    start_jax(participant, cache=cache)
    from trainer.modes import evaluate_run, train_run
    from trainer.run import Options, prepare
    from trainer.run_directory import Request, Resume

    clock.ended("imports")
    request = Request(
        resume=Resume.MUST if _MODE.value == "eval" else Resume(_RESUME.value),
        allow_change=tuple(_ALLOW_CHANGE.value),
        take_over=_TAKE_OVER.value,
    )
    options = Options(
        run_dir=_RUN_DIR.value,
        cache_dir=cache,
        request=request,
        profile_steps=_steps(_PROFILE_STEPS.value),
        trains=_MODE.value == "train",
        clock=clock,
    )
    run = prepare(loaded, options=options, participant=participant)
    participant.progress(Phase.COMPILE)
    {"train": train_run, "eval": evaluate_run}[_MODE.value](run)


def parse_flags(argv: list[str]) -> list[str]:
    """Parses the command line; a mistake is one line and the exit code for configuration."""
    try:
        return flags.FLAGS(rewrite_arguments(argv))
    except flags.Error as error:
        print(f"{error}\nSee python -m trainer.main --help.", file=sys.stderr)  # noqa: T201
        raise SystemExit(int(ExitCode.CONFIGURATION)) from None


def start_jax(participant: Participant, *, cache: pathlib.Path) -> None:
    """Configures jax, joins the other processes and checks the platform.

    Raises:
      SystemExit: the platform is not the one that was asked for.
    """
    import jax
    import jaxlib

    if _CPU_DEVICES.value:
        jax.config.update("jax_num_cpu_devices", _CPU_DEVICES.value)
    jax.config.update("jax_threefry_partitionable", True)
    # Compiled programs outlive the process, so that a restart does not compile again. The
    # directory carries the compiler's version: one build never reads what another wrote.
    programs = cache / "programs" / jaxlib.__version__
    try:
        programs.mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", str(programs))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    except OSError as error:
        logging.warning("Compiled programs are not kept: %s", error)
    participant.join()
    if _PLATFORM.value and jax.default_backend() != _PLATFORM.value:
        raise SystemExit(
            f"--platform={_PLATFORM.value}, but jax runs on {jax.default_backend()}: the plugin is "
            f"missing or failed to start (see above). Devices: {jax.devices()}"
        )


def _steps(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    try:
        first, last = map(int, text.split(":"))
    except ValueError:
        raise SystemExit(f"--profile_steps={text}: give FIRST:LAST, such as 10:12.") from None
    if not 1 <= first <= last:
        raise SystemExit(f"--profile_steps={text}: FIRST must be at least 1 and at most LAST.")
    return first, last


if __name__ == "__main__":
    app.run(lambda _: run_guarded(main), flags_parser=parse_flags)
