"""Answers to the chapter's review questions F1 to I3: foundations, and calculating with them."""

from partitioning.planner.answers import Quantity, Section
from partitioning.planner.calculators import bubble, communication, layout_terms, running_terms
from partitioning.planner.calculators.layout_terms import INFINIBAND, NVLINK
from partitioning.planner.calculators.reliability import save_share, young
from partitioning.planner.calculators.state import Layout, least_replicas
from partitioning.planner.documents.chapter import (
    ACCUMULATION,
    LAYERS,
    LAYOUT,
    LENGTH,
    MACHINE,
    PARAMETERS,
    ROWS,
    TRACE,
    WIDTH,
    answered,
    figure,
    saving,
)

_ROOM = 75e9
_SMALL = 30e9
_SMALL_LAYOUT = Layout(tensor=8, stage=4, data=8)
_BATCH = 256 * LENGTH
_JOB = saving(4096, save=8)
_STEP = 1.5
_SYNCHRONOUS = 120.0


def foundations() -> tuple[Section, ...]:
    """Returns them in order."""
    return (_f1(), _f2(), _f3(), *_i1(), *_i2(), *_i3())


def _f1() -> Section:
    message = communication.residual(ROWS, length=LENGTH, width=WIDTH)
    calls = communication.tensor_calls(LAYERS // LAYOUT.stage, microbatches=ACCUMULATION)
    step = {
        link: calls * communication.all_reduce(message, devices=8, bandwidth=bandwidth)
        for link, bandwidth in (("nvlink", NVLINK), ("infiniband", INFINIBAND))
    }
    terms = "640 x 2 x 7/8 x 134 MB / "
    return answered(
        "F1",
        "Tensor parallelism across InfiniBand, in ms per step",
        "Every layer waits for its all-reduces, which little can hide: they stand between one "
        "product and the next. Four per layer and microbatch, so the link's bandwidth decides "
        "(E3, E4).",
        figures=(
            figure(
                "nvlink",
                step["nvlink"],
                "s",
                terms + "450 GB/s",
                book=0.072,
                book_formula="160 x 0.45 ms",
            ),
            figure(
                "infiniband",
                step["infiniband"],
                "s",
                terms + "50 GB/s",
                book=0.864,
                book_formula="160 x 5.4 ms",
            ),
            figure(
                "difference",
                step["infiniband"] - step["nvlink"],
                "s",
                "infiniband - nvlink",
                book=0.792,
            ),
        ),
    )


def _f2() -> Section:
    pure = Layout(data=32)
    state = layout_terms.state_bytes
    return answered(
        "F2",
        "ZeRO-1 for 70B on 32 H100",
        "By the formula ZeRO-1 needs 306 GB of 80. That holds for pure data parallelism only: with "
        "TP = 8 and DP = 4 it fits, and TP x PP = 32 needs no ZeRO at all. ZeRO-3 sends 1.5 times "
        "what plain data parallelism does (E24), and gathers ahead of use, beside the products.",
        figures=(
            state(PARAMETERS, zero=1, layout=pure),
            state(PARAMETERS, zero=3, layout=pure),
            _right(state(PARAMETERS, zero=1, layout=Layout(tensor=8, data=4), name="tensor_8")),
            _right(state(PARAMETERS, zero=0, layout=Layout(tensor=8, stage=4), name="no_zero")),
        ),
    )


def _f3() -> Section:
    return answered(
        "F3",
        "95% SM utilisation and 28% MFU",
        "A multiprocessor is active if anything runs on it: also FP32 on CUDA cores, copies and "
        "elementwise work. The counter that tells is "
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak: at 31% the tensor cores work in 31% of the "
        "cycles, which bounds the MFU. Usual causes: dimensions that are no multiples of 16 (64 is "
        "better), or products in FP32.",
        figures=(figure("of_that_bound", 0.28 / 0.31, "share", "28 / 31"),),
    )


def _i1() -> tuple[Section, ...]:
    stages, accumulation = _SMALL_LAYOUT.stage, bubble.least_microbatches(4, below=0.1)
    by_replicas = {n: Layout(data=n) for n in (4, 8, 16)}
    fits = min(n for n in by_replicas if n >= least_replicas(_SMALL, room=_ROOM, layout=Layout()))
    tensor = answered(
        "I1a",
        "30B on 256 H100: TP",
        "As many as a host has: further all-reduces would cross hosts (F1).",
        figures=(figure("tensor", 8, "", "devices of a host"),),
    )
    memory = answered(
        "I1b",
        "ZeRO-3 at N_DP = 4, 8, 16",
        "By the chapter's formula, which leaves tensor and pipeline parallelism out (E27).",
        figures=(
            *(
                layout_terms.state_bytes(_SMALL, zero=3, layout=layout, name=f"data_{n}")
                for n, layout in by_replicas.items()
            ),
            figure("least_that_fits", fits, "", "at most 75 GB"),
        ),
    )
    pipeline = answered(
        "I1c",
        "PP",
        "Four stages keep at least ten layers each.",
        figures=(figure("layers_per_stage", 48 / stages, "", "48 / 4"),),
    )
    accumulated = answered(
        "I1d",
        "Accumulation for a bubble below 10%",
        "M is the accumulation (E8), and 4 x PP is not enough (E7).",
        figures=(
            figure(
                "accumulation",
                accumulation,
                "",
                "floor(3 x 0.9 / 0.1) + 1",
                book=accumulation * stages / _SMALL_LAYOUT.data,
                book_formula="28 x 4 / 8",
            ),
            layout_terms.bubble_share(stages, microbatches=4 * stages, name="bubble_of_4_PP"),
        ),
    )
    right = layout_terms.state_bytes
    check = answered(
        "I1e",
        "The check",
        "The mesh uses every device; its state is far below the 60 GB of I1b.",
        figures=(
            figure("devices", _SMALL_LAYOUT.devices, "", "8 x 4 x 8"),
            _right(right(_SMALL, zero=3, layout=_SMALL_LAYOUT)),
            _right(right(_SMALL, zero=0, layout=_SMALL_LAYOUT)),
        ),
    )
    return tensor, memory, pipeline, accumulated, check


def _i2() -> tuple[Section, ...]:
    step = layout_terms.step_time
    now = running_terms.utilisation(MACHINE, tokens_per_second=85e3)
    speed = {overlap: TRACE.total() / TRACE.total(overlap) for overlap in (0.8, 1.0)}
    large = MACHINE.mfu(_BATCH / TRACE.total())
    first = answered(
        "I2a",
        "MFU at 85,000 tokens/s",
        "85,000 tokens/s and 1.91 s are 162,350 tokens in a step; with the chapter's batch of "
        "1,048,576 it would be 45.5% (E39).",
        figures=(
            now,
            step(TRACE, overlap=0.0, name="step"),
            figure("mfu_of_1M", large, "share", "1,048,576 / 1.91 s x 420e9 / 506.4e15"),
        ),
    )
    least = answered(
        "I2b",
        "The shortest step",
        "With all communication hidden behind the backward pass.",
        figures=(step(TRACE, overlap=1.0, name="step"),),
    )
    flags = answered(
        "I2c",
        "What turns overlap on",
        "PyTorch's FSDP: sharding_strategy=FULL_SHARD, backward_prefetch=BACKWARD_PRE, "
        "forward_prefetch=True, limit_all_gathers=True, use_orig_params=True. Here: XLA's "
        "latency-hiding scheduler with asynchronous collectives; no flag of the model.",
    )
    better = answered(
        "I2d",
        "With 80% hidden",
        figures=(
            step(TRACE, overlap=0.8, name="step"),
            figure("speed", speed[0.8], "x", "1,910 / 1,526"),
            figure("mfu", now.value * speed[0.8], "share", "7.05% x 1.2516"),
            figure("mfu_perfect", now.value * speed[1.0], "share", "7.05% x 1,910 / 1,430"),
            figure("mfu_of_1M", large * speed[0.8], "share", "45.54% x 1.2516"),
        ),
    )
    return first, least, flags, better


def _i3() -> tuple[Section, ...]:
    between = answered(
        "I3a",
        "Time between failures of 4,096 devices",
        figures=running_terms.failures(4096, rate=0.01),
    )
    interval = answered(
        "I3b",
        "Interval with Tc = 8 s",
        "The recovery of 600 s is not what decides (E16). Saved after whole steps: 324 and 65.",
        figures=running_terms.intervals(_JOB, step=_STEP),
    )
    best = young(_JOB.save, mtbf=_JOB.mtbf)
    cases = {
        "synchronous": (_SYNCHRONOUS, 100 * _STEP),
        "background_65_steps": (_JOB.save, 65 * _STEP),
        "background_100_steps": (_JOB.save, 100 * _STEP),
        "background_young": (_JOB.save, best),
    }
    shares = {name: save_share(interval, save=save) for name, (save, interval) in cases.items()}
    overhead = answered(
        "I3c",
        "What saving costs",
        figures=tuple(
            running_terms.saving_share(interval, save=save, name=name)
            for name, (save, interval) in cases.items()
        ),
    )
    hours = 4096 * 168
    lost = {name: share * hours for name, share in shares.items()}
    wasted = answered(
        "I3d",
        "Device-hours lost to saving in a week",
        figures=(
            figure("all", hours, "h", "4,096 x 168"),
            *(
                figure(f"lost_{name}", lost[name], "h", f"{100 * shares[name]:.4g}% of 688,128")
                for name in ("synchronous", "background_65_steps")
            ),
            *(
                figure(f"saved_{name}", lost["synchronous"] - lost[name], "h", f"against {name}")
                for name in ("background_65_steps", "background_young", "background_100_steps")
            ),
        ),
    )
    return between, interval, overhead, wasted


def _right(quantity: Quantity) -> Quantity:
    """Leaves out what the chapter would say of a mesh that it does not look at."""
    return figure(quantity.name, quantity.value, quantity.unit, quantity.formula)
