"""A YAML file as nodes that know their lines, without what makes YAML dangerous or surprising.

Tags, anchors and aliases are refused (a few lines of them can stand for gigabytes), and so is what
is too large or too deep to be a job file. Imports PyYAML.
"""

import pathlib

import yaml

from launch.spec_problems import Problem, SpecError

LARGEST_BYTES = 1 << 20
DEEPEST = 16
_CHOICE = "write the value out where it is used"


def read_text(path: pathlib.Path) -> str:
    """Returns what a file holds, if that may be a job file.

    Raises:
      SpecError: the file cannot be read, is too large, or is no text.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
        if len(content) > LARGEST_BYTES:
            raise _refused(f"larger than {LARGEST_BYTES >> 20} MiB; that is no job file", file=path)
        return content.decode("utf-8-sig")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise _refused(f"cannot be read: {reason}", file=path) from None
    except UnicodeDecodeError as error:
        reason = f"{error.reason} at byte {error.start}"
        raise _refused(f"is not UTF-8 text ({reason})", file=path) from None


def nodes_of(text: str, *, file: str) -> yaml.MappingNode:
    """Returns the mapping that a YAML text consists of.

    Args:
      text: the text.
      file: what it is called in messages.

    Raises:
      SpecError: it is not YAML, or holds something else.
    """
    try:
        _check_events(text, file=file)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise SpecError([_syntax(error, file=file)]) from None
    except SpecError:
        raise
    except (ValueError, OverflowError) as error:  # an escape such as "\\UFFFFFFFF"
        raise _refused(f"not YAML: {error}", file=file) from None
    if node is None:
        raise _refused("the file is empty; python -m launch.main --help has an example", file=file)
    if not isinstance(node, yaml.MappingNode):
        kind = "a list" if isinstance(node, yaml.SequenceNode) else f"{node.value!r}"
        raise _refused(
            f"the file holds {kind} at its top; a job file holds keys such as name: and resources:",
            file=file,
            line=line_of(node),
        )
    return node


def line_of(node: yaml.Node) -> int:
    """Returns the line of a node, from 1."""
    return int(node.start_mark.line) + 1


def _check_events(text: str, *, file: str) -> None:
    """Refuses what would be dangerous to compose."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise _refused(f"*{event.anchor} is an alias; {_CHOICE}", file=file, line=line)
        if getattr(event, "anchor", None):
            raise _refused(f"&{event.anchor} is an anchor; {_CHOICE}", file=file, line=line)
        if tag := getattr(event, "tag", None):
            raise _refused(f"{tag} is a tag; leave it out", file=file, line=line)
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
        if documents > 1:
            raise _refused("a second document starts; a file is one job", file=file, line=line)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise _refused(f"nested more than {DEEPEST} deep", file=file, line=line)


def _syntax(error: yaml.YAMLError, *, file: str) -> Problem:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 0
        told = " ".join(part for part in (error.context, error.problem) if part)
        if "'\\t'" in told:
            told = "a tab; YAML is indented with spaces"
        elif told.startswith("mapping values are not allowed"):
            told = (
                "a second ':' in one value, or a wrong indent; put quotes around a text with ': '"
            )
        elif "cannot start any token" in told:
            told += "; put quotes around the text"
        return Problem(message=f"not YAML: {told}.", file=file, line=line)
    if isinstance(error, yaml.reader.ReaderError):
        return Problem(
            message=f"holds a character that YAML does not allow, U+{ord(_character(error)):04X}.",
            file=file,
        )
    return Problem(message=f"not YAML: {error}.", file=file)


def _character(error: yaml.reader.ReaderError) -> str:
    found = error.character
    return found if isinstance(found, str) else chr(found)


def _refused(message: str, *, file: str | pathlib.Path, line: int = 0) -> SpecError:
    return SpecError([Problem(message=f"{message}.", file=str(file), line=line)])
