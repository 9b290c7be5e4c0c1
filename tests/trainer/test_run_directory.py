"""A run directory belongs to one run, one configuration and one living owner."""

import dataclasses
import errno
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from launch.contract import Environment, ExitCode, RunRecord
from tests.trainer.fake_client import gang
from trainer import config, owner
from trainer.checkpoints.root import LocalRoot
from trainer.config_errors import ConfigError
from trainer.config_schema import Schema
from trainer.coordination import Alone
from trainer.endings import UserError
from trainer.owner import Owner, OwnerFile
from trainer.run_directory import Request, Resume, check_readable, open_run
from trainer.run_records import RunDirectoryError, read_journal


@dataclasses.dataclass(frozen=True, kw_only=True)
class Root:
    """Root."""

    batch: int = 8
    workers: int = 0


SCHEMA = Schema(Root, {"Root": Root}, frozenset({"Root.workers"}))


def loaded(*bindings):
    return config.load([], bindings, schema=SCHEMA)


def launched(attempt, run_id="r"):
    return Environment(
        run_id=run_id,
        attempt=attempt,
        coordinator="127.0.0.1:1",
        num_processes=1,
        process_id=0,
        state_dir="/nowhere",
    )


@pytest.fixture
def claim(tmp_path):
    opened = []

    def take(*bindings, environment=None, **request):
        run = open_run(
            str(tmp_path / "run"),
            loaded=loaded(*bindings),
            environment=environment,
            coordination=Alone(),
            request=Request(**request),
        )
        opened.append(run)
        return run

    yield take
    for run in opened:
        run.close()


def test_the_first_attempt_writes_run_config_owner_and_journal(claim, tmp_path):
    run = claim("Root.batch=4")
    assert (run.attempt, run.resumed) == (1, False)
    record = RunRecord.from_json((tmp_path / "run/run.json").read_text(), source="x")
    assert record.run_id == run.run_id
    assert record.run_id.startswith("run-")
    assert "jax" in record.software
    attempt = tmp_path / "run/attempts/1"
    assert "Root.batch = 4" in (attempt / "config/operative.gin").read_text()
    assert json.loads((attempt / "config/resolved.json").read_text())["run"]["batch"] == 4
    entries, torn = read_journal(run.root)
    assert [entry.event for entry in entries] == ["attempt_started"]
    assert torn == 0


def test_the_next_attempt_goes_on_with_the_same_run(claim):
    first = claim()
    first.close()
    second = claim()
    assert (second.attempt, second.resumed, second.run_id) == (2, True, first.run_id)


def test_a_second_live_run_is_refused_by_host_process_and_time(claim):
    claim()
    with pytest.raises(RunDirectoryError, match=rf"in use by process {os.getpid()} on .* since 20"):
        claim()


def test_an_owner_that_died_here_is_taken_over(claim, tmp_path):
    program = (
        "import os, pathlib, sys\n"
        "from trainer.owner import OwnerFile\n"
        "from trainer.checkpoints.root import LocalRoot\n"
        "own = OwnerFile(LocalRoot(pathlib.Path(sys.argv[1])), 'attempts/1/owner.json')\n"
        "assert own.claim(attempt=1, launched=False)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "run")], check=False)
    assert claim().attempt == 2


def rewrite_owner(tmp_path, **changes):
    path = tmp_path / "run/attempts/1/owner.json"
    was = Owner.from_json(path.read_text(), source="x")
    path.write_text(dataclasses.replace(was, **changes).to_json())


def test_a_process_id_that_was_used_again_is_not_the_owner(claim, tmp_path):
    claim()
    rewrite_owner(tmp_path, started=1)
    assert claim().attempt == 2


def test_an_owner_elsewhere_is_judged_by_its_heartbeat(claim, tmp_path):
    claim()
    rewrite_owner(tmp_path, kernel="other", heartbeat=time.time() - 100)
    with pytest.raises(RunDirectoryError, match=r"sign of life is 100 s old.*--take_over"):
        claim()
    rewrite_owner(tmp_path, kernel="other", heartbeat=time.time() - owner.STALE_S - 1)
    assert claim().attempt == 2


def test_an_owner_elsewhere_is_taken_over_on_demand_but_never_one_that_lives_here(claim, tmp_path):
    claim()
    with pytest.raises(RunDirectoryError, match=r"in use"):
        claim(take_over=True)
    rewrite_owner(tmp_path, kernel="other")
    assert claim(take_over=True).attempt == 2


def test_a_released_directory_is_free_at_once(claim, tmp_path):
    first = claim()
    first.close()
    first.close()
    rewrite_owner(tmp_path, kernel="other")
    assert claim().attempt == 2


def test_the_heartbeat_is_renewed_until_release(tmp_path):
    beats = threading.Event()

    class Watched(LocalRoot):
        """Tells of writing."""

        def write(self, key, data):
            super().write(key, data)
            beats.set()

    own = OwnerFile(Watched(tmp_path), "owner.json")
    assert own.claim(attempt=1, launched=False)
    before = own.read().heartbeat
    own.keep_alive(every_s=0.001)
    assert beats.wait(60)
    own.release()
    after = own.read()
    assert after.released
    assert after.heartbeat > before


def test_of_many_claims_at_once_exactly_one_wins(tmp_path):
    outcomes, start = [], threading.Barrier(8)

    def run():
        start.wait()
        try:
            outcomes.append(
                open_run(
                    str(tmp_path / "run"),
                    loaded=loaded(),
                    environment=None,
                    coordination=Alone(),
                ).attempt
            )
        except RunDirectoryError:
            outcomes.append(None)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes, key=str) == [1] + [None] * 7


