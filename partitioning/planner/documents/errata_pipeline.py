"""Slips of the documents about pipelines."""

from partitioning.planner.answers import Section
from partitioning.planner.calculators import bubble, communication, layout_terms
from partitioning.planner.calculators.layout_terms import INFINIBAND
from partitioning.planner.documents.chapter import (
    ACCUMULATION,
    LAYOUT,
    LENGTH,
    ROWS,
    WIDTH,
    erratum,
    figure,
)

_STAGES = LAYOUT.stage


def pipeline_errata() -> tuple[Section, ...]:
    """Returns them."""
    return *_bubbles(), _microbatches(), _bound(), _transfers()


def _bubbles() -> tuple[Section, ...]:
    share = layout_terms.bubble_share
    gpipe = erratum(
        6,
        "GPipe has a bubble of 75% with 4 stages and 4 microbatches.",
        "75% is one microbatch, no pipelining at all. GPipe and 1F1B have the same bubble with the "
        "same microbatches; what differs is how many activations wait.",
        figures=(
            figure(
                "bubble", bubble.bubble(_STAGES, microbatches=4), "share", "3 / (3 + 4)", book=0.75
            ),
            share(_STAGES, microbatches=1, name="one_microbatch"),
        ),
    )
    rule = erratum(
        7,
        "M >= 4 x PP keeps the bubble below 10%.",
        "It leaves (PP - 1) / (5 PP - 1), which grows towards 20%. Below 10% needs 9 (PP - 1) + 1 "
        "microbatches; one less is exactly 10%. The cookbook computes 28 and prints 16.",
        figures=(
            *(share(n, microbatches=4 * n, name=f"{n}_stages") for n in (2, 4, 8, 64)),
            layout_terms.least_microbatches(4, below=0.1, name="least_for_4"),
            layout_terms.least_microbatches(8, below=0.1, name="least_for_8"),
        ),
    )
    return gpipe, rule


def _microbatches() -> Section:
    rows = bubble.sequences(ROWS, accumulation=32, layout=LAYOUT)
    return erratum(
        8,
        "The pipeline has M = accumulation x DP / PP = 32 microbatches, and a bubble of 8.6%.",
        "Every replica has a pipeline of its own and does not see the others' microbatches; stages "
        "do not divide them. M is the accumulation. For 8.6% it must be 32, with another batch.",
        figures=(
            figure(
                "microbatches", ACCUMULATION, "", "accumulation", book=32, book_formula="8 x 16 / 4"
            ),
            figure(
                "bubble",
                bubble.bubble(_STAGES, microbatches=ACCUMULATION),
                "share",
                "3 / (3 + 8)",
                book=bubble.bubble(_STAGES, microbatches=32),
                book_formula="3 / (3 + 32)",
            ),
            figure("rows_for_32", rows, "", "2 x 32 x 16", book=256, book_formula="2 x 8 x 16"),
            figure("tokens_for_32", rows * LENGTH, "", "1,024 x 4,096", book=256 * LENGTH),
        ),
    )


def _bound() -> Section:
    share = layout_terms.bubble_share
    chunks = bubble.least_chunks(_STAGES, microbatches=8, at_most=0.15)
    return erratum(
        35,
        "The design task asks for a bubble of at most 15% with 8 or more microbatches.",
        "A plain pipeline of 4 stages cannot have it: it needs at most 2 stages, or 3 chunks.",
        figures=(
            share(_STAGES, microbatches=8, name="4_stages"),
            figure("most_stages", bubble.most_stages(8, at_most=0.15), "", "one chunk, M = 8"),
            figure("least_chunks", chunks, "", "4 stages, M = 8"),
            share(_STAGES, microbatches=8, chunks=2, name="2_chunks"),
            share(_STAGES, microbatches=8, chunks=3, name="3_chunks"),
        ),
    )


def _transfers() -> Section:
    hop = communication.residual(ROWS, length=LENGTH, width=WIDTH)
    return erratum(
        28,
        "Stages exchange 134 MB in 2.7 ms per hop, 3 hops in a step.",
        "A boundary is crossed twice for every microbatch, and each of the eight tensor-parallel "
        "devices sends its eighth over a link of its own.",
        figures=(
            figure(
                "transfer",
                hop / LAYOUT.tensor / INFINIBAND,
                "s",
                "134 MB / 8 / 50 GB/s",
                book=2.7e-3,
                book_formula="134 MB / 50 GB/s",
            ),
            figure(
                "per_boundary", 2 * ACCUMULATION, "", "2 x 8", book=3, book_formula="4 - 1 in all"
            ),
            figure("per_microbatch", 2 * (_STAGES - 1), "", "2 x 3 boundaries"),
        ),
    )
