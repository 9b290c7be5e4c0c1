"""Real processes on loopback join, stop at one step, and fail together with the cause kept."""

import concurrent.futures
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

from launch.contract import Environment, RankExit, Reason
from trainer import joining
from trainer.config_parser import REPOSITORY
from trainer.coordination import Alone

PROGRAM = pathlib.Path(__file__).parent / "gang_program.py"
LIMIT_S = 120


class Gang:
    """Processes of one attempt, in a run directory of their own."""

    def __init__(self, folder, mode, count):
        self.folder, self.processes, self.rest = folder, [], []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
        self.seen = {}
        for rank in range(max(count, 1)):
            environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(REPOSITORY)}
            if count:
                launched = Environment(
                    run_id="r",
                    attempt=2,
                    coordinator=coordinator,
                    num_processes=count,
                    process_id=rank,
                    state_dir=str(folder),
                    local_devices=(0,),
                )
                environment |= launched.variables()
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, str(PROGRAM), str(folder), mode],
                    stdout=subprocess.PIPE,
                    stderr=(folder / f"stderr{rank}").open("w"),
                    text=True,
                    env=environment,
                )
            )

    def wait_for(self, rank, text):
        """Reads a process's output until a line is ``text``; returns the lines."""
        lines = []
        for line in self.processes[rank].stdout:
            lines.append(line.strip())
            if lines[-1] == text:
                self.seen[rank] = text
                return lines
        raise AssertionError(f"rank {rank} ended after {lines}: {self.stderr(rank)}")

    def codes(self):
        """Waits for all; reads on meanwhile, because a full pipe would hold a process up."""
        with concurrent.futures.ThreadPoolExecutor(len(self.processes)) as pool:
            self.rest = list(pool.map(lambda process: process.stdout.read(), self.processes))
        return [process.wait(timeout=LIMIT_S) for process in self.processes]

    def last_step(self, rank):
        """The last step that was printed, which may be the one that was waited for."""
        lines = [self.seen.get(rank, ""), *self.rest[rank].split("\n")]
        return [line for line in lines if line.startswith("step")][-1]

    def stderr(self, rank):
        return (self.folder / f"stderr{rank}").read_text()

    def ending(self, rank, attempt=2):
        path = self.folder / f"attempts/{attempt}/ranks/{rank}.json"
        return RankExit.from_json(path.read_text(), source=str(path))

    def reason(self, attempt=2):
        path = self.folder / f"attempts/{attempt}/reason.json"
        return Reason.from_json(path.read_text(), source=str(path))


@pytest.fixture
def start(tmp_path):
    gangs = []

    def starter(mode, count):
        gangs.append(Gang(tmp_path, mode, count))
        return gangs[-1]

    yield starter
    for gang in gangs:
        for process in gang.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()


def test_without_a_launcher_nothing_is_joined_and_jax_is_not_needed():
    assert isinstance(joining.join(None), Alone)


def test_one_process_stops_at_a_step_on_sigterm(start):
    gang = start("train", 0)
    gang.wait_for(0, "step 100")
    gang.processes[0].send_signal(signal.SIGTERM)
    assert gang.codes() == [75]
    ending = gang.ending(0, attempt=0)
    assert gang.last_step(0) == f"step {ending.saved_step}"
    assert gang.reason(attempt=0).saved_step == ending.saved_step
    assert gang.stderr(0).splitlines()[-1] == f"SIGTERM: saved step {ending.saved_step}"
    assert "ZeroDivisionError" in gang.stderr(0)  # a last act that fails is told and passed over


def test_one_process_leaves_at_once_before_the_first_step(start):
    gang = start("before_first_step", 0)
    gang.wait_for(0, "waiting")
    gang.processes[0].send_signal(signal.SIGTERM)
    assert gang.codes() == [75]
    assert gang.ending(0, attempt=0).saved_step is None
    assert "before the first step" in gang.stderr(0)


def test_a_second_signal_means_now(start):
    gang = start("slow_save", 0)
    gang.wait_for(0, "step 3")
    gang.processes[0].send_signal(signal.SIGTERM)
    gang.wait_for(0, "waiting")
    gang.processes[0].send_signal(signal.SIGTERM)
    assert gang.codes() == [75]
    assert "second SIGTERM" in gang.stderr(0)
    assert gang.rest[0] == "last act\n"


def test_an_interrupt_from_the_keyboard_is_clean(start):
    gang = start("before_first_step", 0)
    gang.wait_for(0, "waiting")
    gang.processes[0].send_signal(signal.SIGINT)
    assert gang.codes() == [130]
    assert "Traceback" not in gang.stderr(0)


