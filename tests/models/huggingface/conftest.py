"""The models of transformers that ours are compared with, built once per run of the tests."""

import fcntl
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from models.decoder_config import DecoderConfig
from models.huggingface import config_file
from models.huggingface.architectures import Architecture
from models.huggingface.safetensors_files import FolderWriter, Planned
from tests.models.huggingface import reference_cases

REFERENCE = pathlib.Path(sys.prefix) / "reference"


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Folder with a folder for each case; see reference_models.py."""
    assert (REFERENCE / "transformers").is_dir(), "torch and transformers: make reference"
    shared = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent
    folder = shared / "reference"
    folder.mkdir(exist_ok=True)
    with (shared / "reference.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            _build(folder)
            (folder / "done").touch()
    return folder


def _export(folder: pathlib.Path, architecture: Architecture, config: DecoderConfig) -> None:
    """Writes a model with random numbers in bfloat16, in several files."""
    folder.mkdir()
    tensors = architecture.tensors(config)
    planned = [Planned(tensor.name, tensor.their_shape) for tensor in tensors]
    writer = FolderWriter(folder, planned, dtype="bfloat16", shard_bytes=20_000)
    draw = np.random.default_rng(0)
    for tensor in tensors:
        writer.write(tensor.name, draw.standard_normal(tensor.their_shape))
    writer.close()
    written = config_file.write(config, architecture=architecture, dtype="bfloat16", eos=2)
    (folder / "config.json").write_text(json.dumps(written))


def _build(folder: pathlib.Path) -> None:
    (folder / "pieces.json").write_text(json.dumps(reference_cases.PIECES))
    for name in reference_cases.CASES:
        given = reference_cases.config_json(name)
        architecture, config = config_file.read(given, where=name)
        written = config_file.write(
            config, architecture=architecture, dtype="float32", bos=1, eos=2, max_length=64
        )
        for kind, content in (("given", given), ("written", written)):
            path = folder / name / kind / "config.json"
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps(content))
        _export(folder / name / "exported", architecture, config)
    script = pathlib.Path(__file__).with_name("reference_models.py")
    environment = {**os.environ, "PYTHONPATH": str(REFERENCE), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(folder)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
