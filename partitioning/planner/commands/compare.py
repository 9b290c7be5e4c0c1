"""``compare``: which ways of parallelism are fastest, by model and cluster."""

import math
import pathlib
from typing import Any

from partitioning.planner.advisor.question import question_of
from partitioning.planner.advisor.search import Evaluations, Outcome, families, search
from partitioning.planner.answers import Answer, Quantity, Section
from partitioning.planner.command import Given, add, tokens
from partitioning.planner.inputs import load_inputs
from trainer.fleet import load_cluster

_SHARDED = ("FSDP", "ZeRO-1")
_INNER = ("", "tensor", "stage", "stage + tensor")
WAYS = tuple(" + ".join(filter(None, (s, inner))) for inner in _INNER for s in _SHARDED)
"""Names of families; FSDP with and without replicas."""

_ALSO = ("expert", "context")


def register(commands: Any) -> None:
    """Adds the command."""
    one = add(
        commands,
        "compare",
        "The time of each way to use parallelism over that of the best, for models on clusters. "
        "One row for each model and cluster; `advise` says more about one of them.",
        [
            "compare --gin_file=configs/models/llama3_8b.gin "
            "--gin_file=configs/models/llama3_70b.gin \\\n    --cluster=h100_64 --cluster=v5p_64 "
            "--tokens_per_batch=1M",
        ],
        run=_compare,
    )
    one.add_argument("--gin_file", action="append", required=True, help="Of a model; repeat it.")
    one.add_argument("--cluster", action="append", required=True, help="Such as h100_512; repeat.")
    one.add_argument(
        "--tokens_per_batch", type=tokens, default=2**22, help="Tokens of a step (4M)."
    )
    one.add_argument("--seq_len", type=tokens, default=8192, help="Tokens of a row (8192).")


def key(way: str) -> str:
    """Returns the name of a way's time in the answer."""
    return way.lower().replace(" + ", "_").replace(" ", "_")


def _compare(given: Given) -> Answer:
    found = [
        (f"{pathlib.Path(file).stem}, {name}", _searched(given, file, name))
        for file in given.gin_file
        for name in given.cluster
    ]
    used = {way for _, outcome in found for way in families(outcome.fitting)}
    also = tuple(axis for axis in _ALSO if any(axis in way for way in used))
    return Answer(
        title=f"Rows of {given.seq_len:,} tokens, {given.tokens_per_batch:,} a step; times over "
        "the best plan's",
        sections=tuple(
            Section(
                name=name.replace(", ", "_"),
                title=_title(name, outcome),
                quantities=_row(outcome, also),
            )
            for name, outcome in found
        ),
        notes=("-: nothing fits or divides.",),
        exit_code=0 if all(outcome.fitting for _, outcome in found) else 64,
    )


def _searched(given: Given, file: str, name: str) -> Outcome:
    pool = load_cluster(name)
    asked, _ = question_of(
        load_inputs([file]),
        cluster=pool,
        files=[file],
        length=given.seq_len,
        wanted=given.tokens_per_batch,
    )
    return search(asked, evaluations=Evaluations(pool))


def _title(name: str, outcome: Outcome) -> str:
    return f"{name}: {outcome.fitting[0].plan.mesh if outcome.fitting else 'nothing fits'}"


def _row(outcome: Outcome, also: tuple[str, ...]) -> tuple[Quantity, ...]:
    ways = {
        name.replace("HSDP", "FSDP"): candidate.seconds
        for name, candidate in reversed(families(outcome.fitting).items())
    }
    best = min(ways.values(), default=math.nan)
    mfu = outcome.fitting[0].prediction.mfu if outcome.fitting else math.nan
    times = {way: ways.get(way, math.nan) for way in WAYS}
    for axis in also:
        times[f"with {axis}"] = min((s for w, s in ways.items() if axis in w), default=math.nan)
    return (
        Quantity(name="step", value=best, unit="s"),
        Quantity(name="mfu", value=mfu, unit="share"),
        *(Quantity(name=key(way), value=s / best, unit="x") for way, s in times.items()),
    )
