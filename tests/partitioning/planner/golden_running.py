"""Golden values of running: input, failures, money."""

import dataclasses

from partitioning.planner.calculators import cost, data_rate, reliability, spares
from partitioning.planner.calculators.reliability import META, Saving, save_share
from partitioning.planner.documents.chapter import MACHINE, saving
from tests.partitioning.planner.golden_terms import (
    Rounded,
    book,
    by_book,
    daly,
    dollars,
    hours,
    parts,
    right,
    spare,
    weekly,
    young,
)

J512, J4096 = saving(), saving(4096, save=8)
J8192 = saving(8192, save=6, recovery=480)
J8192_SLOW = dataclasses.replace(J8192, recovery=600)
J1000 = saving(1000, save=8)
META_4096 = Saving(save=8, mtbf=3600 * hours(4096, META), recovery=300)
RUN, SLOW_RUN = 300e9 / 700e3, 300e9 / 400e3
SPLIT = cost.divided(512, {"a": 0.4, "b": 0.15, "c": 0.25, "d": 0.2})
WEEK_HOURS = 4096 * 168
ASYNC_BOOK = save_share(97.5, save=8)

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
    "spares": {"book": spares.by_share(64, share=0.05), "calc": spares.by_share(64, share=0.05)},
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
