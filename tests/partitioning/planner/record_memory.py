"""Compiles train steps for absent chips and writes what the compilers set aside.

    python -m tests.partitioning.planner.record_memory [NAME ...]

writes golden/compiled_memory.json, which test_memory.py holds the formulas against. Needs the
compilers of ``make aot``; each layout takes half a minute on two cores, for TPU two minutes.

GPUs have cuDNN's attention. On TPU, for which models/ has no kernel, a stand-in of the same inputs,
outputs and saved values takes the place of one.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

FILE = pathlib.Path(__file__).parent / "golden" / "compiled_memory.json"
_EIGHT, _SEVENTY = "configs/runs/llama3_8b_8.gin", "configs/runs/llama3_70b_512.gin"
_PIPELINE, _EXPERTS = "configs/runs/llama3_70b_512_pp.gin", "configs/runs/mixtral_8x7b_64.gin"
_ONCE = ("TrainConfig.microbatches=1", "DataConfig.global_batch=8")
_TWICE = ("TrainConfig.microbatches=1", "DataConfig.global_batch=16", "DecoderConfig.remat='full'")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """A step to compile: a run file, changes to it, a chip, and whether attention is fused."""

    file: str
    bindings: tuple[str, ...] = ()
    target: str = "h100"
    fused: bool = True


LAYOUTS = {
    "8B, fsdp 8, accumulated, scores held": Layout(file=_EIGHT, fused=False),
    "8B, fsdp 8, accumulated": Layout(file=_EIGHT),
    "8B, fsdp 8": Layout(file=_EIGHT, bindings=_ONCE),
    "8B, fsdp 8, parameters in bfloat16": Layout(
        file=_EIGHT, bindings=(*_ONCE, "DecoderConfig.param_dtype='bfloat16'")
    ),
    "8B, fsdp 8, nothing again": Layout(
        file=_EIGHT,
        bindings=(*_ONCE, "DecoderConfig.remat='none'", "DataConfig.sequence_length=4096"),
    ),
    "8B, fsdp 8, all again": Layout(file=_EIGHT, bindings=_TWICE),
    "8B, fsdp 8, loss at once": Layout(
        file=_EIGHT, bindings=(*_TWICE, "DecoderConfig.loss_chunks=1")
    ),
    "8B, fsdp 8, Adafactor": Layout(
        file=_EIGHT, bindings=(*_ONCE, "RunConfig.optimizer=@Adafactor()")
    ),
    "8B, fsdp 8, windows in every other block": Layout(
        file=_EIGHT,
        bindings=(
            *_TWICE,
            "DecoderConfig.pattern=('local', 'global')",
            "DecoderConfig.window=1024",
        ),
    ),
    "8B, fsdp 64, all again": Layout(
        file=_EIGHT,
        bindings=(
            "MeshConfig.fsdp=64",
            "TrainConfig.microbatches=1",
            "DataConfig.global_batch=64",
            "DecoderConfig.remat='full'",
        ),
    ),
    "8B, tensor 8": Layout(
        file=_EIGHT, bindings=(*_ONCE, "MeshConfig.fsdp=1", "MeshConfig.tensor=8")
    ),
    "8B, data 2, fsdp 4": Layout(
        file=_EIGHT,
        bindings=(
            "MeshConfig.data=2",
            "MeshConfig.fsdp=4",
            "TrainConfig.microbatches=4",
            "DataConfig.global_batch=32",
        ),
    ),
    "8B, 128K tokens, ring": Layout(file="configs/runs/llama3_8b_128k_64.gin"),
    "70B, fsdp 64, tensor 8": Layout(file=_SEVENTY),
    "70B, fsdp 64, tensor 8, scores held": Layout(file=_SEVENTY, fused=False),
    "70B, pipeline of 4, two chunks": Layout(file=_PIPELINE),
    "70B, pipeline of 4": Layout(file=_PIPELINE, bindings=("PipelineConfig.chunks=1",)),
    "70B, pipeline of 4, circular": Layout(
        file=_PIPELINE,
        bindings=("PipelineConfig.chunks=1", "PipelineConfig.schedule='circular'"),
    ),
    "200B, data 4, fsdp 64, tensor 8": Layout(file="configs/runs/dense_200b_2048.gin"),
    "200B, data 4, fsdp 64, tensor 8, attention kept": Layout(
        file="configs/runs/dense_200b_2048.gin",
        bindings=(
            "DecoderConfig.remat='save:attention'",
            "DecoderConfig.loss_chunks=8",
            "DataConfig.global_batch=512",
        ),
    ),
    "Mixtral, fsdp 8, expert 8": Layout(file=_EXPERTS),
    "Mixtral, fsdp 8, expert 8, one microbatch": Layout(
        file=_EXPERTS, bindings=("TrainConfig.microbatches=1", "DataConfig.global_batch=64")
    ),
    "8B, fsdp 8 on v6e": Layout(file=_EIGHT, bindings=_TWICE, target="v6e"),
    "8B, fsdp 8 on v5p": Layout(file=_EIGHT, bindings=_ONCE, target="v5p"),
}


def record(name: str) -> dict[str, int]:
    """Compiles one layout in this process; returns bytes of one device."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_threefry_partitionable", True)
    from partitioning.targets import TARGETS
    from trainer.config import load
    from trainer.deviceless import compile_train_step, target_program

    layout = LAYOUTS[name]
    if layout.fused and TARGETS[layout.target].platform == "tpu":
        _replace_attention()
    held = () if layout.fused else ("DecoderConfig.attention='xla'",)
    run = load([layout.file], [*layout.bindings, *held]).run
    memory = compile_train_step(target_program(run, target=layout.target), run=run).memory
    return {"arguments": memory.arguments, "peak": memory.peak}


def _replace_attention() -> None:
    import jax
    import jax.numpy as jnp

    import models.attention

    @jax.custom_vjp
    def stand_in(q, k, v):
        return q * jnp.repeat(k + v, q.shape[2] // k.shape[2], axis=2)

    def forward(q, k, v):
        y = stand_in(q, k, v)
        return y, (q, k, v, y, y.astype(jnp.float32).sum(-1))

    def backward(saved, dy):
        q, k, _, y, statistics = saved
        B, T, H, K = q.shape
        groups = (B, T, k.shape[2], H // k.shape[2], K)
        dq = dy * y + statistics[..., None].astype(q.dtype)
        dk, dv = (dy * x for x in (q, y))
        return dq, dk.reshape(groups).sum(3), dv.reshape(groups).sum(3)

    stand_in.defvjp(forward, backward)
    models.attention.attend = lambda q, k, v, mask, **how: stand_in(q, k, v)


def show(name: str) -> None:
    """Prints what ``record`` returns, for the process that asked."""
    print("RECORD", json.dumps(record(name)))


def main(names: list[str]) -> None:
    """Records layouts, each in a process of its own."""
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in names or LAYOUTS:
        code = f"from {__spec__.name} import show; show({name!r})"
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        ran = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        (line,) = (line for line in ran.stdout.splitlines() if line.startswith("RECORD "))
        found[name] = json.loads(line.removeprefix("RECORD "))
        print(name, found[name])
        FILE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
