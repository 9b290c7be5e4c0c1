from partitioning.planner.answers import Answer, Quantity, Section

ANSWER = Answer(
    title="Asked",
    sections=(
        Section(
            name="one",
            title="One",
            text=("Said in words. " * 10,),
            quantities=(Quantity(name="many", value=3, formula="1 + 2", book=4, note="E0: why"),),
        ),
    ),
)


def test_both_policies_show_both_values_and_why():
    for policy, first, other in (
        ("right", "3", "the book's: 4"),
        ("book", "4", "right: 3 = 1 + 2"),
    ):
        shown = ANSWER.show(policy)
        assert f"many  {first}" in shown
        assert other in shown
        assert "E0: why" in shown


def test_text_is_wrapped_and_in_the_json():
    lines = ANSWER.show("right").splitlines()
    assert max(map(len, lines)) < 100
    assert sum("Said in words." in line for line in lines) > 1
    plain = ANSWER.as_dict("book")["sections"]["one"]
    assert plain["text"] == ["Said in words. " * 10]
    assert (plain["many"]["value"], plain["many"]["right"]) == (4, 3)
