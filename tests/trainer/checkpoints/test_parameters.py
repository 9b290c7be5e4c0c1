import logging
import pathlib

import jax
import jax.numpy as jnp
import pytest

from tests.trainer.checkpoints import states
from trainer.checkpoints.parameters import load_params
from trainer.checkpoints.root import Root
from trainer.checkpoints.session import CheckpointError


def params(step: int) -> dict[str, jax.Array]:
    return states.make(step)["groups"]["model"]["parameters"]  # type: ignore[index,no-any-return]


def wanted() -> dict[str, object]:
    return states.abstract(params(0))


@pytest.mark.parametrize(
    ("place", "step"), [("", 20), ("/checkpoints", 20), ("/checkpoints/10.a1", 10)]
)
def test_parameters_come_from_a_run_its_checkpoints_or_one_step(
    run_dir: Root, place: str, step: int
) -> None:
    states.saved(run_dir, 10, 20)
    assert states.equal(load_params(run_dir.url + place, wanted()), params(step))


def test_a_step_copied_elsewhere_is_enough(run_dir: Root, tmp_path: pathlib.Path) -> None:
    states.saved(run_dir, 10)
    (tmp_path / "run/checkpoints/10.a1").rename(tmp_path / "10.a1")
    assert states.equal(load_params(str(tmp_path / "10.a1"), wanted()), params(10))


def test_loading_changes_nothing_in_the_run(run_dir: Root) -> None:
    states.saved(run_dir, 10)
    before = run_dir.list()
    load_params(run_dir.url, wanted())
    assert run_dir.list() == before


@pytest.mark.parametrize(
    ("place", "near"),
    [
        ("/no/such/dir", r"run/no/such/dir holds no checkpoint\. .*run holds checkpoints\."),
        ("/checkpoints/15.a1", r"15\.a1 does not exist\. .*checkpoints holds 10\.a1"),
    ],
)
def test_a_path_that_does_not_exist_is_an_error_that_names_what_is_near(
    run_dir: Root, place: str, near: str
) -> None:
    states.saved(run_dir, 10)
    with pytest.raises(ValueError, match=near):
        load_params(run_dir.url + place, wanted())


def test_a_parameter_missing_on_disk_is_an_error_unless_it_is_listed(
    run_dir: Root, caplog: pytest.LogCaptureFixture
) -> None:
    states.saved(run_dir, 10)
    head = jax.ShapeDtypeStruct((4,), jnp.float32, sharding=params(0)["b"].sharding)
    target = {**wanted(), "head": {"w": head}}
    with pytest.raises(ValueError, match=r"missing: head/w \(wanted float32\[4\]\)"):
        load_params(run_dir.url, target)
    with caplog.at_level(logging.WARNING, logger="absl"):
        loaded = load_params(run_dir.url, target, missing=(r"^head/",))
    assert "head/w is not in it and keeps its initial value" in caplog.text
    assert loaded["head"]["w"] is None
    assert states.equal({"w": loaded["w"], "b": loaded["b"]}, params(10))


def test_a_stored_parameter_without_a_place_is_an_error_unless_it_is_listed(run_dir: Root) -> None:
    states.saved(run_dir, 10)
    target = {"w": wanted()["w"]}
    with pytest.raises(ValueError, match=r"extra: b \(stored bfloat16\[8\]\)"):
        load_params(run_dir.url, target)
    loaded = load_params(run_dir.url, target, unused=("^b$",))
    assert states.equal(loaded, {"w": params(10)["w"]})


def test_a_parameter_of_another_shape_is_an_error(run_dir: Root) -> None:
    states.saved(run_dir, 10)
    target = wanted() | {
        "b": jax.ShapeDtypeStruct((9,), jnp.bfloat16, sharding=params(0)["b"].sharding)
    }
    with pytest.raises(
        ValueError, match=r"shape: b is stored as bfloat16\[8\], wanted bfloat16\[9\]"
    ):
        load_params(run_dir.url, target, missing=(".*",))


def test_damaged_parameters_are_not_used(run_dir: Root) -> None:
    states.saved(run_dir, 10)
    run_dir.write("checkpoints/10.a1/data.json", b"{}")
    with pytest.raises(CheckpointError, match=r"10\.a1 cannot be read: data\.json has 2 bytes"):
        load_params(run_dir.url, wanted())


def test_a_leaf_without_sharding_is_refused(run_dir: Root) -> None:
    bare = {"w": jax.ShapeDtypeStruct((16, 8), jnp.float32)}
    with pytest.raises(ValueError, match="needs a sharding"):
        load_params(run_dir.url, bare)
