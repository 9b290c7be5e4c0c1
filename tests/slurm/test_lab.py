import pathlib
import subprocess
import sys

from tests.slurm.lab import REPOSITORY, Lab, wait_until


def test_up_again_changes_nothing(slurm: Lab) -> None:
    before = [machine.pid for machine in (slurm.controller, *slurm.nodes)]
    slurm.up()
    assert [machine.pid for machine in (slurm.controller, *slurm.nodes)] == before
    assert set(slurm.node_states().values()) == {"idle"}


def test_an_ordinary_user_runs_a_gang_with_this_checkout(slurm: Lab) -> None:
    output = slurm.shared / "output"
    script = slurm.shared / "job.sh"
    program = "import os, socket, launch.contract; print(os.getuid(), socket.gethostname())"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={REPOSITORY} srun {sys.executable} -c "{program}"\n')
    subprocess.run(
        [
            slurm.user_bin / "sbatch",
            *("--wait", "-N4", "--ntasks-per-node=1", "--gres=gpu:8", f"--output={output}"),
            script,
        ],
        check=True,
        timeout=60,
        cwd=slurm.shared,
    )
    assert sorted(output.read_text().splitlines()) == [f"65534 n{i}" for i in range(1, 5)]


def test_a_node_without_power_is_lost_and_comes_back(slurm: Lab) -> None:
    """Also to a peer, which still has its hardware address."""
    peer, node = slurm.node("n1"), slurm.node("n3")
    connect = f"import socket; socket.create_connection(('{node.address}', 6818), timeout=10)"
    slurm.run([sys.executable, "-c", connect], on=peer)
    slurm.power_off("n3")
    slurm.power_on("n3")
    slurm.wait_for_nodes()
    slurm.run([sys.executable, "-c", connect], on=peer)
    assert slurm.run(["hostname"], on=node).stdout == "n3\n"


def test_a_cut_link_separates_both_sides(slurm: Lab) -> None:
    def reachable(name: str) -> bool:
        address = slurm.node(name).address
        probe = ["timeout", "1", "bash", "-c", f"</dev/tcp/{address}/6818"]
        return slurm.run(probe, on=slurm.node("n1"), check=False).returncode == 0

    assert reachable("n2")
    slurm.cut("n2")
    assert not reachable("n2")
    assert reachable("n3")
    slurm.mend("n2")
    wait_until(lambda: reachable("n2"), what="n2 behind its mended link")


def test_the_lab_ends_with_the_process_that_started_it(root: None, tmp_path: pathlib.Path) -> None:
    program = (
        "import os, pathlib, sys\n"
        "from tests.slurm.machines import Machine\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "machine = Machine(name='alone', number=9, folder=folder)\n"
        "life = machine.power_on(hosts_file='/etc/hosts', lifeline=True, open_paths=[])\n"
        "print(machine.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=REPOSITORY,
        text=True,
        capture_output=True,
        timeout=60,
    )
    pid = int(done.stdout)
    status = pathlib.Path(f"/proc/{pid}/status")
    wait_until(
        lambda: not status.exists() or "State:\tZ" in status.read_text(),
        what="the machine's end",
        limit_s=20,
    )
