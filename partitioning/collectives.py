"""Counts the collective operations of a compiled program, by kind."""

import collections
import re

_COMMENT = re.compile(r"/\*.*?\*/")
_INSTRUCTION = re.compile(
    r"=\s+(?:\(.*?\)|\S+)\s+(all-gather|all-reduce|reduce-scatter|ragged-all-to-all|all-to-all"
    r"|collective-permute|collective-broadcast)(?:-start)?\("
)


def count_collectives(hlo: str) -> dict[str, int]:
    """Returns kind -> number of instructions in the text of a compiled program.

    An asynchronous pair (``-start``, ``-done``) counts once. An instruction inside a loop counts
    once, however often the loop runs.
    """
    # Tuples of more than five shapes are numbered by comments, which hold an equals sign.
    plain = _COMMENT.sub("", hlo)
    found = collections.Counter(match.group(1) for match in _INSTRUCTION.finditer(plain))
    return dict(sorted(found.items()))
