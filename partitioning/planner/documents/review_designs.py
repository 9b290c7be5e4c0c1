"""Answers to the chapter's review questions P1 to P3: design, decide, and defend."""

import dataclasses

from partitioning.planner.answers import Section
from partitioning.planner.calculators import (
    bubble,
    communication,
    layout_terms,
    running_terms,
    spares,
)
from partitioning.planner.calculators.activations import Layer, layers_in_flight
from partitioning.planner.calculators.communication import Ring, StepTimes
from partitioning.planner.calculators.layout_terms import BOOK_NVLINK, INFINIBAND, NVLINK
from partitioning.planner.calculators.reliability import (
    DAY,
    HOUR,
    WEEK,
    availability,
    save_share,
    young,
)
from partitioning.planner.calculators.state import Layout, least_replicas, per_device
from partitioning.planner.documents.chapter import (
    LENGTH,
    SMALLER,
    TIMES,
    TRACE,
    answered,
    figure,
    saving,
)

_PARAMETERS, _LAYERS, _WIDTH, _DEVICES = 175e9, 96, 12_288, 2048
_LONG, _CONTEXT = 128 * 1024, 8
_JOB = saving(8192, save=6, recovery=480)
_REPAIRS = {
    "10_min": 600.0,
    "1_h": HOUR,
    "4_h": 4 * HOUR,
    "24_h": DAY,
    "72_h": 3 * DAY,
    "168_h": WEEK,
}
"""Seconds until a host is back."""

_FLAT = Layout()


def designs() -> tuple[Section, ...]:
    """Returns them in order."""
    return (_p1a(), _p1b(), _p1c(), _p1d(), *_p2(), _p2d(), _p2e(), *_p3())


