import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioning.planner.calculators import data_rate
from partitioning.planner.calculators.cost import Run, Storage, divided, replicas

shares = st.floats(0, 0.45)
runs = st.builds(
    Run,
    devices=st.integers(1, 20_000),
    hours=st.floats(1, 1e4),
    price=st.floats(0.1, 20),
    lost=shares,
    idle=shares,
)


@given(runs)
def test_the_parts_are_all_device_hours_that_are_paid(run):
    bill = run.bill()
    assert bill.total == pytest.approx(run.devices * run.wall_hours * run.price)
    assert bill.useful == pytest.approx(run.devices * run.hours * run.price)


@given(runs, st.integers(1, 100))
def test_spares_are_paid_from_start_to_end(run, spares):
    more = Run(**{**vars(run), "spares": spares})
    extra = more.bill().idle - run.bill().idle
    assert extra == pytest.approx(spares * run.wall_hours * run.price, rel=1e-6)


def test_storage_is_paid_by_size_number_and_time():
    storage = Storage(size=840e9, kept=5, price=20)
    assert storage.cost(730) == pytest.approx(84)
    assert Run(devices=1, hours=730, price=1).bill(storage).storage == pytest.approx(84)


def test_a_run_that_only_loses_time_never_ends():
    with pytest.raises(ValueError, match="leave no time to train"):
        Run(devices=1, hours=1, price=1, lost=0.6, idle=0.4).bill()


def test_only_whole_copies_find_room():
    parts = divided(512, {"a": 0.4, "b": 0.6})
    assert sum(parts.values()) == pytest.approx(512)
    assert replicas(parts["a"], size=8) == 25


@given(st.floats(1, 4096))
def test_packing_gains_what_padding_wastes(document):
    fill = 1 - data_rate.padding(document, length=4096)
    assert data_rate.packing_gain(fill) * document == pytest.approx(4096)


def test_documents_longer_than_a_row_waste_nothing():
    assert data_rate.padding(5000, length=4096) == 0
