"""The chapter's tree gives what the chapter's formula says, and is shown for what it is."""

import math

import hypothesis
import pytest
from hypothesis import strategies

from partitioning.planner import __main__ as planner
from partitioning.planner.advisor.decision_tree import Job, context_of, decide, example, terms
from partitioning.planner.calculators.state import Layout

JOBS = {
    "70b": Job(parameters=70e9, layers=80, length=4096, devices=512),
    "175b": Job(parameters=175e9, layers=96, length=4096, devices=2048),
    "30b": Job(parameters=30e9, layers=48, length=4096, devices=256),
    "7b": Job(parameters=7e9, layers=32, length=4096, devices=8),
    "175b_128k": Job(parameters=175e9, layers=96, length=128 * 1024, devices=2048),
}


@pytest.mark.parametrize(
    ("name", "tensor", "stage", "context", "data", "by_the_book", "right"),
    [
        ("70b", 8, 1, 1, 64, 17.5e9, 2.1875e9),  # E10
        ("175b", 8, 1, 1, 256, 10.9375e9, 1.3671875e9),  # P1a
        ("30b", 8, 1, 1, 32, 15e9, 1.875e9),  # I1a, I1e
        ("7b", 8, 1, 1, 1, 112e9, 14e9),
        ("175b_128k", 8, 1, 4, 64, 43.75e9, 1.3671875e9),  # P1d
    ],
)
def test_the_tree_gives(name, tensor, stage, context, data, by_the_book, right):
    job = JOBS[name]
    layout = decide(job)
    assert layout == Layout(tensor=tensor, stage=stage, context=context, data=data)
    state = next(q for q in terms(job, layout) if q.name == "state")
    assert (state.book, state.value) == (by_the_book, right)


@pytest.mark.parametrize(
    ("name", "data", "by_the_book", "layers"),
    [("70b", 16, 70e9, 20), ("175b", 64, 43.75e9, 24), ("30b", 8, 60e9, 12)],
)
def test_the_chapters_examples_have_four_stages(name, data, by_the_book, layers):
    job = JOBS[name]
    layout = example(job)
    assert (layout.stage, layout.data, job.layers / layout.stage) == (4, data, layers)
    assert job.by_the_book(layout) == by_the_book


def test_there_is_no_example_on_too_few_devices():
    assert example(JOBS["7b"]) is None


@pytest.mark.parametrize(
    ("thousands", "context"),
    [(4, 1), (32, 1), (33, 2), (64, 2), (65, 4), (128, 4), (129, 8), (1024, 8)],
)
def test_a_length_on_a_border_takes_the_smaller_context(thousands, context):
    assert context_of(thousands * 1024) == context


def test_stages_that_the_tree_adds_make_its_own_check_worse():
    job = Job(parameters=70e9, layers=80, length=4096, devices=64)
    layout = decide(job)
    flat = Layout(tensor=8, data=8)
    assert job.by_the_book(flat) == 140e9 > job.room
    assert (layout.stage, job.layers / layout.stage) == (8, 10)
    assert job.by_the_book(layout) == 8 * job.by_the_book(flat)


def test_what_is_fixed_replaces_the_trees_choice():
    job = Job(
        parameters=175e9,
        layers=96,
        length=128 * 1024,
        devices=2048,
        fixed={"context": 8, "stage": 4},
    )
    layout = decide(job)
    assert layout == Layout(tensor=8, stage=4, context=8, data=8)
    assert job.by_the_book(layout) == 350e9  # P1d


@hypothesis.given(
    parameters=strategies.floats(1e9, 1e12),
    layers=strategies.integers(1, 200),
    hosts=strategies.integers(0, 8).map(lambda power: 2**power),
    length=strategies.sampled_from([2048, 65_536, 2**20]),
)
def test_the_tree_uses_every_device_and_stages_only_where_state_does_not_fit(
    parameters, layers, hosts, length
):
    job = Job(parameters=parameters, layers=layers, length=length, devices=8 * hosts)
    layout = decide(job)
    assert layout.devices == max(job.devices, 8 * layout.context)
    assert layers % layout.stage == 0
    assert layout.stage == 1 or layers / layout.stage >= 10
    flat = max(1, job.devices // (8 * layout.context))
    assert layout.stage == 1 or math.ceil(16 * parameters / flat) > job.room


ADVISE = (
    "advise",
    "--gin_file=configs/models/llama3_70b.gin",
    "--cluster=h100_512",
    "--tokens_per_batch=4M",
)


def test_by_the_book_the_tree_stands_beside_the_best_plan(capsys):
    assert planner.main([*ADVISE, "--policy=book"]) == 0
    tree = " ".join(capsys.readouterr().out.partition("\nBy the book\n")[2].split())
    assert "Its check of memory passes: 17.64 GB" in tree
    assert "the time of the best plan: exposed tensor" in tree
    assert "E10: the tree adds stages only where state does not fit" in tree
    assert planner.main(list(ADVISE)) == 0
    right = capsys.readouterr().out
    assert "book" not in right
    assert "E10" not in right


def test_the_tree_is_told_where_nothing_fits(capsys):
    argv = [*ADVISE, "--cluster=h100_8", "--tokens_per_batch=1M", "--policy=book"]
    assert planner.main(argv) == 64
    out = capsys.readouterr().out
    assert "Its check of memory refuses this: 1.129 TB" in out
    assert "It does not fit: at least" in out
