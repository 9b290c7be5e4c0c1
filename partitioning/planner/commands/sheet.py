"""``sheet``: the chapter's quick reference, with the right values."""

import dataclasses
from typing import Any

from partitioning.planner.answers import Answer, Quantity, Section
from partitioning.planner.calculators import (
    communication,
    data_rate,
    layout_terms,
    running_terms,
    state,
)
from partitioning.planner.calculators.bubble import bubble
from partitioning.planner.calculators.communication import PASSES, Sharded
from partitioning.planner.calculators.layout_terms import BOOK_NVLINK, NVLINK
from partitioning.planner.calculators.reliability import ONE_PERCENT, save_share, young
from partitioning.planner.command import Given, add
from partitioning.planner.documents.chapter import (
    ACCUMULATION,
    FAST,
    LAYOUT,
    LENGTH,
    MACHINE,
    PARAMETERS,
    ROWS,
    WIDTH,
    saving,
)


def register(commands: Any) -> None:
    """Adds the command."""
    add(
        commands,
        "sheet",
        "The numbers to know: the chapter's quick reference for 70B on 512 H100, its configuration "
        "and its eight numbers, each with its terms, and with what the chapter prints where that "
        "is another value.",
        ["sheet", "sheet --policy=book", "sheet --json"],
        run=_sheet,
    )


def _sheet(given: Given) -> Answer:
    del given
    return Answer(
        title="Quick reference: 70B on 512 H100",
        sections=(
            Section(name="formulas", title="Formulas", quantities=_formulas()),
            Section(name="parameters", title="Configuration", quantities=_parameters()),
            Section(name="numbers", title="Eight numbers", quantities=_numbers()),
        ),
        notes=("`errata` says more about every E.",),
    )


def _call() -> Quantity:
    message = communication.residual(4, length=LENGTH, width=WIDTH)
    return layout_terms.all_reduce_time(
        message,
        devices=LAYOUT.tensor,
        bandwidth=NVLINK,
        name="all_reduce",
        book_bandwidth=BOOK_NVLINK,
    )


def _bubble() -> Quantity:
    return Quantity(
        name="bubble",
        value=bubble(LAYOUT.stage, microbatches=ACCUMULATION),
        unit="share",
        formula="3 / (3 + 8)",
        book=bubble(LAYOUT.stage, microbatches=32),
        book_formula="3 / (3 + 32)",
        note="E8: microbatches of one replica; E7: below 10% from 28 on",
    )


def _formulas() -> tuple[Quantity, ...]:
    rows = ROWS * ACCUMULATION * LAYOUT.data
    return (
        running_terms.utilisation(MACHINE, tokens_per_second=FAST),
        _bubble(),
        layout_terms.state_bytes(PARAMETERS, zero=3, layout=LAYOUT),
        _call(),
        Quantity(name="rows", value=rows, formula="2 x 8 x 16"),
        Quantity(name="tokens", value=rows * LENGTH, formula="256 x 4,096"),
        running_terms.intervals(saving())[0],
        layout_terms.sharded_traffic(Sharded(parameters=PARAMETERS, layout=LAYOUT)),
    )


def _parameters() -> tuple[Quantity, ...]:
    job = saving()
    return (
        Quantity(name="tensor", value=LAYOUT.tensor, formula="devices of a host; never across"),
        Quantity(
            name="stage",
            value=LAYOUT.stage,
            formula="20 layers each",
            note="E10: the chapter's own tree ends with 1",
        ),
        Quantity(name="data", value=LAYOUT.data, formula="512 / (8 x 4 x 1)"),
        Quantity(name="context", value=LAYOUT.context, formula="1 up to 32K tokens"),
        Quantity(name="accumulation", value=ACCUMULATION),
        layout_terms.state_bytes(PARAMETERS, zero=3, layout=LAYOUT, name="state"),
        dataclasses.replace(_call(), name="tensor_all_reduce"),
        layout_terms.sharded_traffic(Sharded(parameters=PARAMETERS, layout=LAYOUT), name="traffic"),
        Quantity(name="failures", value=ONE_PERCENT, unit="share", formula="per device and week"),
        running_terms.failures(512, rate=ONE_PERCENT)[1],
        Quantity(
            name="typical_mfu",
            value=0.40,
            unit="share",
            formula="38 to 43% published for 405B",
            book=0.65,
            note="E34: the paper says otherwise",
        ),
        _packing(),
        Quantity(
            name="saving",
            value=save_share(young(job.save, mtbf=job.mtbf), save=job.save),
            unit="share",
            formula="5 / (1,086.9 + 5)",
            book=save_share(76, save=5),
            book_formula="5 / (76 + 5)",
            note="E17: above the chapter's own goal of 5%",
        ),
    )


def _packing() -> Quantity:
    return Quantity(
        name="packing_gain",
        value=data_rate.packing_gain(1 / 1.2),
        unit="x",
        formula="1 / fill, for rows that were 83.3% full",
        note="E20: measure the fill",
    )


def _numbers() -> tuple[Quantity, ...]:
    return (
        Quantity(name="per_parameter", value=state.STATE, unit="B", formula="2 + 2 + 4 + 4 + 4"),
        Quantity(
            name="slower_across_hosts",
            value=NVLINK / layout_terms.INFINIBAND,
            unit="x",
            formula="450 / 50, tensor parallelism stays inside a host",
            book=12,
            book_formula="600 / 50",
            note="E3: one way",
        ),
        layout_terms.least_microbatches(LAYOUT.stage, below=0.1),
        running_terms.intervals(saving())[0],
        Quantity(
            name="zero_3_over_all_reduce",
            value=PASSES / 2,
            unit="x",
            formula="3 volumes / 2",
            book=3,
            note="E24: an all-reduce is two volumes",
        ),
        running_terms.failures(512, rate=ONE_PERCENT)[1],
        Quantity(
            name="full_recomputation",
            value=1 / 3,
            unit="share",
            formula="1 forward of 1 + 2",
            book=0.30,
            note="E18: three values in one chapter",
        ),
        _packing(),
    )
