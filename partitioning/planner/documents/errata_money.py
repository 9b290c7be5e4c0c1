"""Slips of the documents about packing, devices of RLHF, lengths of runs, and money."""

from partitioning.planner.answers import Section
from partitioning.planner.calculators import cost, data_rate
from partitioning.planner.calculators.reliability import save_share
from partitioning.planner.calculators.state import STATE, Layout, per_device
from partitioning.planner.documents.chapter import (
    FAST,
    LENGTH,
    PARAMETERS,
    PRICE,
    WHOLE_HOURS,
    WRITE,
    erratum,
    figure,
)


def money_errata() -> tuple[Section, ...]:
    """Returns them."""
    return _packing(), _rlhf(), *_runs(), *_savings()


def _packing() -> Section:
    waste = data_rate.padding(600, length=LENGTH)
    return erratum(
        20,
        "Padding wastes 85% without packing, and packing gains 20%.",
        "Rows that are 85% padding gain up to 6.8 times; a gain of 20% means that they were 83% "
        "full. The gain is 1 / fill: measure the fill (docs/adding_a_dataset.md).",
        figures=(
            figure("padding", waste, "share", "1 - 600 / 4,096"),
            figure("gain", data_rate.packing_gain(1 - waste), "x", "4,096 / 600", book=1.2),
            figure("fill_of_20_percent", 1 / 1.2, "share", "1 / 1.2"),
        ),
    )


def _rlhf() -> Section:
    update = Layout(tensor=8, stage=2, data=cost.replicas(0.2 * 512, size=16))
    state = per_device(PARAMETERS, zero=3, layout=update).total
    return erratum(
        21,
        "PPO's update runs on 102 devices with TP = 8 and PP = 2.",
        "Six replicas use 96 of them. By the chapter's formula 187 GB would not fit; with tensor "
        "and pipeline parallelism counted it is 11.7 GB. The critic, which PPO trains, is missing.",
        figures=(
            figure("devices", update.devices, "", "8 x 2 x 6", book=102, book_formula="20% of 512"),
            figure(
                "state",
                state,
                "B",
                "16 x 70e9 / 96",
                book=STATE * PARAMETERS / update.data,
                book_formula="16 x 70e9 / 6",
            ),
        ),
    )


def _runs() -> tuple[Section, ...]:
    tokens = cost.optimal_tokens(PARAMETERS)
    time = cost.duration(tokens, tokens_per_second=FAST)
    dollars = cost.device_cost(512, hours=time / 3600, price=PRICE)
    chinchilla = erratum(
        31,
        "300B tokens are Chinchilla-optimal for 70B; the range for a batch is 2M to 4M tokens.",
        "Hoffmann et al. 2022 speak of tokens per parameter, about 20, and not of the batch.",
        figures=(
            figure("tokens", tokens, "tokens", "20 x 70e9", book=300e9),
            figure(
                "per_parameter",
                cost.CHINCHILLA,
                "tokens",
                "",
                book=300 / 70,
                book_formula="300 / 70",
            ),
            figure("duration", time, "s", "1.4e12 / 700e3 per s"),
            figure("cost", dollars, "USD", "512 x 555.6 h x $2"),
        ),
    )
    slow, fast = (
        cost.device_cost(512, hours=hours, price=PRICE) for hours in reversed(WHOLE_HOURS)
    )
    quarter = 4 * (slow - fast)
    year = erratum(
        30,
        "Four runs in a quarter save $364K a year.",
        "4 x $91,136 is one quarter.",
        figures=(
            figure(
                "per_year",
                cost.QUARTERS * quarter,
                "USD",
                "4 x 4 x $91,136",
                book=364e3,
                book_formula="4 x $91,136",
            ),
            figure("per_quarter", quarter, "USD", "4 x $91,136"),
        ),
    )
    return chinchilla, year


def _savings() -> tuple[Section, ...]:
    run = cost.device_cost(512, hours=5 * 24, price=PRICE)
    packing = erratum(
        32,
        "A gain of 20% by packing saves $90K of a run of five days.",
        "The run costs $122,880, and 20% more tokens per second save a sixth of it.",
        figures=(
            figure("saved", run * (1 - 1 / 1.2), "USD", "$122,880 x (1 - 1 / 1.2)", book=90e3),
            figure("run", run, "USD", "512 x 120 h x $2"),
            figure("fifth_of_119_h", 0.2 * 512 * 119 * PRICE, "USD", "20% of $121,856"),
        ),
    )
    waiting, writing = (save_share(76, save=save) for save in (5, WRITE))
    days = 30 * (writing - waiting)
    saved = cost.device_cost(512, hours=24 * days, price=PRICE)
    recovered = erratum(
        33,
        "Asynchronous saving recovers 13 days of a run of 30, worth $748,800.",
        "30 x (54.22% - 6.17%) are 14.4 days. 13 days would be $319,488; $748,800 are 30.5 days.",
        figures=(
            figure("days", days, "days", "30 x (90/166 - 5/81)", book=13),
            figure("saved", saved, "USD", "14.41 x 24 h x 512 x $2", book=748_800),
            figure("13_days", cost.device_cost(512, hours=13 * 24, price=PRICE), "USD"),
            figure("days_for_748800", 748_800 / (512 * 24 * PRICE), "days"),
        ),
    )
    return packing, recovered
