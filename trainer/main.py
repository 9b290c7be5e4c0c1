"""``python -m trainer.main``: trains or evaluates one run, described by gin files.

Imports only absl and what reads the command line; jax comes after the configuration is known to
be right, so that ``--help`` and configuration errors are instant.
"""

import os
import pathlib
import sys
from typing import TYPE_CHECKING

from absl import app, flags, logging

from launch.contract import ExitCode, Phase
from trainer import software, standard_streams
from trainer.config_parser import rewrite_arguments
from trainer.distributed import Participant, run_guarded
from trainer.endings import UserError
from trainer.joining import HEARTBEAT_S, INITIALIZATION_S
from trainer.startup import StartupClock

if TYPE_CHECKING:
    from trainer import generation

_GIN_FILE = flags.DEFINE_multi_string(
    "gin_file", [], "Gin file, for example configs/runs/quickstart.gin; may be repeated."
)
_GIN_BINDINGS = flags.DEFINE_multi_string(
    "gin_bindings", [], "Binding such as TrainConfig.steps=20; --gin.TrainConfig.steps=20 is short."
)
_RUN_DIR = flags.DEFINE_string("run_dir", None, "Where the run lives: a path, gs:// or s3://.")
_MODE = flags.DEFINE_enum(
    "mode",
    "train",
    ["train", "eval", "generate", "dry_run"],
    "train to the last step; score a checkpoint, or continue texts with it (without --run_dir: "
    "the parameters that TrainConfig.init_from names); or compile the step for devices that are "
    "not here and say whether it fits, what it moves, takes and costs (docs/dry_run.md).",
)
_CLUSTER = flags.DEFINE_string(
    "cluster", None, "Devices of --mode=dry_run, such as h100_512 (configs/clusters/)."
)
# Other commands have flags of these names, too, and tests import several of them.
_QUICK = flags.DEFINE_bool(
    "quick",
    False,
    "--mode=dry_run: compile in less time; same collectives, slower kernels.",
    allow_override=True,
)
_JSON = flags.DEFINE_bool(
    "json",
    False,
    "--mode=dry_run: print one JSON object instead; --mode=generate: one for each prompt.",
    allow_override=True,
)
_PROMPT = flags.DEFINE_multi_string(
    "prompt", [], "--mode=generate: text to continue; may be repeated."
)
_PROMPTS_FILE = flags.DEFINE_string(
    "prompts_file",
    None,
    '--mode=generate: JSON Lines with {"prompt": "..."} or {"messages": [...]}.',
)
_CHAT = flags.DEFINE_bool(
    "chat", False, "--mode=generate: a --prompt is a user's message, written by the chat template."
)
_MAX_TOKENS = flags.DEFINE_integer(
    "max_tokens", 128, "--mode=generate: most tokens of a continuation.", lower_bound=1
)
_TEMPERATURE = flags.DEFINE_float(
    "temperature", 0.0, "--mode=generate: 0 takes the most likely token; 1 draws as the model says."
)
_TOP_K = flags.DEFINE_integer(
    "top_k", None, "--mode=generate: draw from the K most likely tokens only."
)
_TOP_P = flags.DEFINE_float(
    "top_p", 1.0, "--mode=generate: draw from the most likely tokens that have this share together."
)
_SEED = flags.DEFINE_integer("seed", 0, "--mode=generate: of the draws.", allow_override=True)
_BATCH = flags.DEFINE_integer("batch", 8, "--mode=generate: prompts that are continued together.")
_PRINT_CONFIG = flags.DEFINE_bool(
    "print_config", False, "Print every resolved value with where it comes from, and leave."
)
_CHECKPOINT = flags.DEFINE_integer(
    "checkpoint",
    None,
    "Step that --mode=eval scores and --mode=generate uses; default: the newest.",
    lower_bound=1,
)
_VERSION = flags.DEFINE_bool("version", False, "Print the versions of what matters, and leave.")
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
_STARTUP_TIMEOUT = flags.DEFINE_integer(
    "startup_timeout_s", INITIALIZATION_S, "Within this all processes have come.", lower_bound=1
)
_HEARTBEAT_TIMEOUT = flags.DEFINE_integer(
    "heartbeat_timeout_s", HEARTBEAT_S, "After this long a silent process is dead.", lower_bound=5
)


def main(participant: Participant) -> None:
    """Runs one process from the command line to the end of its mode."""
    clock = StartupClock.of_this_process()
    logging.use_absl_handler()
    logging.set_verbosity(logging.INFO if flags.FLAGS["verbosity"].present else logging.WARNING)
    from trainer.config import load
    from trainer.config_record import describe

    if _VERSION.value:
        print(software.describe())  # noqa: T201 - what was asked for
        return
    if _MODE.value == "dry_run" and not _PRINT_CONFIG.value:
        from trainer import dry_run

        dry_run.command(
            _GIN_FILE.value,
            _GIN_BINDINGS.value,
            cluster=_CLUSTER.value,
            quick=_QUICK.value,
            json=_JSON.value,
        )
        return
    loaded = load(_GIN_FILE.value, _GIN_BINDINGS.value)
    if _PRINT_CONFIG.value:
        print(describe(loaded))  # noqa: T201 - what was asked for
        return
    run_dir, profile_steps = check_flags(init_from=loaded.run.train.init_from)
    cache = pathlib.Path(_CACHE_DIR.value or os.path.expanduser("~/.cache/lockstep"))
    participant.progress(Phase.JOIN)
    start_jax(participant, cache=cache)
    from trainer import modes, run
    from trainer.assembly import Options
    from trainer.run_directory import Request, Resume

    clock.ended("imports")
    options = Options(
        run_dir=run_dir,
        cache_dir=cache,
        request=Request(
            resume=Resume(_RESUME.value),
            allow_change=tuple(_ALLOW_CHANGE.value),
            take_over=_TAKE_OVER.value,
        ),
        checkpoint=_CHECKPOINT.value,
        profile_steps=profile_steps,
        clock=clock,
    )
    if _MODE.value == "generate":
        from trainer import generation

        generation.generate_run(loaded, request=asked(), options=options, participant=participant)
    elif _MODE.value == "eval":
        modes.evaluate_run(loaded, options=options, participant=participant)
    else:
        modes.train_run(run.prepare(loaded, options=options, participant=participant))


