"""Refuses parameters to start from that are missing, before there are devices. No jax."""

import pathlib

from launch.contract import Finding, Verdict
from models.huggingface.source import is_huggingface, open_source
from trainer.checkpoints import finding
from trainer.checkpoints.session import CheckpointError
from trainer.run_config import LanguageModel, RunConfig


def has_adapters(config: RunConfig) -> bool:
    """Whether the configuration itself says that adapters are trained."""
    return isinstance(config.task, LanguageModel) and config.task.model.lora is not None


def check_base(config: RunConfig, *, adapted: bool) -> None:
    """Raises ValueError where adapters are to be trained beside nothing."""
    if adapted and config.train.init_from is None:
        raise ValueError(
            "DecoderConfig.lora trains adapters alone, but TrainConfig.init_from names no "
            "parameters that they shall adapt. Set it to a run or to one of its steps, such as "
            "'runs/base' or 'runs/base/checkpoints/100.a1', or leave DecoderConfig.lora out."
        )


def base_finding(url: str) -> Finding:
    """Says whether ``TrainConfig.init_from`` names parameters."""
    about = "init_from"
    try:
        if is_huggingface(url):
            source = open_source(pathlib.Path(url))
            message = f"{source.folder}, a {source.architecture.name}."
            return Finding(about=about, verdict=Verdict.OK, message=message)
        root, found = finding.find(url)
    except (ValueError, OSError, CheckpointError) as error:
        message = f"TrainConfig.init_from: {error}"
        return Finding(about=about, verdict=Verdict.ERROR, message=message)
    message = f"step {found.name} of {root.url}."
    return Finding(about=about, verdict=Verdict.OK, message=message)
