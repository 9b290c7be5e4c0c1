"""A sick host is noticed by what can be read there, once, and a healthy one is left alone."""

import os
import pathlib
import stat
import time

import pytest

from launch.health import XIDS, Health

PATIENCE_S = 60.0


@pytest.fixture
def kernel_log(tmp_path, monkeypatch) -> pathlib.Path:
    path = tmp_path / "kernel.log"
    path.write_text("6,1,1;NVRM: Xid (PCI:0000:01:00): 79, before we came\n")
    monkeypatch.setenv("LOCKSTEP_KERNEL_LOG", str(path))
    return path


def say(path: pathlib.Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text + "\n")


def fake_smi(tmp_path, monkeypatch, answer: str, code: int = 0) -> None:
    path = tmp_path / "bin" / "nvidia-smi"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\necho '{answer}'\nexit {code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)


def listening(folder: pathlib.Path, *, gpus: bool = True) -> Health:
    return Health(folder=str(folder), host="here", gpus=gpus)


def until_found(health: Health) -> list:
    until = time.monotonic() + PATIENCE_S
    while not (found := health.check()):
        assert time.monotonic() < until, "nothing was found"
        time.sleep(0.005)
    return found


@pytest.mark.parametrize("number", sorted(XIDS))
def test_a_broken_device_drains_its_host(kernel_log, tmp_path, number):
    health = listening(tmp_path)
    assert health.check() == []
    say(kernel_log, f"4,2,2;NVRM: Xid (PCI:0000:3b:00): {number}, pid=1, something")
    [finding] = health.check()
    assert finding.drain
    assert f"Xid {number} on PCI:0000:3b:00" in finding.message
    assert health.check() == []


def test_the_same_is_said_once(kernel_log, tmp_path):
    health = listening(tmp_path)
    for _ in range(3):
        say(kernel_log, "NVRM: Xid (PCI:0000:3b:00): 48, DBE")
    assert len(health.check()) == 1


@pytest.mark.parametrize("number", [13, 31, 43, 45, 63, 94])
def test_errors_of_the_program_say_nothing_about_the_host(kernel_log, tmp_path, number):
    health = listening(tmp_path)
    say(kernel_log, f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=1")
    assert health.check() == []


def test_what_was_before_is_over(kernel_log, tmp_path):
    assert listening(tmp_path).check() == []


def test_a_log_that_is_closed_to_users_is_no_illness(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_KERNEL_LOG", str(tmp_path / "nothing"))
    assert listening(tmp_path).check() == []


@pytest.mark.parametrize(
    ("answer", "code", "drain", "words"),
    [
        ("0, 3, Not Active, 61", 0, True, "3 uncorrected ECC errors"),
        ("1, 0, Active, 97", 0, False, "slowed down by heat"),
        ("WARNING: infoROM is corrupted at gpu 0000:3B:00.0", 0, False, "infoROM is corrupted"),
        ("a, warning, with, commas", 0, False, "a, warning, with"),
        ("Unable to determine the device handle for GPU", 15, True, "fails (15)"),
    ],
)
def test_what_nvidia_smi_says(kernel_log, tmp_path, monkeypatch, answer, code, drain, words):
    fake_smi(tmp_path, monkeypatch, answer, code)
    [finding] = until_found(listening(tmp_path))
    assert finding.drain is drain
    assert words in finding.message


def test_healthy_devices_are_left_alone(kernel_log, tmp_path, monkeypatch):
    answer = "0, 0, Not Active, 45\n1, [N/A], Not Active, 44\n2, 0, Active, 97"
    fake_smi(tmp_path, monkeypatch, answer)
    [finding] = until_found(listening(tmp_path))
    assert "device 2" in finding.message


def test_who_uses_no_gpu_does_not_ask_for_their_driver(kernel_log, tmp_path, monkeypatch):
    fake_smi(tmp_path, monkeypatch, "no driver", 9)
    monkeypatch.setattr("subprocess.Popen", None)
    assert listening(tmp_path, gpus=False).check() == []


def test_a_disk_that_is_nearly_full_is_a_warning(kernel_log, tmp_path, monkeypatch):
    usage = type("usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    [finding] = listening(tmp_path).check()
    assert not finding.drain
    assert "nearly full" in finding.message
