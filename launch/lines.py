"""Lines from a pipe, as they come. Standard library only."""

import os


class LineReader:
    """Reads whole lines from a descriptor, without waiting."""

    def __init__(self, descriptor: int) -> None:
        """Makes the descriptor non-blocking."""
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._rest = b""

    def lines(self) -> list[str] | None:
        """Returns the lines that are there; None at the end of the stream."""
        data = self._rest
        ended = False
        while True:
            try:
                more = os.read(self._descriptor, 65536)
            except BlockingIOError:
                break
            except ConnectionResetError:  # a socket's way to say that the other side has died
                more = b""
            if not more:
                ended = True
                break
            data += more
        *whole, self._rest = data.split(b"\n")
        if ended and not whole:
            return None
        return [line.decode(errors="replace") for line in whole]
