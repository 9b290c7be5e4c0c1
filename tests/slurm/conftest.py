"""A laboratory for each worker: nothing is shared, so no test disturbs another's."""

import itertools
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator

import pytest

from tests.slurm.lab import Lab, running
from tests.slurm.runs import SlurmRun, slurm_run

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def root() -> None:
    """Skips where there is no way to make namespaces."""
    if os.geteuid() != 0:
        pytest.skip("needs root: namespaces, and Debian's Slurm (docs/slurm.md)")


@pytest.fixture(scope="session")
def lab(root: None) -> Iterator[Lab]:
    """Four idle nodes; ends with the worker."""
    with running(pathlib.Path(tempfile.mkdtemp(prefix="lockstep-slurm-", dir="/tmp"))) as lab:
        yield lab


@pytest.fixture
def slurm(lab: Lab) -> Iterator[Lab]:
    """The laboratory for one test, which may cut, kill and cancel what it likes."""
    yield lab
    lab.reset()
    for path in lab.shared.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture(scope="session")
def accounting_lab(root: None) -> Iterator[Lab]:
    """A laboratory with accounts, QOS and sacct."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-slurm-", dir="/tmp"))
    with running(folder, accounting=True) as lab:
        yield lab


@pytest.fixture
def slurm_with_accounting(accounting_lab: Lab) -> Iterator[Lab]:
    """The laboratory with accounting, for one test."""
    yield accounting_lab
    accounting_lab.reset()


@pytest.fixture
def new_run(slurm: Lab, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SlurmRun]:
    """Makes a run; see `tests.slurm.runs.slurm_run`. Slurm's commands are the ordinary user's."""
    monkeypatch.setenv("PATH", str(slurm.user_bin), prepend=os.pathsep)
    return lambda **options: slurm_run(slurm, f"run{next(_NUMBERS)}", **options)