def test_an_exception_leaves_its_traceback_last_and_its_record(start):
    gang = start("raise_0", 0)
    assert gang.codes() == [70]
    assert gang.stderr(0).endswith("ArithmeticError: boom at step 5\nwith a second line\n")
    ending = gang.ending(0, attempt=0)
    assert (ending.code, ending.cause, ending.step) == (70, "ArithmeticError", 5)
    assert ending.message == "boom at step 5"
    assert "in main" in ending.traceback


def test_a_partly_set_environment_ends_with_a_configuration_error(tmp_path):
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), "train"],
        env={**os.environ, "LAUNCH_RUN_ID": "r", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 64
    assert "LAUNCH_ATTEMPT" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_processes_join_finish_together_and_report_progress(start):
    gang = start("finish", 2)
    assert gang.codes() == [0, 0]
    assert [gang.ending(rank).code for rank in range(2)] == [0, 0]
    assert gang.reason().code == 0
    progress = json.loads((gang.folder / "rank1.json").read_text())
    assert (progress["attempt"], progress["phase"]) == (2, "step")


@pytest.mark.slow
@pytest.mark.parametrize("signalled", [0, 1])
def test_sigterm_to_one_process_stops_all_at_the_same_step(start, signalled):
    gang = start("train", 2)
    gang.wait_for(signalled, "step 5")
    gang.processes[signalled].send_signal(signal.SIGTERM)
    assert gang.codes() == [75, 75]
    assert gang.ending(0).saved_step == gang.ending(1).saved_step >= 5
    assert gang.last_step(0) == gang.last_step(1) == f"step {gang.ending(0).saved_step}"
    assert gang.reason().code == 75


@pytest.mark.slow
@pytest.mark.parametrize("signalled", [0, 1])
def test_sigterm_before_the_first_step_ends_all_at_once(start, signalled):
    gang = start("before_first_step", 2)
    for rank in range(2):
        gang.wait_for(rank, "waiting")
    gang.processes[signalled].send_signal(signal.SIGTERM)
    assert gang.codes() == [75, 75]
    assert gang.reason().code == 75


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 1])
def test_an_exception_in_one_process_ends_all_with_the_cause_on_disk(start, failing):
    gang = start(f"raise_{failing}", 2)
    codes = gang.codes()
    assert codes[failing] == 70
    assert codes[1 - failing] == 85
    assert gang.ending(1 - failing).cascade
    reason = gang.reason()
    assert (reason.rank, reason.code, reason.cause) == (failing, 70, "ArithmeticError")
    assert reason.message == "boom at step 5"


@pytest.mark.slow
@pytest.mark.parametrize("idle", [0, 1])
def test_a_process_outside_of_collectives_hears_of_a_failure_too(start, idle):
    gang = start(f"idle_{idle}", 2)
    codes = gang.codes()
    assert (codes[1 - idle], codes[idle]) == (70, 85)
    assert "boom at step 5" in gang.ending(idle).message
    assert gang.reason().rank == 1 - idle


@pytest.mark.slow
def test_a_killed_process_ends_its_survivor_with_infrastructure(start):
    gang = start("train", 2)
    gang.wait_for(0, "step 5")
    gang.processes[1].kill()
    assert gang.codes() == [85, -9]
    assert gang.ending(0).cascade
    reason = gang.reason()
    assert (reason.rank, reason.code, reason.retry.value) == (None, 85, "infrastructure")


@pytest.mark.slow
def test_rank_0_notices_a_killed_peer_outside_of_collectives_and_leaves_its_record(start):
    gang = start("before_first_step", 2)
    for rank in (0, 1):
        gang.wait_for(rank, "waiting")
    gang.processes[1].kill()
    assert gang.codes() == [85, -9]
    ending = gang.ending(0)
    assert (ending.cascade, ending.message) == (True, "rank 1 is gone without a word")


@pytest.mark.slow
def test_the_death_of_rank_0_ends_the_others(start):
    """jax aborts them when its service is gone, which may come before their own record."""
    gang = start("before_first_step", 2)
    for rank in (0, 1):
        gang.wait_for(rank, "waiting")
    gang.processes[0].kill()
    assert gang.codes()[1] in (85, -signal.SIGABRT)


@pytest.mark.slow
def test_a_barrier_of_jaxs_service_names_who_did_not_come(start):
    gang = start("missing_1", 2)
    assert gang.codes() == [85, 85]
    assert gang.ending(0).message == "Barrier 'meet': rank 1 did not come within 1 s."
    assert gang.ending(0).traceback.count("\nTraceback") == 1  # jax's own error stays visible


def test_nothing_of_it_needs_jax_before_the_run_is_joined():
    program = (
        "import sys, trainer.distributed, trainer.run_directory, trainer.config_record\n"
        "print([m for m in ('jax', 'numpy', 'tensorstore', 'orbax') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
