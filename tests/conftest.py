"""Every test runs on eight virtual CPU devices, with compiled programs kept between runs."""

import os
import pathlib

_CACHE = pathlib.Path(__file__).resolve().parent.parent / ".cache" / "test-programs"

# Set before jax is imported; processes that tests start inherit it.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(_CACHE)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import hypothesis  # noqa: E402
import jax  # noqa: E402 - reads the variables above

# Not through the environment: processes that tests start choose for themselves.
jax.config.update("jax_num_cpu_devices", 8)

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("lockstep", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("lockstep")
