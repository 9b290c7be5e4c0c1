"""Who may import whom, read from the source (STYLE, "Layers"); and what starting up may load."""

import ast
import pathlib
import subprocess
import sys

import pytest

from launch.engines.engine import ENGINES

REPOSITORY = pathlib.Path(__file__).parents[1]
PACKAGES = ("trainer", "models", "partitioning", "input_pipeline", "launch", "benchmarks")
ALLOWED = {
    "trainer": {"models", "input_pipeline", "partitioning"},
    "models": {"partitioning"},
    "partitioning": set(),
    "input_pipeline": set(),
    "launch": set(),
    "benchmarks": {"trainer", "models", "partitioning", "input_pipeline", "launch"},
}
CONTRACT = {
    "launch.contract",
    "launch.exit_codes",
    "launch.findings",
    "launch.process_identity",
    "launch.records",
}
"""Importable by all, and importing the standard library only."""

ON_HOSTS = ("agent", "supervisor", "keeper", "pod", "control", "journal", "run_status", "status")
"""Names of modules of launch that run beside the processes, on hosts that have Python and no more;
what they import runs there, too, and so do engines whose allocations run the supervisor."""

OUTSIDERS = {"yaml", "kubernetes", "urllib3"}
"""Packages that other modules of launch may import, inside of functions or not."""

PLAIN = {
    "partitioning": {
        "models.decoder_config",
        "models.experts_config",
        "models.lora_config",
        "models.remat",
        "trainer.config",
        "trainer.config_errors",
        "trainer.config_parser",
        "trainer.config_registry",
        "trainer.config_schema",
        "trainer.finite_json",
        "trainer.fleet",
        "trainer.optimizer_config",
        "trainer.run_config",
        "trainer.size_checks",
        "trainer.standard_streams",
    }
}
"""Configurations and what reads them, without jax: planning looks at these against the arrows."""

DOORS = ("models/huggingface/__main__.py",)
"""Commands that put together what lies above the package that they are named after."""

CONFIGURATION = (
    "models/decoder_config.py",
    "models/experts_config.py",
    "models/lora_config.py",
    "partitioning/mesh_config.py",
    "input_pipeline/data_config.py",
    "trainer/run_config.py",
    "trainer/optimizer_config.py",
    "trainer/config_registry.py",
    "partitioning/traffic_check.py",
    "partitioning/planner/__main__.py",
    "partitioning/planner/cost_model/lints.py",
    "partitioning/planner/cost_model/run_outlook.py",
    "partitioning/targets.py",
    "trainer/compile_errors.py",
    "trainer/fleet.py",
    "trainer/layout_checks.py",
)
HEAVY = ("jax", "jaxlib", "flax", "optax", "orbax", "grain", "tensorstore", "tensorflow", "torch")


