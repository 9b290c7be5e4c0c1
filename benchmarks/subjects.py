"""The step that is measured, in each of its forms, and what its compiled program consists of.

Imports the trainer for ours and benchmarks.hand_written for the others. What is built here is what
``python -m benchmarks.step`` times and what its test compares.
"""

import collections
import dataclasses
import math
import re
from typing import Any

import jax
import numpy as np

from benchmarks import hand_written
from benchmarks.work import GIN_FILE, Subject, Work, bindings, hand_written_form
from partitioning.mesh import build_mesh
from trainer.config import load
from trainer.program import Program, build_program, build_task
from trainer.state import init_state
from trainer.step import build_train_step


@dataclasses.dataclass(frozen=True, kw_only=True)
class Built:
    """A step that is ready to be traced.

    Attributes:
      step: jitted ``(state, batch) -> (state, metrics)``, donating the state.
      state: where it starts.
      batches: host arrays.
    """

    step: Any
    state: Any
    batches: list[dict[str, np.ndarray]]


def build(subject: Subject, *, work: Work, scanned: bool, stacked: bool = False) -> Built:
    """Returns the step of ``subject`` with a fresh state; ``stacked`` is for hand-written ones."""
    batches = [synthetic_batch(work, seed=seed) for seed in range(4)]
    if subject in (Subject.OURS, Subject.UNGUARDED):
        program = our_program(work, scanned=scanned, guard=subject is Subject.OURS)
        return Built(step=build_train_step(program), state=init_state(program), batches=batches)
    form = hand_written_form(subject, scanned=scanned, stacked=stacked)
    step, state = hand_written.build_step(work, form), hand_written.init(work, form)
    return Built(step=step, state=state, batches=batches)


def our_program(work: Work, *, scanned: bool, guard: bool = True) -> Program:
    """Returns the program of configs/runs/benchmark_step.gin, with the sizes of ``work``."""
    execution = ["MeshConfig.data=1", f"TrainConfig.skip_nonfinite={guard}"]
    run = load([GIN_FILE], [*bindings(work, scanned=scanned), *execution]).run
    mesh = build_mesh(run.mesh, devices=jax.devices()[:1])
    return build_program(run, task=build_task(run.task), mesh=mesh)


def synthetic_batch(work: Work, *, seed: int) -> dict[str, np.ndarray]:
    """Returns packed rows of random tokens: two documents each, no padding."""
    generator = np.random.default_rng(seed)
    shape = (work.rows, work.length)
    tokens = generator.integers(0, work.vocab, (work.rows, work.length + 1), dtype=np.int32)
    place = np.arange(work.length, dtype=np.int32)
    cuts = generator.integers(1, work.length, (work.rows, 1))
    second = place >= cuts
    return {
        "inputs": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "segment_ids": (1 + second).astype(np.int32),
        "positions": np.where(second, place - cuts, place).astype(np.int32),
        "loss_weights": np.ones(shape, np.float32),
    }


def contents(compiled: jax.stages.Compiled) -> dict[str, Any]:
    """Returns operations, FLOPs and bytes of a compiled program."""
    memory, cost, text = compiled.memory_analysis(), compiled.cost_analysis(), compiled.as_text()
    assert memory is not None
    assert cost is not None
    assert text is not None
    return {
        "flops": float(cost["flops"]),
        "product_flops": product_flops(text),
        "temporary_bytes": int(memory.temp_size_in_bytes),
        "state_bytes": int(memory.argument_size_in_bytes),
        "donated_bytes": int(memory.alias_size_in_bytes),
        "operations": dict(sorted(histogram(text).items())),
    }


_SHAPE = re.compile(r"%?([\w.\-]+) = \w+\[([\d,]*)\]")
_DOT = re.compile(r"\sdot\(%?([\w.\-]+), .*lhs_contracting_dims=\{([\d,]*)\}")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = .*?\s([a-z][a-z0-9\-]*)\(")
_CALLED = re.compile(r"(?:calls|to_apply)=%?([\w.\-]+)")
_FREE = ("parameter", "constant", "bitcast", "tuple", "get-tuple-element")


def histogram(hlo: str) -> collections.Counter[str]:
    """Counts what a program executes, by opcode: a fusion is one, matrix products all count.

    What is inside a fusion does not count, except for its products: XLA copies cheap producers
    into every fusion that reads them, so that inner counts say more about fusion than about work.
    """
    inner = set()
    for line in hlo.splitlines():
        if not re.search(r"\scall\(", line):  # the body of a call runs as it is
            inner.update(_CALLED.findall(line))
    found: collections.Counter[str] = collections.Counter()
    counted = True
    for line in hlo.splitlines():
        if computation := _COMPUTATION.match(line):
            counted = computation.group(1) not in inner
        elif instruction := _INSTRUCTION.match(line):
            opcode = instruction.group(1)
            if opcode == "dot" or (counted and opcode not in _FREE):
                found[opcode] += 1
    return found


def product_flops(hlo: str) -> float:
    """Returns the operations of all matrix products; those of a loop's body count once."""
    shapes = {name: _numbers(sizes) for name, sizes in _SHAPE.findall(hlo)}
    total = 0.0
    for line in hlo.splitlines():
        if dot := _DOT.search(line):
            result = _SHAPE.search(line)
            assert result is not None
            depth = math.prod(shapes[dot.group(1)][axis] for axis in _numbers(dot.group(2)))
            total += 2.0 * depth * math.prod(_numbers(result.group(2)))
    return total


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
