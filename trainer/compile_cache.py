"""Where compiled programs outlive the process, so that a restart need not compile again.

Promises: one build of the compiler, or one kind of CPU, never reads what another wrote (P123); a
directory that cannot be used, or a damaged program in it, costs a warning and a compilation (P124).
"""

import hashlib
import pathlib
import platform
import uuid

from absl import logging


def keep_programs(cache: pathlib.Path) -> pathlib.Path | None:
    """Has jax keep compiled programs below ``cache``; returns where, or None where it cannot."""
    import jax
    import jaxlib

    folder = cache / "programs" / f"{jaxlib.__version__}-{machine()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{uuid.uuid4().hex}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        logging.warning("Compiled programs are not kept, every start compiles again: %s", error)
        jax.config.update("jax_compilation_cache_dir", None)
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


def machine(cpuinfo: pathlib.Path = pathlib.Path("/proc/cpuinfo")) -> str:
    """Returns the kind of CPU: programs for it use its instructions, and homes are shared."""
    text = platform.processor()
    if cpuinfo.exists():
        lines = cpuinfo.read_text(errors="replace").splitlines()
        text = next((x for x in lines if x.startswith(("flags", "Features"))), text)
    digest = hashlib.sha256(" ".join(sorted(text.split())).encode()).hexdigest()
    return f"{platform.machine()}-{digest[:8]}"
