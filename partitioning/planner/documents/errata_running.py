"""Slips of the documents about input, failures, precision, utilisation and monitoring."""

from partitioning.planner.answers import Section
from partitioning.planner.calculators import data_rate, mfu, reliability
from partitioning.planner.calculators.bubble import bubble
from partitioning.planner.calculators.reliability import META, ONE_PERCENT, save_share
from partitioning.planner.documents.chapter import (
    FAST,
    LENGTH,
    MACHINE,
    SMALLER,
    STEP,
    TRACE,
    WRITE,
    erratum,
    figure,
    saving,
)


def running_errata() -> tuple[Section, ...]:
    """Returns them."""
    return (
        *_input(),
        *_failures(),
        *_saving(),
        *_precision(),
        *_utilisation(),
        *_estimates(),
        *_monitoring(),
    )


def _input() -> tuple[Section, ...]:
    implied, batch = 2048 * LENGTH * 0.5, 256 * LENGTH * 0.5
    rate = data_rate.bytes_per_second
    volume = erratum(
        1,
        "The input of 70B on 512 devices is 8 MB/s.",
        "8,388,608 B/s are 8.0 MiB/s, or 8.39 MB/s. They assume 4.2M tokens/s, 3.5 times what the "
        "devices could do at their peak; the chapter's own batch has 256 rows. Words beyond 65,536 "
        "need four bytes.",
        figures=(
            figure(
                "bytes_per_second",
                rate(batch, width=2),
                "B/s",
                "256 x 4,096 x 2 B x 0.5 per s",
                book=8e6,
                book_formula="2,048 x 4,096 x 2 B x 0.5 per s = 8,388,608 B/s",
            ),
            figure("at_700K", rate(FAST, width=2), "B/s", "700e3 x 2 B"),
            figure("at_700K_wide", rate(FAST, width=4), "B/s", "700e3 x 4 B"),
            figure("assumed", implied, "tokens/s", "2,048 x 4,096 x 0.5"),
            figure("over_ceiling", implied / MACHINE.ceiling, "x", "4,194,304 / 1,205,638"),
        ),
    )
    opens = data_rate.opens_per_second
    metadata = erratum(
        2,
        "Four file reads per second with 10,000 workers are 40,000 metadata operations per second.",
        "Workers share the shards; they do not each open all of them. An open is 3 to 5 metadata "
        "operations. The advice stands: shards of 100M tokens or more.",
        figures=(
            figure(
                "opens",
                opens(batch, shard=1e6),
                "per s",
                "524,288 / 1e6",
                book=40e3,
                book_formula="4 x 10,000",
            ),
            figure("opens_assumed", opens(implied, shard=1e6), "per s", "4,194,304 / 1e6"),
            figure("opens_of_100M", opens(batch, shard=100e6), "per s", "524,288 / 100e6"),
        ),
    )
    return volume, metadata


def _failures() -> tuple[Section, ...]:
    daily = reliability.per_week(16_384, rate=ONE_PERCENT) / 7
    measured = reliability.per_week(16_384, rate=META) / 7 * 54
    expected = erratum(
        15,
        "16,384 devices fail 1,148 times in 50 days.",
        "163.84 / 7 x 50; 1,147 is 49 days. Meta measured 419 in 54 days, so 1% per device and "
        "week is three times too high for that run.",
        figures=(
            figure("failures", 50 * daily, "", "163.84 / 7 x 50", book=1148),
            figure("per_day", daily, "", "163.84 / 7", book=23),
            figure("in_49_days", 49 * daily, "", "163.84 / 7 x 49"),
            figure("measured", measured, "", "Meta, 54 days"),
            figure("rate_measured", META, "share", "419 / (54 / 7) / 16,384"),
            figure("too_high", ONE_PERCENT / META, "x", "1% / 0.3315%"),
        ),
    )
    between = saving(8192).mtbf
    need = reliability.recovery_for
    uptime = erratum(
        37,
        "8,192 devices are to be up 99.5% of the time with a recovery of 10 minutes.",
        "They fail every two hours, so ten minutes cost 8%. Spares do not change that: they make a "
        "host ready, not a recovery short. Needed: 37 s, or failures 16 times rarer.",
        figures=(
            figure(
                "recovery",
                need(between, availability=0.995),
                "s",
                "7,382.8 s x 0.005 / 0.995",
                book=600,
            ),
            figure(
                "availability",
                reliability.availability(between, recovery=600),
                "share",
                "7,382.8 / (7,382.8 + 600)",
                book=0.995,
            ),
            figure(
                "mtbf",
                reliability.mtbf_for(600, availability=0.995),
                "s",
                "600 s x 0.995 / 0.005",
                book=between,
            ),
        ),
    )
    return expected, uptime


def _saving() -> tuple[Section, ...]:
    job = saving()
    young = reliability.young(job.save, mtbf=job.mtbf)
    book = reliability.by_the_book(job.save, recovery=job.recovery)
    interval = erratum(
        16,
        "The best checkpoint interval is sqrt(2 Tc Tr) with Tr the time of a recovery: 77.5 s.",
        "A recovery is paid once per failure, whatever the interval. Young and Daly have the time "
        "between failures in its place; the design task asks for them by name. Saving every 77.5 s "
        "loses more than four times what it must.",
        figures=(
            figure(
                "interval",
                young,
                "s",
                "sqrt(2 x 5 s x 118,125 s)",
                book=book,
                book_formula="sqrt(2 x 5 x 600)",
            ),
            figure(
                "steps",
                young / STEP,
                "steps",
                "1,086.9 s / 2 s",
                book=38,
                book_formula="77.5 s / 2 s",
            ),
            figure("daly", reliability.daly(job.save, mtbf=job.mtbf), "s", "higher order"),
            figure("lost", job.loss(young).total, "share", "at Young", book=job.loss(book).total),
        ),
    )
    share = save_share(young, save=5)
    overhead = erratum(
        17,
        "Asynchronous saving at 38 steps costs 6.2%, which is acceptable.",
        "The same chapter's goal is below 5%, the design task's at most 2%. And the write of 90 s "
        "in the background is not over when the next save is due after 76 s.",
        figures=(
            figure(
                "saving",
                share,
                "share",
                "5 / (1,086.9 + 5)",
                book=5 / 81,
                book_formula="5 / (76 + 5)",
            ),
            figure(
                "least_interval",
                WRITE,
                "s",
                "the background write",
                book=76,
                book_formula="38 x 2 s",
            ),
        ),
    )
    return interval, overhead


