"""What the input has to deliver, and what padding wastes. Standard library only."""


def bytes_per_second(tokens_per_second: float, *, width: int) -> float:
    """Returns bytes/s of token ids of ``width`` bytes: 2 up to 65,536 words, else 4."""
    return tokens_per_second * width


def opens_per_second(tokens_per_second: float, *, shard: float) -> float:
    """Returns shards opened per second by all workers together; ``shard`` is tokens in one."""
    return tokens_per_second / shard


def padding(document: float, *, length: int) -> float:
    """Returns the share of a row that is padding if each row holds one document of that length.

    Longer documents are cut at the row's end and fill it.
    """
    return max(0.0, 1 - document / length)


def packing_gain(fill: float) -> float:
    """Returns how many times as many tokens full rows hold as rows filled to this share."""
    return 1 / fill
