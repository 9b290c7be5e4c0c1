"""A step that was compiled ahead is not compiled again, and its faults reach its first caller."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.ahead import CompiledAhead

SPEC = jax.ShapeDtypeStruct(
    (4,),
    jnp.float32,
    sharding=jax.NamedSharding(jax.make_mesh((1,), ("data",), devices=jax.devices()[:1]), jax.P()),
)


@pytest.fixture
def compilations():
    seen = []

    def listen(event: str, duration: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


def test_the_program_is_compiled_once(compilations):
    values = np.arange(4, dtype=np.float32)
    x = jax.device_put(values, SPEC.sharding)
    ahead = CompiledAhead(jax.jit(lambda x: jnp.sin(x) * 3 + 41, donate_argnums=0), SPEC)
    np.testing.assert_allclose(ahead(x), np.sin(values) * 3 + 41, rtol=1e-6)
    assert len(compilations) == 1
    assert ahead.trace_s > 0
    assert ahead.compile_s > 0


def test_what_compiling_raised_is_raised_by_the_first_call():
    def wrong(x):
        raise ValueError("shapes do not fit")

    ahead = CompiledAhead(jax.jit(wrong), SPEC)
    with pytest.raises(ValueError, match="shapes do not fit"):
        ahead(jnp.zeros(4))
