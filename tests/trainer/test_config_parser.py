"""Reading gin: places, includes, the command line, and syntax errors that say what to write."""

import os
import subprocess
import sys

import pytest

from trainer.config_parser import REPOSITORY, MacroUse, RawReference, read, rewrite_arguments


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_every_statement_knows_its_file_and_line(folder):
    write(folder, "model.gin", "\n# comment\nModel.width = %WIDTH\n")
    run = write(
        folder,
        "run.gin",
        "WIDTH = 8\ninclude 'model.gin'\nModel:\n  heads = 4\n  x = @a/B()\nc/Model.y = (1, 'a')\n",
    )
    parsed = read([run], bindings=["Model.heads=2"])
    assert parsed.problems == ()
    assert [(s.name, s.value, str(s.location)) for s in parsed.statements] == [
        ("WIDTH", 8, f"{run}:1"),
        ("Model.width", MacroUse("WIDTH"), f"{folder}/model.gin:3"),
        ("Model.heads", 4, f"{run}:4"),
        ("Model.x", RawReference("a/B", True), f"{run}:5"),
        ("c/Model.y", (1, "a"), f"{run}:6"),
        ("Model.heads", 2, "command line"),
    ]


def test_includes_are_found_in_working_directory_then_repository_then_beside(folder, monkeypatch):
    repository = folder / "repository"
    monkeypatch.setattr("trainer.config_parser.REPOSITORY", repository)
    run = write(folder, "runs/run.gin", "include 'part.gin'\n")
    write(folder, "runs/part.gin", "X = 'beside'")
    assert read([run]).statements[0].value == "beside"
    write(folder, "repository/part.gin", "X = 'repository'")
    assert read([run]).statements[0].value == "repository"
    write(folder, "part.gin", "X = 'working directory'")
    assert read([run]).statements[0].value == "working directory"


def test_locations_inside_the_repository_do_not_name_the_machine(folder, monkeypatch):
    monkeypatch.setattr("trainer.config_parser.REPOSITORY", folder.resolve())
    run = write(folder, "configs/run.gin", "X = 1")
    assert str(read([run]).statements[0].location) == "configs/run.gin:1"


def test_a_missing_include_names_file_line_and_searched_paths(folder):
    run = write(folder, "run.gin", "\ninclude 'nope.gin'\n")
    (problem,) = read([run]).problems
    assert str(problem).startswith(f"{run}:2: There is no file 'nope.gin'; searched ")
    assert str(folder / "nope.gin") in str(problem)


def test_a_missing_include_is_reported_in_a_bare_process(folder):
    # gin 0.5 by itself raises AttributeError there: it never imports importlib.util.
    write(folder, "run.gin", "include 'nope.gin'\n")
    program = "from trainer.config_parser import read; print(read(['run.gin']).problems[0])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert "There is no file 'nope.gin'" in done.stdout


def test_a_missing_run_file_is_reported(folder):
    (problem,) = read(["absent.gin"]).problems
    assert str(problem).startswith("command line: There is no file 'absent.gin'")


def test_files_that_include_one_another_are_reported(folder):
    write(folder, "a.gin", "include 'b.gin'\n")
    write(folder, "b.gin", "include 'a.gin'\n")
    (problem,) = read(["a.gin"]).problems
    assert "include one another" in str(problem)


def test_a_file_that_is_not_text_is_reported(folder):
    (folder / "run.gin").write_bytes(b"\xff\xfe\x00")
    (problem,) = read(["run.gin"]).problems
    assert "cannot be read" in str(problem)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Model.kind = dense", 'a string needs quotes: Model.kind = "dense"'),
        ("Model.lr = 3*0.1", "Gin has no expressions"),
        ("Model.kind = a b", 'a string needs quotes: Model.kind = "a'),
        ("Model.bias = true", "Model.bias: true is not a gin value; write True"),
        ("Model.bias = null", "write None"),
        ("Model.kind = 'dense", "Model.kind: a quote is missing"),
        ("Model.shape = (1, 2", "Model.shape: a bracket is not closed"),
        ("Model.width", "Model.width"),
        ("Model.width = ", "Model.width"),
        ("Model.width = $", "Model.width"),
        (".x = 3", ".x"),
    ],
)
def test_a_syntax_error_names_the_binding_and_what_to_write(folder, line, expected):
    run = write(folder, "run.gin", f"A.b = 1\n{line}\n")
    problems = read([run]).problems
    assert expected in str(problems[0])
    assert str(problems[0]).startswith(f"{run}:2: ")


def test_reading_goes_on_after_a_syntax_error(folder):
    run = write(folder, "run.gin", "A.a = x\nA.b = 1\nA.c = y\nA.d = (\n 1,\n 2)\n")
    parsed = read([run])
    assert [str(p).split(":")[1] for p in parsed.problems] == ["1", "3"]
    assert [(s.name, s.value, s.location.line) for s in parsed.statements] == [
        ("A.b", 1, 2),
        ("A.d", (1, 2), 4),
    ]


def test_lost_quotes_on_the_command_line_are_named_with_the_quoting_that_works(folder):
    (problem,) = read([], bindings=["RUN=abc"]).problems
    assert "command line" in str(problem)
    assert "--gin.RUN='\"abc\"'" in str(problem)
    (problem,) = read([], bindings=["RUN=a b"]).problems
    assert "--gin.RUN='\"a" in str(problem)


def test_gin_arguments_become_bindings_in_their_order():
    argv = ["main", "--gin.A.b=1", "--gin_bindings=C.d=2", "--gin.N='x=y'", "--", "--gin.z=1"]
    assert rewrite_arguments(argv) == [
        "main",
        "--gin_bindings=A.b=1",
        "--gin_bindings=C.d=2",
        "--gin_bindings=N='x=y'",
        "--",
        "--gin.z=1",
    ]


def test_imports_are_carried_out_and_a_failing_one_has_its_place(folder, monkeypatch):
    write(folder, "my_extension.py", "import sys; sys.my_extension_ran = True")
    monkeypatch.syspath_prepend(folder)
    run = write(folder, "run.gin", "import my_extension\nimport not_there.at_all\n")
    (problem,) = read([run]).problems
    assert sys.my_extension_ran
    assert str(problem).startswith(f"{run}:2: import not_there.at_all: No module named")
