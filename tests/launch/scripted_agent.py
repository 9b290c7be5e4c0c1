"""An agent that says what a test tells it to, whatever it hears.

Arguments: lines of a script. ``say JSON`` prints a line (attempt and time are filled in),
``garbage TEXT`` prints a text, ``hear VERB`` waits for a command, ``wait`` does nothing for ever.
"""

import json
import sys
import time


def main() -> None:
    orders = json.loads(sys.stdin.readline())
    for line in sys.argv[1:]:
        word, _, rest = line.partition(" ")
        if word == "say":
            event = {"version": 1, "attempt": orders["attempt"], "time": time.time()}
            print(json.dumps(event | json.loads(rest)), flush=True)
        elif word == "garbage":
            print(rest, flush=True)
        elif word == "hear":
            while json.loads(sys.stdin.readline() or '{"verb": "kill"}')["verb"] != rest:
                pass
        else:
            time.sleep(600)


if __name__ == "__main__":
    main()
