"""Streams the tensors of a Hugging Face folder onto a mesh.

Promise: a process holds, besides what its own devices are to have, one part of one tensor at a
time. Each device is filled by itself, so that no collective is involved and every process of a run
reads only what its devices need.
"""

import collections
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from models.huggingface.safetensors_files import TensorFolder, check_range
from models.huggingface.tensors import Slices, Tensor, by_path

OnProgress = Callable[[int, int], None]
"""Is told bytes done and bytes in all; shared by the commands that read and write."""


def load(
    folder: TensorFolder,
    tensors: Iterable[Tensor],
    abstract: Mapping[str, jax.ShapeDtypeStruct],
    *,
    progress: OnProgress = lambda done, of: None,
) -> dict[str, jax.Array]:
    """Returns parameters by path, on the shardings of ``abstract``.

    Args:
      folder: checked against the tensors before (``safetensors_files.check``).
      tensors: where each parameter's values are; together they cover every one.
      abstract: path -> shape, dtype and sharding.
      progress: is told bytes of the files that are done, other processes' share included.

    Raises:
      ValueError: the type of a parameter cannot hold one of its numbers.
    """
    of_path = by_path(tensors)
    assert of_path.keys() == abstract.keys(), of_path.keys() ^ abstract.keys()
    sizes = {path: sum(folder.tensors[t.name].bytes for t in of_path[path]) for path in abstract}
    total, done = sum(sizes.values()), 0
    loaded = {}
    for path, like in abstract.items():
        loaded[path] = _parameter(folder, of_path[path], like)
        done += sizes[path]
        progress(done, total)
    return loaded


def _parameter(
    folder: TensorFolder, tensors: Sequence[Tensor], like: jax.ShapeDtypeStruct
) -> jax.Array:
    sharding = like.sharding
    assert sharding is not None
    parts = sharding.addressable_devices_indices_map(like.shape)
    holders: dict[tuple[tuple[int, int], ...], list[jax.Device]] = collections.defaultdict(list)
    for device, index in parts.items():
        assert index is not None
        holders[_bounds(index, like.shape)].append(device)
    filled: dict[jax.Device, jax.Array] = {}
    for bounds, devices in holders.items():
        shape = tuple(stop - start for start, stop in bounds)
        for device in devices:
            filled[device] = jax.device_put(jnp.zeros(shape, like.dtype, device=device), device)
        for tensor in tensors:
            lead, inner = bounds[: len(tensor.at)], bounds[len(tensor.at) :]
            if not all(start <= i < stop for i, (start, stop) in zip(tensor.at, lead)):
                continue
            values = read_part(folder, tensor, tuple(slice(*each) for each in inner))
            check_range(values, np.dtype(like.dtype), name=tensor.name)
            place = [i - start for i, (start, _) in zip(tensor.at, lead)] + [0] * len(inner)
            for device in devices:
                new = _written(
                    filled[device], jax.device_put(values, device), np.asarray(place, np.int32)
                )
                # One at a time: transfers that wait would each hold a tensor.
                filled[device] = jax.block_until_ready(new)
    arrays = [filled[device] for device in parts]
    return jax.make_array_from_single_device_arrays(like.shape, sharding, arrays)


def read_part(folder: TensorFolder, tensor: Tensor, part: Slices) -> np.ndarray:
    """Returns a part of a tensor in our layout, in the type of its file.

    Args:
      folder: where it is.
      tensor: which.
      part: slices of ``tensor.shape``.
    """
    theirs, shape = tensor.layout.their_part(tensor.shape, part)
    values = tensor.layout.to_ours(folder.read(tensor.name, theirs), shape=shape)
    # A joined dimension is cut along its first member only; the others are cut here.
    rest = tuple(
        slice(None) if size == cut.stop - cut.start else cut
        for size, cut in zip(shape, part, strict=True)
    )
    return np.ascontiguousarray(values[rest])


def _bounds(index: Slices, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(each.indices(size)[:2] for each, size in zip(index, shape, strict=True))


@functools.partial(jax.jit, donate_argnums=0)
def _written(whole: jax.Array, values: jax.Array, place: jax.Array) -> jax.Array:
    """Writes values, a lead of ones put before their dimensions, at a place of ``whole``."""
    values = values.astype(whole.dtype).reshape((1,) * (whole.ndim - values.ndim) + values.shape)
    return jax.lax.dynamic_update_slice(whole, values, list(place))
