"""Lets programs for GPUs that are not there use cuDNN's attention, as they do where GPUs are.

jax asks the GPU at hand which kernels it has; for a target the answers come from here. cuDNN itself
is not needed, because the compiler leaves a call to it in the program.
"""

import contextlib
from collections.abc import Callable, Iterator

import jax
from jax._src.cudnn import fused_attention_stablehlo as fused_attention

CUDNN = 91_002
"""Version that partitioning/*.textproto name: 9.10.2."""


@contextlib.contextmanager
def kernels_of(device: jax.Device) -> Iterator[None]:
    """Has jax choose kernels for ``device``, where it is a GPU, rather than for what is here."""
    if device.platform != "gpu":
        yield
        return
    its = _version(device.compute_capability)
    answers: dict[str, Callable[..., object]] = {
        "check_cudnn_version": lambda: CUDNN,
        "check_compute_capability": lambda wanted: its >= _version(wanted),
        "is_cuda_compute_capability_equal": lambda wanted: its == _version(wanted),
    }
    asked = {name: getattr(fused_attention, name) for name in answers}
    try:
        for name, answer in answers.items():
            setattr(fused_attention, name, answer)
        yield
    finally:
        for name, before in asked.items():
            setattr(fused_attention, name, before)


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))
