"""Reads what Slurm says of nodes and switches. Pure, standard library only."""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence

_GONE = {"DOWN", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "FAIL", "INVAL"}
_PART = re.compile(r"\[([^\]]*)\]")


@dataclasses.dataclass(frozen=True)
class Node:
    """A node as ``scontrol show node`` has it.

    Attributes:
      name: name of the node.
      address: NodeAddr, at which it is reached.
      states: its state and flags, such as ALLOCATED, DRAIN.
    """

    name: str
    address: str
    states: frozenset[str]

    @property
    def lives(self) -> bool:
        """Whether Slurm takes it for alive; one that is being drained still is."""
        return not self.states & _GONE


def expand(hostlist: str) -> list[str]:
    """Returns the names of a host list such as ``n[1-3,7],login,r[01-02]c[0-1]``.

    Raises:
      ValueError: a bracket is not closed.
    """
    names: list[str] = []
    for entry in _entries(hostlist):
        pieces = _PART.split(entry)
        if any("[" in text or "]" in text for text in pieces[::2]):
            raise ValueError(f"{hostlist!r} is not a list of hosts.")
        choices = [[text] if i % 2 == 0 else _numbers(text) for i, text in enumerate(pieces)]
        names += ["".join(parts) for parts in itertools.product(*choices)]
    return names


def _entries(hostlist: str) -> list[str]:
    """Splits at commas that stand outside brackets."""
    return [entry for entry in re.split(r",(?![^\[]*\])", hostlist) if entry]


def _numbers(text: str) -> list[str]:
    numbers = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            numbers.append(str(number).zfill(len(first)))
    return numbers


def nodes(text: str) -> dict[str, Node]:
    """Reads ``scontrol --oneliner show node``; name -> node."""
    found = {}
    for line in text.splitlines():
        name, state = field(line, "NodeName"), field(line, "State")
        if not name:
            continue
        states = {part.rstrip("*~#!%$@^-") for part in state.split("+")} - {""}
        if "*" in state:
            states.add("NOT_RESPONDING")
        found[name] = Node(name, field(line, "NodeAddr") or name, frozenset(states))
    return found


def domains(text: str) -> dict[str, str]:
    """Reads ``scontrol show topology``; node -> its leaf switch or block, in the text's order."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        fields = dict(re.findall(r"(SwitchName|Level|BlockName|Nodes)=(\S+)", line))
        leaf = fields.get("BlockName") or (
            fields.get("SwitchName") if fields.get("Level") == "0" else None
        )
        if leaf and "Nodes" in fields:
            found |= {name: leaf for name in expand(fields["Nodes"]) if name not in found}
    return found


def ordered(names: Sequence[str], *, domain: Mapping[str, str]) -> list[str]:
    """Returns names so that those behind one switch stand together, else as they were."""
    switches = list(dict.fromkeys(domain.values()))
    place = {switch: index for index, switch in enumerate(switches)}
    last = len(switches)
    return sorted(names, key=lambda name: place.get(domain.get(name, ""), last))


def field(text: str, name: str) -> str:
    """Returns a field of ``scontrol --oneliner show``; empty where it is not there."""
    found = re.search(rf"(?:^|\s){re.escape(name)}=(\S*)", text)
    return found[1] if found else ""


def setting(text: str, name: str) -> str:
    """Returns a setting of ``scontrol show config``; empty where it is not there."""
    found = re.search(rf"(?m)^{re.escape(name)}\s*=\s*(\S*)", text)
    return found[1] if found else ""
