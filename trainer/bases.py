"""What ``TrainConfig.init_from`` names, and whether it still is what adapters were trained beside.

Imports no jax.
"""

import dataclasses
import pathlib

from models.huggingface.source import is_huggingface, open_source
from trainer.checkpoints import finding, layout
from trainer.checkpoints.root import open_root
from trainer.coordination import Coordination, agree

_AGREE_S = 300.0
_ADAPTERS = "groups/adapters/"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Base:
    """What parameters were loaded from.

    Attributes:
      url: one step, so that a run that goes on changes nothing.
      fingerprint: of its arrays, wherever they lie.
    """

    url: str
    fingerprint: str

    def to_json(self) -> dict[str, str]:
        """Returns what a checkpoint of adapters keeps of it."""
        return dataclasses.asdict(self)


def base_of(url: str, *, coordination: Coordination | None = None) -> Base:
    """Returns what ``url`` names now, alike on all processes.

    Raises:
      ValueError: there is nothing.
      CheckpointError: no step there is whole.
    """
    if is_huggingface(url):
        folder = pathlib.Path(url).absolute()
        base = Base(url=str(folder), fingerprint=open_source(folder).fingerprint())
    else:
        root, found = finding.find(url)
        base = Base(url=f"{root.url}/{found.name}", fingerprint=finding.fingerprint(found))
    if coordination is None:
        return base
    return Base(**agree(coordination, f"base/{url}", base.to_json(), timeout_s=_AGREE_S))


def same_base(recorded: Base, init_from: str) -> Base:
    """Returns where the base that adapters belong to is now.

    Args:
      recorded: what the adapters' checkpoint says.
      init_from: what the configuration says: the same run, which may have gone on since, or a copy.

    Raises:
      ValueError: what is there is another base.
      CheckpointError: it is not whole.
    """
    place = open_root(init_from.rstrip("/")).url
    here = recorded.url == place or recorded.url.startswith(f"{place}/")
    found = base_of(recorded.url if here else init_from)
    if found.fingerprint != recorded.fingerprint:
        raise ValueError(
            f"TrainConfig.init_from={init_from!r} is {found.url} ({found.fingerprint[:12]}), "
            f"another base than {recorded.url} ({recorded.fingerprint[:12]}), beside which these "
            "adapters were trained. Name that one or a copy of it, or start another run directory."
        )
    return found


def recorded_base(recorded: Base, *, adapters: str) -> Base:
    """Returns the base of adapters where it was when they were trained.

    Args:
      recorded: what the adapters' checkpoint says.
      adapters: where they are, for messages.

    Raises:
      ValueError: it is no longer there, or has changed.
      CheckpointError: it is not whole.
    """
    what = f"{adapters} holds adapters of {recorded.url}"
    remedy = "Put what was there back, or a link to a copy."
    try:
        found = base_of(recorded.url)
    except ValueError as error:
        raise ValueError(f"{what}, which cannot be read any more: {error}\n{remedy}") from error
    if found.fingerprint != recorded.fingerprint:
        raise ValueError(
            f"{what} as it was ({recorded.fingerprint[:12]}), but it has changed since "
            f"({found.fingerprint[:12]}). {remedy}"
        )
    return found


def check_chain(url: str) -> None:
    """Follows adapters to what they were trained beside, and that to what it was, to the end.

    Raises:
      ValueError: something is no longer there, or has changed.
      CheckpointError: it is not whole.
    """
    while not is_huggingface(url):
        root, found = finding.find(url)
        if not any(path.startswith(_ADAPTERS) for path in found.tree):
            return
        recorded = Base(**finding.document(root, found, layout.DATA)["adapters"]["base"])
        url = recorded_base(recorded, adapters=url).url
