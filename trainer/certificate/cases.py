"""The rows of the certificate: layouts that must compute the step of one device."""

import dataclasses
from typing import Any

from models.experts_config import ExpertsConfig
from models.lora_config import LoraConfig
from partitioning.mesh_config import MeshConfig, PipelineConfig
from trainer.certificate.one_step import Case

_DATA, _FSDP = MeshConfig(data=8), MeshConfig(fsdp=8)
_BOTH, _HYBRID = MeshConfig(data=2, fsdp=4), MeshConfig(fsdp=4, tensor=2)
_RACKS = MeshConfig(data=2, fsdp=4, outer=(("data", 2),))
_DROPOUT = (("dropout", 0.3),)
_TIED = (("tied_embedding", True), ("embed_scale", True))
_GEMMA = (
    ("activation", "geglu"),
    ("norm_plus_one", True),
    ("post_norms", True),
    ("attention_soft_cap", 20.0),
    ("logits_soft_cap", 10.0),
    ("pattern", ("local", "global")),
    ("layers", 4),
    ("window", 3),
)
_CUBE = {"fsdp": 2, "expert": 2, "tensor": 2}
_MIXTURE = ExpertsConfig(count=8, chosen=2, mlp_dim=24, balance_weight=0.1, z_weight=0.01)
EXPERTS_MODEL = (("pattern", ("global+experts",)), ("experts", _MIXTURE))
_QWEN = (("qkv_bias", True), ("qk_norm", True), ("prefix", ("global",)), ("layers", 3))


def rows(*each: Any) -> tuple[Any, ...]:
    """Returns its arguments; rows of several types would otherwise be typed by their union."""
    return each


def _tensor(size: int) -> MeshConfig:
    return MeshConfig(tensor=size)


