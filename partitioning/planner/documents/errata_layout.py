"""Slips of the documents about memory, and about what a step sends."""

from partitioning.planner.answers import Section
from partitioning.planner.calculators import communication, layout_terms
from partitioning.planner.calculators.activations import Layer
from partitioning.planner.calculators.communication import Ring, Sharded
from partitioning.planner.calculators.layout_terms import BOOK_NVLINK, INFINIBAND, NVLINK
from partitioning.planner.calculators.mfu import attention_flops
from partitioning.planner.calculators.state import Layout, least_replicas
from partitioning.planner.documents.chapter import (
    ACCUMULATION,
    KEYS,
    LAYERS,
    LAYOUT,
    LENGTH,
    MACHINE,
    PARAMETERS,
    ROWS,
    TIMES,
    WIDTH,
    erratum,
    figure,
)

_LONG = 128 * 1024


def layout_errata() -> tuple[Section, ...]:
    """Returns them."""
    return (
        *_tensor(),
        _context(),
        _tree(),
        _stage_1(),
        _traffic(),
        _necessity(),
        *_exposed(),
        _recomputation(),
        *_smaller(),
        *_models(),
    )


def _message(rows: int) -> int:
    return communication.residual(rows, length=LENGTH, width=WIDTH)


def _call(rows: int, bandwidth: float) -> float:
    return communication.all_reduce(_message(rows), devices=LAYOUT.tensor, bandwidth=bandwidth)


