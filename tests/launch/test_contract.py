"""The border between launcher and trainer reads back, and says what is wrong with what does not."""

import errno
import json
import pathlib
import subprocess
import sys
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch import contract
from launch.contract import (
    ContractError,
    Environment,
    ExitCode,
    JournalEntry,
    Phase,
    Progress,
    RankExit,
    RetryClass,
    RunRecord,
)

LAUNCHED = {
    "LAUNCH_RUN_ID": "run",
    "LAUNCH_ATTEMPT": "3",
    "LAUNCH_COORDINATOR": "10.0.0.1:1234",
    "LAUNCH_NUM_PROCESSES": "2",
    "LAUNCH_PROCESS_ID": "1",
    "LAUNCH_STATE_DIR": "/state",
}


def test_nothing_set_means_no_launcher():
    assert Environment.read({"HOME": "/root", "LAUNCHER": "x"}) is None


def test_the_environment_is_read():
    assert Environment.read({**LAUNCHED, "LAUNCH_LOCAL_DEVICES": "0,2"}) == Environment(
        run_id="run",
        attempt=3,
        coordinator="10.0.0.1:1234",
        num_processes=2,
        process_id=1,
        state_dir="/state",
        local_devices=(0, 2),
    )


@pytest.mark.parametrize("missing", sorted(LAUNCHED))
def test_a_part_of_the_environment_is_an_error_that_names_what_is_missing(missing):
    partly = {name: value for name, value in LAUNCHED.items() if name != missing}
    with pytest.raises(ContractError, match=f"but {missing} is not"):
        Environment.read(partly)


def test_an_optional_variable_alone_is_a_part_too():
    with pytest.raises(ContractError, match="LAUNCH_GRACE_S is set, but LAUNCH_RUN_ID, LAUNCH_ATT"):
        Environment.read({"LAUNCH_GRACE_S": "30"})


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("LAUNCH_ATTEMPT", "x", "LAUNCH_ATTEMPT='x' is not a number"),
        ("LAUNCH_ATTEMPT", "-1", "LAUNCH_ATTEMPT=-1 is negative"),
        ("LAUNCH_PROCESS_ID", "2", "LAUNCH_PROCESS_ID=2 is not below LAUNCH_NUM_PROCESSES=2"),
        ("LAUNCH_COORDINATOR", "nowhere", "LAUNCH_COORDINATOR='nowhere' is not host:port"),
        ("LAUNCH_LOCAL_DEVICES", "a", "LAUNCH_LOCAL_DEVICES='a' is not a number"),
        ("LAUNCH_SLICE_ID", "1", "LAUNCH_SLICE_ID=1 is not below LAUNCH_NUM_SLICES=1"),
        ("LAUNCH_GRACE_S", "soon", "LAUNCH_GRACE_S='soon' is not a number"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_it(variable, value, message):
    with pytest.raises(ContractError, match=message):
        Environment.read({**LAUNCHED, variable: value})


@given(
    attempt=st.integers(0, 10**6),
    count=st.integers(1, 10**4),
    devices=st.lists(st.integers(0, 16)).map(tuple),
    grace=st.none() | st.floats(0, 1e6),
    host=st.text(st.characters(exclude_categories=["Cs", "Cc"])),
)
def test_what_the_launcher_sets_is_what_the_trainer_reads(attempt, count, devices, grace, host):
    environment = Environment(
        run_id="r",
        attempt=attempt,
        coordinator="[::1]:80",
        num_processes=count,
        process_id=count - 1,
        state_dir="/s",
        local_devices=devices,
        host_id=host,
        grace_s=grace,
    )
    assert Environment.read(environment.variables()) == environment


def test_programs_of_others_get_their_variables():
    environment = Environment.read(LAUNCHED)
    assert environment.foreign_variables() == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "1234",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }


@pytest.mark.parametrize("code", [*range(256)])
def test_every_exit_code_has_a_meaning(code):
    assert contract.ending(code).meaning


