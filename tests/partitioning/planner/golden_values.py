"""What the calculators give for every key of golden/seed_golden.json, in the same shape.

The file holds what the documents print (`book`), and what their formulas and the right ones give,
worked out apart from this code. Units are those of its keys.
"""

import dataclasses
import math

from partitioning.planner import (
    activations,
    bubble,
    communication,
    cost,
    data_rate,
    mfu,
    reliability,
    spares,
    state,
)
from partitioning.planner.chapter import MACHINE, SMALLER, TIMES, TRACE, saving
from partitioning.planner.commands.errata import errata
from partitioning.planner.communication import Ring, Sharded
from partitioning.planner.reliability import META, ONE_PERCENT, Saving, save_share
from partitioning.planner.state import Layout


@dataclasses.dataclass(frozen=True)
class Rounded:
    """A printed value that is ours, cut or rounded to its digits."""

    value: float
    unit: float

    def __eq__(self, printed):
        return abs(self.value - printed) <= self.unit


ERRATA = {(e.name, q.name): q for e in errata() for q in e.quantities}


def book(number, name, scale=1.0):
    printed = ERRATA[number, name].book
    assert printed is not None
    return printed / scale


def right(number, name, scale=1.0):
    return ERRATA[number, name].value / scale


def gb(parameters, zero, tensor=1, stage=1, data=1, context=1):
    layout = Layout(tensor=tensor, stage=stage, data=data, context=context)
    return state.per_device(parameters, zero=zero, layout=layout).total / 1e9


def message(rows, width=8192):
    return communication.residual(rows, length=4096, width=width)


def ms(rows, bandwidth, *, ring=True, width=8192):
    if not ring:
        return 1e3 * message(rows, width) / bandwidth
    return 1e3 * communication.all_reduce(message(rows, width), devices=8, bandwidth=bandwidth)


def waits(stages, microbatches, chunks=1):
    return bubble.bubble(stages, microbatches=microbatches, chunks=chunks)


def hours(devices, rate=ONE_PERCENT):
    return reliability.mtbf(devices, rate=rate) / 3600


def weekly(devices):
    return reliability.per_week(devices, rate=ONE_PERCENT)


def parts(job, interval=None):
    lost = job.loss(interval or reliability.young(job.save, mtbf=job.mtbf))
    return {
        "ckpt": lost.checkpoint,
        "rework": lost.rework,
        "restart": lost.restart,
        "total": lost.total,
    }


def dollars(hours, devices=512):
    return cost.device_cost(devices, hours=hours, price=2.0)


def spare(repair):
    between = reliability.mtbf(8192, rate=ONE_PERCENT)
    return {
        "lam": repair / between,
        "nodes": spares.spares(between, repair=repair, confidence=0.995),
    }


def layer(rows, length=4096, width=12_288):
    return activations.Layer(rows=rows, length=length, width=width, tensor=8)


def young(job):
    return reliability.young(job.save, mtbf=job.mtbf)


def daly(job):
    return reliability.daly(job.save, mtbf=job.mtbf)


def by_book(job):
    return reliability.by_the_book(job.save, recovery=job.recovery)


J512, J4096 = saving(), saving(4096, save=8)
J8192 = saving(8192, save=6, recovery=480)
J8192_SLOW = dataclasses.replace(J8192, recovery=600)
J1000 = saving(1000, save=8)
META_4096 = Saving(save=8, mtbf=3600 * hours(4096, META), recovery=300)
ZERO3 = Sharded(parameters=70e9, layout=Layout(tensor=8, stage=4, data=16))
PURE = Sharded(parameters=70e9, layout=Layout(data=512))
FULL = mfu.attention_flops(80, width=8192, length=4096)
RUN, SLOW_RUN = 300e9 / 700e3, 300e9 / 400e3
SPLIT = cost.divided(512, {"a": 0.4, "b": 0.15, "c": 0.25, "d": 0.2})
WEEK_HOURS = 4096 * 168
ASYNC_BOOK = save_share(97.5, save=8)
P1 = 175e9
BUBBLES = {
    "bubble_pp4_m8_v1": (4, 8, 1),
    "bubble_pp4_m8_v2": (4, 8, 2),
    "bubble_pp4_m32_v1": (4, 32, 1),
    "bubble_pp4_m128_v1": (4, 128, 1),
    "bubble_pp8_m32_v1": (8, 32, 1),
}

