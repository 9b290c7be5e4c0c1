"""Policies order memory and work as they promise, as compiled for CPU and for H100."""

import functools
import subprocess
import sys

import pytest

from benchmarks import memory

# Tokens x width x bytes of mlp_up and mlp_gate in six layers.
OFFLOADED = 6 * 2 * memory.ROWS * memory.LENGTH * 1024 * 2
measure = functools.cache(memory.measure)


@pytest.mark.parametrize(
    ("target", "scanned"), [("cpu", True), ("cpu", False), ("h100", True)], ids=str
)
def test_a_policy_that_keeps_less_needs_less_memory_and_more_work(target, scanned):
    rows = measure(target, forms=(scanned,))
    of = {row.policy: row for row in rows}
    none, selective, full = of["none"], of["selective"], of["full"]
    assert none.temporary > 1.1 * selective.temporary > 1.1**2 * full.temporary, of
    assert none.again == 0
    assert 0 < selective.again < 0.5 * full.again < 0.5, of
    assert memory.show(rows).count("scanned" if scanned else "unrolled") == len(rows)


def test_what_is_offloaded_waits_in_host_memory_and_not_on_the_device():
    _, selective, offload, _ = measure("h100", forms=(True,))
    assert (selective.host, offload.host) == (0, OFFLOADED)
    assert selective.temporary - offload.temporary == pytest.approx(OFFLOADED, rel=0.05)
    assert offload.again == selective.again


def test_an_unknown_target_is_one_sentence():
    command = [sys.executable, "-m", "benchmarks.memory", "--target=h1000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "Unknown target 'h1000'; known: a100_40gb" in done.stderr
    assert "Traceback" not in done.stderr