def test_exit_codes_and_their_budgets_are_those_of_the_design():
    assert {int(code): contract.ending(code).retry.value for code in ExitCode} == {
        0: "done",
        64: "user",
        65: "user",
        69: "user",
        70: "exception",
        71: "memory",
        75: "preemption",
        85: "infrastructure",
        86: "hold",
        93: "no_progress",
        97: "numerics",
        98: "corruption",
        124: "hang",
        130: "user",
    }
    assert contract.ending(137).retry is RetryClass.SIGNAL
    assert contract.ending(137).meaning == "killed by signal 9"
    assert contract.ending(1).retry is RetryClass.EXCEPTION


def rank(number, *, time, cascade=False, code=70, **more):
    return RankExit(
        attempt=1,
        rank=number,
        host=f"host{number}",
        pid=number,
        code=code,
        cause="RuntimeError",
        message=f"from {number}",
        time=time,
        cascade=cascade,
        **more,
    )


RECORDS = [
    RunRecord(run_id="r", created=1.5, identity="abc", software={"jax": "1"}),
    rank(0, time=1.25, step=3, traceback="a\nb"),
    contract.reason_of([rank(0, time=1.0)]),
    Progress(attempt=1, phase=Phase.STEP, step=None, monotonic_ns=12345678901234),
    JournalEntry(time=1.0, event="x", attempt=0, details={"a": [1, None, {"b": "c"}]}),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_every_record_reads_back_from_one_line(record):
    text = record.to_json()
    assert "\n" not in text
    assert type(record).from_json(text, source="x") == record


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_wrong_record_names_its_source_and_the_field(record):
    kind, data = type(record), json.loads(record.to_json())
    field = next(name for name in data if name != "version")
    with pytest.raises(ContractError, match=f"file.json lacks '{field}'"):
        kind.from_json(
            json.dumps({k: v for k, v in data.items() if k != field}), source="file.json"
        )
    with pytest.raises(ContractError, match=f"file.json: {field} is "):
        kind.from_json(json.dumps({**data, field: [[]]}), source="file.json")
    with pytest.raises(ContractError, match=r"file.json has version 99; this software reads 1"):
        kind.from_json(json.dumps({**data, "version": 99}), source="file.json")
    with pytest.raises(ContractError, match=r"file.json is not JSON"):
        kind.from_json(record.to_json()[:-3], source="file.json")
    with pytest.raises(ContractError, match=r"file.json holds no JSON object"):
        kind.from_json("3", source="file.json")
    assert kind.from_json(json.dumps({**data, "added_later": 1}), source="file.json") == record


def test_the_first_cause_is_the_earliest_end_that_is_not_a_cascade():
    ranks = [
        rank(0, time=1.0, cascade=True, code=85, step=7, saved_step=5),
        rank(1, time=3.0, step=6),
        rank(2, time=2.0, code=65),
    ]
    reason = contract.reason_of(ranks)
    assert (reason.rank, reason.host, reason.code) == (2, "host2", 65)
    assert (reason.step, reason.saved_step) == (7, 5)
    assert reason.retry is RetryClass.USER


def test_survivors_alone_blame_nobody():
    reason = contract.reason_of([rank(0, time=1.0, cascade=True, code=85)])
    assert (reason.rank, reason.code, reason.retry) == (None, 85, RetryClass.INFRASTRUCTURE)


def test_a_replaced_file_is_whole_and_leaves_nothing_beside_it(tmp_path):
    path = contract.progress_path(str(tmp_path), rank=3)
    for text in ("one", "two"):
        contract.replace_file(path, text=text)
        assert path.read_text() == text
    assert [file.name for file in tmp_path.iterdir()] == ["rank3.json"]


def test_a_file_that_cannot_be_replaced_stays_and_leaves_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "status.json"
    contract.replace_file(path, text="one")
    full = OSError(errno.ENOSPC, "full")
    monkeypatch.setattr(pathlib.Path, "replace", mock.Mock(side_effect=full))
    with pytest.raises(OSError, match="full"):
        contract.replace_file(path, text="two")
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]


def test_the_contract_imports_the_standard_library_only():
    program = (
        "import sys, launch.contract\n"
        "names = {name.split('.')[0] for name in sys.modules} - {'__main__', 'launch'}\n"
        "print(sorted(n for n in names - set(sys.stdlib_module_names) if not n.startswith('_')))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
