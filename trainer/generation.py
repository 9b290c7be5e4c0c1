"""``--mode=generate``: continues texts and answers conversations with a run's parameters."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from input_pipeline.dataset import dataset_tokenizer
from input_pipeline.tokenizer import Tokenizer
from launch.contract import ExitCode, Phase
from trainer import finite_json
from trainer.assembly import Options, assemble
from trainer.config import LoadedConfig
from trainer.coordination import Coordination, agree
from trainer.distributed import Participant
from trainer.endings import UserError, user_error
from trainer.prompts import Prompt, PromptReader, asked_prompts
from trainer.reading import read_state, untrained
from trainer.run_config import LanguageModel
from trainer.sampling import Continuation, Sampling, generate

_AGREE_S = 300.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asks.

    Attributes:
      texts: what is to be continued, or answered with ``chat``.
      file: JSON Lines with more.
      chat: texts are messages of a user, to be written by the chat template.
      sampling: how tokens are chosen; the end of a text or turn is added to its stops.
      json: print one JSON object per prompt.
    """

    texts: Sequence[str]
    file: pathlib.Path | None
    chat: bool
    sampling: Sampling
    json: bool


def generate_run(
    loaded: LoadedConfig, *, request: Request, options: Options, participant: Participant
) -> None:
    """Prints a continuation for every prompt, in order, as they are done.

    Raises:
      UserError: configuration, prompts, step or parameters cannot be used.
      CheckpointError: no step is whole.
    """
    if not isinstance(loaded.run.task, LanguageModel):
        name = type(loaded.run.task).__name__
        raise UserError(f"--mode=generate needs a LanguageModel; RunConfig.task is {name}.")
    with user_error(ExitCode.CONFIGURATION):
        tokenizer = dataset_tokenizer(loaded.run.data, cache_dir=options.cache_dir)
        reader = PromptReader(loaded.run.data, tokenizer=tokenizer)
        prompts = asked_prompts(reader, texts=request.texts, file=request.file, chat=request.chat)
    sampling = dataclasses.replace(
        request.sampling, stop=tuple(sorted({*request.sampling.stop, *reader.stop}))
    )
    tokens = [prompt.tokens for prompt in prompts]
    check_same(tokens, sampling, coordination=participant.coordination)
    program, _ = assemble(untrained(loaded.run, options=options))
    state, _ = read_state(loaded, program, options=options, participant=participant)
    participant.progress(Phase.COMPILE)
    with user_error(ExitCode.CONFIGURATION):
        for prompt, found in zip(
            prompts, generate(program, state, tokens, sampling=sampling), strict=True
        ):
            participant.progress(Phase.EVALUATE)
            if participant.rank == 0:
                shown = _object if request.json else _text
                print(shown(prompt, found, tokenizer), flush=True)  # noqa: T201 - what was asked


def check_same(
    prompts: Sequence[np.ndarray], sampling: Sampling, *, coordination: Coordination
) -> None:
    """Raises UserError if a process is asked something else than process 0.

    All compute the same program on the same rows; others would end one another, or mix them.
    """
    asked = json.dumps([[prompt.tolist() for prompt in prompts], dataclasses.asdict(sampling)])
    digest = hashlib.sha256(asked.encode()).hexdigest()
    if agree(coordination, "generate/asked", digest, timeout_s=_AGREE_S) != digest:
        raise UserError(
            f"Process {coordination.process_index} is asked something else than process 0. Give "
            "all the same flags, and the same --prompts_file where each reads its own copy."
        )


def _object(prompt: Prompt, found: Continuation, tokenizer: Tokenizer) -> str:
    told: dict[str, Any] = {
        **prompt.asked,
        "continuation": tokenizer.decode(found.tokens),
        "tokens": len(found.tokens),
        "stopped": found.stopped,
    }
    return finite_json.dumps(told)


def _text(prompt: Prompt, found: Continuation, tokenizer: Tokenizer) -> str:
    continuation = tokenizer.decode(found.tokens)
    if isinstance(prompt.asked.get("prompt"), str):
        return f"{prompt.asked['prompt']}{continuation}\n"
    last = prompt.asked["messages"][-1]
    return f"{last['role']}: {last['content']}\nassistant: {continuation}\n"
