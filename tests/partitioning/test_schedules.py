import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioning import timeline
from partitioning.mesh_config import PipelineConfig
from partitioning.schedules import IDLE, build_schedule, layer_order

NAMES = ("circular", "1f1b")


@st.composite
def pipelines(draw):
    stages, chunks = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    groups = draw(st.integers(1, 5))
    extra = draw(st.integers(0, stages - 1)) if chunks == 1 else 0
    return {"stages": stages, "chunks": chunks, "microbatches": groups * stages + extra}


@given(name=st.sampled_from(NAMES), sizes=pipelines())
def test_every_piece_runs_once_and_in_time_and_the_bubble_is_the_formula(name, sizes):
    schedule = build_schedule(name, **sizes)
    schedule.check()
    stages, work = sizes["stages"], sizes["chunks"] * sizes["microbatches"]
    expected = (stages - 1) / (stages - 1 + work)
    for cost in ({}, {"backward": 1.0}, {"backward": 1.6}):
        assert schedule.bubble(**cost) == pytest.approx(expected)
    assert ((schedule.forward != IDLE).sum(axis=0) == work).all()
    assert schedule.has_backward == (name == "1f1b")


@given(sizes=pipelines())
def test_no_slot_of_the_stash_is_overwritten_before_it_is_read(sizes):
    schedule = build_schedule("1f1b", **sizes)
    stash = schedule.stash
    assert stash.slots == max(1, schedule.live().max())
    writes, reads = schedule.keeps(schedule.forward), schedule.keeps(schedule.backward)
    for stage in range(sizes["stages"]):
        slots = {}
        for tick in range(schedule.ticks):
            if writes[tick, stage]:
                slots[stash.write[tick, stage]] = schedule.forward[tick, stage]
            if reads[tick, stage]:
                assert slots[stash.read[tick, stage]] == schedule.backward[tick, stage]


@given(sizes=pipelines())
def test_1f1b_keeps_no_more_inputs_for_more_microbatches(sizes):
    stages, chunks = sizes["stages"], sizes["chunks"]
    enough = 4 * stages
    kept = [
        build_schedule("1f1b", stages=stages, chunks=chunks, microbatches=m).live().max()
        for m in (enough, 2 * enough)
    ]
    assert kept[0] == kept[1] < max(1, 2 * chunks * stages - 2)


@pytest.mark.parametrize(
    ("stages", "chunks", "microbatches", "percent"),
    [(4, 1, 8, 27.3), (4, 2, 8, 15.8), (4, 3, 8, 11.1), (4, 1, 32, 8.6), (4, 4, 32, 2.3)],
)
@pytest.mark.parametrize("name", NAMES)
def test_known_bubbles(name, stages, chunks, microbatches, percent):
    schedule = build_schedule(name, stages=stages, chunks=chunks, microbatches=microbatches)
    assert round(100 * schedule.bubble(), 1) == percent


@given(sizes=pipelines(), seed=st.integers(0, 10**6))
def test_control_a_table_with_two_entries_swapped_is_refused(sizes, seed):
    schedule = build_schedule("1f1b", **sizes)
    table = schedule.forward.copy()
    random = np.random.default_rng(seed)
    stage = int(random.integers(sizes["stages"]))
    one, other = random.integers(schedule.ticks, size=2)
    table[[one, other], stage] = table[[other, one], stage]
    # On one stage a table without chunks has no order between microbatches to get wrong.
    if sizes["stages"] == 1 or (table == schedule.forward).all():
        return
    with pytest.raises(AssertionError):
        dataclasses.replace(schedule, forward=table).check()


@given(stages=st.integers(1, 5), chunks=st.integers(1, 4), each=st.integers(1, 4))
def test_layers_stand_where_the_ring_of_pieces_puts_them(stages, chunks, each):
    order = layer_order(repeats=stages * chunks * each, stages=stages, chunks=chunks)
    assert sorted(order) == list(range(len(order)))
    for place, layer in enumerate(order):
        stage, rest = divmod(place, chunks * each)
        chunk, within = divmod(rest, each)
        assert layer == (chunk * stages + stage) * each + within


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((4, 1, 3), "at least 4, better 16"),
        ((4, 2, 6), "Take 8, or chunks=1"),
        ((4, 2, 9), "Take 8, or chunks=1"),
        ((0, 1, 3), "must be positive"),
    ],
)
def test_microbatches_that_cannot_fill_the_stages_are_refused_with_a_way_out(sizes, words):
    stages, chunks, microbatches = sizes
    with pytest.raises(ValueError, match=words):
        build_schedule("1f1b", stages=stages, chunks=chunks, microbatches=microbatches)


def test_the_timeline_shows_every_entry_of_the_table():
    schedule = build_schedule("1f1b", stages=2, chunks=2, microbatches=4)
    text = timeline.draw(schedule)
    row = " ".join(text.splitlines()[1].split()[2:])
    assert row == ". 0a 1a 0b/0b' 1b/1b' 2a/0a' 3a/1a' 2b/2b' 3b/3b' 2a' 3a' ."
    image = timeline.draw_svg(schedule, title="x")
    busy = (schedule.forward != IDLE).sum() + (schedule.backward != IDLE).sum()
    assert image.count("<text") == 1 + 2 + busy


def test_the_command_prints_the_bubble_and_refuses_with_a_way_out():
    command = [sys.executable, "-m", "partitioning.timeline", "--stages=4"]
    found = subprocess.run([*command, "--microbatches=8"], capture_output=True, text=True)
    assert "14 ticks, bubble 27.3%, at most 5 microbatch inputs" in found.stdout
    found = subprocess.run([*command, "--microbatches=2"], capture_output=True, text=True)
    assert found.returncode == 1
    assert "at least 4" in found.stderr
    assert "Traceback" not in found.stderr
    found = subprocess.run([*command, "--svg=/absent/x.svg"], capture_output=True, text=True)
    assert found.returncode == 1
    assert found.stderr.startswith("--svg cannot be written: ")
    assert "/absent/x.svg" in found.stderr


def test_the_configuration_and_its_tables_need_no_jax():
    code = (
        "import sys, partitioning.schedules as s; s.build_schedule('1f1b', stages=2, chunks=1, "
        "microbatches=2); sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert PipelineConfig().chunks == 1
