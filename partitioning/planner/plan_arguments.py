"""Arguments that describe a plan and a cluster, for every command that asks for them."""

import argparse
import dataclasses
import math
import re
from typing import Any

from models.decoder_config import DecoderConfig
from partitioning.mesh_config import AXES, MeshConfig
from partitioning.planner.command import Given, positive, tokens
from partitioning.planner.hardware import ClusterConfig
from partitioning.planner.inputs import Parts, load_inputs, plan_of
from partitioning.planner.plan import Plan
from partitioning.traffic_step import Work
from trainer.fleet import load_cluster
from trainer.run_config import RunConfig


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds them; ``read_plan`` reads them."""
    add = parser.add_argument
    add("--gin_file", action="append", required=True, help="Of a run or a model; may be repeated.")
    add(
        "--gin_bindings",
        action="append",
        default=[],
        help="Binding such as DecoderConfig.loss_chunks=8; may be repeated.",
    )
    add("--cluster", default="h100", help="Name in configs/clusters, as in h100_512, or a file.")
    add("--mesh", help="Sizes, as in fsdp=64,tensor=8; -1 takes what is left.")
    add("--batch_tokens", type=tokens, help="Tokens of a step, as in 4M.")
    add("--seq_len", type=tokens, help="Tokens of a row.")
    add("--microbatches", type=positive, help="Parts that run one after the other.")
    add("--remat", help="DecoderConfig.remat, as in full, selective or save:attention.")


def read_plan(given: Given) -> tuple[Plan, ClusterConfig]:
    """Returns the plan and the cluster that the arguments describe.

    Raises:
      ValueError: they do not fit together.
    """
    cluster = load_cluster(given.cluster)
    found = load_inputs(given.gin_file, given.gin_bindings)
    mesh = None if given.mesh is None else _mesh(given.mesh)
    if isinstance(found, RunConfig):
        run = found if mesh is None else dataclasses.replace(found, mesh=mesh)
        plan = plan_of(run, devices=cluster.devices)
    else:
        plan = _of_parts(found, mesh, devices=cluster.devices, given=given)
    plan = dataclasses.replace(plan, model=_model(plan.model, given), work=_work(plan.work, given))
    _check_rows(plan)
    return plan, cluster


def _of_parts(parts: Parts, mesh: MeshConfig | None, *, devices: int, given: Given) -> Plan:
    if given.batch_tokens is None or given.seq_len is None:
        raise ValueError(
            "The files describe no run: say what a step computes with --batch_tokens and "
            "--seq_len, as in --batch_tokens=4M --seq_len=8192."
        )
    work = Work(rows=1, length=given.seq_len, pipeline=parts.pipeline)
    return Plan(
        model=parts.model,
        sizes=(mesh or _default(parts.mesh)).sizes(devices),
        rules=parts.rules,
        work=work,
        optimizer=parts.optimizer,
    )


def _default(mesh: MeshConfig) -> MeshConfig:
    """What files say; fully sharded where they say nothing."""
    return MeshConfig(fsdp=-1) if mesh == MeshConfig() else mesh


def _model(model: DecoderConfig, given: Given) -> DecoderConfig:
    return model if given.remat is None else dataclasses.replace(model, remat=given.remat)


def _work(work: Work, given: Given) -> Work:
    length = given.seq_len or work.length
    all_tokens = given.batch_tokens or work.rows * work.length
    if all_tokens % length:
        raise ValueError(f"--batch_tokens={all_tokens} is not a multiple of --seq_len={length}.")
    return dataclasses.replace(
        work,
        rows=all_tokens // length,
        length=length,
        microbatches=given.microbatches or work.microbatches,
    )


def _check_rows(plan: Plan) -> None:
    parts = math.prod(plan.sizes[axis] for axis in ("data", "fsdp", "expert"))
    parts *= plan.work.microbatches
    if plan.work.rows % parts:
        raise ValueError(
            f"{plan.work.rows} rows of {plan.work.length} tokens do not divide into {parts}: "
            f"{plan.work.microbatches} microbatch(es) over data x fsdp x expert. Change the batch, "
            "--microbatches or --mesh."
        )


def _mesh(text: str) -> MeshConfig:
    sizes: dict[str, Any] = {}
    for part in text.split(","):
        axis, _, size = part.partition("=")
        if axis not in AXES or not re.fullmatch("-1|[1-9][0-9]{0,9}", size):
            raise ValueError(
                f"--mesh={text}: {part!r} is not an axis with its size, as fsdp=64 or fsdp=-1 is. "
                f"Axes: {', '.join(AXES)}."
            )
        if axis in sizes:
            raise ValueError(f"--mesh={text} gives {axis} twice.")
        sizes[axis] = int(size)
    return MeshConfig(**sizes)
