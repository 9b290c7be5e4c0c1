"""Compiles a function on a thread of its own while the process gets ready for its first call.

Compilation is work of the compiler's threads, not of Python's, so that reading data, restoring a
checkpoint and importing what only later steps need fit beside it.
"""

import concurrent.futures
import time
from collections.abc import Callable
from typing import Any


class CompiledAhead:
    """A jitted function whose first call finds it compiled.

    Attributes:
      trace_s: seconds from Python to the compiler's input; 0 until known.
      compile_s: seconds of the compiler, or of reading its cache; 0 until known.
      wait_s: seconds that the first call waited for both.
    """

    def __init__(
        self, function: Any, *arguments: Any, check: Callable[[Any], None] | None = None
    ) -> None:
        """Starts at once.

        Args:
          function: what ``jax.jit`` returned.
          *arguments: trees of ShapeDtypeStructs with shardings, laid out as the first call's.
          check: looks at the compiled program; what it raises, the first call raises.
        """
        self.trace_s = self.compile_s = self.wait_s = 0.0
        self._function, self._check = function, check
        pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="compile")
        self._pending: concurrent.futures.Future[None] | None = pool.submit(
            self._compile, *arguments
        )
        pool.shutdown(wait=False)

    def __call__(self, *arguments: Any) -> Any:
        """Calls the function; raises what compiling it raised."""
        if self._pending is not None:
            start = time.perf_counter()
            pending, self._pending = self._pending, None
            pending.result()
            self.wait_s = time.perf_counter() - start
        # The jitted function, not the compiled program: it finds that program by its arguments,
        # and would compile another rather than fail if they were laid out differently.
        return self._function(*arguments)

    def _compile(self, *arguments: Any) -> None:
        start = time.perf_counter()
        lowered = self._function.lower(*arguments)
        traced = time.perf_counter()
        compiled = lowered.compile()
        if self._check is not None:
            self._check(compiled)
        self.trace_s, self.compile_s = traced - start, time.perf_counter() - traced
