"""Golden values of layouts: tensor, pipeline, sharding, step."""

import dataclasses

from partitioning.planner.calculators import bubble, communication, mfu, state
from partitioning.planner.calculators.communication import Sharded
from partitioning.planner.calculators.state import Layout
from partitioning.planner.documents.chapter import MACHINE, SMALLER, TIMES
from tests.partitioning.planner.asking import quantity
from tests.partitioning.planner.golden_terms import (
    Rounded,
    book,
    gb,
    message,
    ms,
    right,
    waits,
)

ZERO3 = Sharded(parameters=70e9, layout=Layout(tensor=8, stage=4, data=16))
PURE = Sharded(parameters=70e9, layout=Layout(data=512))
FULL = mfu.attention_flops(80, width=8192, length=4096)
BUBBLES = {
    "bubble_pp4_m8_v1": (4, 8, 1),
    "bubble_pp4_m8_v2": (4, 8, 2),
    "bubble_pp4_m32_v1": (4, 32, 1),
    "bubble_pp4_m128_v1": (4, 128, 1),
    "bubble_pp8_m32_v1": (8, 32, 1),
}

TENSOR = {
    "tp_allreduce_MB": {
        "book": Rounded(message(4) / 1e6, 1),
        "calc": message(4) / 1e6,
        "mb2": message(2) / 1e6,
    },
    "tp_ar_ms_nvlink600": {
        "book": book("E3", "nvlink", 1e-3),
        "calc": ms(4, 600e9, ring=False),
        "with_ring_factor": ms(4, 600e9),
        "right_450_mb4": ms(4, 450e9),
        "right_450_mb2": ms(2, 450e9),
    },
    "tp_ar_ms_ib50": {
        "book": book("E3", "infiniband", 1e-3),
        "calc": ms(4, 50e9, ring=False),
        "with_ring_factor": ms(4, 50e9),
        "mb2": ms(2, 50e9),
    },
    "tp_step_ms": {
        "book_nv": book("E4", "nvlink", 1e-3),
        "book_ib": book("E4", "infiniband", 1e-3),
        "calc_nv": 160 * ms(4, 600e9, ring=False),
        "calc_ib": 160 * ms(4, 50e9, ring=False),
    },
    "tp_step_ms_right": {
        "count": communication.tensor_calls(20, microbatches=8),
        "nv600_nofactor": right("E4", "nvlink_as_600", 1e-3),
        "nv450": right("E4", "nvlink", 1e-3),
        "ib50": right("E4", "infiniband", 1e-3),
    },
    "sp_GB": {
        "book_without": book("E5", "without", 1e9),
        "calc": right("E5", "without", 1e9),
        "with_sp": right("E5", "with", 1e9),
        "freed_book": book("E5", "freed", 1e9),
        "freed": right("E5", "freed", 1e9),
    },
    "ring": {f"n{n}": communication.ring_factor(n) for n in (4, 8, 16, 4096)},
    "p2p": {
        "MB": message(2) / 1e6,
        "ms": 1e3 * message(2) / 50e9,
        "with_tp8_scatter_ms": right("E28", "transfer", 1e-3),
        "hops_per_mb": right("E28", "per_microbatch"),
    },
    "ep_MB": {
        "book": Rounded(
            communication.expert_exchange(4096, experts=8, choices=2, width=4096) / 2**20, 1
        ),
        "tokens": 56e6 / communication.expert_exchange(1, experts=8, choices=2, width=4096),
        "calc_4096": communication.expert_exchange(4096, experts=8, choices=2, width=4096) / 1e6,
        "MiB": communication.expert_exchange(4096, experts=8, choices=2, width=4096) / 2**20,
    },
    "cp_qk": {
        "book_GB": book("E9", "one_head", 1e9),
        "calc_GiB_per_head": communication.scores(131_072) / 2**30,
        "calc_GB": right("E9", "one_head", 1e9),
        "all_layers_TB_1head": right("E9", "one_head_80_layers", 1e12),
        "heads64_TB": right("E9", "all_heads", 1e12),
    },
    "cp_comm_GB": {
        "book": Rounded(book("E9", "keys_and_values", 1e9), 0.1),
        "calc": book("E9", "keys_and_values", 1e9),
        "gqa8": right("E9", "keys_and_values", 1e9),
        "per_gpu_sent_cp8": book("E9", "sent", 1e9),
    },
}