INPUT = {
    "bw_total_Bps": {
        "book": book("E1", "bytes_per_second"),
        "calc": data_rate.bytes_per_second(2048 * 4096 * 0.5, width=2),
        "right": data_rate.bytes_per_second(256 * 4096 * 0.5, width=2),
        "at700k": data_rate.bytes_per_second(700e3, width=2),
        "at700k_u32": data_rate.bytes_per_second(700e3, width=4),
    },
    "bw_toks_implied": {
        "calc": right("E1", "assumed"),
        "ceiling": MACHINE.ceiling,
        "ratio": right("E1", "over_ceiling"),
    },
    "shard_opens_per_s": {
        "book": Rounded(right("E2", "opens_assumed"), 1),
        "calc": right("E2", "opens_assumed"),
        "right_1M": data_rate.opens_per_second(524_288, shard=1e6),
        "right_100M": data_rate.opens_per_second(524_288, shard=100e6),
        "book_metadata": book("E2", "opens"),
    },
    "packing": {
        "waste": data_rate.padding(600, length=4096),
        "max_gain_x": data_rate.packing_gain(600 / 4096),
        "util_for_20pct": right("E20", "fill_of_20_percent"),
        "gpus": 0.2 * MACHINE.devices,
    },
    "packing_usd": {
        "run": right("E32", "run"),
        "save_20": right("E32", "saved"),
        "save_naive": right("E32", "fifth_of_119_h"),
        "book": book("E32", "saved"),
    },
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
        "accum_needed_for_M32": 32,
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
        "calc": 3 * 2 * 70,
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
    "S3_servers": {"calc": 512 * 8},
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
        "p85": (144 - 22) / 144,
        "p92": (144 - 11) / 144,
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
        "ratio": 0.65 / 0.35,
        "usd": cost.cost_at(18, mfu=0.35, better=0.65),
    },
}

FAILING = {
    **{
        f"mtbf_{n}": {
            "book_wk": Rounded(weekly(n), 0.1),
            "calc_wk": weekly(n),
            "book_h": Rounded(hours(n), 1),
            "calc_h": hours(n),
        }
        for n in (512, 1024, 4096, 16_384)
    },
    "llama_50d": {
        "book": book("E15", "failures"),
        "calc": right("E15", "failures"),
        "per_day": right("E15", "per_day"),
        "d49": right("E15", "in_49_days"),
    },
    "meta": {
        "per_day": reliability.per_week(16_384, rate=META) / 7,
        "hours": hours(16_384, META),
        "rate_per_gpu_week_pct": 100 * META,
        "vs_book": right("E15", "too_high"),
        "hw78": 0.78 * right("E15", "measured"),
    },
    **{f"mtbf_meta_{n}": {"h": hours(n, META)} for n in (512, 1024, 4096, 8192, 16_384)},
    "ckpt_512": {
        "book": Rounded(by_book(J512), 0.1),
        "calc": by_book(J512),
        "steps": by_book(J512) / 2,
        "mtbf_s": J512.mtbf,
        "young": young(J512),
        "young_steps": young(J512) / 2,
        "daly": daly(J512),
    },
    "ckpt_512_book_ovh": parts(J512, by_book(J512)),
    "ckpt_512_young_ovh": parts(J512),
    "ckpt_512_sync90_young": {
        "tau": young(saving(save=90)),
        **parts(saving(save=90)),
    },
    "ckpt_ovh_book": {
        "sync": save_share(76, save=90),
        "asyn": book("E17", "saving"),
        "interval_lt_write": book("E17", "least_interval") < right("E17", "least_interval"),
    },
    "recovered": {
        "book_days": book("E33", "days"),
        "calc": right("E33", "days"),
        "usd_13d": right("E33", "13_days"),
        "usd_calc": right("E33", "saved"),
        "book_usd": book("E33", "saved"),
        "book_days_implied": right("E33", "days_for_748800"),
    },
    "spares": {"book": 4, "calc": spares.by_share(64, share=0.05)},
    "I3": {
        "fail_wk": weekly(4096),
        "mtbf_h": hours(4096),
        "mtbf_s": J4096.mtbf,
        "book": by_book(J4096),
        "book_steps": by_book(J4096) / 1.5,
        "young": young(J4096),
        "young_steps": young(J4096) / 1.5,
        "daly": daly(J4096),
        "sync": save_share(150, save=120),
        "async_book": ASYNC_BOOK,
        "async_100": save_share(150, save=8),
        "async_young": save_share(young(J4096), save=8),
        "gpuh_wk": WEEK_HOURS,
        "waste_sync": WEEK_HOURS * save_share(150, save=120),
        "waste_async_book": WEEK_HOURS * ASYNC_BOOK,
        "diff": WEEK_HOURS * (save_share(150, save=120) - ASYNC_BOOK),
        "diff_young": WEEK_HOURS * (save_share(150, save=120) - save_share(young(J4096), save=8)),
        "diff_100": WEEK_HOURS * (save_share(150, save=120) - save_share(150, save=8)),
    },
    "P2": {
        "fail_wk": weekly(8192),
        "mtbf_h": hours(8192),
        "mtbf_s": J8192.mtbf,
        "book": by_book(J8192),
        "book_steps": by_book(J8192) / 1.5,
        "ovh_book": save_share(75, save=6),
        "young": young(J8192),
        "young_steps": young(J8192) / 1.5,
        "ovh_young": save_share(young(J8192), save=6),
        "daly": daly(J8192),
    },
    "P2_total_young": parts(J8192_SLOW),
    "P2_total_book": parts(J8192_SLOW, by_book(J8192)),
    "P2_mttr_for_995": {
        "s": reliability.recovery_for(J8192.mtbf, availability=0.995),
        "avail_10min": reliability.availability(J8192.mtbf, recovery=600),
        "avail_8min": reliability.availability(J8192.mtbf, recovery=480),
    },
    "P2_spares_repair0.17h": spare(600.0),
    **{f"P2_spares_repair{h:.2f}h": spare(3600.0 * h) for h in (1, 4, 24, 72, 168)},
    "P2_5pct": {"nodes": spares.by_share(1024, share=0.05)},
    "S1_slo": {
        "down_min_month": reliability.downtime(0.9995, period=30 * 86_400) / 60,
        "down_h_year": reliability.downtime(0.9995, period=365 * 86_400) / 3600,
    },
    "S1_4096_uptime": parts(saving(4096, save=8, recovery=300)),
    "S1_4096_uptime_tc2": parts(saving(4096, save=2, recovery=300)),
    "S3_4096": {
        "meta_h": hours(4096, META),
        "book_h": hours(4096),
        "young8_meta": young(META_4096),
        "young8_book": young(J4096),
    },
    "S3_eff_meta": parts(META_4096),
    "S1_1000gpu": {
        "mtbf_h": hours(1000),
        "young8": young(J1000),
        "max_loss_min": dataclasses.replace(J1000, progress=600).interval()[0] / 60,
    },
}

