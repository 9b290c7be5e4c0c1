"""Which collectives of a compiled program stand inside a conditional."""

import re

from partitioning.collectives import instruction_counts

_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$", re.MULTILINE)
_CALLED = re.compile(
    r"(?:branch_computations=\{([^}]*)\}|(?:true_computation|false_computation|calls|to_apply"
    r"|body|condition)=%?([\w.\-]+))"
)
_CONDITIONAL = re.compile(r"= .* conditional\(")


def collectives_in_branches(hlo: str) -> dict[str, int]:
    """Returns kind -> number of collectives that only some branch of a conditional reaches."""
    bodies = _computations(hlo)
    inside: set[str] = set()
    waiting = [
        name
        for body in bodies.values()
        for line in body.splitlines()
        if _CONDITIONAL.search(line)
        for name in _called(line)
    ]
    while waiting:
        name = waiting.pop()
        if name not in inside:
            inside.add(name)
            waiting += _called(bodies[name])
    found: dict[str, int] = {}
    for name in inside:
        for kind, count in instruction_counts(bodies[name]).items():
            found[kind] = found.get(kind, 0) + count
    return found


def count_conditionals(hlo: str) -> int:
    """Returns how many conditionals the program has."""
    return len(_CONDITIONAL.findall(hlo))


def _computations(hlo: str) -> dict[str, str]:
    heads = list(_HEAD.finditer(hlo))
    ends = [head.start() for head in heads[1:]] + [len(hlo)]
    return {head.group(1): hlo[head.end() : end] for head, end in zip(heads, ends, strict=True)}


def _called(text: str) -> list[str]:
    names = []
    for several, one in _CALLED.findall(text):
        names += [name.strip().lstrip("%") for name in several.split(",")] if several else [one]
    return names
