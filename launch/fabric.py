"""Variables that collective libraries need, by accelerator and network. Standard library only."""

from launch.spec import Resources


def variables(resources: Resources) -> dict[str, str]:
    """Returns variables for every process of a run."""
    del resources
    return {}
