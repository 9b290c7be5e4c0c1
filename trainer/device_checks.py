"""Whether all processes got what the run is made for: the same devices, and equally many."""

import collections
import json
from collections.abc import Mapping, Sequence

from launch.contract import ExitCode
from trainer.coordination import Coordination
from trainer.endings import UserError

GATHER_S = 300.0


def check_alike(coordination: Coordination, *, host: str, devices: Sequence[str]) -> None:
    """Compares the local devices of all processes; called by all of them.

    Args:
      coordination: the processes.
      host: name of this process's host.
      devices: kind of each local device.

    Raises:
      UserError: they differ, in every process alike, with a table. The launcher tries again, since
        the host that differs may be broken.
    """
    if coordination.process_count == 1:
        return
    mine = json.dumps({"host": host, "devices": collections.Counter(devices)})
    told = coordination.gather("devices", mine, timeout_s=GATHER_S)
    verdict = fault([json.loads(text) for text in told]) if told else ""
    verdict = coordination.broadcast("devices/verdict", verdict, timeout_s=GATHER_S)
    if verdict:
        raise UserError(verdict, ExitCode.INFRASTRUCTURE)


def fault(told: Sequence[Mapping[str, object]]) -> str:
    """Returns what is wrong with the devices of all ranks, in order; "" if all have the same."""
    kinds = [json.dumps(each["devices"], sort_keys=True) for each in told]
    usual, count = collections.Counter(kinds).most_common(1)[0]
    if count == len(kinds):
        return ""
    rows = [
        f"  rank {rank} on {each['host']}: {_show(kind)}"
        for rank, (each, kind) in enumerate(zip(told, kinds, strict=True))
        if kind != usual
    ]
    return (
        f"Processes have different devices; {count} of {len(kinds)} have {_show(usual)}, but\n"
        + "\n".join(rows)
        + "\nA run needs one kind of accelerator and equally many in every process: ask for one "
        "kind (resources.accelerator), and look after hosts that show fewer than they have."
    )


def _show(kind: str) -> str:
    devices: dict[str, int] = json.loads(kind)
    return ", ".join(f"{count} x {name}" for name, count in devices.items()) or "none"