MESHES = (
    Case(name="data 8", rules="ddp", mesh=_DATA),
    Case(name="fsdp 8", rules="fsdp", mesh=_FSDP),
    Case(name="data 2 x fsdp 4", rules="hsdp", mesh=_BOTH),
    Case(name="data 2 across racks x fsdp 4", rules="hsdp", mesh=_RACKS),
    Case(name="tensor 2", rules="tp", mesh=_tensor(2)),
    Case(name="tensor 4, 2 kv heads", rules="tp", mesh=_tensor(4)),
    Case(name="tensor 8, 2 kv heads", rules="tp", mesh=_tensor(8)),
    Case(name="fsdp 4 x tensor 2", rules="fsdp_tp", mesh=_HYBRID),
    Case(name="zero1 on data 8", rules="zero1", mesh=_DATA),
)
WITHOUT_SEQUENCE_PARALLELISM = (
    Case(name="tensor 4, no SP", rules="tp", mesh=_tensor(4), sequence_parallel=False),
    Case(name="fsdp 4 x tensor 2, no SP", rules="fsdp_tp", mesh=_HYBRID, sequence_parallel=False),
)
ACCUMULATION = (
    *(
        Case(name=f"{name}, {how}", rules=r, mesh=x, batch=kind, microbatches=m)
        for name, r, x in (("data 8", "ddp", _DATA), ("fsdp 8", "fsdp", _FSDP))
        for how, m, kind in (
            ("padded", 1, "padded"),
            ("4 microbatches, packed", 4, "packed"),
            ("4 microbatches, padded", 4, "padded"),
        )
    ),
    Case(name="one device, 2 microbatches", mesh=MeshConfig(), batch="padded", microbatches=2),
    Case(name="zero1 on data 8, 2 microbatches", rules="zero1", mesh=_DATA, microbatches=2),
    Case(
        name="fsdp 4 x tensor 2, 2 microbatches, padded",
        rules="fsdp_tp",
        mesh=_HYBRID,
        batch="padded",
        microbatches=2,
    ),
)
EXECUTION = tuple(
    Case(name=f"{name}, {', '.join(f'{k} {v}' for k, v in how)}", rules=r, mesh=x, execution=how)
    for name, r, x, how in (
        ("one device", "ddp", MeshConfig(), (("scan_layers", True),)),
        ("fsdp 8", "fsdp", _FSDP, (("scan_layers", True), ("remat", "full"))),
        ("fsdp 8", "fsdp", _FSDP, (("remat", "selective"),)),
        ("fsdp 4 x tensor 2", "fsdp_tp", _HYBRID, (("scan_layers", True), ("remat", "selective"))),
        ("fsdp 4 x tensor 2", "fsdp_tp", _HYBRID, (("remat", "full"), ("loss_chunks", 4))),
        ("tensor 2", "tp", _tensor(2), (("remat", "save:query,attention"), ("loss_chunks", 2))),
    )
)
MODELS = (
    Case(
        name="fsdp 4 x tensor 2, 8 kv heads",
        rules="fsdp_tp",
        mesh=_HYBRID,
        model=(("kv_heads", 8),),
    ),
    Case(name="data 8, dropout", rules="ddp", mesh=_DATA, model=_DROPOUT),
    Case(
        name="fsdp 8, dropout, 4 microbatches, remat full, scan",
        mesh=_FSDP,
        model=_DROPOUT,
        microbatches=4,
        execution=(("remat", "full"), ("scan_layers", True)),
    ),
    Case(name="fsdp 4 x tensor 2, dropout", rules="fsdp_tp", mesh=_HYBRID, model=_DROPOUT),
    Case(name="fsdp 8, tied", mesh=_FSDP, model=_TIED),
    Case(name="tensor 4, tied, chunked loss", rules="tp", mesh=_tensor(4), model=_TIED,
         execution=(("loss_chunks", 2),)),
    Case(name="fsdp 4 x tensor 2, Gemma-2-like", rules="fsdp_tp", mesh=_HYBRID, model=_GEMMA),
    Case(name="fsdp 4 x tensor 2, Qwen-like", rules="fsdp_tp", mesh=_HYBRID, model=_QWEN),
)  # fmt: skip
_MANY = ExpertsConfig(
    count=16, chosen=4, mlp_dim=8, shared_mlp_dim=24, shared_gate=True, renormalize=False
)
_DENSE_FIRST = (
    ("prefix", ("global",)),
    ("pattern", ("local+experts", "global+experts")),
    ("layers", 5),
    ("window", 3),
    ("experts", _MANY),
)
EXPERTS = tuple(
    Case(name=f"{name}, experts{how}", rules=r, mesh=MeshConfig(**sizes), model=model, **rest)
    for name, r, sizes, how, model, rest in rows(
        ("expert 2", "ep", {"expert": 2}, "", EXPERTS_MODEL, {}),
        ("expert 4", "ep", {"expert": 4}, ", padded", EXPERTS_MODEL, {"batch": "padded"}),
        ("expert 8", "ep", {"expert": 8}, "", EXPERTS_MODEL, {}),
        ("data 2 x expert 4", "ep", {"data": 2, "expert": 4}, "", EXPERTS_MODEL, {}),
        ("fsdp 4 x expert 2", "ep", {"fsdp": 4, "expert": 2}, "", EXPERTS_MODEL, {}),
        ("fsdp 8", "fsdp", {"fsdp": 8}, "", EXPERTS_MODEL, {}),
        ("tensor 4", "tp", {"tensor": 4}, "", EXPERTS_MODEL, {}),
        *(
            ("fsdp 2 x expert 2 x tensor 2", "fsdp_ep_tp", _CUBE, how, model, rest)
            for how, model, rest in (
                ("", EXPERTS_MODEL, {}),
                (", no SP", EXPERTS_MODEL, {"sequence_parallel": False}),
                (", 2 microbatches, padded", EXPERTS_MODEL, {"microbatches": 2, "batch": "padded"}),
                (" (16, top 4, shared) after a dense block", _DENSE_FIRST, {}),
            )
        ),
        *(
            (name, "pp", sizes, f", {schedule}, 4 microbatches{how}", model,
             {"microbatches": 4, "batch": "padded", "execution": execution,
              "pipeline": PipelineConfig(schedule=schedule, chunks=chunks)})
            for name, sizes, schedule, chunks, how, model, execution in rows(
                ("stage 2 x expert 4", {"stage": 2, "expert": 4}, "1f1b", 1, "", EXPERTS_MODEL, ()),
                ("stage 2 x expert 2 x tensor 2", {"stage": 2, "expert": 2, "tensor": 2}, "1f1b", 2,
                 ", 2 chunks, remat full", (("layers", 4), *EXPERTS_MODEL), (("remat", "full"),)),
                ("stage 2 x fsdp 2 x expert 2", {"stage": 2, "fsdp": 2, "expert": 2}, "circular", 1,
                 ", dense prefix", (("prefix", ("global",)), ("layers", 3), *EXPERTS_MODEL), ()),
            )
        ),
        ("expert 4, 2 microbatches", "ep", {"expert": 4}, "", EXPERTS_MODEL, {"microbatches": 2}),
        *(
            ("fsdp 2 x expert 4", "ep", {"fsdp": 2, "expert": 4}, f", {how}", EXPERTS_MODEL,
             {"execution": execution})
            for how, execution in (
                ("remat full, scan", (("remat", "full"), ("scan_layers", True))),
                ("remat selective", (("remat", "selective"),)),
            )
        ),
    )
)  # fmt: skip
_RING = (("context_attention", "ring"),)
_GATHER = (("context_attention", "all_gather"),)
_LONG = MeshConfig(fsdp=2, context=2, tensor=2)
CONTEXT = (
    *(
        Case(name=f"context {n}, {way[0][1]}, {layout}", rules="cp", mesh=MeshConfig(context=n),
             layout=layout, execution=way)
        for n, layout, way in rows(
            (2, "zigzag", _RING),
            (4, "zigzag", _RING),
            (8, "zigzag", _RING),
            (4, "contiguous", _RING),
            (4, "zigzag", _GATHER),
            (8, "contiguous", _GATHER),
        )
    ),
    Case(name="context 2 x tensor 4, 2 kv heads, ring", rules="cp",
         mesh=MeshConfig(context=2, tensor=4), execution=_RING),
    Case(name="context 2 x tensor 4, 2 kv heads, all_gather, no SP", rules="cp",
         mesh=MeshConfig(context=2, tensor=4), sequence_parallel=False, execution=_GATHER),
    *(
        Case(name=f"fsdp 2 x context 2 x tensor 2, {way[0][1]}, remat {remat}, loss_chunks 2",
             rules="cp", mesh=_LONG, batch=batch,
             execution=(*way, ("remat", remat), ("loss_chunks", 2), ("scan_layers", True)))
        for way, remat, batch in ((_RING, "selective", "packed"), (_GATHER, "full", "padded"))
    ),
    Case(name="data 2 x context 4, ring, 4 microbatches, dropout", rules="cp",
         mesh=MeshConfig(data=2, context=4), batch="padded", microbatches=4, execution=_RING,
         model=_DROPOUT),
    Case(name="fsdp 2 x context 4, all_gather, contiguous, dropout, remat full", rules="cp",
         mesh=MeshConfig(fsdp=2, context=4), layout="contiguous", model=_DROPOUT,
         execution=(*_GATHER, ("remat", "full"))),
    Case(name="fsdp 2 x context 2 x tensor 2, ring, Gemma-2-like", rules="cp", mesh=_LONG,
         execution=(*_RING, ("scan_layers", True)), model=_GEMMA),
)  # fmt: skip
_CUBED = {"stage": 2, "fsdp": 2, "tensor": 2}
_SCAN = ("scan_layers", True)
_ENDS = (("prefix", ("global",)), ("suffix", ("global",)), ("layers", 6))
_CIRCULAR, _INTERLEAVED = PipelineConfig(schedule="circular"), PipelineConfig(chunks=2)
_BOTH_OF_THEM = PipelineConfig(schedule="circular", chunks=2)
PIPELINES = tuple(
    Case(
        name=f"{name}, {p.schedule}, {p.chunks} chunk(s), {m} microbatches{how}",
        rules="pp",
        mesh=MeshConfig(**sizes),
        pipeline=p,
        microbatches=m,
        model=model or (("layers", 2 * sizes["stage"]),),
        **rest,
    )
    for name, sizes, p, m, how, model, rest in rows(
        ("stage 4", {"stage": 4}, PipelineConfig(), 8, "", (), {}),
        ("stage 4", {"stage": 4}, _CIRCULAR, 8, "", (), {}),
        ("stage 4", {"stage": 4}, _INTERLEAVED, 8, "", (("layers", 8),), {}),
        ("stage 4", {"stage": 4}, _BOTH_OF_THEM, 8, "", (("layers", 8),), {}),
        ("stage 8", {"stage": 8}, PipelineConfig(), 8, "", (("layers", 8),), {}),
        ("stage 2 x fsdp 2 x tensor 2", _CUBED, PipelineConfig(), 4, "", (), {}),
        ("stage 2 x fsdp 2 x tensor 2", _CUBED, _BOTH_OF_THEM, 4, ", no SP, tied",
         (("layers", 4), *_TIED), {"sequence_parallel": False}),
        ("stage 2 x fsdp 2 x tensor 2", _CUBED, _INTERLEAVED, 8, ", padded, remat full, scan",
         (("layers", 8),), {"batch": "padded", "execution": (("remat", "full"), _SCAN)}),
        ("data 2 x stage 2 x tensor 2", {"data": 2, "stage": 2, "tensor": 2}, _INTERLEAVED, 4,
         ", prefix, suffix, dropout, remat selective", (*_ENDS, *_DROPOUT),
         {"execution": (("remat", "selective"), ("loss_chunks", 4))}),
        ("data 2 x stage 2 x expert 2", {"data": 2, "stage": 2, "expert": 2}, _CIRCULAR, 4,
         ", experts, padded", (("layers", 4), *EXPERTS_MODEL), {"batch": "padded"}),
        ("data 4 x stage 2", {"data": 4, "stage": 2}, PipelineConfig(), 4, ", experts",
         EXPERTS_MODEL, {}),
        ("data 2 x stage 2 x tensor 2", {"data": 2, "stage": 2, "tensor": 2}, _CIRCULAR, 4,
         ", Gemma-2-like", _GEMMA, {}),
        ("context 2 x stage 2", {"stage": 2, "context": 2}, PipelineConfig(), 4, ", ring",
         (), {"execution": _RING}),
        ("context 2 x stage 2 x tensor 2", {"stage": 2, "context": 2, "tensor": 2}, _INTERLEAVED, 4,
         ", all_gather", (("layers", 4),), {"execution": _GATHER}),
        ("context 2 x stage 2", {"stage": 2, "context": 2}, _CIRCULAR, 4, ", ring, dropout",
         (("layers", 4), *_DROPOUT), {"execution": _RING, "batch": "padded"}),
    )
)  # fmt: skip
LARGE = (
    Case(
        name="data 2 x fsdp 2 x stage 2 x tensor 2, 1f1b, 2 chunks, 4 microbatches",
        rules="pp",
        mesh=MeshConfig(data=2, fsdp=2, stage=2, tensor=2),
        pipeline=_INTERLEAVED,
        microbatches=4,
        model=(("layers", 4),),
    ),
)
"""On sixteen devices."""
SINGLE = tuple(
    Case(name=case.name, rules=case.rules, mesh=case.mesh, dtype="float32")
    for case in MESHES
    if case.name in ("fsdp 8", "tensor 4, 2 kv heads", "fsdp 4 x tensor 2", "zero1 on data 8")
)
QUANTIZED = tuple(
    Case(name=f"{name}, {products} products", rules=r, mesh=MeshConfig(**sizes),
         microbatches=m, execution=how, model=(("matmul", products), ("layers", 4)))
    for name, r, sizes, m, products, how in rows(
        ("fsdp 8", "fsdp", {"fsdp": 8}, 1, "int8", ()),
        ("fsdp 4 x tensor 2, scan, remat full", "fsdp_tp", {"fsdp": 4, "tensor": 2}, 1, "int8",
         (("remat", "full"), _SCAN)),
        ("fsdp 4 x tensor 2, remat selective", "fsdp_tp", {"fsdp": 4, "tensor": 2}, 1, "fp8",
         (("remat", "selective"),)),
        ("stage 2 x fsdp 2 x tensor 2, 4 microbatches", "pp", _CUBED, 4, "int8", ()),
        ("fsdp 2 x context 4", "cp", {"fsdp": 2, "context": 4}, 1, "fp8", ()),
    )
)  # fmt: skip
"""Blocks' products in eight bits, the rest in float64: layouts round them alike."""
HALF = tuple(
    Case(name=name, rules=r, mesh=MeshConfig(**sizes), microbatches=m, dtype="float32",
         activations="bfloat16", execution=how)
    for name, r, sizes, m, how in rows(
        ("one device", "ddp", {}, 1, ()),
        ("fsdp 8, scan, remat full", "fsdp", {"fsdp": 8}, 1, (("remat", "full"), _SCAN)),
        ("fsdp 4 x tensor 2, 2 microbatches", "fsdp_tp", {"fsdp": 4, "tensor": 2}, 2, ()),
        ("zero1 on data 8", "zero1", {"data": 8}, 1, ()),
        ("fsdp 2 x context 4, ring", "cp", {"fsdp": 2, "context": 4}, 1, _RING),
        ("stage 2", "pp", {"stage": 2}, 4, ()),
    )
)  # fmt: skip
"""Parameters in float32 and activations in bfloat16, against a step in float64."""
_LORA = LoraConfig(rank=4, alpha=8.0, targets=("attention/.*/kernel", "mlp/.*/kernel"))
_SHARED_LORA = dataclasses.replace(
    _LORA, rank=3, targets=("attention/(query|out)/kernel", "mlp/shared/")
)
_ONCE = PipelineConfig()
ADAPTERS = tuple(
    Case(name=f"{name}, adapters", rules=r, mesh=MeshConfig(**sizes), microbatches=m, pipeline=p,
         model=model or (("lora", _LORA), ("layers", 4)), execution=how)
    for name, r, sizes, m, p, model, how in rows(
        ("one device, scan, remat full", "ddp", {}, 1, _ONCE, (), (("remat", "full"), _SCAN)),
        ("fsdp 4 x tensor 2", "fsdp_tp", {"fsdp": 4, "tensor": 2}, 1, _ONCE, (), ()),
        ("fsdp 4 x tensor 2, 2 microbatches, scan, remat selective", "fsdp_tp",
         {"fsdp": 4, "tensor": 2}, 2, _ONCE, (), (("remat", "selective"), _SCAN)),
        ("zero1 on data 8, 2 microbatches", "zero1", {"data": 8}, 2, _ONCE, (), ()),
        ("context 2 x tensor 4, ring", "cp", {"context": 2, "tensor": 4}, 1, _ONCE, (), _RING),
        ("stage 2 x fsdp 2 x tensor 2, 1f1b, 2 chunks, 4 microbatches", "pp", _CUBED, 4,
         _INTERLEAVED, (), ()),
        ("data 2 x stage 2 x tensor 2, circular, 4 microbatches", "pp",
         {"data": 2, "stage": 2, "tensor": 2}, 4, _CIRCULAR, (), ()),
        ("fsdp 2 x expert 2 x tensor 2, shared experts", "fsdp_ep_tp", _CUBE, 1, _ONCE,
         (*_DENSE_FIRST, ("lora", _SHARED_LORA)), ()),
    )
)  # fmt: skip
"""Gradients and updates are those of the adapters; the rest is not trained."""
CASES = (
    *MESHES,
    *WITHOUT_SEQUENCE_PARALLELISM,
    *ACCUMULATION,
    *EXECUTION,
    *MODELS,
    *EXPERTS,
    *CONTEXT,
    *PIPELINES,
    *SINGLE,
    *QUANTIZED,
    *HALF,
    *ADAPTERS,
)
