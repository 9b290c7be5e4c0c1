"""Refuses parameters to start from that are missing, before there are devices. No jax."""

import dataclasses
import pathlib

from input_pipeline.data_config import TokenizerFile
from input_pipeline.tokenizer import Tokenizer
from input_pipeline.tokenizer_files import load_tokenizer
from launch.contract import Finding, Verdict
from models.huggingface.architecture import differing
from models.huggingface.source import is_huggingface, open_source
from trainer.bases import check_chain
from trainer.checkpoints import finding
from trainer.checkpoints.session import CheckpointError
from trainer.run_config import LanguageModel, RunConfig
from trainer.stored_config import imported_config, run_of

_PROBE = b"def mean(values):\n    return sum(values) / 1024  # The average of some numbers."


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


def unlike_import(config: RunConfig) -> str:
    """Says how a run's model computes otherwise than the import that it starts from; else empty.

    That may be meant, as with a longer context. A Hugging Face folder itself is refused then.
    """
    url = config.train.init_from
    if not isinstance(config.task, LanguageModel) or not (imported := imported_config(url or "")):
        return ""
    found = differing(config.task.model, imported)
    told = "; ".join(f"{n} is {mine!r}, was {theirs!r}" for n, (mine, theirs) in found.items())
    include = "If that is not meant, include its model.gin."
    return f"The model computes otherwise than {url}: {told}. {include}" if told else ""


def unlike_tokenizer(config: RunConfig, tokenizer: Tokenizer | None) -> str:
    """Says that a run's tokens are not those of the folder that it starts from; else empty.

    A text decides: other start and end tokens, or added ones, make no other tokenizer.
    """
    url = config.train.init_from or ""
    if not url or "://" in url or tokenizer is None:
        return ""
    folder = pathlib.Path(run_of(url))
    ours = config.data.tokenizer
    if isinstance(ours, TokenizerFile) and pathlib.Path(ours.path).absolute() == folder.absolute():
        return ""
    try:
        theirs = load_tokenizer(TokenizerFile(path=str(folder)))
    except ValueError:
        return ""  # A run has none beside it; a folder may lack the names of its tokens.
    (mine,), (wanted,) = tokenizer.encode_batch([_PROBE]), theirs.encode_batch([_PROBE])
    if mine.tolist() == wanted.tolist():
        return ""
    return (
        f"The data has other tokens than {url}, whose parameters know only theirs. If that is not "
        f"meant, set TokenizerFile.path = {str(folder)!r}."
    )


def base_finding(config: RunConfig, *, url: str) -> Finding:
    """Says whether ``TrainConfig.init_from``, ``url``, names parameters, and of this model."""
    about = "init_from"
    try:
        if is_huggingface(url):
            source = open_source(pathlib.Path(url))
            if isinstance(config.task, LanguageModel):
                source.tensors(dataclasses.replace(config.task.model, lora=None))
            message = f"{source.folder}, a {source.architecture.name}."
            return Finding(about=about, verdict=Verdict.OK, message=message)
        root, found = finding.find(url)
        check_chain(url)
        unlike = unlike_import(config)
    except (ValueError, OSError, CheckpointError) as error:
        message = f"TrainConfig.init_from: {error}"
        return Finding(about=about, verdict=Verdict.ERROR, message=message)
    message = f"step {found.name} of {root.url}. {unlike}".rstrip()
    verdict = Verdict.WARNING if unlike else Verdict.OK
    return Finding(about=about, verdict=verdict, message=message)
