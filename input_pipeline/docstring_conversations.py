"""Makes conversations from the docstrings of an installed package: data to try fine-tuning on.

    python -m input_pipeline.docstring_conversations numpy --output=conversations

Imports the standard library and absl, and the package with its public submodules. Promises: no
download; the folder appears whole or not at all; the same version of the package gives the same
bytes; names, sections and texts are the package's own, with the markup of reStructuredText taken
out. Sections are those of the numpydoc format; of other docstrings only what comes first is used.
"""

import importlib
import importlib.metadata
import inspect
import json
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from absl import app, flags

from input_pipeline.cache import check_new, make_new

_OUTPUT = flags.DEFINE_string("output", None, "Folder to write; must not exist.")
_LONGEST = flags.DEFINE_integer(
    "longest", 600, "Most characters of an answer, in whole paragraphs.", lower_bound=1
)

CONVERSATIONS, README = "conversations.jsonl", "README.md"
_TURNS = (
    ("Parameters", "What are its parameters?"),
    ("Returns", "What does it return?"),
    ("Raises", "Which errors does it raise?"),
    ("Examples", "Show me an example."),
)
_MARKUP = (
    (re.compile(r"^[ ]*\.\. [\w-]+::.*(?:\n(?:[ ]*\n)*[ ]+\S.*)*", re.MULTILINE), ""),
    (re.compile(r":[\w:]+:`~?([^`<]+?)(?:\s*<[^`>]*>)?`"), r"`\1`"),
    (re.compile(r"``([^`]+)``"), r"`\1`"),
    (re.compile(r"\s*\[\d+\]_"), ""),
    (re.compile(r"::$", re.MULTILINE), ":"),
)
"""Directives with what is indented under them, roles, literals, references, announced blocks."""


def conversations(package: str, *, longest: int) -> list[list[dict[str, str]]]:
    """Returns one conversation for each public function and class, in the order of their names.

    Args:
      package: name of an installed package.
      longest: most characters of an answer.

    Raises:
      ValueError: there is no such package, or it has no docstrings.
    """
    try:
        root = importlib.import_module(package)
    except Exception as error:  # whatever the package does
        raise ValueError(f"{package!r} cannot be imported ({error}); install it.") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Old names warn when they are looked at.
        texts = documented(root)
    found = [turns(name, text, longest=longest) for name, text in sorted(texts.items())]
    told = [one for one in found if one]
    if not told:
        raise ValueError(f"{package!r} has no public functions or classes with docstrings.")
    return told


def documented(root: ModuleType) -> dict[str, str]:
    """Returns public name -> docstring; what has several names is under its shortest."""
    names: dict[int, str] = {}
    texts: dict[str, str] = {}
    for module in _modules(root):
        for name in sorted(getattr(module, "__all__", None) or vars(module)):
            value = getattr(module, name, None)
            if name.startswith("_") or not callable(value) or not _is_of(value, root):
                continue
            text, full = inspect.getdoc(value), f"{module.__name__}.{name}"
            known = names.get(id(value))
            if not text or (known and (len(known), known) <= (len(full), full)):
                continue
            texts.pop(known or "", None)
            names[id(value)], texts[full] = full, text
    return texts


def _modules(root: ModuleType) -> Iterator[ModuleType]:
    yield root
    for found in pkgutil.iter_modules(getattr(root, "__path__", ())):
        if found.name.startswith("_") or found.name in ("tests", "testing", "conftest"):
            continue
        try:
            module = importlib.import_module(f"{root.__name__}.{found.name}")
        except Exception as error:  # noqa: BLE001 (whatever stops an optional submodule)
            sys.stderr.write(f"Left out {root.__name__}.{found.name}: {error}\n")
            continue
        yield from _modules(module)


def _is_of(value: object, root: ModuleType) -> bool:
    """Whether something belongs to the package; compiled functions may not say where from."""
    home = getattr(value, "__module__", None) or root.__name__
    return home.split(".")[0] == root.__name__.split(".")[0]


