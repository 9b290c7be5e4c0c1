"""Compiles train steps for absent chips and writes what the compilers set aside.

    python -m tests.partitioning.planner.record_memory [NAME ...]

writes golden/compiled_memory.json, which test_memory.py holds the formulas against. Needs the
compilers of ``make aot``; each layout takes half a minute on two cores, for TPU two minutes. That
for GPUs is asked for a quick program, which holds the same within 0.3%.

GPUs have cuDNN's attention. A stand-in of the same inputs, outputs and saved values takes the place
of a kernel on TPU, for which models/ has none, and in pipelines, where compilers for absent GPUs
refuse the call.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

from partitioning.mesh_config import AXES

FILE = pathlib.Path(__file__).parent / "golden" / "compiled_memory.json"
_EIGHT, _SEVENTY = "configs/runs/llama3_8b_8.gin", "configs/runs/llama3_70b_512.gin"
_PIPELINE, _EXPERTS = "configs/runs/llama3_70b_512_pp.gin", "configs/runs/mixtral_8x7b_64.gin"
_ADAPTERS = "configs/runs/lora_llama3_8b_1.gin"
_ONCE = ("TrainConfig.microbatches=1", "DataConfig.global_batch=8")
_TWICE = ("TrainConfig.microbatches=1", "DataConfig.global_batch=16", "DecoderConfig.remat='full'")
_SELECTIVE = "query,key,value,attention,attention_out,mlp_up,mlp_gate"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """A step to compile: a run file, changes to it, a chip, and whether attention is fused.

    ``rules`` names a file of configs/partitioning that comes after the run's own.
    """

    file: str
    rules: str = ""
    bindings: tuple[str, ...] = ()
    target: str = "h100"
    fused: bool = True

    @property
    def files(self) -> list[str]:
        """Gin files in their order."""
        return [self.file, *([f"configs/partitioning/{self.rules}.gin"] if self.rules else [])]


def _changed(
    rules: str,
    *,
    mesh: dict[str, int],
    rows: int,
    remat: str,
    file: str = _EIGHT,
    length: int = 8192,
    microbatches: int = 1,
    chunks: int = 1,
    layers: int | None = None,
    more: tuple[str, ...] = (),
    target: str = "h100",
) -> Layout:
    """Another layout of a run; axes that ``mesh`` does not name have one device."""
    sizes = dict.fromkeys(AXES, 1) | mesh
    fewer = (f"DecoderConfig.layers={layers}", "DecoderConfig.scan_layers=True") if layers else ()
    bindings = (
        *(f"MeshConfig.{axis}={size}" for axis, size in sizes.items()),
        f"DataConfig.global_batch={rows}",
        f"DataConfig.sequence_length={length}",
        f"TrainConfig.microbatches={microbatches}",
        f"PipelineConfig.chunks={chunks}",
        f"DecoderConfig.remat={remat!r}",
        *fewer,
        *more,
    )
    fused = target == "h100"
    return Layout(file=file, rules=rules, bindings=bindings, target=target, fused=fused)


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
    "8B, ZeRO-1 over 8": _changed("zero1", mesh={"data": 8}, rows=8, remat="full"),
    "8B, ZeRO-1 over 8, accumulated": _changed(
        "zero1", mesh={"data": 8}, rows=32, microbatches=4, remat="full"
    ),
    "8B, ZeRO-1 over 4, tensor 2, accumulated, nothing again": _changed(
        "zero1", mesh={"data": 4, "tensor": 2}, rows=64, microbatches=16, remat="none"
    ),
    "8B, ZeRO-1 over 4, tensor 2, accumulated": _changed(
        "zero1", mesh={"data": 4, "tensor": 2}, rows=64, microbatches=16, remat="selective"
    ),
    "8B, data 2, tensor 4, accumulated": _changed(
        "ddp", mesh={"data": 2, "tensor": 4}, rows=16, microbatches=4, remat="full"
    ),
    "8B, data 4, fsdp 2, tensor 2, accumulated": _changed(
        "fsdp_tp",
        mesh={"data": 4, "fsdp": 2, "tensor": 2},
        rows=32,
        microbatches=4,
        remat="full",
    ),
    "8B, fsdp 4, tensor 2, nothing again": _changed(
        "fsdp_tp", mesh={"fsdp": 4, "tensor": 2}, rows=4, remat="none"
    ),
    "8B, tensor 8, nothing again": _changed("fsdp_tp", mesh={"tensor": 8}, rows=2, remat="none"),
    "8B, fsdp 8, attention's output kept": _changed(
        "fsdp_tp", mesh={"fsdp": 8}, rows=8, remat="save:attention_out"
    ),
    "8B, fsdp 8, accumulated, kept on the host": _changed(
        "fsdp_tp", mesh={"fsdp": 8}, rows=64, microbatches=4, remat=f"offload:{_SELECTIVE}"
    ),
    "8B, pipeline of 4, data 2, nothing again": _changed(
        "pp", mesh={"stage": 4, "data": 2}, rows=16, microbatches=8, remat="none"
    ),
    "8B, pipeline of 4, data 2, two chunks": _changed(
        "pp", mesh={"stage": 4, "data": 2}, rows=16, microbatches=8, chunks=2, remat="full"
    ),
    "8B, pipeline of 2, fsdp 4": _changed(
        "pp", mesh={"stage": 2, "fsdp": 4}, rows=32, microbatches=8, remat="full"
    ),
    "8B, pipeline of 2, fsdp 4, two chunks": _changed(
        "pp", mesh={"stage": 2, "fsdp": 4}, rows=32, microbatches=8, chunks=2, remat="full"
    ),
    "8B, ring of 4, fsdp 2": _changed(
        "cp", mesh={"fsdp": 2, "context": 4}, rows=2, length=32_768, remat="full"
    ),
    "8B, ring of 2, fsdp 2, tensor 2, accumulated": _changed(
        "cp",
        mesh={"fsdp": 2, "context": 2, "tensor": 2},
        rows=8,
        length=32_768,
        microbatches=4,
        remat="full",
    ),
    "8B, ring of 2, fsdp 2, tensor 2, nothing again": _changed(
        "cp",
        mesh={"fsdp": 2, "context": 2, "tensor": 2},
        rows=2,
        length=16_384,
        remat="none",
    ),
    "Mixtral, expert 8, no buffer": _changed(
        "ep",
        file=_EXPERTS,
        mesh={"expert": 8},
        rows=8,
        length=4096,
        remat="full",
        layers=4,
        more=("ExpertsConfig.buffer=None",),
    ),
    "Mixtral, expert 4, data 2, accumulated": _changed(
        "ep",
        file=_EXPERTS,
        mesh={"expert": 4, "data": 2},
        rows=32,
        length=4096,
        microbatches=4,
        remat="full",
        layers=4,
    ),
    "Mixtral, fsdp 8": _changed(
        "fsdp_tp", file=_EXPERTS, mesh={"fsdp": 8}, rows=8, length=4096, remat="full", layers=4
    ),
    "8B, ZeRO-1 over 4, tensor 2, accumulated on v5p": _changed(
        "zero1",
        mesh={"data": 4, "tensor": 2},
        rows=16,
        length=4096,
        microbatches=4,
        remat="full",
        layers=8,
        target="v5p",
    ),
    "8B, adapters on one": Layout(file=_ADAPTERS),
    "8B, adapters, fsdp 8": _changed(
        "fsdp", file=_ADAPTERS, mesh={"fsdp": 8}, rows=16, microbatches=2, remat="full"
    ),
    "8B, adapters, fsdp 2, tensor 4, nothing again": _changed(
        "fsdp_tp", file=_ADAPTERS, mesh={"fsdp": 2, "tensor": 4}, rows=4, remat="none"
    ),
    "8B, adapters, pipeline of 4, data 2, two chunks": _changed(
        "pp",
        file=_ADAPTERS,
        mesh={"stage": 4, "data": 2},
        rows=16,
        microbatches=8,
        chunks=2,
        remat="selective",
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
    held = () if layout.fused else ("DecoderConfig.attention='xla'",)
    run = load(layout.files, [*layout.bindings, *held]).run
    if layout.fused and (TARGETS[layout.target].platform == "tpu" or run.mesh.stage > 1):
        _replace_attention()
    program = target_program(run, target=layout.target)
    memory = compile_train_step(program, run=run, quick=layout.target == "h100").memory
    # What XLA reports as the peak of a program that offloads includes the host's part.
    peak = memory.arguments + memory.temporary if memory.host else memory.peak
    return {"arguments": memory.arguments, "peak": peak}


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
