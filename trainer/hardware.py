"""Peak arithmetic rates of accelerators, for model FLOPs utilisation (no jax).

Dense bfloat16 rates from the vendors' data sheets; the figures "with sparsity" are twice these and
never reached by training. jax counts each half of a TPU7x as a device. A test holds them against
those of configs/clusters/chips.
"""

PEAK_FLOPS: dict[str, float] = {
    "NVIDIA A100": 312e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100": 989.4e12,
    "NVIDIA H200": 989.4e12,
    "NVIDIA B200": 2250e12,
    "AMD Instinct MI300X": 1307.4e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5p": 459e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
    "TPU7x": 1153.5e12,
}
"""Prefix of jax's ``device_kind`` -> FLOP/s of one device; longer prefixes first."""


def peak_flops(device_kind: str) -> float | None:
    """Returns the dense bfloat16 peak in FLOP/s, or None for hardware that is not in the table."""
    for prefix in sorted(PEAK_FLOPS, key=len, reverse=True):
        if device_kind.lower().startswith(prefix.lower()):
            return PEAK_FLOPS[prefix]
    return None
