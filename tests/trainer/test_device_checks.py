"""A run on two kinds of devices is refused with the names of the hosts that differ."""

from launch.contract import ExitCode
from tests.trainer.test_coordination import together
from trainer.coordination import Alone
from trainer.device_checks import check_alike, fault
from trainer.endings import UserError


def told(*kinds: dict[str, int]) -> list[dict[str, object]]:
    return [{"host": f"h{rank}", "devices": kind} for rank, kind in enumerate(kinds)]


def test_equal_devices_are_right():
    assert fault(told({"H100": 8}, {"H100": 8})) == ""


def test_another_kind_is_named_with_its_host():
    message = fault(told({"H100": 8}, {"A100": 8}, {"H100": 8}))
    assert "2 of 3 have 8 x H100" in message
    assert "rank 1 on h1: 8 x A100" in message
    assert "h0" not in message


def test_a_missing_device_is_named_with_its_host():
    assert "rank 2 on h2: 7 x H100" in fault(told({"H100": 8}, {"H100": 8}, {"H100": 7}))


def test_one_process_has_nobody_to_differ_from():
    check_alike(Alone(), host="h", devices=["H100"])


def test_all_processes_refuse_alike():
    def work(peers):
        kind = "A100" if peers.process_index == 2 else "H100"
        check_alike(peers, host=f"h{peers.process_index}", devices=[kind] * 8)

    errors = together(work, count=3)
    assert len({str(error) for error in errors}) == 1
    for error in errors:
        assert isinstance(error, UserError)
        assert error.exit_code == ExitCode.INFRASTRUCTURE
        assert "rank 2 on h2: 8 x A100" in str(error)


def test_all_processes_go_on_where_devices_are_equal():
    def work(peers):
        check_alike(peers, host="h", devices=["H100"])
        return "on"

    assert together(work, count=2) == ["on", "on"]
