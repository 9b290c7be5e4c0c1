"""Folders as Hugging Face has them, made from a DecoderConfig with random numbers."""

import json
import pathlib

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from models.decoder_config import DecoderConfig
from models.experts_config import ExpertsConfig
from models.huggingface import config_file
from models.huggingface.architectures import fitting

SMALL = DecoderConfig(vocab_size=96, embed_dim=16, layers=4, heads=4, kv_heads=2, mlp_dim=24)
SPARSE = DecoderConfig(
    vocab_size=64,
    embed_dim=16,
    layers=2,
    heads=4,
    kv_heads=2,
    mlp_dim=24,
    pattern=("global+experts",),
    experts=ExpertsConfig(count=4, chosen=2, mlp_dim=24),
    rope_base=1e6,
)


def write_folder(
    folder: pathlib.Path,
    config: DecoderConfig = SMALL,
    *,
    dtype: str = "float32",
    files: int = 1,
    scale: float = 1.0,
) -> dict[str, np.ndarray]:
    """Writes config.json and safetensors; returns the tensors by their names.

    ``scale`` is the standard deviation of the numbers.
    """
    folder.mkdir(parents=True)
    architecture = fitting(config)
    described = config_file.write(config, architecture=architecture, dtype=dtype)
    (folder / "config.json").write_text(json.dumps(described))
    draw = np.random.default_rng(0)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    tensors = {
        tensor.name: (scale * draw.standard_normal(tensor.their_shape)).astype(kind)
        for tensor in architecture.tensors(config)
    }
    if files == 1:
        save_file(tensors, folder / "model.safetensors")
        return tensors
    names = [f"model-{i + 1:05d}-of-{files:05d}.safetensors" for i in range(files)]
    where = {name: names[i % files] for i, name in enumerate(tensors)}
    for file in names:
        save_file({n: x for n, x in tensors.items() if where[n] == file}, folder / file)
    index = {"metadata": {}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return tensors
