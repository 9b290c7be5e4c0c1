"""The page shows what the comparison printed, and what it printed is what fine-tuning does."""

import pathlib

from benchmarks.finetuning import PAGE, RUNS, Row, shown_on, table, written
from trainer.config_parser import REPOSITORY

ROWS = [
    Row(name="before", gained=3.0, kept=2.0, saved=36_000_000),
    Row(name="after", gained=2.5004, kept=2.25, saved=1_540_000),
]


def page_rows() -> dict[str, list[float]]:
    lines = shown_on(PAGE.read_text()).splitlines()[2:]
    cells = [line.strip("| ").split(" | ") for line in lines]
    return {name: [float(number.split()[0]) for number in numbers] for name, *numbers in cells}


def test_a_table_replaces_the_one_before_it_and_nothing_else() -> None:
    text = PAGE.read_text()
    once = written(text, shown=table(ROWS))
    assert shown_on(once) == table(ROWS)
    assert "| after | 2.500 | 2.250 | 1.5 MB |" in once
    assert written(once, shown=shown_on(text)) == text


def test_the_page_has_a_row_for_every_run_file() -> None:
    assert list(page_rows()) == list(RUNS.values())
    assert all(pathlib.Path(REPOSITORY / f"configs/runs/{run}.gin").is_file() for run in RUNS)


def test_what_the_page_shows_is_a_gain_and_its_price() -> None:
    """Both ways learn the conversations, forget some of the old text, and save what they train."""
    before, whole, adapters = page_rows().values()
    for after in (whole, adapters):
        assert after[0] < before[0] - 0.3
        assert after[1] > before[1]
    assert adapters[2] < whole[2] / 5
