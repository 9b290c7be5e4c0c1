"""``python -m models.huggingface import|export|inspect``: models of Hugging Face, in and out.

A door: it imports from above its package, and jax only where something is loaded.
"""

import argparse
import dataclasses
import json
import pathlib
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from input_pipeline.progress import Progress
from launch.exit_codes import ExitCode
from trainer import standard_streams

DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number by its type."""
Told = tuple[str, Mapping[str, Any]]
"""What a command says: as text, and as a JSON object."""
EPILOG = """\
examples:
  python -m models.huggingface inspect downloads/Llama-3.1-8B
  python -m models.huggingface import downloads/Llama-3.1-8B bases/llama --param_dtype=bfloat16
  python -m trainer.main --gin_file=configs/runs/sft_llama3_8b_8.gin --run_dir=runs/sft \\
      --gin.TrainConfig.init_from="'bases/llama'"
  python -m models.huggingface export runs/sft exports/llama --dtype=bfloat16

Download a folder with: hf download NAME --local-dir FOLDER. Only safetensors are read, and nothing
in a folder is executed. See docs/huggingface.md.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        print("\nInterrupted; nothing was left behind.", file=sys.stderr)  # noqa: T201
        return 130


def _run(arguments: argparse.Namespace) -> int:
    from trainer.checkpoints.session import CheckpointError
    from trainer.endings import classify

    # What Orbax logs of an error, pages of its threads, is raised here and told in a line.
    logging.get_absl_logger().addFilter(lambda record: "/orbax/" not in record.pathname)
    run: Callable[[argparse.Namespace], Told] = arguments.run
    try:
        text, facts = run(arguments)
        print(json.dumps(facts) if arguments.json else text, flush=True)  # noqa: T201
    except (ValueError, CheckpointError, OSError) as error:
        notes = getattr(error, "__notes__", ()) if isinstance(error, OSError) else ()
        print(error, *notes, sep="\n", file=sys.stderr)  # noqa: T201 - the console is its face
        code = classify(error).code
        return int(ExitCode.CONFIGURATION if code == ExitCode.EXCEPTION else code)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m models.huggingface",
        description="Brings models of Hugging Face in and out, and says what they are.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="inspect|import|export")
    inspect = commands.add_parser(
        "inspect",
        help="what a folder holds, from its headers alone",
        description="Prints the architecture, the bindings of DecoderConfig, and for each "
        "parameter the tensors that it is made of. No tensor is read.",
    )
    bring = commands.add_parser(
        "import",
        help="a folder becomes a checkpoint for init_from",
        description="Writes OUT/checkpoints, which TrainConfig.init_from='OUT' takes; "
        "OUT/model.gin to include; and copies of config.json and of the tokenizer's files, for "
        "TokenizerFile.path='OUT'.",
    )
    for command, run in ((inspect, _inspect), (bring, _import)):
        command.add_argument("folder", type=pathlib.Path, help="holds config.json and safetensors")
        command.add_argument(
            "--ignore",
            action="append",
            default=[],
            metavar="KEY",
            help="key of config.json to pass over although it may matter; repeatable",
        )
        command.set_defaults(run=run)
    bring.add_argument("out", type=pathlib.Path, help="folder to make")
    bring.add_argument(
        "--param_dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="type that parameters keep",
    )
    export = commands.add_parser(
        "export",
        help="a run's step becomes a folder of safetensors",
        description="Writes OUT as transformers loads it: config.json, safetensors, the tokenizer "
        "and its chat template. Adapters are merged.",
    )
    export.add_argument(
        "url", metavar="run", help="a run, a step of it (RUN/checkpoints/100.a1) or an import"
    )
    export.add_argument("out", type=pathlib.Path, help="folder to make")
    export.add_argument("--dtype", choices=DTYPES, help="type of the files; default: as saved")
    export.add_argument(
        "--architecture", help="such as llama; default: the first that can express the model"
    )
    export.add_argument(
        "--cache_dir",
        default="~/.cache/lockstep",
        help="where the run kept prepared data: trainer.main's",
    )
    export.set_defaults(run=_export)
    for command in (inspect, bring, export):
        command.add_argument("--json", action="store_true", help="print one JSON object instead")
    return parser


def _inspect(arguments: argparse.Namespace) -> Told:
    from models.huggingface import inspection
    from models.huggingface.source import open_source

    found = inspection.describe(open_source(arguments.folder, ignore=arguments.ignore))
    return str(found), dataclasses.asdict(found)


def _import(arguments: argparse.Namespace) -> Told:
    from models.huggingface import inspection
    from trainer.importing import import_folder

    begin, shown, reading = time.monotonic(), Progress("Reading"), 0

    def progress(done: int, of: int) -> None:
        nonlocal reading
        shown(done, of)
        reading = _peak_bytes()

    out, dtype = arguments.out, arguments.param_dtype
    source = import_folder(
        arguments.folder, out, param_dtype=dtype, ignore=arguments.ignore, progress=progress
    )
    found, seconds = inspection.describe(source), time.monotonic() - begin
    size, peak = found.parameters * DTYPES[dtype], _peak_bytes()
    text = (
        f"{out}: {found.architecture}, {found.parameters:,} parameters as {dtype} ({_gb(size)}, "
        f"largest tensor read {_gb(found.largest_tensor_bytes)}), in {seconds:.0f} s. This process "
        f"held at most {_gb(reading)} while reading and {_gb(peak)} in all.\n"
        f"Train from it: --gin.TrainConfig.init_from=\"'{out}'\", with include '{out}/model.gin' "
        "in the run's gin file."
    )
    return text, {
        "out": str(out),
        "architecture": found.architecture,
        "parameters": found.parameters,
        "param_dtype": dtype,
        "seconds": seconds,
        "parameter_bytes": size,
        "largest_tensor_bytes": found.largest_tensor_bytes,
        "peak_bytes_reading": reading,
        "peak_bytes": peak,
    }


def _export(arguments: argparse.Namespace) -> Told:
    from trainer.exporting import export_step

    exported = export_step(
        arguments.url,
        arguments.out,
        dtype=arguments.dtype,
        architecture=arguments.architecture,
        cache_dir=pathlib.Path(arguments.cache_dir).expanduser(),
        progress=Progress("Writing"),
    )
    what = "the average of its parameters" if exported.averaged else "its parameters"
    text = (
        f"{arguments.out}: step {exported.step}, {what}, as {exported.architecture} in "
        f"{exported.dtype}, {len(exported.files)} file(s)."
    )
    if exported.no_tokenizer:
        text += f"\nNo tokenizer was written: {exported.no_tokenizer}"
    return text, {"out": str(arguments.out), **dataclasses.asdict(exported)}


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    standard_streams.secure()
    sys.exit(main())