def _layout(stage: int, *, context: int = 1) -> Layout:
    return Layout(tensor=8, stage=stage, data=_DEVICES // (8 * stage * context), context=context)


def _p1a() -> Section:
    right = per_device(_PARAMETERS, zero=3, layout=_layout(4)).total
    flight = layers_in_flight(_LAYERS, stages=4, microbatches=35)
    layers = {rows: Layer(rows=rows, length=LENGTH, width=_WIDTH, tensor=8) for rows in (1, 4)}
    selective = {rows: layer.selective() * flight for rows, layer in layers.items()}
    full = layers[4].full() * flight
    state = layout_terms.state_bytes
    return answered(
        "P1a",
        "175B on 2,048 H100",
        "By the chapter's tree TP = 8, PP = 1, DP = 256; in the style of its example PP = 4 and "
        "DP = 64, or PP = 8 and DP = 32, which its formula refuses. The state is small on each of "
        "them. Activations decide: 1F1B keeps 96 layers x microbatches on the first stage. With 4 "
        "rows only full recomputation fits; with 1 row selective does.",
        figures=(
            figure(
                "least_replicas",
                least_replicas(_PARAMETERS, room=75e9, layout=_FLAT),
                "",
                "16 x 175 / 75, by the chapter's formula",
            ),
            *(
                state(_PARAMETERS, zero=3, layout=Layout(data=n), name=f"book_state_data_{n}")
                for n in (256, 64, 32)
            ),
            figure("state", right, "B", "16 B x 175e9 / 2,048"),
            figure("layers_per_stage_4", _LAYERS / 4, "", "96 / 4"),
            figure("layers_per_stage_8", _LAYERS / 8, "", "96 / 8"),
            figure("layer", layers[4].selective(), "B", "34 x 4,096 x 4 x 12,288 / 8"),
            figure("selective_4_rows", selective[4], "B", "96 x 0.856 GB: does not fit 80"),
            figure("full_4_rows", full, "B", "96 x 2 x 4,096 x 4 x 12,288 / 8"),
            figure("full_4_rows_with_state", full + right, "B", "and the working set of a layer"),
            figure("selective_1_row", selective[1], "B", "96 x 0.214 GB"),
            figure("selective_1_row_with_state", selective[1] + right, "B", "fits"),
            figure("book_activations", 22e9 * 1.8, "B", "22 GB x 1.8, width x layers of 70B"),
            figure("book_sum", 22e9 * 1.8 + 43.75e9, "B", "39.6 + 43.75: over 80"),
        ),
    )


def _p1b() -> Section:
    message = communication.residual(4, length=LENGTH, width=_WIDTH)
    passes = 2 * _LAYERS
    links = (("nvlink", NVLINK, BOOK_NVLINK), ("infiniband", INFINIBAND, INFINIBAND))
    calls = [
        layout_terms.all_reduce_time(
            message, devices=8, bandwidth=bandwidth, name=name, book_bandwidth=book
        )
        for name, bandwidth, book in links
    ]
    return answered(
        "P1b",
        "Its tensor-parallel all-reduce",
        "192 calls are the forward pass of one microbatch through all layers.",
        figures=(
            layout_terms.message(4, length=LENGTH, width=_WIDTH),
            *calls,
            *(
                figure(
                    f"{one.name}_192_calls",
                    passes * one.value,
                    "s",
                    f"192 x {1000 * one.value:.4g} ms",
                    book=passes * (one.book or 0.0),
                    book_formula=f"192 x {1000 * (one.book or 0.0):.4g} ms",
                )
                for one in calls
            ),
        ),
    )


def _p1c() -> Section:
    least = bubble.least_microbatches(4, below=0.08)
    book = least * 4 / 64
    return answered(
        "P1c",
        "A bubble below 8%",
        "PP = 1 has none.",
        figures=(
            figure(
                "accumulation",
                least,
                "",
                "floor(3 x 0.92 / 0.08) + 1",
                book=book,
                book_formula="35 x 4 / 64",
            ),
            layout_terms.bubble_share(4, microbatches=least),
            layout_terms.bubble_share(4, microbatches=48, name="book_bubble_of_3"),
            figure("of_8_stages", bubble.least_microbatches(8, below=0.08), "", "8 stages"),
            figure("of_1_stage", bubble.bubble(1, microbatches=1), "share", "0 / M"),
        ),
    )


def _p1d() -> Section:
    layout = _layout(4, context=_CONTEXT)
    local = _LONG // _CONTEXT
    layer = Layer(rows=1, length=local, width=_WIDTH, tensor=8)
    ring = Ring(length=_LONG, keys=_WIDTH, context=_CONTEXT)
    state = layout_terms.state_bytes
    return answered(
        "P1d",
        "128K tokens",
        "Context parallelism splits the row: CP = 4 by the chapter's table, whose last length for "
        "it 128K is, or 8. With 8 a device has 16,384 tokens, and one row takes what four rows "
        "took at 4K. ZeRO shards over DP x CP, so the state stays what it was.",
        figures=(
            figure("data", layout.data, "", "2,048 / (8 x 4 x 8)"),
            figure("tokens", local, "tokens", "131,072 / 8"),
            figure("layer", layer.selective(), "B", "34 x 16,384 x 12,288 / 8"),
            state(_PARAMETERS, zero=3, layout=Layout(data=8), name="book_state_data"),
            state(
                _PARAMETERS,
                zero=3,
                layout=Layout(data=8, context=8),
                name="book_state_context",
            ),
            figure(
                "state",
                per_device(_PARAMETERS, zero=3, layout=layout).total,
                "B",
                "16 B x 175e9 / 2,048",
            ),
            figure("keys_and_values", ring.keys_and_values, "B", "2 x 131,072 x 12,288 x 2 B"),
        ),
    )


def _p2() -> tuple[Section, ...]:
    best = young(_JOB.save, mtbf=_JOB.mtbf)
    slower = dataclasses.replace(_JOB, recovery=600)
    parts = running_terms.losses(slower, interval=best)
    saved = dataclasses.replace(
        parts[0],
        book=save_share(75, save=6),
        book_formula="6 s / (75 + 6) s",
        note="E16: the chapter's own rule misses its goal of 5%",
    )
    return (
        answered(
            "P2a", "Failures of 8,192 devices", figures=running_terms.failures(8192, rate=0.01)
        ),
        answered(
            "P2b",
            "Interval with Tc = 6 s",
            "Saved after whole steps: 198, and 50 by the chapter's rule (E16).",
            figures=running_terms.intervals(_JOB, step=1.5),
        ),
        answered(
            "P2c",
            "What saving costs",
            "Saving itself meets 5% at Young's interval. What recoveries of 10 minutes cost is "
            "more than all saving, so that the whole is 12%.",
            figures=(saved, *parts[1:]),
        ),
    )


def _p2d() -> Section:
    return answered(
        "P2d",
        "Silent corruption, in four layers",
        "1. Hardware: uncorrectable ECC errors above 0, or Xid 48 or 79. Drain the host now, save "
        "if that is possible.",
        "2. Step: gradient norm not finite or above 5.0. Skip the step; after more than 3 in 100 "
        "roll back.",
        "3. Run: loss more than 6 standard deviations above its last 100 steps, or an evaluation "
        "that fell. Roll back to a verified step and run the same data on other hosts.",
        "4. Fleet: parameters of replicas hash alike every N steps; a known step is replayed every "
        "night. Quarantine the host that differs.",
        "Numbers of layers 1 and 2 are the chapter's; those of 3 and 4 are our proposal.",
    )


def _p2e() -> Section:
    return answered(
        "P2e",
        "Hot spares for 99.5%",
        "Spares make a host ready; they do not make a recovery short. Ten minutes every two hours "
        "are 92.5%, whatever is kept (E37). How many make a spare likely depends on the repair.",
        figures=(
            running_terms.recovery_needed(_JOB.mtbf, availability=0.995),
            running_terms.available(_JOB.mtbf, recovery=600),
            figure(
                "availability_8_min",
                availability(_JOB.mtbf, recovery=480),
                "share",
                "7,382.8 / (7,382.8 + 480)",
            ),
            *(
                running_terms.spare_hosts(
                    _JOB.mtbf, repair=repair, confidence=0.995, name=f"repair_{name}"
                )
                for name, repair in _REPAIRS.items()
            ),
            figure("by_share", spares.by_share(1024, share=0.05), "hosts", "ceil(5% of 1,024)"),
        ),
    )


def _p3() -> tuple[Section, ...]:
    layers = answered(
        "P3a-c",
        "28% MFU, six layers: where to look, what it looks like, what helps",
        "GPU: Nsight Compute, sm__pipe_tensor_cycles_active; low beside a busy SM; align "
        "dimensions to 64, use BF16.",
        "Communication: Nsight Systems; NCCL rows after the compute rows instead of beside them; "
        "prefetch, larger buckets, no NCCL_LAUNCH_MODE=GROUP.",
        "Framework: the profiler's host gaps and the bubble of the schedule; gaps between kernels; "
        "more microbatches or chunks, compiled steps.",
        "Scheduler: nvidia-smi topo -m and times of restarts; tensor parallelism across hosts; "
        "place by topology, keep spare hosts ready.",
        "Input: time a step waits for data; devices idle between batches; more workers, packing.",
        "Storage: metadata operations per second; opens that stall; shards of 100M tokens.",
    )
    counter = answered(
        "P3d",
        "The counter that tells 95% SM from 28% MFU",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak: cycles in which the tensor cores work. SM "
        "activity counts everything else, too (F3).",
    )
    return layers, counter, _p3e(), _p3f()


def _p3e() -> Section:
    def after(times: StepTimes, overlap: float) -> float:
        return 0.28 * times.total() / times.total(overlap)

    step = layout_terms.step_time
    return answered(
        "P3e",
        "From sequential to 80% hidden",
        "With the times of the chapter, and with those of I2; both start at 28%.",
        figures=(
            figure("tokens_per_second", SMALLER.tokens_per_second(0.28), "tokens/s", "at 28%"),
            step(TIMES, overlap=0.0, name="sequential"),
            step(TIMES, overlap=0.8, name="hidden_80"),
            figure("speed", TIMES.total() / TIMES.total(0.8), "x", "2,680 / 1,840"),
            figure("mfu", after(TIMES, 0.8), "share", "28% x 1.4565"),
            figure("mfu_perfect", after(TIMES, 1.0), "share", "28% x 2,680 / 1,630"),
            figure("mfu_I2", after(TRACE, 0.8), "share", "28% x 1,910 / 1,526"),
            figure("mfu_I2_perfect", after(TRACE, 1.0), "share", "28% x 1,910 / 1,430"),
        ),
    )


def _p3f() -> Section:
    return answered(
        "P3f",
        "Six anti-patterns",
        "The text lists none (E42); these are collected from it. (1) Communication that does not "
        "overlap: no prefetch, NCCL_LAUNCH_MODE=GROUP. (2) Starved input: small shards, few "
        "workers. (3) Too few microbatches. (4) Buckets below 5 MB. (5) Dimensions that fall to "
        "FP32. (6) Tensor parallelism across hosts. And synchronous checkpoints.",
        "Of frequency the text only says that kernels are tuned while the input starves, which is "
        "the most common mistake, and that overlap is what teams misconfigure most often.",
    )