def test_two_numbers_claimed_at_once_do_not_both_go_on(claim, tmp_path, monkeypatch):
    rival = OwnerFile(LocalRoot(tmp_path / "run"), "attempts/7/owner.json")
    claim_it = OwnerFile.claim

    def claim_just_after_the_rival(own, *, attempt, launched):
        monkeypatch.setattr(OwnerFile, "claim", claim_it)
        assert rival.claim(attempt=7, launched=True)
        return claim_it(own, attempt=attempt, launched=launched)

    monkeypatch.setattr(OwnerFile, "claim", claim_just_after_the_rival)
    with pytest.raises(RunDirectoryError, match=r"in use"):
        claim()
    own = OwnerFile(LocalRoot(tmp_path / "run"), "attempts/1/owner.json").read()
    assert own.released


def test_a_folder_whose_owner_is_about_to_be_written_is_no_free_number(claim, tmp_path):
    (tmp_path / "run/attempts/1").mkdir(parents=True)
    assert claim().attempt == 1


def test_a_launchers_later_attempt_replaces_its_earlier_one(claim):
    assert claim(environment=launched(3)).attempt == 3
    assert claim(environment=launched(4)).attempt == 4
    with pytest.raises(RunDirectoryError, match=r"in use"):
        claim()  # not launched: the launcher's run goes on


def test_an_attempt_is_begun_once(claim):
    claim(environment=launched(3)).close()
    with pytest.raises(RunDirectoryError, match=r"Attempt 3 of .* was already begun by process"):
        claim(environment=launched(3))


def test_a_launcher_may_prepare_the_attempts_folder(claim, tmp_path):
    (tmp_path / "run/attempts/0/logs").mkdir(parents=True)
    assert claim(environment=launched(0)).attempt == 0


def test_a_directory_of_another_run_is_refused(claim):
    run = claim(environment=launched(0, "mine"))
    run.close()
    with pytest.raises(RunDirectoryError, match=r"belongs to run mine, not to LAUNCH_RUN_ID=other"):
        claim(environment=launched(1, "other"))


def save_a_step(run_dir):
    (run_dir / "checkpoints/10.a1").mkdir(parents=True)


def test_until_a_step_is_saved_a_configuration_may_be_corrected(claim, tmp_path):
    claim().close()
    run = claim("Root.batch=4")
    assert [str(change) for change in run.changes] == ["Root.batch: 8 -> 4"]
    run.close()
    save_a_step(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"Root.batch: 4 -> 2"):
        claim("Root.batch=2")


