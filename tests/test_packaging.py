"""Dependencies are released packages, locked by hash; nothing needs TensorFlow or torch."""

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


def test_both_locks_hold_the_same_versions() -> None:
    core, dev = ({m[1]: m[3] for e in entries(k) if (m := REQUIREMENT.match(e))} for k in LOCKS)
    assert {name: dev.get(name) for name in core} == core


def test_installed_versions_are_the_locked_ones() -> None:
    locked = {m[1]: m[3] for e in entries(LOCKS[0]) if (m := REQUIREMENT.match(e))}
    installed = software.versions()
    assert installed == {name: locked[name] for name in software.PACKAGES}


def test_every_module_imports_with_tensorflow_and_torch_blocked() -> None:
    program = """
import importlib, pathlib, sys

from absl import flags

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "torch", "tensorflow_datasets", "seqio"):
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocked())
count = 0
for package in ("trainer", "models", "partitioning", "input_pipeline", "launch", "benchmarks"):
    for path in sorted(pathlib.Path(package).rglob("*.py")):
        name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        importlib.import_module(name)
        # Programs of their own may have flags of one name.
        flags.FLAGS.remove_flag_values([f.name for f in flags.FLAGS.get_flags_for_module(name)])
        count += 1
print(count)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 80