def parse_flags(argv: list[str]) -> list[str]:
    """Parses the command line; a mistake is one line and the exit code for configuration."""
    try:
        return flags.FLAGS(rewrite_arguments(argv))
    except flags.Error as error:
        print(f"{error}\nSee python -m trainer.main --help.", file=sys.stderr)  # noqa: T201
        raise SystemExit(int(ExitCode.CONFIGURATION)) from None


def check_flags(*, init_from: str | None) -> tuple[str, tuple[int, int] | None]:
    """Checks what absl cannot check, and returns the run directory and the steps to profile.

    Reading ``init_from`` needs no directory, which is then empty.

    Raises:
      UserError: a flag is missing or cannot be used.
    """
    run_dir, reads = _RUN_DIR.value or "", _MODE.value in ("eval", "generate")
    if not run_dir and not (reads and init_from):
        instead = ", or parameters with TrainConfig.init_from" if reads else ""
        raise UserError(
            f"--run_dir is missing: name a directory for the run, gs:// or s3://{instead}."
        )
    if _CHECKPOINT.value is not None and not reads:
        raise UserError(
            "--checkpoint is for --mode=eval and --mode=generate; training goes on from the newest "
            "step."
        )
    if _MODE.value != "generate" and (_PROMPT.value or _PROMPTS_FILE.value or _CHAT.value):
        raise UserError("--prompt, --prompts_file and --chat are for --mode=generate.")
    if _CHECKPOINT.value is not None and not run_dir:
        raise UserError(
            f"--checkpoint={_CHECKPOINT.value} is a step of --run_dir, which is missing; "
            f"TrainConfig.init_from can name a step itself: {init_from}/checkpoints/100.a1."
        )
    text = _PROFILE_STEPS.value
    if text is None:
        return run_dir, None
    try:
        first, last = map(int, text.split(":"))
    except ValueError:
        raise UserError(f"--profile_steps={text}: give FIRST:LAST, such as 10:12.") from None
    if not 1 <= first <= last:
        raise UserError(f"--profile_steps={text}: FIRST must be at least 1 and at most LAST.")
    return run_dir, (first, last)


def asked() -> "generation.Request":
    """Returns what the flags of --mode=generate ask.

    Raises:
      UserError: a number means nothing.
    """
    from trainer.endings import user_error
    from trainer.generation import Request
    from trainer.sampling import Sampling

    with user_error(ExitCode.CONFIGURATION):
        sampling = Sampling(
            count=_MAX_TOKENS.value,
            temperature=_TEMPERATURE.value,
            top_k=_TOP_K.value,
            top_p=_TOP_P.value,
            seed=_SEED.value,
            batch=_BATCH.value,
        )
    file = pathlib.Path(_PROMPTS_FILE.value) if _PROMPTS_FILE.value else None
    return Request(
        texts=_PROMPT.value, file=file, chat=_CHAT.value, sampling=sampling, json=_JSON.value
    )


def start_jax(participant: Participant, *, cache: pathlib.Path) -> None:
    """Configures jax, joins the other processes and checks the platform.

    Raises:
      UserError: the platform is not the one that was asked for, or processes differ in devices.
    """
    import jax

    from trainer.compile_cache import keep_programs
    from trainer.device_checks import check_alike

    if _CPU_DEVICES.value:
        jax.config.update("jax_num_cpu_devices", _CPU_DEVICES.value)
    jax.config.update("jax_threefry_partitionable", True)
    keep_programs(cache)
    participant.join(initialization_s=_STARTUP_TIMEOUT.value, heartbeat_s=_HEARTBEAT_TIMEOUT.value)
    if _PLATFORM.value:
        check_platform(_PLATFORM.value)
    kinds = [device.device_kind for device in jax.local_devices()]
    check_alike(participant.coordination, host=participant.host, devices=kinds)


def check_platform(wanted: str) -> None:
    """Checks what jax runs on.

    Raises:
      UserError: it is something else, or nothing. The host may be broken, so a launcher tries
        again and can take another one.
    """
    import jax

    try:
        found = jax.default_backend()
    except RuntimeError as error:
        raise UserError(
            f"--platform={wanted}, but jax could not start: {error}", ExitCode.INFRASTRUCTURE
        ) from error
    if found != wanted:
        raise UserError(
            f"--platform={wanted}, but jax runs on {found} ({jax.devices()[0].device_kind}): the "
            f"plugin for {wanted} is not installed or did not start. {backend_errors()}",
            ExitCode.INFRASTRUCTURE,
        )


def backend_errors() -> str:
    """Says why backends did not start, which jax only logs."""
    from jax._src import xla_bridge  # no public name has the errors

    errors = getattr(xla_bridge, "_backend_errors", {})
    told = [f"{name}: {error}" for name, error in errors.items()]
    chosen = os.environ.get("JAX_PLATFORMS")
    told += [f"JAX_PLATFORMS={chosen} is set."] if chosen else []
    return " ".join(told) or "jax met no error: no plugin was found."


if __name__ == "__main__":
    standard_streams.secure()
    app.run(lambda _: run_guarded(main), flags_parser=parse_flags)
