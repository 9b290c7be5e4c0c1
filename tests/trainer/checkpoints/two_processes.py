"""One process of several, for test_two_processes.py: ``rank count port root action [staging]``."""

import os
import pathlib
import sys

import jax

from launch.contract import Environment
from trainer.coordination import Coordination
from trainer.joining import join


def main() -> None:
    rank, count, port = map(int, sys.argv[1:4])
    url, action, staging = sys.argv[4:7]
    peers = join(
        Environment(
            run_id="two",
            attempt=int(action.partition(":")[0]),
            coordinator=f"127.0.0.1:{port}",
            num_processes=count,
            process_id=rank,
            state_dir=staging,
            local_devices=(0, 1, 2, 3),
        )
    )
    try:
        act(url, action, pathlib.Path(staging), peers)
    except Exception:  # noqa: BLE001  printed; and the process ends here
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(1)  # never reach the exit barrier while the others wait elsewhere


def act(url: str, action: str, staging: pathlib.Path, peers: Coordination) -> None:
    import numpy as np
    from jax.sharding import PartitionSpec as P

    from tests.trainer.checkpoints import states
    from trainer.checkpoints.root import open_root
    from trainer.checkpoints.store import CheckpointStore
    from trainer.run_config import CheckpointConfig

    attempt, _, verb = action.partition(":")
    store = CheckpointStore(
        open_root(url),
        attempt=int(attempt),
        config=CheckpointConfig(keep_latest=1, save_timeout_s=15),
        coordination=peers,
        staging=staging,
    )
    target = states.abstract(states.make(), over=states.mesh(4, 2), spec=P("b", "a"))
    restored = store.restore(target)
    if restored:
        wanted = states.make(restored.step)
        whole = jax.jit(lambda x: x, out_shardings=jax.tree.map(lambda x: x.sharding, wanted))
        local = jax.tree.map(
            lambda x, y: all(
                np.array_equal(a.data, b.data)
                for a, b in zip(x.addressable_shards, y.addressable_shards, strict=True)
            ),
            whole(restored.state),
            wanted,
        )
        assert all(jax.tree.leaves(local))
    for step in (10, 20, 30) if verb == "save" else ():
        store.save(step, states.make(step), data={"step": step})
    store.close()
    name = restored.name if restored else None
    print(f"restored {name} aside {sorted(map(str, store.aside()))}", flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
