import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.engines import slurm_nodes

SHOWN = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=1 CPUAlloc=0 Gres=gpu:8 NodeAddr=10.77.0.1 "
    "NodeHostName=n1 RealMemory=4000 State=IDLE ThreadsPerCore=1 Partitions=low,high \n"
    "NodeName=n2 Arch=x86_64 NodeAddr=10.77.0.2 NodeHostName=n2 State=ALLOCATED+DRAIN "
    "Reason=State=DOWN soon\n"
    "NodeName=n3 NodeAddr=n3.cluster NodeHostName=n3 State=ALLOCATED* Reason=x\n"
    "NodeName=n4 NodeAddr=10.77.0.4 NodeHostName=n4 State=DOWN*+DRAIN Reason=Not responding\n"
)
TREE = (
    "SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[3-4] \n"
    "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2] \n"
    "SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf[1-2]\n"
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[1-3,7],login", ["n1", "n2", "n3", "n7", "login"]),
        ("r[01-02]c[9-10]", ["r01c9", "r01c10", "r02c9", "r02c10"]),
        ("gpu-[098-101]x", ["gpu-098x", "gpu-099x", "gpu-100x", "gpu-101x"]),
    ],
)
def test_a_host_list_is_its_names(text: str, names: list[str]) -> None:
    assert slurm_nodes.expand(text) == names


@given(st.lists(st.integers(0, 120), min_size=1, max_size=20, unique=True))
def test_numbers_in_brackets_are_names(numbers: list[int]) -> None:
    listed = ",".join(f"{number:03d}" for number in numbers)
    assert slurm_nodes.expand(f"n[{listed}]") == [f"n{number:03d}" for number in numbers]


@pytest.mark.parametrize("text", ["n[1-2", "n1]"])
def test_a_broken_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a list of hosts"):
        slurm_nodes.expand(text)


def test_nodes_have_their_addresses_and_whether_they_live() -> None:
    nodes = slurm_nodes.nodes(SHOWN)
    assert [node.address for node in nodes.values()] == [
        "10.77.0.1",
        "10.77.0.2",
        "n3.cluster",
        "10.77.0.4",
    ]
    # One that is being drained still runs what it runs; one that does not answer is not used.
    assert [node.lives for node in nodes.values()] == [True, True, False, False]


def test_leaf_switches_are_failure_domains_and_neighbours_stand_together() -> None:
    domain = slurm_nodes.domains(TREE)
    assert domain == {"n3": "leaf2", "n4": "leaf2", "n1": "leaf1", "n2": "leaf1"}
    names = ["n1", "n3", "n2", "elsewhere", "n4"]
    assert slurm_nodes.ordered(names, domain=domain) == ["n3", "n4", "n1", "n2", "elsewhere"]


def test_blocks_are_failure_domains() -> None:
    text = "BlockName=b1 BlockIndex=0 Nodes=a[1-2] BlockSize=2\nBlockName=b2 Nodes=a[3-4]\n"
    assert slurm_nodes.domains(text) == {"a1": "b1", "a2": "b1", "a3": "b2", "a4": "b2"}


def test_without_a_topology_the_order_stays() -> None:
    assert slurm_nodes.ordered(["b", "a"], domain=slurm_nodes.domains("")) == ["b", "a"]


def test_fields_and_settings() -> None:
    assert slurm_nodes.field("JobId=3 JobState=RUNNING NodeList=n[1-2]", "NodeList") == "n[1-2]"
    assert slurm_nodes.field("ExcNodeList=n3 ReqNodeList=n4", "NodeList") == ""
    assert slurm_nodes.setting("SlurmdPort              = 6818\n", "SlurmdPort") == "6818"
    assert slurm_nodes.setting("", "SlurmdPort") == ""
