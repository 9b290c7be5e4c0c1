"""The launcher's agent as one file that any Python of the right version runs: its modules, zipped.

It travels in a ConfigMap, so that an image needs Python and nothing of Lockstep, and so that all
pods of a run have the agent of the launcher that submitted it. The same sources give the same
bytes. Standard library only.
"""

import ast
import base64
import functools
import io
import pathlib
import sys
import zipfile

ENTRY = "launch.pod"
"""Module that runs in a pod."""

_PACKAGES = pathlib.Path(__file__).parents[2]
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = """\
import sys
if sys.version_info < ({major}, {minor}):
    sys.stderr.write(
        "Lockstep's agent needs Python {major}.{minor} in the image, this is %d.%d. "
        "Name another image, or another interpreter in code.python.\\n" % sys.version_info[:2]
    )
    sys.exit(64)
import runpy
runpy.run_module({entry!r}, run_name="__main__", alter_sys=True)
"""


def modules() -> list[str]:
    """Returns the modules that `ENTRY` needs, itself included, in order.

    Raises:
      ImportError: one of them needs more than the standard library.
    """
    found: set[str] = set()
    waiting = [ENTRY]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for needed in _imports(name):
            if needed.split(".")[0] == "launch":
                waiting.append(needed)
            elif needed.split(".")[0] not in sys.stdlib_module_names:
                raise ImportError(f"{name} imports {needed}, which an image may not have.")
    return sorted(found)


@functools.cache
def content() -> bytes:
    """Returns the file."""
    files = {f"{name.replace('.', '/')}.py": _source(name) for name in modules()}
    folders = {pathlib.PurePosixPath(name).parent for name in files}
    files |= {f"{folder}/__init__.py": b"" for folder in folders}
    main = _MAIN.format(major=3, minor=12, entry=ENTRY)
    files["__main__.py"] = main.encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, date_time=_EPOCH)
            info.external_attr = 0o644 << 16
            archive.writestr(info, files[name], zipfile.ZIP_DEFLATED, compresslevel=9)
    return buffer.getvalue()


def base64_text() -> str:
    """Returns the file as a ConfigMap's binaryData takes it."""
    return base64.b64encode(content()).decode()


def _path(name: str) -> pathlib.Path:
    path = _PACKAGES.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _source(name: str) -> bytes:
    return _path(name).read_bytes()


def _imports(name: str) -> set[str]:
    """Returns what a module imports, wherever in it the import stands."""
    found = set()
    for node in ast.walk(ast.parse(_source(name))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {member for member in members if _path(member).is_file()} or {node.module}
    return found
