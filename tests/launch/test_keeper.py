"""The keeper starts supervisors again, and knows when that is of no use."""

import pathlib

import pytest

from launch import keeper
from launch.journal import Journal


class Dying:
    """A supervisor that writes some lines and ends."""

    codes: list[int]
    lines = 0

    def __init__(self, command: list[str]) -> None:
        for _ in range(self.lines):
            Journal(command[-1]).append("line", attempt=1)

    def wait(self) -> int:
        return self.codes.pop(0)


@pytest.mark.parametrize(
    ("codes", "lines", "expected"),
    [
        ([0], 0, 0),
        ([-9, 75], 0, 75),
        ([-9] * 10 + [0], 4, 0),
        ([-9] * 3, 0, 128 + 9),
        ([-9] * 3, 1, 128 + 9),
        ([1] * 3, 4, 1),
        ([1, 1, 0], 4, 0),
    ],
)
def test_what_no_supervisor_survives_is_not_tried_for_ever(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    codes: list[int],
    lines: int,
    expected: int,
) -> None:
    monkeypatch.setattr(keeper.subprocess, "Popen", Dying)
    monkeypatch.setattr(keeper.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(Dying, "codes", list(codes), raising=False)
    monkeypatch.setattr(Dying, "lines", lines)
    assert keeper.keep(str(tmp_path)) == expected
    assert Dying.codes == []
