"""Which devices a plan or a dry run is for: ``--cluster=h100_512``, read from gin files. No jax.

A name stands for ``configs/clusters/NAME.gin``; ``KIND_N`` for N devices of the kind in
``configs/clusters/KIND.gin``; a path for that file. A file binds ClusterConfig, or FleetConfig
where there are several kinds.
"""

import pathlib
import re
from typing import cast

from partitioning.planner.hardware import ChipConfig, ClusterConfig, FleetConfig, LinkConfig
from trainer import config, config_parser
from trainer.config_schema import Schema

FOLDER = config_parser.REPOSITORY / "configs" / "clusters"
_ALSO = {"a100": "a100_80gb", "7x": "tpu7x", "v7x": "tpu7x", "v5_lite": "v5e", "v6": "v6e"}
"""Other names of kinds."""

CLASSES = (FleetConfig, ClusterConfig, ChipConfig, LinkConfig)
"""What files of clusters may bind."""


def load_fleet(name: str) -> FleetConfig:
    """Returns the clusters of a name or file.

    Raises:
      ValueError: there is no such cluster.
      ConfigError: its file is wrong.
    """
    try:
        path, bindings = _find(name)
        fleet = re.search(r"^FleetConfig\.", path.read_text(encoding="utf-8"), re.MULTILINE)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--cluster={name[:400]} cannot be read: {error}.") from None
    root = FleetConfig if fleet else ClusterConfig
    built = config.build([str(path)], bindings, schema=schema(root))[0].instance
    return cast(FleetConfig, built) if fleet else FleetConfig(pools=(cast(ClusterConfig, built),))


def load_cluster(name: str) -> ClusterConfig:
    """Returns the one cluster of a name or file.

    Raises:
      ValueError: there are several, or none.
      ConfigError: its file is wrong.
    """
    pools = load_fleet(name).pools
    if len(pools) > 1:
        names = ", ".join(f"{pool.name}_{pool.devices}" for pool in pools)
        raise ValueError(f"--cluster={name} has several kinds of devices; take one of: {names}.")
    return pools[0]


def cluster_of(accelerator: str, *, devices: int) -> str | None:
    """Returns the name of the cluster that a job's accelerators are; None if no file has the kind.

    Args:
      accelerator: as job files name kinds: h100, a100-80, tpu-v5p, cpu.
      devices: how many.
    """
    kind = accelerator.removeprefix("tpu-").replace("-", "_")
    names = (_ALSO.get(kind, kind), f"{kind}gb")
    known = next((name for name in names if name in cluster_names()), None)
    return f"{known}_{devices}" if known else None


def schema(root: type) -> Schema:
    """Returns what files of clusters may bind, with ``root`` built of them."""
    return Schema(root, {cls.__name__: cls for cls in CLASSES}, frozenset())


def cluster_names() -> list[str]:
    """Returns the names that ``--cluster`` knows."""
    return sorted(path.stem for path in FOLDER.glob("*.gin"))


def _find(name: str) -> tuple[pathlib.Path, tuple[str, ...]]:
    if name.endswith(".gin"):
        path = pathlib.Path(name)
        if path.is_file():
            return path, ()
        raise ValueError(f"--cluster={name}: there is no such file.")
    if (path := FOLDER / f"{name}.gin").is_file():
        return path, ()
    kind, _, count = name.rpartition("_")
    if re.fullmatch("[1-9][0-9]{0,9}", count) and (path := FOLDER / f"{kind}.gin").is_file():
        return path, (f"ClusterConfig.devices={count}",)
    raise ValueError(
        f"--cluster={name}: unknown. Known: {', '.join(cluster_names())}, each also with a number "
        f"of devices, as in h100_512; or a gin file of your own, as configs/clusters/h100.gin is."
    )
