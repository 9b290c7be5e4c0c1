"""Compiled programs are shared only where they can run."""

import jax
import jaxlib
import pytest

from trainer.compile_cache import keep_programs, machine


@pytest.fixture
def set_options(monkeypatch):
    options = {}
    monkeypatch.setattr(jax.config, "update", options.__setitem__)
    return options


def test_two_versions_and_two_kinds_of_cpu_share_a_cache_without_sharing_programs(
    tmp_path, monkeypatch, set_options
):
    folders = set()
    for version in ("0.12.0", "0.12.1"):
        monkeypatch.setattr(jaxlib, "__version__", version)
        for cpu in ("x86_64-1", "x86_64-2"):
            monkeypatch.setattr("trainer.compile_cache.machine", lambda cpu=cpu: cpu)
            folder = keep_programs(tmp_path)
            assert set_options["jax_compilation_cache_dir"] == str(folder)
            assert list(folder.iterdir()) == []
            folders.add(folder)
    assert len(folders) == 4


def test_what_a_cpu_can_do_tells_machines_apart_and_its_order_or_speed_does_not(tmp_path):
    def of(text):
        path = tmp_path / "cpuinfo"
        path.write_text(text)
        return machine(path)

    one = of("cpu MHz : 2000\nflags : avx2 fma\nflags : avx2 fma\n")
    assert one == of("cpu MHz : 3500\nflags : fma avx2\n")
    assert one != of("cpu MHz : 2000\nflags : avx2 fma avx512f\n")
    assert of("Features : sve\n") != of("Features : asimd\n")


def test_a_folder_that_cannot_be_used_turns_the_cache_off(tmp_path, set_options):
    (tmp_path / "file").write_text("")
    assert keep_programs(tmp_path / "file") is None
    assert set_options == {"jax_compilation_cache_dir": None}