MONEY = {
    "cost": {
        "sec": cost.duration(300e9, tokens_per_second=700e3),
        "h": RUN / 3600,
        "days": RUN / 86_400,
        "usd_book": dollars(119),
        "usd": dollars(RUN / 3600),
        "usd_119": dollars(119),
        "sec2": cost.duration(300e9, tokens_per_second=400e3),
        "h2": SLOW_RUN / 3600,
        "d2": SLOW_RUN / 86_400,
        "usd2": dollars(SLOW_RUN / 3600),
        "usd2_208": dollars(208),
        "diff": dollars(208) - dollars(119),
        "diff_exact": dollars((SLOW_RUN - RUN) / 3600),
        "per_quarter4": right("E30", "per_quarter"),
        "per_year16": right("E30", "per_year"),
    },
    "chinchilla": {
        "tokens": cost.optimal_tokens(70e9),
        "sec": right("E31", "duration"),
        "days": right("E31", "duration", 86_400),
        "usd": right("E31", "cost"),
        "tok_per_param": book("E31", "per_parameter"),
    },
    "rlhf": {
        **SPLIT,
        "rep70": cost.replicas(SPLIT["a"], size=8),
        "rep13": cost.replicas(SPLIT["b"], size=4),
        "ref": cost.replicas(SPLIT["c"], size=8),
        "ppo_replicas": cost.replicas(SPLIT["d"], size=16),
        "ppo_used": right("E21", "devices"),
        "ppo_state_GB": right("E21", "state", 1e9),
        "ppo_book_formula": book("E21", "state", 1e9),
    },
}