PIPELINE = {
    "bubble_pp4_m4_v1": {"book": book("E6", "bubble"), "calc": waits(4, 4)},
    **{
        name: {"book": Rounded(waits(*sizes), 0.003), "calc": waits(*sizes)}
        for name, sizes in BUBBLES.items()
    },
    "bubble_pp4_m1": {"calc": waits(4, 1)},
    "bubble_pp4_m16_rule4PP": {"calc": waits(4, 16)},
    "bubble_pp4_m28": {"calc": waits(4, 28)},
    "bubble_pp4_m27": {"calc": waits(4, 27)},
    "bubble_rule_M>=4PP_by_pp": {f"pp{n}": waits(n, 4 * n) for n in (2, 4, 8, 16, 64)},
    "minM_bubble": {
        f"lt{percent}_pp{n}": bubble.least_microbatches(n, below=percent / 100)
        for percent, n in ((10, 4), (10, 8), (8, 4), (8, 8), (15, 4))
    },
    "nfr_bubble15_M8": {
        "maxPP": bubble.most_stages(8, at_most=0.15),
        "pp4_v2": waits(4, 8, 2),
        "pp4_v3": waits(4, 8, 3),
    },
    "eff_batch": {
        "book": bubble.sequences(2, accumulation=8, layout=Layout(data=16)),
        "calc": bubble.sequences(2, accumulation=8, layout=Layout(data=16)),
        "tokens": 4096 * bubble.sequences(2, accumulation=8, layout=Layout(data=16)),
    },
    "M_book": {
        "book": book("E8", "microbatches"),
        "calc": bubble.microbatches_by_the_book(8, data=16, stages=4),
        "right": right("E8", "microbatches"),
        "bubble_right": right("E8", "bubble"),
        "accum_needed_for_M32": bubble.microbatches_by_the_book(8, data=16, stages=4),
        "global_batch_at_M32": right("E8", "rows_for_32"),
        "tokens": right("E8", "tokens_for_32"),
    },
}

SHARDING = {
    "zero0_70B_n16": {"book": gb(70e9, 0, data=16), "calc": gb(70e9, 0, data=16)},
    "zero1_70B_n16": {"book": book("E11", "zero_1", 1e9), "calc": gb(70e9, 1, data=16)},
    "zero2_70B_n16": {"book": Rounded(gb(70e9, 2, data=16), 1), "calc": gb(70e9, 2, data=16)},
    "zero3_70B_n16": {"book": gb(70e9, 3, data=16), "calc": gb(70e9, 3, data=16)},
    "zero_ratios": {
        f"r{a}{b}": gb(70e9, a, data=16) / gb(70e9, b, data=16) for a, b in ((0, 1), (1, 2), (2, 3))
    },
    "state_right_70B": {
        name: gb(70e9, zero, 8, 4, 16)
        for name, zero in (("no_zero_tp8pp4", 0), ("z1", 1), ("z2", 2), ("z3", 3))
    },
    "minNDP70": {"calc": state.least_replicas(70e9, room=75e9, layout=Layout())},
    "fsdp_comm": {
        "book_GB": book("E12", "sent", 1e9),
        "calc": quantity("collective", "zero_3.one_microbatch").book / 1e9,
        "t_book": book("E12", "once"),
        "calc_t": book("E12", "sent") / 400e9,
        "per_gpu_shard_GB": ZERO3.shard / 1e9,
        "per_gpu_pass_GB": ZERO3.once / 1e9,
        "per_gpu_3pass_GB": ZERO3.step() / 1e9,
        "t_once_50": right("E12", "once"),
        "t_ga8_full": ZERO3.step(microbatches=8, scatter_once=False) / 50e9,
        "t_ga8_rs_once": ZERO3.step(microbatches=8) / 50e9,
        "pure_fsdp_per_gpu_GB": PURE.step() / 1e9,
        "pure_fsdp_t": right("E12", "pure_fsdp"),
    },
    "stage3_vs_allreduce": {"zero3_over_ddp": right("E24", "ratio")},
    "ckpt_size_70B": {
        "bf16": state.WEIGHTS * 70,
        "master_m_v": state.checkpoint_bytes(70e9) / 1e9,
        "with_bf16": state.checkpoint_bytes(70e9, copy=True) / 1e9,
        "full16": gb(70e9, 0),
        "bw_90s_GBps": state.checkpoint_bytes(70e9) / 90 / 1e9,
        "per_gpu_GB_512": state.checkpoint_bytes(70e9) / 512 / 1e9,
    },
    "S1_7B_8": {
        name: gb(7e9, zero, data=8) for name, zero in (("ddp", 0), ("z1", 1), ("z2", 2), ("z3", 3))
    },
    "S1_200B_2048": {
        "tot": gb(200e9, 0),
        "tp8pp8": gb(200e9, 0, 8, 8, 32),
        "z1": gb(200e9, 1, 8, 8, 32),
        "z3": gb(200e9, 3, 8, 8, 32),
    },
    "S3_servers": {"calc": Layout(tensor=8, data=512).devices},
}