def _precision() -> tuple[Section, ...]:
    return (
        erratum(
            19,
            "BF16 is 8 times as fast as FP32 on an H100, and elsewhere 30 times.",
            "989 / 33 is 30, but 33 is the rate of FP64; NVIDIA's data sheet gives 67 TFLOP/s of "
            "FP32 for the SXM module. 8 times stands on nothing.",
            figures=(
                figure("ratio", 989 / 67, "x", "989 / 67", book=8),
                figure(
                    "other_ratio", 989 / 67, "x", "989 / 67", book=989 / 33, book_formula="989 / 33"
                ),
            ),
        ),
        erratum(
            26,
            "Xid 79 is a double-bit ECC error.",
            "NVIDIA's catalogue: 48 is the uncorrectable double-bit ECC error, 79 is a device that "
            "has fallen off the bus. Both drain the host (launch/health.py).",
        ),
    )


def _utilisation() -> tuple[Section, ...]:
    losses = (0.1, 0.1, 0.09, 0.06, 0.05)
    waterfall = erratum(
        22,
        "The waterfall ends at 60%, then at 58%.",
        "Losses are subtracted, but each takes its share of what the ones before left.",
        figures=(
            figure(
                "left",
                mfu.multiplied(losses),
                "share",
                "0.9 x 0.9 x 0.91 x 0.94 x 0.95",
                book=mfu.added(losses),
                book_formula="100 - 10 - 10 - 9 - 6 - 5%",
            ),
        ),
    )
    cookbook = erratum(
        25,
        "42,500 tokens/s of a 30B model on 256 devices are an MFU of 28.7%.",
        "The program that the cookbook shows prints 3.0%.",
        figures=(
            figure("mfu", SMALLER.mfu(42_500), "share", "42,500 x 180e9 / 253.2e15", book=0.287),
            figure("for_28_7", SMALLER.tokens_per_second(0.287), "tokens/s", "0.287 x 1,406,578"),
            figure("for_28", SMALLER.tokens_per_second(0.28), "tokens/s", "0.28 x 1,406,578"),
        ),
    )
    trace, tokens = TRACE.total(), 256 * LENGTH
    review = erratum(
        39,
        "A step of 1.91 s on 512 devices gives 85,000 tokens/s.",
        "Those are 162,350 tokens in a step; the chapter's batch has 1,048,576. We answer both.",
        figures=(
            figure("in_a_step", 85e3 * trace, "tokens", "85,000 x 1.91 s"),
            figure(
                "tokens_per_second", tokens / trace, "tokens/s", "1,048,576 / 1.91 s", book=85e3
            ),
            figure(
                "mfu",
                MACHINE.mfu(tokens / trace),
                "share",
                "548,993 x 420e9 / 506.4e15",
                book=MACHINE.mfu(85e3),
            ),
        ),
    )
    return waterfall, cookbook, review


def _estimates() -> tuple[Section, ...]:
    rest = 0.9 * 0.92 * 0.95
    printed, plain = 0.914 * rest, (1 - bubble(4, microbatches=8)) * rest
    product = erratum(
        29,
        "0.914 x 0.90 x 0.92 x 0.95 = 0.721.",
        "It is 0.719. With the true bubble of 8 microbatches (E8) it is 0.572.",
        figures=(
            figure("mfu", printed, "share", "0.914 x 0.90 x 0.92 x 0.95", book=0.721),
            figure(
                "tokens_per_second",
                MACHINE.tokens_per_second(printed),
                "tokens/s",
                "0.71895 x 1,205,638",
                book=869_320,
            ),
            figure("mfu_8_microbatches", plain, "share", "8/11 x 0.90 x 0.92 x 0.95"),
            figure(
                "tokens_per_second_8_microbatches",
                MACHINE.tokens_per_second(plain),
                "tokens/s",
                "0.57207 x 1,205,638",
            ),
        ),
    )
    llama = erratum(
        34,
        "Runs of LLaMA-3 reach about 65% MFU.",
        "Grattafiori et al. 2024 (The Llama 3 Herd of Models, table 4) report 38 to 43% in BF16 "
        "for 405B on 8,192 and 16,384 devices, and nothing for 70B. We know no source for 65%.",
        figures=(
            figure("lowest", 0.38, "share", "16,384 devices, 131,072 tokens", book=0.65),
            figure("highest", 0.43, "share", "8,192 devices, 8,192 tokens", book=0.65),
        ),
    )
    return product, llama


def _monitoring() -> tuple[Section, ...]:
    patterns = erratum(
        42,
        "The last review question asks for the chapter's six anti-patterns and their frequency.",
        "The text has no such list. `review --question=P3f` collects them; of frequency it only "
        "says that kernels are tuned while the input starves, and that overlap is misconfigured "
        "most often.",
    )
    return (patterns,)
