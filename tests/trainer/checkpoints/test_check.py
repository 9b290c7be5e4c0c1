"""``trainer.check`` looks at directories in object stores, and leaves nothing there."""

from launch.contract import RunRecord, Verdict
from trainer.checkpoints.root import open_root
from trainer.readiness import Directory, examine


def looked_at(url: str, run_id: str) -> tuple[Verdict, str]:
    there = Directory(url=url, run_id=run_id)
    found = examine(["configs/runs/quickstart.gin"], (), devices=1, processes=1, directory=there)
    (finding,) = (f for f in found if f.about == "checkpoint")
    return finding.verdict, finding.message


def test_a_directory_in_a_store_is_looked_at_and_left_as_it_was(bucket_url: str) -> None:
    url = f"{bucket_url}/checked"
    assert looked_at(url, "mine") == (Verdict.OK, f"{url} holds nothing yet.")
    assert open_root(url).list() == ()
    record = RunRecord(run_id="other", created=0.0, identity="")
    open_root(url).write("run.json", record.to_json().encode())
    verdict, message = looked_at(url, "mine")
    assert verdict is Verdict.ERROR
    assert "holds run 'other', not 'mine'" in message
    assert open_root(url).list() == ("run.json",)
