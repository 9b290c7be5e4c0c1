"""The words of a job file: what its choices are called.

Standard library only; import them through launch.spec.
"""

import enum


class Priority(enum.StrEnum):
    """Who goes first; preemptible jobs may be stopped, after a save, for any other."""

    CRITICAL = "critical"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"
    PREEMPTIBLE = "preemptible"


class TopologyLevel(enum.StrEnum):
    """How close together hosts can be."""

    HOST = "host"
    RACK = "rack"
    BLOCK = "block"


class Placement(enum.StrEnum):
    """Whether closeness is a condition or a wish."""

    REQUIRED = "required"
    PREFERRED = "preferred"


class SpotUse(enum.StrEnum):
    """Whether capacity may be used that its owner can take back at short notice."""

    NEVER = "never"
    ALLOW = "allow"
    REQUIRE = "require"


class OnLoss(enum.StrEnum):
    """What happens when hosts are lost and no spare is left."""

    REQUEUE = "requeue"
    SHRINK = "shrink"


class Fabric(enum.StrEnum):
    """The network between hosts; decides environment variables of collective libraries."""

    ETHERNET = "ethernet"
    INFINIBAND = "infiniband"
    EFA = "efa"
    GPUDIRECT_TCPX = "gpudirect_tcpx"


class SecretForm(enum.StrEnum):
    """How a process gets a secret: ``NAME_FILE`` names a private file, or ``NAME`` holds it."""

    FILE = "file"
    ENV = "env"
