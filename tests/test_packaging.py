"""Dependencies are released packages, locked by hash; nothing needs TensorFlow or torch."""

import importlib.metadata
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

from trainer import software

REPOSITORY = pathlib.Path(__file__).parents[1]
LOCKS = ("requirements.lock", "requirements-dev.lock")
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(\[[^]]+\])?==([^ ;\\]+)")


def declared() -> list[str]:
    extras = PROJECT["optional-dependencies"]
    return [*PROJECT["dependencies"], *(line for lines in extras.values() for line in lines)]


def entries(lock: str) -> list[str]:
    """Requirements of a lock with their hashes, one string each."""
    text = (REPOSITORY / lock).read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]


def test_declared_dependencies_are_released_packages_without_nightlies_or_repositories() -> None:
    for line in declared():
        assert "nightly" not in line
        assert "@" not in line, f"{line}: a URL or a repository"
        assert re.match(r"^[A-Za-z0-9._-]+(\[[a-z0-9,]+\])?>=", line), f"{line}: no lower bound"


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_has_a_version_and_hashes_and_no_address(lock: str) -> None:
    found = entries(lock)
    assert len(found) > 20
    for entry in found:
        assert REQUIREMENT.match(entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry
        assert "nightly" not in entry
        assert not re.search(r"://|index-url|find-links| @ |git\+", entry), entry


@pytest.mark.parametrize("lock", LOCKS)
def test_no_lock_holds_tensorflow_or_torch(lock: str) -> None:
    names = {match[1].lower() for entry in entries(lock) if (match := REQUIREMENT.match(entry))}
    assert {"jax", "flax", "orbax-checkpoint"} <= names
    assert not names & {"tensorflow", "tensorflow-cpu", "tf-keras", "torch", "torchvision"}


def test_the_compilers_lock_holds_the_version_of_jax_and_nothing_of_cuda() -> None:
    found = {m[1]: m[3] for e in entries("requirements-aot.lock") if (m := REQUIREMENT.match(e))}
    locked = {m[1]: m[3] for e in entries(LOCKS[0]) if (m := REQUIREMENT.match(e))}
    assert found.pop("jax-cuda12-pjrt") == locked["jaxlib"]
    (named,) = (r for r in importlib.metadata.requires("jax") or () if r.startswith("libtpu"))
    assert found.pop("libtpu").startswith(named.split(";")[0].split("==")[1].rstrip(" *"))
    assert not found
    assert all("--hash=sha256:" in entry for entry in entries("requirements-aot.lock"))
    assert "://" not in (REPOSITORY / "requirements-aot.lock").read_text()


def test_both_locks_hold_the_same_versions() -> None:
    core, dev = ({m[1]: m[3] for e in entries(k) if (m := REQUIREMENT.match(e))} for k in LOCKS)
    assert {name: dev.get(name) for name in core} == core


def test_installed_versions_are_the_locked_ones() -> None:
    locked = {m[1]: m[3] for e in entries(LOCKS[0]) if (m := REQUIREMENT.match(e))}
    installed = software.versions()
    assert installed == {name: locked[name] for name in software.PACKAGES}


IMPORT_ALL = """
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "torch", "tensorflow_datasets", "seqio"):
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocked())
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def modules(package: str) -> list[str]:
    paths = (path.relative_to(REPOSITORY) for path in (REPOSITORY / package).rglob("*.py"))
    return sorted(".".join(p.with_suffix("").parts).removesuffix(".__init__") for p in paths)


# Benchmarks are programs with flags of their own, which clash in one process.
LIBRARY = ("trainer", "models", "partitioning", "input_pipeline", "launch")
GROUPS = [[m for p in LIBRARY for m in modules(p)], *([m] for m in modules("benchmarks"))]


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_every_module_imports_with_tensorflow_and_torch_blocked(names: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *names],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_all_modules_are_found() -> None:
    assert len(GROUPS[0]) > 80
    assert {"trainer.main", "trainer.checkpoints.store", "launch.contract"} <= set(GROUPS[0])
