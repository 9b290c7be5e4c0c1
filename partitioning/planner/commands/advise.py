"""``advise``: the best plans for a model on a cluster; writes a run file."""

import argparse
import dataclasses
import math
import pathlib
import sys
import time
import typing
from collections.abc import Mapping
from typing import Any

from models.decoder_config import ContextAttention
from partitioning.mesh_config import ScheduleName
from partitioning.planner.advisor.advice import Advice, Constraint, compared, constraints
from partitioning.planner.advisor.drawing import draw
from partitioning.planner.advisor.plan_file import Source, gin_text, write
from partitioning.planner.advisor.question import question_of
from partitioning.planner.advisor.search import Evaluations, search
from partitioning.planner.advisor.search_space import FIXABLE, RULE_SETS
from partitioning.planner.advisor.verification import verified
from partitioning.planner.answers import Policy
from partitioning.planner.command import Given, add, positive, tokens
from partitioning.planner.hardware import ClusterConfig
from partitioning.planner.inputs import Parts, load_inputs
from trainer.fleet import load_fleet
from trainer.run_config import RunConfig

_PARTS = (2, 4, 8)
_WORDS = {
    "rules": RULE_SETS,
    "schedule": typing.get_args(ScheduleName),
    "context_attention": typing.get_args(ContextAttention),
    "offload": ("0", "1"),
}
"""What may be fixed to one of a few words."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Advices:
    """What is advised for each pool of devices; a Report.

    Attributes:
      pools: best pool first, which text shows in full; of the others it says how they compare.
      drawing: how the best plan lies on its devices; empty if not asked for.
    """

    pools: tuple[Advice, ...]
    drawing: str = ""

    @property
    def exit_code(self) -> int:
        """64 where nothing fits anywhere."""
        return min(advice.exit_code for advice in self.pools)

    def show(self, policy: Policy) -> str:
        """Returns the advice for people."""
        texts = ["\n".join(compared(self.pools))] if len(self.pools) > 1 else []
        texts += [self.pools[0].show(policy), *([self.drawing] if self.drawing else [])]
        return "\n\n".join(texts)

    def as_dict(self, policy: Policy) -> dict[str, Any]:
        """Returns the advice for ``--json``."""
        return {"pools": [advice.as_dict(policy) for advice in self.pools]}


def register(commands: Any) -> None:
    """Adds the command."""
    one = add(
        commands,
        "advise",
        "Finds the best plans for a model on all devices of a cluster. Searches meshes (DP, FSDP, "
        "HSDP, ZeRO-1, tensor, pipeline, expert and context parallelism), microbatches and "
        "rematerialisation; shows the best, why others lost, and what your constraints cost; "
        "writes a gin file that trainer.main takes. --policy=book shows the chapter's decision "
        "tree, too. "
        "Leaves with 64 if nothing fits.",
        [
            "advise --gin_file=configs/models/llama3_8b.gin --cluster=h100_8 "
            "--tokens_per_batch=512K",
            "advise --gin_file=configs/models/llama3_70b.gin --cluster=h100_512 "
            "--tokens_per_batch=4M \\\n    --fix=tensor=8 --out=plan.gin",
            "advise --gin_file=configs/runs/llama3_70b_512.gin --cluster=h100_512 --verify=3",
        ],
        run=_advise,
    )
    one.add_argument("--gin_file", action="append", required=True, help="Of a model or a run.")
    one.add_argument(
        "--gin_bindings", action="append", default=[], help="NAME=VALUE, as for trainer.main."
    )
    one.add_argument("--cluster", required=True, help="Such as h100_512; or a gin file.")
    one.add_argument(
        "--tokens_per_batch",
        type=tokens,
        help="Tokens of a step, 4M = 4,194,304; default: a run's.",
    )
    one.add_argument("--seq_len", type=tokens, help="Tokens of a row; default: a run's, or 8192.")
    one.add_argument(
        "--fix",
        action="append",
        default=[],
        type=_fixed,
        metavar="NAME=VALUE",
        help=f"Keep this; may be repeated. NAME: {', '.join(FIXABLE)}; offload=1 keeps the "
        "optimizer's state in host memory.",
    )
    one.add_argument(
        "--rank",
        choices=("time", "money"),
        default="time",
        help="money also looks at a half, a quarter and an eighth of the devices.",
    )
    one.add_argument("--top", type=positive, default=10, help="Plans to show (10).")
    one.add_argument("--out", type=pathlib.Path, help="Write the best plan as a run file.")
    one.add_argument("--draw", action="store_true", help="Draw the best plan on its hosts.")
    one.add_argument(
        "--verify",
        type=positive,
        metavar="N",
        help="Compile the N best for the real chip, without devices, and rank them again.",
    )


def _advise(given: Given) -> Advices:
    sources = load_inputs(given.gin_file, given.gin_bindings)
    every = _pools(given)
    pools = [_of_pool(given, sources, pool, several=len(every) > 1) for pool in every]
    pools.sort(key=_rank)
    best = pools[0].outcome
    if given.out and best.fitting:
        text = gin_text(best.fitting[0], source=_source(given, sources, best.asked.cluster))
        write(given.out, text)
        pools[0] = dataclasses.replace(pools[0], written=str(given.out))
    drawing = ""
    if given.draw and best.fitting:
        drawing = draw(best.fitting[0].plan.sizes, cluster=best.asked.cluster)
    return Advices(pools=tuple(pools), drawing=drawing)


def _pools(given: Given) -> list[ClusterConfig]:
    """Returns a fleet's pools; where money ranks, also parts of each that are whole hosts."""
    found = []
    for pool in load_fleet(given.cluster).pools:
        found.append(pool)
        for parts in _PARTS if given.rank == "money" else ():
            devices, left = divmod(pool.devices, parts)
            if not left and devices >= pool.per_host:
                found.append(dataclasses.replace(pool, devices=devices))
    return found


