import json
import os
import random

from hypothesis import given
from hypothesis import strategies as st

from launch.lines import LONGEST, Joiner, LineReader, Splitter

LINES = st.lists(st.text("ab{}~ ", max_size=4000), max_size=4)


@given(st.lists(LINES, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_lines_of_several_senders_come_whole_however_their_parts_are_mixed(
    senders: list[list[str]], chance: random.Random
) -> None:
    queues = []
    for number, lines in enumerate(senders):
        splitter = Splitter(f"n{number}")
        queues.append([part for line in lines for part in splitter.parts(line)])
    sent = [part for queue in queues for part in queue]
    assert all(len(part) < LONGEST for part in sent)
    joiner, whole = Joiner(), []
    while any(queues):
        line = joiner.whole(chance.choice([queue for queue in queues if queue]).pop(0))
        if line is not None:
            whole.append(line)
    assert sorted(whole) == sorted(line for lines in senders for line in lines)


def test_a_short_line_is_sent_as_it_is() -> None:
    line = json.dumps({"kind": "beat"})
    assert Splitter("n1").parts(line) == [line]
    assert Joiner().whole(line) == line


def test_lines_are_read_as_they_come() -> None:
    reading, writing = os.pipe()
    reader = LineReader(reading)
    assert reader.lines() == []
    os.write(writing, b"one\ntw")
    assert reader.lines() == ["one"]
    os.write(writing, b"o\n")
    assert reader.lines() == ["two"]
    os.close(writing)
    assert reader.lines() is None
    os.close(reading)
