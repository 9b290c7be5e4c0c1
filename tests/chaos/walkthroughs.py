"""``python -m tests.chaos.walkthroughs``: does each thing to a real run and writes what it told.

Replaces the walkthroughs of docs/failures.md by the answers of ``explain``. Needs root and a few
minutes: losing a host and cutting a rack off happen on a real Slurm (docs/slurm.md).
"""

import argparse
import os
import pathlib
import re
import signal
import sys
import tempfile
from collections.abc import Callable

from launch.story import tell
from tests.chaos.harness import FakeRun, fake_run
from tests.chaos.test_faults import rank_pids
from tests.chaos.test_local_runs import sicken
from tests.chaos.test_trainer import trainer_run
from tests.slurm.lab import Lab, running
from tests.slurm.runs import slurm_run
from trainer.checkpoints import layout

PAGE = pathlib.Path(__file__).parents[2] / "docs/failures.md"
BLOCK = re.compile(r"(<!-- walkthroughs: .*? -->\n).*?(<!-- end -->)", re.DOTALL)


def broken_device(folder: pathlib.Path) -> FakeRun:
    """A device falls off the bus; a spare takes its host's place.

    Two hosts and one spare on this machine; the kernel's log of the hosts gets the line that the
    NVIDIA driver writes.
    """
    run = fake_run(folder, hosts=2, spares=1, steps=200, step_s=0.03)
    process = run.start()
    run.wait_for_step(20)
    sicken(run, 0)
    assert process.wait(60) == 0
    return run


def stuck_process(folder: pathlib.Path) -> FakeRun:
    """One process of three sleeps in the middle of a step.

    It is alive, and every heartbeat of it arrives.
    """
    run = fake_run(folder, hosts=3, steps=40, faults=["sleep@23:1"])
    assert run.run() == 0
    return run


def spot_wave(folder: pathlib.Path) -> FakeRun:
    """All hosts of a spot allocation get their notice within one second.

    SIGTERM to every agent, as a scheduler sends it.
    """
    run = fake_run(folder, hosts=4, steps=200, step_s=0.03, save_every=1000)
    process = run.start()
    run.wait_for_step(50)
    for line in (folder / "agents.pids").read_text().splitlines():
        os.kill(int(line.split()[0]), signal.SIGTERM)
    assert process.wait(60) == 0
    return run


def damaged_checkpoint(folder: pathlib.Path) -> FakeRun:
    """One bit of the newest checkpoint has flipped, and a process dies.

    The real trainer in two processes. The step is set aside by name, and the run goes on from the
    one before it.
    """
    run = trainer_run(folder, folder / "cache", "sleep@23:1:1")
    process = run.start()
    run.wait_for(lambda: saved(folder, 20))
    state = next(path for path in saved(folder, 20).rglob("*") if path.stat().st_size > 10_000)
    data = bytearray(state.read_bytes())
    data[len(data) // 2] ^= 1
    state.write_bytes(data)
    os.kill(rank_pids(run)[1], signal.SIGKILL)
    assert process.wait(300) == 0
    return run


def lost_host(folder: pathlib.Path, lab: Lab) -> FakeRun:
    """A host loses its power.

    A real Slurm of four nodes; the run has three and one spare in its allocation.
    """
    run = slurm_run(
        lab, "lost", folder=folder, hosts=3, steps=300, step_s=0.1, recovery={"spares": 1}
    )
    run.submit()
    run.wait_for_step(20)
    lab.power_off(run.rank_host(1))
    assert run.wait_for_end() == 0
    return run


def cut_rack(folder: pathlib.Path, lab: Lab) -> FakeRun:
    """The switch of a rack fails: two of four hosts are cut off, and go on writing.

    A real Slurm of four nodes, two in each rack. The run may shrink to two hosts. What the hosts
    that were cut off still write does not count.
    """
    run = slurm_run(
        lab,
        "rack",
        folder=folder,
        hosts=4,
        steps=300,
        step_s=0.1,
        resources={"min_hosts": 2},
    )
    run.submit()
    run.wait_for_step(20)
    for rank in (2, 3):
        lab.cut(run.rank_host(rank))
    assert run.wait_for_end() == 0
    return run


HERE = (broken_device, stuck_process, spot_wave, damaged_checkpoint)
ON_SLURM = (lost_host, cut_rack)


def saved(folder: pathlib.Path, step: int) -> pathlib.Path | None:
    """The folder of a committed step."""
    found = folder.glob(f"{layout.CHECKPOINTS}/{step}.a*/{layout.MANIFEST}")
    return next((path.parent for path in found), None)


def section(scene: Callable[..., FakeRun], folder: pathlib.Path, *more: Lab) -> str:
    """Does the thing, and returns its part of the page."""
    print(f"{scene.__name__} ...", file=sys.stderr, flush=True)
    run = scene(folder, *more)
    try:
        title, _, text = (scene.__doc__ or "").partition("\n")
        words = " ".join(text.split())
        told = "\n".join(tell(run.journal())).replace(str(folder), "/runs/example")
        return f"### {title.strip('.')}\n\n{words}\n\n```text\n{told}\n```\n"
    finally:
        run.end()


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    sections = []
    with tempfile.TemporaryDirectory() as temporary:
        for scene in HERE:
            folder = pathlib.Path(temporary) / scene.__name__
            folder.mkdir()
            sections.append(section(scene, folder))
    with running(pathlib.Path(tempfile.mkdtemp(prefix="lockstep-slurm-"))) as lab:
        os.environ["PATH"] = f"{lab.user_bin}{os.pathsep}{os.environ['PATH']}"
        for slurm_scene in ON_SLURM:
            sections.append(section(slurm_scene, lab.shared / slurm_scene.__name__, lab))
            lab.reset()
    page = PAGE.read_text()
    assert BLOCK.search(page)
    text = "\n".join(sections)
    PAGE.write_text(BLOCK.sub(lambda match: f"{match[1]}\n{text}\n{match[2]}", page))


if __name__ == "__main__":
    main()
