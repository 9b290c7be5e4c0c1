"""What is said of prompts, and that all processes are asked the same."""

import dataclasses

import numpy as np
import pytest

from input_pipeline.tokenizer import ByteTokenizer
from tests.trainer.test_coordination import together
from trainer.coordination import Alone
from trainer.endings import UserError
from trainer.generation import _text, check_same
from trainer.prompts import Prompt
from trainer.sampling import Continuation, Sampling

PROMPTS = [np.asarray([1, 2], np.int32), np.asarray([3], np.int32)]
SAMPLING = Sampling(count=3, seed=1)


@pytest.mark.parametrize(
    ("prompts", "sampling"),
    [
        (PROMPTS[:1], SAMPLING),
        (PROMPTS[::-1], SAMPLING),
        ([np.asarray([1], np.int32), np.asarray([2, 3], np.int32)], SAMPLING),
        (PROMPTS, dataclasses.replace(SAMPLING, seed=2)),
        (PROMPTS, dataclasses.replace(SAMPLING, batch=1)),
    ],
    ids=["fewer", "order", "where they end", "seed", "batch"],
)
def test_a_process_that_is_asked_something_else_is_named(prompts, sampling):
    def work(peers):
        asked = (prompts, sampling) if peers.process_index == 1 else (PROMPTS, SAMPLING)
        check_same(*asked, coordination=peers)

    first, second = together(work, count=2)
    assert first is None
    assert isinstance(second, UserError)
    assert "Process 1 is asked something else than process 0" in str(second)


def test_processes_that_are_asked_the_same_go_on():
    check_same(PROMPTS, SAMPLING, coordination=Alone())
    work = lambda peers: check_same(PROMPTS, SAMPLING, coordination=peers)  # noqa: E731
    assert together(work, count=3) == [None] * 3


@pytest.mark.parametrize("more", [{}, {"prompt": None}, {"prompt": 3}])
def test_a_conversation_is_shown_as_one(more):
    asked = {**more, "messages": [{"role": "user", "content": "hi"}]}
    prompt = Prompt(asked, PROMPTS[0])
    found = Continuation(np.frombuffer(b"ho", np.uint8).astype(np.int32), stopped=True)
    assert _text(prompt, found, ByteTokenizer()) == "user: hi\nassistant: ho\n"