def _tensor() -> tuple[Section, ...]:
    calls = communication.tensor_calls(LAYERS // LAYOUT.stage, microbatches=ACCUMULATION)
    one = erratum(
        3,
        "A tensor-parallel all-reduce of 268 MB takes 0.45 ms on NVLink and 5.4 ms on InfiniBand.",
        "The factor 2 (n - 1) / n of a ring, which the same chapter gives, is left out, and 600 "
        "GB/s is not what an H100 sends: NVLink has 900 GB/s both ways together, 450 one way.",
        figures=(
            figure("nvlink", _call(4, NVLINK), "s", "2 x 7/8 x 268 MB / 450 GB/s", book=0.45e-3),
            figure(
                "infiniband", _call(4, INFINIBAND), "s", "2 x 7/8 x 268 MB / 50 GB/s", book=5.4e-3
            ),
            figure("nvlink_as_600", _call(4, BOOK_NVLINK), "s", "2 x 7/8 x 268 MB / 600 GB/s"),
            figure("nvlink_2_rows", _call(2, NVLINK), "s", "2 x 7/8 x 134 MB / 450 GB/s"),
            figure("infiniband_2_rows", _call(2, INFINIBAND), "s", "2 x 7/8 x 134 MB / 50 GB/s"),
            figure("ratio", NVLINK / INFINIBAND, "x", "450 / 50", book=12, book_formula="600 / 50"),
        ),
    )
    step = erratum(
        4,
        "Tensor parallelism costs 72 ms of a step on NVLink, and 864 ms on InfiniBand.",
        "Counted are a forward pass of one microbatch, and all 80 layers on one device, although "
        "the pipeline has four stages; rows are 4 here and 2 in the configuration. Right: four "
        "all-reduces per layer (both passes), 20 layers, 8 microbatches of 2 rows.",
        figures=(
            figure("calls", calls, "", "4 x 20 x 8", book=160, book_formula="2 x 80"),
            figure("nvlink", calls * _call(ROWS, NVLINK), "s", "640 x 0.522 ms", book=0.072),
            figure(
                "infiniband", calls * _call(ROWS, INFINIBAND), "s", "640 x 4.698 ms", book=0.864
            ),
            figure("nvlink_as_600", calls * _message(ROWS) / BOOK_NVLINK, "s", "no ring factor"),
        ),
    )
    whole = LAYERS * _message(ROWS)
    split = whole / LAYOUT.tensor
    sequence = erratum(
        5,
        "Sequence parallelism frees 8 GB at 4 rows: 10.7 GB become 1.34 GB.",
        "10.7 GB are one tensor per layer at 2 rows, not 4; and the difference is 9.4 GB.",
        figures=(
            figure("without", whole, "B", "80 x 2 x 4,096 x 8,192 x 2 B", book=10.7e9),
            figure("with", split, "B", "10.74 GB / 8", book=1.34e9),
            figure("freed", whole - split, "B", "10.74 GB x 7/8", book=8e9),
        ),
    )
    return one, step, sequence


def _context() -> Section:
    one = communication.scores(_LONG)
    full, grouped = (Ring(length=_LONG, keys=keys, context=8) for keys in (WIDTH, KEYS))
    return erratum(
        9,
        "QK^T of 128K tokens takes 32 GB per layer, and 2.56 TB in 80 layers.",
        "That is one head, in GiB; the model has 64. Nothing stores it, either: a fused kernel "
        "keeps memory linear in the length. The 4.3 GB of ring attention are those of 64 key "
        "heads; with 8 they are an eighth, and each device sends (CP - 1) / CP of it. 128K is on "
        "the boundary of the chapter's table; we read it as the last length of CP = 4.",
        figures=(
            figure("one_head", one, "B", "131,072^2 x 2 B", book=32e9, book_formula="32 GiB"),
            figure("one_head_80_layers", LAYERS * one, "B", "80 x 34.4 GB", book=2.56e12),
            figure("all_heads", LAYERS * communication.scores(_LONG, heads=64), "B", "64 heads"),
            figure(
                "keys_and_values",
                grouped.keys_and_values,
                "B",
                "2 x 131,072 x 1,024 x 2 B",
                book=full.keys_and_values,
                book_formula="2 x 131,072 x 8,192 x 2 B",
            ),
            figure(
                "sent", grouped.sent, "B", "7/8 of it", book=full.sent, book_formula="7/8 of 4.3 GB"
            ),
        ),
    )


def _tree() -> Section:
    plain = layout_terms.state_bytes
    return erratum(
        10,
        "The decision tree leads to PP = 4 for 70B on 512 devices.",
        "With TP = 8 its second step has DP = 64, and 16 P / 64 fits 75 GB, so the tree ends with "
        "PP = 1. The chapter's own example contradicts it; so does 175B on 2,048. `advise` shows "
        "both kinds of plan.",
        figures=(
            plain(PARAMETERS, zero=3, layout=Layout(data=64), name="70B_at_64"),
            plain(175e9, zero=3, layout=Layout(data=256), name="175B_at_256"),
        ),
    )


def _stage_1() -> Section:
    state = layout_terms.state_bytes(PARAMETERS, zero=1, layout=Layout(data=16)).value
    return erratum(
        11,
        "ZeRO-1 leaves 334 GB.",
        "The parts in the figure add to 140 + 140 + 52.5.",
        figures=(figure("zero_1", state, "B", "4.75 B x 70e9", book=334e9),),
    )


def _traffic() -> Section:
    sharded = Sharded(parameters=PARAMETERS, layout=LAYOUT)
    pure = Sharded(parameters=PARAMETERS, layout=Layout(data=512))
    steps = {
        "once": sharded.step(),
        "each_microbatch": sharded.step(microbatches=8),
        "scattered_each_time": sharded.step(microbatches=8, scatter_once=False),
        "pure_fsdp": pure.step(),
    }
    return erratum(
        12,
        "ZeRO-3 moves 420 GB in a step, 1.05 s at 400 GB/s.",
        "420 GB is the whole model three times, and 400 GB/s a whole host of eight. With TP x PP = "
        "32 a device has only 4.375 GB of weights to gather over its own 50 GB/s; it does so for "
        "every microbatch.",
        figures=(
            figure(
                "sent",
                steps["once"],
                "B",
                "3 x 4.375 GB x 15/16",
                book=3 * 140e9,
                book_formula="3 x 140 GB",
            ),
            figure("once", steps["once"] / INFINIBAND, "s", "12.3 GB / 50 GB/s", book=1.05),
            *(
                figure(name, steps[name] / INFINIBAND, "s", terms)
                for name, terms in (
                    ("each_microbatch", "17 x 4.1 GB / 50 GB/s: gathered 16 times, scattered once"),
                    ("scattered_each_time", "24 x 4.1 GB / 50 GB/s"),
                    ("pure_fsdp", "3 x 140 GB x 511/512 / 50 GB/s: TP = PP = 1"),
                )
            ),
        ),
    )


def _necessity() -> Section:
    small = layout_terms.state_bytes(7e9, zero=1, layout=Layout(data=8), name="7B_zero_1")
    state = layout_terms.state_bytes(PARAMETERS, zero=3, layout=LAYOUT).value
    layer = Layer(rows=ROWS, length=LENGTH, width=WIDTH, tensor=LAYOUT.tensor)
    return erratum(
        27,
        "ZeRO-3 takes 16 P / N_DP = 70 GB, needs N_DP >= 15, and is a mathematical necessity for "
        "every model above 5B.",
        "Tensor and pipeline parallelism have already divided the state by 32. On this mesh "
        "everything fits without ZeRO; the bound is that of TP = PP = 1. A 7B model fits eight "
        "devices with ZeRO-1. (Figure 10.1 says 32 devices where the text says 16 replicas.)",
        figures=(
            *(
                layout_terms.state_bytes(PARAMETERS, zero=zero, layout=LAYOUT)
                for zero in (0, 1, 2, 3)
            ),
            small,
            figure(
                "least_replicas",
                least_replicas(PARAMETERS, room=75e9, layout=LAYOUT),
                "",
                "16 x 70 / 32 / 75",
                book=least_replicas(PARAMETERS, room=75e9, layout=Layout()),
                book_formula="16 x 70 / 75",
            ),
            figure(
                "with_activations",
                state + LAYERS * layer.selective(),
                "B",
                "2.19 GB + 80 x 0.285 GB, selective and sequence parallel",
                book=81e9,
                book_formula="70 + 11; with sequence parallelism 73",
            ),
        ),
    )


def _exposed() -> tuple[Section, ...]:
    rings = (4, 8, 16, 4096)
    ring = erratum(
        13,
        "Ring all-reduce: each device sends twice the message.",
        "2 (n - 1) / n of it: 1.5 times with four devices, and towards 2 as they get more.",
        figures=tuple(
            figure(
                f"{n}_devices",
                communication.ring_factor(n),
                "x",
                f"2 x {n - 1}/{n}",
                book=2 if n == 4 else None,
            )
            for n in rings
        ),
    )
    fraction = erratum(
        14,
        "Communication should be below 10% of a step.",
        "1,050 of 1,630 ms are 64% even if all of it is hidden. Only what is exposed can be small.",
        figures=(
            figure(
                "exposed_perfect",
                TIMES.exposed(1.0) / TIMES.perfect,
                "share",
                "0 / 1,630 ms",
                book=TIMES.communication / TIMES.perfect,
                book_formula="1,050 / 1,630 ms",
            ),
            figure("exposed_70", TIMES.exposed(0.7) / TIMES.total(0.7), "share", "315 / 1,945 ms"),
        ),
    )
    volumes = erratum(
        24,
        "ZeRO-3 communicates three times as much as an all-reduce.",
        "An all-reduce is two volumes, a reduce-scatter and an all-gather; ZeRO-3 has three.",
        figures=(figure("ratio", communication.PASSES / 2, "x", "3 / 2", book=3),),
    )
    scaling = erratum(
        23,
        "Efficiencies 92, 88, 83 and 77% for 64, 128, 256, 512 and 1,024 devices, and the volume "
        "of gathers grows with the number of devices.",
        "There are four values for five sizes; the caption gives 83% to 256 and 77% to 1,024, so "
        "that of 512 is missing. What one device sends tends to a constant; only what the whole "
        "cluster sends grows.",
        figures=(
            figure("sent_16", _pure_once(16), "B", "140 GB x 15/16"),
            figure("sent_512", _pure_once(512), "B", "140 GB x 511/512"),
            figure("work_of", 0.12 * 1024, "devices", "12% of 1,024", book=123),
        ),
    )
    return ring, fraction, volumes, scaling


def _pure_once(devices: int) -> float:
    """Returns bytes that a device sends to gather 70B's weights once, sharded over all devices."""
    return Sharded(parameters=PARAMETERS, layout=Layout(data=devices)).once


def _recomputation() -> Section:
    return erratum(
        18,
        "Computing activations again costs 10%, 30% or 33%; it leaves 22 or 11 GB.",
        "Three values in one chapter. Full recomputation is one more forward pass, a third of the "
        "three units of a step. 11 GB is 2 rows and 5.5 GB is 1 row, one tensor per layer. What is "
        "computed again counts in hardware utilisation, not in MFU.",
        figures=(
            figure("full_cost", 1 / 3, "share", "1 of 1 + 2", book=0.1),
            figure("selective_saves", 1 - 22 / 144, "share", "1 - 22 / 144, as printed"),
            figure("full_saves", 1 - 11 / 144, "share", "1 - 11 / 144, as printed"),
            *(
                figure(
                    f"{rows}_rows",
                    LAYERS * Layer(rows=rows, length=LENGTH, width=WIDTH).full(),
                    "B",
                    f"80 x {rows} x 4,096 x 8,192 x 2 B",
                    book={1: 5.5e9, 2: 11e9}.get(rows),
                )
                for rows in (1, 2, 4)
            ),
        ),
    )


def _smaller() -> tuple[Section, ...]:
    convention = erratum(
        41,
        "After three steps device 0 holds chunk 0; the partial sums are Z_0 + ... + Z_TP.",
        "In the usual ring device i holds chunk (i + 1) mod n after the scatter, and the last "
        "index is TP - 1. A matter of convention: nothing depends on it.",
    )
    cache = erratum(
        36,
        "The design task wants the KV cache in the training memory of a 70B model.",
        "Training has none. There is one where a model generates: evaluation, and the rollout of "
        "reinforcement learning.",
        figures=(figure("kv_cache", 0, "B"),),
    )
    return convention, cache


def _models() -> tuple[Section, ...]:
    implied = 12 * 48 * WIDTH**2
    size = erratum(
        38,
        "A 30B model has 48 layers of width 8,192.",
        "So many layers of that width hold 12 L d^2. We calculate with 30B, as given.",
        figures=(figure("parameters", implied, "", "12 x 48 x 8,192^2", book=30e9),),
    )
    full = attention_flops(LAYERS, width=WIDTH, length=LENGTH)
    attention = erratum(
        40,
        "MFU counts 6 P FLOP per token.",
        "Attention's two products come on top: 12 L d s, half of it if causal. `mfu` shows all.",
        figures=(
            figure("full", full / 6 / PARAMETERS, "share", "12 x 80 x 8,192 x 4,096 / 420e9"),
            figure("causal", full / 12 / PARAMETERS, "share", "half of it"),
            figure(
                "mfu_500K",
                500e3 * (6 * PARAMETERS + full) / MACHINE.devices / MACHINE.peak,
                "share",
                "500e3 x (420e9 + 32.2e9) / (512 x 989e12)",
                book=0.415,
                book_formula="500e3 x 420e9 / (512 x 989e12)",
            ),
        ),
    )
    return size, attention