def turns(name: str, text: str, *, longest: int) -> list[dict[str, str]]:
    """Returns a conversation about one docstring; empty where there is nothing to say."""
    parts = sections(text)
    pairs = [(f"What does {name} do?", parts.get("", ""))]
    pairs += [(question, parts[title]) for title, question in _TURNS if title in parts]
    made = []
    for question, part in pairs:
        answer = cut(plain(part), longest=longest)
        if answer:
            made += [("user", question), ("assistant", answer)]
    if not made or made[0][1] != pairs[0][0]:
        return []
    return [{"role": role, "content": content} for role, content in made]


def sections(text: str) -> dict[str, str]:
    """Returns title -> text of a numpydoc docstring; "" is what comes before the first title.

    The signature that compiled functions begin with is left out.
    """
    pieces = re.split(r"^(\S[^\n]*)\n[-=]{3,}[ ]*$", text, flags=re.MULTILINE)
    head = re.sub(r"\A\w+\([^\n]*(?:\n[ ]+[^\n]*)*\n\s*\n", "", pieces[0])
    return {"": head, **dict(zip(pieces[1::2], pieces[2::2], strict=True))}


def plain(text: str) -> str:
    """Returns a text without the markup of reStructuredText, and with single blank lines."""
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
    return re.sub(r"\n{3,}", "\n\n", lines)


def cut(text: str, *, longest: int) -> str:
    """Returns as many paragraphs, or entries of a list of parameters, as fit; maybe none."""
    if len(text) <= longest:
        return text
    # Before a line that begins at the margin after a blank or indented one.
    ends = [found.start() for found in re.finditer(r"(?<=\n)(?=\S)", text)]
    whole = [end for end in ends if re.search(r"(?:^|\n)(?:[ ]+\S.*)?\n\Z", text[:end])]
    return text[: max((end for end in whole if end <= longest), default=0)].rstrip()


def origin(package: str) -> tuple[str, str]:
    """Returns version and licence of a package; the standard library's are Python's."""
    top = package.split(".")[0]
    if top in sys.stdlib_module_names:
        return sys.version.split()[0], "PSF-2.0"
    distributions = importlib.metadata.packages_distributions().get(top, [])
    if not distributions:
        return "unknown", "unknown"
    about = importlib.metadata.metadata(distributions[0])
    licence = about.get("License-Expression") or (about.get("License") or "").split("\n")[0]
    return str(about["Version"]), licence or "unknown"


def write(package: str, *, output: Path, longest: int) -> str:
    """Writes the conversations, and where they come from; returns a line about them.

    Raises:
      ValueError: the folder exists, or see `conversations`.
    """
    check_new(output)
    made = conversations(package, longest=longest)
    lines = [json.dumps({"messages": one}, ensure_ascii=False) + "\n" for one in made]
    version, licence = origin(package)
    about = (
        f"{len(made)} conversations from the docstrings of {package} {version}.\n"
        f"Licence of the texts: {licence}\n"
    )

    def fill(partial: Path) -> None:
        (partial / CONVERSATIONS).write_text("".join(lines), encoding="utf-8")
        (partial / README).write_text(about, encoding="utf-8")

    make_new(output, make=fill)
    size = sum(len(line.encode()) for line in lines)
    return f"{output / CONVERSATIONS}, {size} bytes: {about.rstrip()}"


def main(argv: list[str]) -> int:
    """Runs the command; 64 is a wrong flag or package, or a folder that cannot be written."""
    try:
        if len(argv) != 2 or _OUTPUT.value is None:
            raise ValueError("Usage: docstring_conversations PACKAGE --output=FOLDER; see --help.")
        line = write(argv[1], output=Path(_OUTPUT.value), longest=_LONGEST.value)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 64
    sys.stdout.write(line + "\n")
    return 0


if __name__ == "__main__":
    app.run(main)
