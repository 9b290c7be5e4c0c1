"""A small run for the tests of joining, stopping and failing: ``gang_program.py RUN_DIR MODE``.

Each process prints "step N" after every step, and "waiting" where it waits for ever.
"""

import pathlib
import sys
import threading

from launch.contract import Phase
from trainer.checkpoints.root import LocalRoot
from trainer.distributed import Participant, run_guarded
from trainer.endings import PreemptedError

RUN_DIR, MODE = sys.argv[1:3]


def say(text):
    print(text, flush=True)


def wait_for_ever():
    say("waiting")
    threading.Event().wait()


def make_step(participant):
    if participant.coordination.process_count == 1:
        return lambda value: value + 1
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    ones = jax.make_array_from_callback(
        (jax.device_count(),), sharding, lambda _: jnp.ones((1,), jnp.float32)
    )
    total = jax.jit(lambda ones: ones.sum())
    return lambda value: value + float(total(ones)) / jax.device_count()


def main(participant: Participant):
    participant.root = LocalRoot(pathlib.Path(RUN_DIR))
    participant.before_leaving(lambda: say("last act"))
    participant.before_leaving(lambda: 1 / 0)
    participant.join()
    if MODE == "before_first_step":
        wait_for_ever()
    if MODE == "missing_1":
        if participant.rank == 1:
            wait_for_ever()
        participant.coordination.put("k", "1")
        participant.coordination.put("k", "2")
        assert participant.coordination.get("k", timeout_s=1) == "2"
        participant.coordination.barrier("meet", timeout_s=1)
    step, value = make_step(participant), 0
    for number in range(1, 10**9):
        value = step(value)
        assert value == number
        participant.progress(Phase.STEP, step=number)
        say(f"step {number}")
        if MODE == "finish" and number == 3:
            return
        if f"raise_{participant.rank}" == MODE and number == 5:
            raise ArithmeticError("boom at step 5\nwith a second line")
        if f"idle_{participant.rank}" == MODE and number == 5:
            wait_for_ever()
        if MODE.startswith("idle_") and number == 5:
            raise ArithmeticError("boom at step 5")
        if participant.preemption.reached():
            if MODE == "slow_save":
                wait_for_ever()
            participant.saved_step = number
            raise PreemptedError(f"SIGTERM: saved step {number}")


if __name__ == "__main__":
    run_guarded(main)
