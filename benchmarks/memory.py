"""What rematerialisation saves and costs: ``python -m benchmarks.memory``.

Compiles the train step of one small decoder under each policy, scanned and unrolled, for a target
without devices, and prints the bytes that the compiler sets aside beside the matrix products that
are computed twice. Nothing runs.
"""

import dataclasses
import json
import os
from collections.abc import Sequence

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before jax looks for accelerators

from absl import app, flags, logging

from benchmarks.output import JSON
from partitioning.targets import TARGETS

flags.declare_key_flag("json")  # listed by --help
_TARGET = flags.DEFINE_string("target", "h100", f"Chip to compile for: {', '.join(TARGETS)}.")

ROWS, LENGTH = 4, 1024
POLICIES = (
    "none",
    "selective",
    "save:query,key,value,attention,attention_out;offload:mlp_up,mlp_gate",
    "full",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One policy.

    Attributes:
      policy: DecoderConfig.remat.
      scanned: whether layers are scanned.
      temporary: bytes of device memory beside state and batch.
      host: bytes that wait in host memory.
      again: matrix products computed a second time, as a share of a forward pass's.
    """

    policy: str
    scanned: bool
    temporary: int
    host: int
    again: float


def measure(target: str, *, forms: Sequence[bool] = (True, False)) -> list[Row]:
    """Compiles the step under each policy.

    Args:
      target: chip to compile for.
      forms: whether to scan; offloading is left out where layers are unrolled, and on CPU.
    """
    found = []
    for scanned in forms:
        base: float | None = None
        for policy in POLICIES:
            if "offload" in policy and (not scanned or target == "cpu"):
                continue
            temporary, host, products = _compile(target, policy=policy, scanned=scanned)
            base = products if base is None else base
            again = 3 * (products - base) / base
            found.append(
                Row(policy=policy, scanned=scanned, temporary=temporary, host=host, again=again)
            )
    return found


def _compile(target: str, *, policy: str, scanned: bool) -> tuple[int, int, float]:
    from partitioning.mesh_config import MeshConfig
    from trainer import deviceless
    from trainer.certificate import programs
    from trainer.flops import traced_products
    from trainer.state import abstract_batch, abstract_state
    from trainer.step import build_train_step

    model = programs.decoder(
        vocab_size=512,
        embed_dim=256,
        layers=6,
        kv_heads=4,
        mlp_dim=1024,
        dtype="bfloat16",
        param_dtype="float32",
        remat=policy,
        scan_layers=scanned,
        attention="xla",  # whose products the trace shows
        loss_chunks=8,
    )
    run = programs.run(
        model, rules="ddp", optimizer="sgd", mesh=MeshConfig(), rows=ROWS, length=LENGTH
    )
    program = deviceless.target_program(run, target=target)
    step = deviceless.compile_train_step(program, run=run, quick=True)
    batch = abstract_batch(program, rows=ROWS, length=LENGTH)
    traced = build_train_step(program).trace(abstract_state(program), batch)
    return step.memory.temporary, step.memory.host, traced_products(traced.jaxpr.jaxpr)


def show(rows: Sequence[Row]) -> str:
    """Returns the table."""
    width = max(len(row.policy) for row in rows)
    lines = [f"{'remat':{width}}  {'layers':8}  device MiB  host MiB  computed again"]
    for row in rows:
        lines.append(
            f"{row.policy:{width}}  {'scanned' if row.scanned else 'unrolled':8}"
            f"  {row.temporary / 2**20:10.1f}  {row.host / 2**20:8.1f}  {row.again:13.0%}"
        )
    lines.append("computed again: matrix products, as a share of one forward pass")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> None:
    """Measures and prints."""
    if len(argv) > 1:
        raise app.UsageError(f"Unknown argument {argv[1]!r}.")
    logging.set_verbosity(logging.WARNING)
    try:
        rows = measure(_TARGET.value)
    except ValueError as error:
        raise app.UsageError(f"--target={_TARGET.value}: {error}") from error
    if JSON.value:
        print(json.dumps({"target": _TARGET.value, "rows": [dataclasses.asdict(r) for r in rows]}))
    else:
        print(show(rows))


if __name__ == "__main__":
    app.run(main)
