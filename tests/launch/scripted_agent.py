"""An agent that says what a test tells it to, whatever it hears.

Arguments: lines of a script. ``say JSON`` prints a line (attempt and time are filled in),
``garbage TEXT`` prints a text, ``hear VERB HOST`` gives signs of life until that command comes,
``wait`` does nothing for ever.
"""

import json
import os
import select
import sys
import time


def heard() -> str:
    """What has come within a tenth of a second."""
    if not select.select([0], [], [], 0.1)[0]:
        return ""
    return os.read(0, 65536).decode() or '"kill" "stop"'


def main() -> None:
    orders = json.loads(first_line())
    for line in sys.argv[1:]:
        word, _, rest = line.partition(" ")
        if word == "say":
            event = {"version": 1, "attempt": orders["attempt"], "time": time.time()}
            print(json.dumps(event | json.loads(rest)), flush=True)
        elif word == "garbage":
            print(rest, flush=True)
        elif word == "hear":
            verb, host = rest.split()
            while f'"{verb}"' not in heard():
                beat = {"kind": "beat", "host": host, "attempt": orders["attempt"]}
                print(json.dumps({"version": 1, "time": time.time()} | beat), flush=True)
        else:
            time.sleep(600)


def first_line() -> str:
    """Read byte by byte, so that what follows is left for `heard`."""
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(0, 1)
    return line.decode()


if __name__ == "__main__":
    main()