QUESTIONS = {
    "F2": {
        "z1_32": gb(70e9, 1, data=32),
        "z3_32": gb(70e9, 3, data=32),
        "z1_tp8dp4": gb(70e9, 1, 8, 1, 4),
        "nozero_tp8pp4": gb(70e9, 0, 8, 4),
    },
    "I1": {
        **{f"z{n}": gb(30e9, 3, data=n) for n in (4, 8, 16)},
        "pp4_layers": 48 / 4,
        "dp": 256 // (8 * 4),
        "M_lt10": bubble.least_microbatches(4, below=0.1),
        "accum_book": 28 * 4 / 8,
        "accum_right": bubble.least_microbatches(4, below=0.1),
        "bubble_m16": waits(4, 16),
        "params_12Ld2": right("E38", "parameters", 1e9),
        "state_right": gb(30e9, 3, 8, 4, 8),
        "no_zero": gb(30e9, 0, 8, 4, 8),
    },
    "I2": {
        "mfu": MACHINE.mfu(85e3),
        "min_ms": 1e3 * TRACE.perfect,
        "o80": 1e3 * TRACE.total(0.8),
        "x": TRACE.total() / TRACE.total(0.8),
        "mfu80": MACHINE.mfu(85e3) * TRACE.total() / TRACE.total(0.8),
        "mfu_perfect": MACHINE.mfu(85e3) * TRACE.total() / TRACE.perfect,
        "toks_1M": right("E39", "tokens_per_second"),
        "mfu_1M": right("E39", "mfu"),
        "mfu_1M_80": right("E39", "mfu") * TRACE.total() / TRACE.total(0.8),
        "toks_per_step_at85k": right("E39", "in_a_step"),
    },
    "P1": {
        "minN": state.least_replicas(P1, room=75e9, layout=Layout()),
        "pp1_dp256": gb(P1, 3, data=256),
        "pp4_dp64": gb(P1, 3, data=64),
        "pp8_dp32": gb(P1, 3, data=32),
        "right": gb(P1, 3, 8, 4, 64),
        "nozero_tp8pp8": gb(P1, 0, 8, 8, 32),
        "z1_tp8pp8dp32": gb(P1, 1, 8, 8, 32),
        "params_12Ld2": 12 * 96 * 12_288**2 / 1e9,
    },
    "P1act": {
        "sel_tp_sp_per_layer_GB": layer(4).selective() / 1e9,
        "x24": 24 * layer(4).selective() / 1e9,
        "x96": activations.layers_in_flight(96, stages=4, microbatches=35)
        * layer(4).selective()
        / 1e9,
        "full_tp_sp_x96": 96 * layer(4).full() / 1e9,
        "full_nosp_x96": 96 * dataclasses.replace(layer(4), sequence_parallel=False).full() / 1e9,
        "mb1_sel_x96": 96 * layer(1).selective() / 1e9,
        "book_scaled": 22 * math.prod((1.5, 1.2)),
    },
    "P1tp": {
        "MB": message(4, 12_288) / 1e6,
        "ms600": ms(4, 600e9, ring=False, width=12_288),
        "ms450f": ms(4, 450e9, width=12_288),
        "ib": ms(4, 50e9, ring=False, width=12_288),
        "step600": 192 * ms(4, 600e9, ring=False, width=12_288),
        "stepib": 192 * ms(4, 50e9, ring=False, width=12_288),
    },
    "P1bubble": {
        "M": bubble.least_microbatches(4, below=0.08),
        "b": waits(4, 35),
        "book_accum": 35 * 4 / 64,
        "b48": waits(4, 48),
    },
    "P1cp": {
        "dp_pp4_cp8": 2048 // (8 * 4 * 8),
        "tokens_per_gpu": 131_072 // 8,
        "act_mb1_cp8_per_layer": layer(1, 16_384).selective() / 1e9,
        "kv_GB": Ring(length=131_072, keys=12_288, context=8).keys_and_values / 1e9,
        "book_z3_dp8": gb(P1, 3, data=8),
        "z3_dpcp64": gb(P1, 3, data=8, context=8),
    },
    "P3": {
        "toks28": SMALLER.tokens_per_second(0.28),
        "seq104": 1e3 * TIMES.total(),
        "o80": 1e3 * TIMES.total(0.8),
        "x": TIMES.total() / TIMES.total(0.8),
        "mfu": 28 * TIMES.total() / TIMES.total(0.8),
        "perfect": 28 * TIMES.total() / TIMES.perfect,
        "i2_80": 28 * TRACE.total() / TRACE.total(0.8),
        "i2_perfect": 28 * TRACE.total() / TRACE.perfect,
    },
}

VALUES = INPUT | TENSOR | PIPELINE | SHARDING | STEP | FAILING | MONEY | QUESTIONS
