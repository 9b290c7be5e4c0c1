"""Names below ``<run_dir>/checkpoints/``. Standard library only.

``<step>.a<attempt>/`` holds one step: ``state/`` (Orbax), ``data.json``, ``metrics.json`` and,
written last, ``MANIFEST.json``. Records stand beside the steps: ``sealed/<attempt>.claim`` and
``sealed/<attempt>.json``, ``aside/<name>.json``, ``doomed/<name>.by<attempt>.json`` and
``restores/<name>/<attempt>.json``, where ``<name>`` is ``<step>.a<attempt>``.
"""

import dataclasses
import re

CHECKPOINTS = "checkpoints"
STATE = "state"
DATA = "data.json"
METRICS = "metrics.json"
MANIFEST = "MANIFEST.json"
SEALED = "sealed/"
ASIDE = "aside/"
DOOMED = "doomed/"
RESTORES = "restores/"

_STEP = re.compile(r"(0|[1-9]\d*)\.a(0|[1-9]\d*)")


@dataclasses.dataclass(frozen=True, order=True)
class StepName:
    """A step as one attempt wrote it: ``<step>.a<attempt>``.

    Attributes:
      step: optimizer steps done.
      attempt: the attempt that saved it.
    """

    step: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.step}.a{self.attempt}"

    def key(self, file: str = "") -> str:
        """Key of a file of this step; without one, of the step's directory."""
        return f"{self}/{file}"


def parse(name: str) -> StepName | None:
    """The step that a directory name means, or None for a name that is not exactly one of ours."""
    match = _STEP.fullmatch(name)
    return StepName(int(match[1]), int(match[2])) if match else None


def parse_strictly(name: str) -> StepName:
    """Like ``parse``, for names that our own records hold.

    Raises:
      ValueError: the name is not of the form ``<step>.a<attempt>``.
    """
    step = parse(name)
    if step is None:
        raise ValueError(f"{name!r} is not of the form <step>.a<attempt>.")
    return step
