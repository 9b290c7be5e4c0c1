"""Which software a run stands on, for its record and for ``--version``. Standard library only."""

import contextlib
import importlib.metadata
import platform

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "tensorstore", "numpy")


def versions() -> dict[str, str]:
    """Returns package -> version of what is installed, without importing any of it."""
    found = {}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def describe() -> str:
    """Returns one line for each thing that a report of a fault needs."""
    lines = {**versions(), "python": platform.python_version(), "platform": platform.platform()}
    return "\n".join(f"{name} {version}" for name, version in lines.items())