STEP = {
    "overlap": {
        "seq": 1e3 * TIMES.total(),
        "perfect": 1e3 * TIMES.perfect,
        "x": TIMES.total() / TIMES.perfect,
        "p70": 1e3 * TIMES.total(0.7),
        "x70": TIMES.total() / TIMES.total(0.7),
    },
    "buckets": {
        "n70k_MB": 140e9 / 70e3 / 1e6,
        "n_5MB": communication.buckets(140e9, size=5e6),
        "n_25": communication.buckets(140e9, size=25e6),
        "n_50": communication.buckets(140e9, size=50e6),
    },
    "act": {
        "p85": right("E18", "selective_saves"),
        "p92": right("E18", "full_saves"),
        **{f"full_mb{n}": right("E18", f"{n}_rows", 1e9) for n in (1, 2, 4)},
    },
    "fp32": {
        "ratio_33": book("E19", "other_ratio"),
        "ratio_67": right("E19", "ratio"),
        "book": book("E19", "ratio"),
    },
    "waterfall": {
        "add": 100 * mfu.added((0.1, 0.1, 0.09, 0.06, 0.05)),
        "mult": mfu.multiplied((0.1, 0.1, 0.09, 0.06, 0.05)),
    },
    "mfu_500k": {"book": Rounded(MACHINE.mfu(500e3), 0.001), "calc": MACHINE.mfu(500e3)},
    "mfu_attn_extra": {
        "frac": FULL / 420e9,
        "causal": mfu.attention_flops(80, width=8192, length=4096, causal=True) / 420e9,
        "mfu500k_full": dataclasses.replace(MACHINE, attention=FULL).mfu(500e3),
    },
    "mfu_cookbook": {
        "book": book("E25", "mfu"),
        "calc": SMALLER.mfu(42_500),
        "toks_for_28_7": SMALLER.tokens_per_second(0.287),
        "toks_for_28": SMALLER.tokens_per_second(0.28),
    },
    "max_toks": {
        "book": Rounded(506.4e15 / 420e9, 1),
        "calc": MACHINE.ceiling,
        "rounded": 506.4e15 / 420e9,
    },
    "mfu_expected": {
        "book": book("E29", "mfu"),
        "calc": right("E29", "mfu"),
        "toks_book": book("E29", "tokens_per_second"),
        "toks": right("E29", "tokens_per_second"),
        "corrected_bubble": right("E29", "mfu_8_microbatches"),
        "toks_corr": right("E29", "tokens_per_second_8_microbatches"),
    },
    "mfu_700_300_400": {n: MACHINE.mfu(t) for n, t in (("a", 700e3), ("b", 300e3), ("c", 400e3))},
    "mfu_cost_header": {
        "ratio": quantity("cost --mfu=65% --slower_mfu=35%", "saved.ratio").value,
        "usd": quantity("cost --tokens=26.704T --mfu=65%", "cost.useful").value / 1e6,
    },
}
