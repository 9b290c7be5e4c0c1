"""Start-up is accounted for: phases add up, and the record is written once."""

import json
import time

from trainer.checkpoints.root import open_root
from trainer.hooks import StartupReport
from trainer.startup import StartupClock


def test_phases_add_up_to_the_time_since_the_process_began():
    clock = StartupClock.of_this_process()
    assert 0 < time.monotonic() - clock.began < 24 * 3600
    for phase in ("imports", "data", "restore"):
        clock.ended(phase)
    assert list(clock.phases) == ["imports", "data", "restore"]
    assert abs(clock.began + sum(clock.phases.values()) - time.monotonic()) < 1.0
    assert all(seconds >= 0 for seconds in clock.phases.values())


def test_the_report_is_written_after_the_first_step_and_only_then(tmp_path):
    said = []
    report = StartupReport(
        StartupClock(began=time.monotonic() - 5),
        say=said.append,
        details=lambda: {"trace": 0.25, "compile": 1.5},
        root=open_root(str(tmp_path)),
        key="attempts/1/startup.json",
    )
    assert not (tmp_path / "attempts").exists()
    report.reported(None)
    record = json.loads((tmp_path / "attempts/1/startup.json").read_text())
    assert record["total_s"] >= 5
    assert record["phases_s"].keys() == {"first_step"}
    assert record["beside_s"] == {"trace": 0.25, "compile": 1.5}
    report.reported(None)
    assert len(said) == 1
    assert "compile 1.5" in said[0]