def test_a_reader_needs_the_runs_configuration_and_writes_nothing(claim, tmp_path):
    root = LocalRoot(tmp_path / "run")
    with pytest.raises(RunDirectoryError, match=r"run holds no run. Check --run_dir"):
        check_readable(root, loaded=loaded(), request=Request())
    live = claim()
    save_a_step(tmp_path / "run")
    before = root.list()
    check_readable(root, loaded=loaded("Root.workers=3"), request=Request())
    with pytest.raises(ConfigError, match=r"Root.batch: 8 -> 4"):
        check_readable(root, loaded=loaded("Root.batch=4"), request=Request())
    allowed = Request(allow_change=("Root.batch",))
    check_readable(root, loaded=loaded("Root.batch=4"), request=allowed)
    assert root.list() == before
    live.close()


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    def take(location):
        open_run(str(location), loaded=loaded(), environment=None, coordination=Alone())

    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match=r"file/run cannot be written: .*Take another"):
        take(tmp_path / "file/run")
    with pytest.raises(RunDirectoryError, match=r"file cannot be written"):
        take(tmp_path / "file")


def test_a_full_disk_at_the_start_waits_for_a_person(claim, monkeypatch):
    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LocalRoot, "create", full)
    with pytest.raises(UserError, match=r"the disk is full. Free some") as caught:
        claim()
    assert caught.value.exit_code == ExitCode.HOLD


def test_a_changed_identity_is_refused_before_anything_is_written(claim, tmp_path):
    claim().close()
    save_a_step(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"Root.batch: 8 -> 4.*--allow_change=Root.batch"):
        claim("Root.batch=4")
    assert not (tmp_path / "run/attempts/2").exists()
    run = claim("Root.batch=4", "Root.workers=2", allow_change=("Root.batch",))
    assert [change.key for change in run.changes] == ["Root.batch", "Root.workers"]
    assert read_journal(run.root)[0][-1].details["changes"] == [
        "Root.batch: 8 -> 4",
        "Root.workers: 0 -> 2",
    ]


def test_a_permitted_change_is_the_new_baseline(claim, tmp_path):
    claim().close()
    save_a_step(tmp_path / "run")
    claim("Root.batch=4", allow_change=("Root.batch",)).close()
    run = claim("Root.batch=4")
    assert run.changes == ()
    run.close()
    with pytest.raises(ConfigError, match=r"Root.batch: 4 -> 8"):
        claim()


def test_resume_never_and_must_are_checked_against_what_is_there(claim):
    with pytest.raises(RunDirectoryError, match=r"--resume=must, but .* holds no run"):
        claim(resume=Resume.MUST)
    claim(resume=Resume.NEVER).close()
    with pytest.raises(RunDirectoryError, match=r"--resume=never, but .* holds run run-"):
        claim(resume=Resume.NEVER)
    assert claim(resume=Resume.MUST).resumed


def test_a_directory_that_is_no_run_is_refused(claim, tmp_path):
    (tmp_path / "run/checkpoints/100").mkdir(parents=True)
    with pytest.raises(RunDirectoryError, match=r"holds checkpoints but no run.json"):
        claim()


def test_damaged_records_are_named(claim, tmp_path):
    claim().close()
    (tmp_path / "run/attempts/1/config/resolved.json").write_text("{")
    with pytest.raises(RunDirectoryError, match=r"attempts/1/config/resolved.json is damaged"):
        claim()


@pytest.mark.parametrize("request_", [Request(), Request(resume=Resume.MUST)])
def test_other_processes_hear_the_decision_and_write_nothing(tmp_path, request_):
    first, second = gang(2)

    def take(coordination):
        return open_run(
            str(tmp_path / "run"),
            loaded=loaded(),
            environment=None,
            coordination=coordination,
            request=request_,
        )

    if request_.resume is Resume.MUST:
        for peers in (first, second):
            with pytest.raises(RunDirectoryError, match=r"holds no run"):
                take(peers)
        return
    run, heard = take(first), take(second)
    assert (heard.run_id, heard.attempt, heard.resumed) == (run.run_id, 1, False)
    heard.journal("x")
    heard.close()
    assert len(read_journal(run.root)[0]) == 1
    run.close()


class Remote(LocalRoot):
    """A store without local paths: whole files only."""

    def local_path(self, key):
        return None


def test_a_run_may_live_on_another_store(tmp_path):
    root = Remote(tmp_path)

    def take():
        return open_run(
            "gs://bucket/runs/x",
            loaded=loaded(),
            environment=None,
            coordination=Alone(),
            root=root,
        )

    first = take()
    with pytest.raises(RunDirectoryError, match=r"in use"):
        take()
    first.close()
    second = take()
    second.close()
    assert second.attempt == 2
    assert [e.attempt for e in read_journal(root)[0]] == [1, 2]
    assert "bucket/runs/x" in str(second.local)
