import pytest

from partitioning.planner import markdown, pages
from partitioning.planner.answers import Answer, Quantity, Section

MODEL = "parameters --gin_file=configs/models/llama3_8b.gin"


@pytest.mark.parametrize("page", pages.pages(), ids=lambda path: path.stem)
def test_what_a_page_shows_is_what_the_commands_say_now(page):
    text = page.read_text()
    assert pages.written(text) == text, "run python -m partitioning.planner.pages"


def test_a_block_holds_what_its_command_prints():
    page = f"Before\n<!-- planner: {MODEL} -->\nold\n<!-- end -->\nafter\n"
    now = pages.written(page)
    assert "used by a token  8,030,261,248" in now
    assert "old" not in now
    assert now.startswith("Before\n<!--")
    assert now.endswith("<!-- end -->\nafter\n")
    assert pages.written(now) == now


def test_a_value_stands_in_a_sentence():
    now = pages.written(f"It has <!--= {MODEL} | total.all -->nothing<!--/--> parameters.")
    assert now == f"It has <!--= {MODEL} | total.all -->8,030,261,248<!--/--> parameters."


@pytest.mark.parametrize(
    "mark",
    ["<!--= nosuch | a.b --><!--/-->", f"<!--= {MODEL} | total.none --><!--/-->"],
)
def test_a_mark_that_nothing_answers_is_an_error(mark):
    with pytest.raises(ValueError, match=r"nosuch|total\.none"):
        pages.written(mark)


def answer(*sections):
    return Answer(title="All", sections=sections)


def test_a_matrix_has_a_row_for_each_section():
    few, many = (
        Section(name=n, title=n, quantities=(Quantity(name="lost_share", value=v, unit="share"),))
        for n, v in (("few", 0.25), ("many", 0.5))
    )
    assert markdown.matrix(answer(few, many)) == (
        "|  | lost share |\n| --- | --- |\n| few | 25.00% |\n| many | 50.00% |"
    )


def test_sections_that_differ_make_no_matrix():
    one, other = (
        Section(name=n, title=n, quantities=(Quantity(name=n, value=1),)) for n in ("a", "b")
    )
    with pytest.raises(ValueError, match="'b' holds other quantities than 'a'"):
        markdown.matrix(answer(one, other))


def test_sections_show_what_the_documents_print_and_why():
    quantity = Quantity(
        name="mtbf", value=60, unit="s", formula="a x b", book=30, book_formula="c", note="E1: d|e"
    )
    shown = markdown.sections(answer(Section(name="x", title="X*", text=("Words.",))))
    assert shown == "### X\\*\n\nWords."
    shown = markdown.sections(answer(Section(name="x", title="X", quantities=(quantity,))))
    assert "| mtbf | 60 s | a x b | 30 s = c | E1: d\\|e |" in shown
