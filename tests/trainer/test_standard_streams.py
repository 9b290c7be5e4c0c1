"""Nobody needs to read what a process prints."""

import errno
import io
import os
import subprocess
import sys
import textwrap

import pytest

from tests.end_to_end.runs import REPOSITORY
from trainer.standard_streams import Enduring


@pytest.fixture
def pipe():
    """A pipe's two ends, and a text stream on the one to write to."""
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "w")
    yield reader, writer, stream
    stream.close()


def test_what_is_read_arrives_and_what_is_not_is_lost_without_an_error(pipe):
    reader, writer, stream = pipe
    enduring = Enduring(stream, descriptor=writer)
    print("one", file=enduring, flush=True)
    assert os.read(reader, 99) == b"one\n"
    os.close(reader)
    for _ in range(3):
        print("two" * 9999, file=enduring, flush=True)
    assert not enduring.isatty()


def test_other_errors_are_told():
    class Full(io.StringIO):
        def flush(self):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        print("x", file=Enduring(Full(), descriptor=-1), flush=True)


def test_a_file_never_takes_the_number_of_a_closed_stream(tmp_path):
    program = textwrap.dedent(f"""
        import os, sys
        from trainer import standard_streams
        standard_streams.secure()
        file = open({str(tmp_path / "file")!r}, "w")
        print("to nobody", flush=True)
        print("to nobody", file=sys.stderr, flush=True)
        os.write(1, b"x"), os.write(2, b"x")
        print(file.fileno(), file=file)
    """)
    command = [sys.executable, "-c", program]
    shell = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]
    assert subprocess.run(shell, cwd=REPOSITORY).returncode == 0
    assert int((tmp_path / "file").read_text()) > 2


def run(program: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a program whose streams are secured."""
    return subprocess.run(
        [
            *(sys.executable, "-c"),
            f"import os\nfrom trainer import standard_streams as s\ns.secure()\n{program}",
        ],
        cwd=REPOSITORY,
        env={**os.environ, **environ},
        capture_output=True,
        check=True,
    )


def test_characters_that_the_locale_lacks_are_written_as_escapes():
    done = run("print('\\xe9\\u6f22')", PYTHONIOENCODING="latin-1")
    assert done.stdout == b"\xe9\\u6f22\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_libraries_print_does_not_stand_among_what_was_asked(unbuffered):
    """Gloo, for one, greets its peers on standard output."""
    done = run(
        "print(1)\nos.write(1, b'[Gloo]')\nos.system('echo child')\nprint(2)",
        PYTHONUNBUFFERED=unbuffered,
    )
    assert done.stdout == b"1\n2\n"
    assert done.stderr == b"[Gloo]child\n"


def test_a_line_is_read_before_the_next_is_printed():
    program = "print('{\"a\": 1}')\nos.kill(os.getpid(), 9)"
    with pytest.raises(subprocess.CalledProcessError) as ended:
        run(program)
    assert ended.value.stdout == b'{"a": 1}\n'