def _of_pool(
    given: Given, sources: Parts | RunConfig, cluster: ClusterConfig, *, several: bool
) -> Advice:
    asked, notes = question_of(
        sources,
        cluster=cluster,
        files=given.gin_file,
        bindings=given.gin_bindings,
        length=given.seq_len,
        wanted=given.tokens_per_batch,
        fixed=_together(given.fix),
    )
    told = several or sys.stderr.isatty()
    if told:
        print(f"Searching {cluster.devices} x {cluster.chip.name} ...", file=sys.stderr)  # noqa: T201
    start = time.monotonic()
    evaluations = Evaluations(cluster)
    outcome = search(asked, evaluations=evaluations, rank=given.rank)
    if told:
        print(f"Searched for {time.monotonic() - start:.1f} s.", file=sys.stderr)  # noqa: T201
    if given.verify and outcome.fitting:
        source = _source(given, sources, cluster)
        outcome, said = verified(outcome, most=given.verify, source=source, rank=given.rank)
        notes += said
    costs: tuple[Constraint, ...] = ()
    if outcome.fitting:
        best = outcome.fitting[0]
        costs = tuple(constraints(asked, best, evaluations=evaluations, rank=given.rank))
    return Advice(
        outcome=outcome,
        constraints=costs,
        rank=given.rank,
        top=given.top,
        notes=tuple(notes),
    )


def _rank(advice: Advice) -> float:
    fitting = advice.outcome.fitting
    if not fitting:
        return math.inf
    return fitting[0].seconds if advice.rank == "time" else fitting[0].cost


def _source(given: Given, sources: Parts | RunConfig, cluster: ClusterConfig) -> Source:
    only = load_fleet(given.cluster).pools
    whole = len(only) == 1 and only[0].devices == cluster.devices
    return Source(
        files=tuple(given.gin_file),
        bindings=tuple(given.gin_bindings),
        is_run=not isinstance(sources, Parts),
        cluster=given.cluster if whole else f"{cluster.name}_{cluster.devices}",
        devices=cluster.devices,
    )


def _together(pairs: list[tuple[str, int | str]]) -> Mapping[str, int | str]:
    """Raises ValueError where one name is fixed to two values."""
    found: dict[str, int | str] = {}
    for name, value in pairs:
        if found.get(name, value) != value:
            raise ValueError(f"--fix={name} is given twice: {found[name]} and {value}.")
        found[name] = value
    return found


def _fixed(text: str) -> tuple[str, int | str]:
    name, separator, value = text.partition("=")
    if name not in FIXABLE or not separator:
        raise argparse.ArgumentTypeError(
            f"{text!r}: write NAME=VALUE with one of {', '.join(FIXABLE)}."
        )
    if name == "remat":  # has a grammar, which DecoderConfig checks
        return name, value
    if name in _WORDS:
        if value not in _WORDS[name]:
            allowed = ", ".join(_WORDS[name])
            raise argparse.ArgumentTypeError(f"{text!r}: {name} is one of {allowed}.")
        return name, int(value) if name == "offload" else value
    try:
        return name, positive(value)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {name}: {error}") from None