def imported(path: pathlib.Path) -> set[str]:
    """Modules that a file names in imports, wherever in it they stand."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def offences(path: pathlib.Path, package: str) -> list[str]:
    """Imports of a file that the arrows do not permit."""
    wrong = []
    for name in sorted(imported(path)):
        target = name.split(".")[0]
        if target not in PACKAGES or target == package or target in ALLOWED[package]:
            continue
        free = CONTRACT | PLAIN.get(package, set())
        permitted = name in {"launch", "trainer"} & {m.split(".")[0] for m in free} or any(
            name == module or name.startswith(f"{module}.") for module in free
        )
        if not permitted:
            wrong.append(f"{path.relative_to(REPOSITORY)} imports {name}")
    return wrong


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_follow_the_arrows(package: str) -> None:
    doors = {REPOSITORY / door for door in DOORS}
    files = sorted(set((REPOSITORY / package).rglob("*.py")) - doors)
    assert files
    assert [line for path in files for line in offences(path, package)] == []


def test_nothing_imports_a_door() -> None:
    names = {door.removesuffix(".py").replace("/", ".") for door in DOORS}
    files = [path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py")]
    assert [path for path in files if imported(path) & names] == []


def test_an_arrow_against_the_layers_is_found(tmp_path: pathlib.Path) -> None:
    path = REPOSITORY / "models" / "decoder_config.py"
    names = {"partitioning.mesh", "trainer.loop", "launch.contract", "launch.main", "json"}
    source = tmp_path / "wrong.py"
    source.write_text("def late():\n" + "".join(f"    import {name}\n" for name in sorted(names)))
    assert imported(source) == names
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[__name__], "imported", lambda _: names)
        assert offences(path, "models") == [
            "models/decoder_config.py imports launch.main",
            "models/decoder_config.py imports trainer.loop",
        ]


def test_the_contract_imports_the_standard_library_only() -> None:
    for module in CONTRACT:
        path = REPOSITORY / f"{module.replace('.', '/')}.py"
        foreign = {name.split(".")[0] for name in imported(path)} - set(sys.stdlib_module_names)
        assert foreign <= {"launch"}, f"{path}: {foreign}"


def module_path(name: str) -> pathlib.Path:
    return REPOSITORY / f"{name.replace('.', '/')}.py"


def needed_by(starts: set[str]) -> set[str]:
    """Modules of launch that some import, and that those import, and so on."""
    found: set[str] = set()
    waiting = sorted(starts)
    while waiting:
        name = waiting.pop()
        if name in found or not module_path(name).is_file():
            continue
        found.add(name)
        waiting += sorted(other for other in imported(module_path(name)) if "launch." in other)
    return found


def on_hosts() -> set[str]:
    """Modules of launch that must run with Python alone."""
    names = {path.stem for path in (REPOSITORY / "launch").glob("*.py")}
    starts = {f"launch.{name}" for name in names if name.split("_")[0] in ON_HOSTS}
    starts |= {f"launch.{name}" for name in names & set(ON_HOSTS)}
    supervised = (
        module
        for module in (place.split(":")[0] for place in ENGINES.values())
        if module_path(module).is_file() and "def gang(" in module_path(module).read_text()
    )
    return needed_by({*starts, *supervised, *CONTRACT})


def foreign(module: str) -> set[str]:
    """Packages outside of the standard library and Lockstep that a module imports."""
    names = {name.split(".")[0] for name in imported(module_path(module))}
    return names - set(sys.stdlib_module_names) - {"launch"}


def test_what_runs_on_hosts_imports_the_standard_library_only() -> None:
    modules = on_hosts()
    assert {"launch.agent", "launch.supervisor", "launch.keeper", "launch.records"} <= modules
    assert {"launch.recovery", "launch.engines.local"} <= modules
    assert {module: foreign(module) for module in sorted(modules) if foreign(module)} == {}
    assert not modules & {"launch.main", "launch.spec_reader", "launch.yaml_nodes"}


def test_the_commands_import_little_more() -> None:
    paths = sorted((REPOSITORY / "launch").rglob("*.py"))
    names = [".".join(path.relative_to(REPOSITORY).with_suffix("").parts) for path in paths]
    found = {name: foreign(name) for name in names if foreign(name)}
    assert set().union(*found.values()) <= OUTSIDERS
    assert found["launch.spec_reader"] == {"yaml"}


def test_an_outsider_on_a_host_is_found() -> None:
    real = imported

    def changed(path: pathlib.Path) -> set[str]:
        return real(path) | ({"yaml"} if path.stem == "recovery" else set())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[__name__], "imported", changed)
        assert "launch.recovery" in on_hosts()
        assert foreign("launch.recovery") == {"yaml"}


def test_supervisor_and_agent_start_without_yaml() -> None:
    program = "import launch.agent, launch.supervisor, sys; print('yaml' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.stdout == "False\n", done.stderr


def loaded_by(statement: str) -> set[str]:
    """Heavy packages that a fresh process has loaded after a statement."""
    program = f"import sys\n{statement}\nprint(*(set(sys.modules) & set({HEAVY!r})))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split())


def test_configuration_modules_load_no_jax() -> None:
    modules = [path.removesuffix(".py").replace("/", ".") for path in CONFIGURATION]
    assert loaded_by(f"import {', '.join(modules)}") == set()


def test_importing_the_trainer_loads_no_jax() -> None:
    assert loaded_by("import trainer, trainer.main") == set()


@pytest.mark.parametrize("flag", ["--help", "--version", "--print_config"])
def test_answers_of_the_front_door_load_no_jax(flag: str) -> None:
    gin = "--gin_file=configs/runs/quickstart.gin"
    statement = (
        "import os, runpy\n"
        "leave = lambda *_: (print(), print(*(set(sys.modules) & set(HEAVY))), "
        "sys.stdout.flush(), os.kill(os.getpid(), 9))\n"
        "os._exit = sys.exit = leave\n"
        f"HEAVY = {HEAVY!r}\n"
        f"sys.argv = ['trainer.main', '{flag}', '{gin}']\n"
        "runpy.run_module('trainer.main', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{statement}"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -9, done.stderr
    assert done.stdout.splitlines()[-1] == "", done.stdout
