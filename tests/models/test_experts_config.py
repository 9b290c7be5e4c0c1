"""What cannot be a mixture of experts is refused with the numbers and what to do."""

import math

import jax
import pytest
from flax import nnx

from models.decoder_config import DecoderConfig
from models.experts_config import ExpertsConfig
from tests.models import mixtures
from trainer.assembly import check_experts
from trainer.certificate import programs

VALID = {"count": 8, "chosen": 2, "mlp_dim": 16}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"count": 0}, "ExpertsConfig.count=0 must be positive"),
        ({"chosen": 9}, "chosen=9 is more than there are experts .*count=8.*at most 8"),
        ({"chosen": 1}, "set ExpertsConfig.renormalize=False"),
        ({"shared_gate": True}, "needs a positive width"),
        ({"capacity": 0.0}, "ExpertsConfig.capacity=0.0 must be positive, or None"),
        ({"capacity": math.inf}, "must be positive, or None"),
        ({"capacity": 1.0, "buffer": 2.0}, "only without a capacity"),
    ],
)
def test_an_impossible_mixture_is_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        ExpertsConfig(**{**VALID, **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pattern": ("global+experts",)}, "set experts to @ExpertsConfig"),
        ({"experts": ExpertsConfig(**VALID)}, "name a kind with '\\+experts'"),
        ({"pattern": ("expert",)}, "Unknown block kinds.*global\\+experts"),
        (
            {"pattern": ("local+experts",), "experts": ExpertsConfig(**VALID)},
            "needs DecoderConfig.window",
        ),
    ],
)
def test_a_decoder_names_blocks_with_experts_exactly_if_it_has_some(changes, says):
    with pytest.raises(ValueError, match=says):
        programs.decoder(**changes)


PUBLISHED = {
    "mixtral_8x7b": (46_702_792_704, 12_879_925_248),
    "qwen3_30b_a3b": (30_532_122_624, 3_353_032_704),
}


def parameters_of(config: DecoderConfig) -> dict[str, int]:
    task = programs.program(config).task
    model = nnx.eval_shape(lambda: task.init(jax.random.key(0)))
    flat = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return {"/".join(map(str, path)): leaf.size for path, leaf in flat}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_their_number_of_parameters(name):
    config = programs.load(model=name).task.model
    sizes = parameters_of(config)
    total, active = PUBLISHED[name]
    assert sum(sizes.values()) == total
    of_experts = sum(
        size for path, size in sizes.items() if path.split("/")[-1] in ("up", "gate", "down")
    )
    unused = of_experts * (config.experts.count - config.experts.chosen) // config.experts.count
    assert total - unused == active


@pytest.mark.parametrize(
    ("count", "devices", "near"), [(8, 3, "2, 4"), (12, 8, "6, 12"), (2, 4, "2")]
)
def test_experts_that_do_not_divide_over_their_axis_are_refused(count, devices, near):
    config = mixtures.decoder(count=count)
    with pytest.raises(ValueError, match=f"count={count}.*MeshConfig.expert={devices}.*{near}"):
        check_experts(config, devices=devices, platform="cpu")


def test_a_mesh_without_experts_takes_any_model():
    check_experts(mixtures.decoder(count=7), devices=1, platform="cpu")
    check_experts(programs.decoder(), devices=4, platform="cpu")


def test_an_exchange_that_the_platform_lacks_is_refused():
    config = mixtures.decoder(exchange="ragged_all_to_all")
    with pytest.raises(ValueError, match="needs a GPU or TPU; this is a CPU"):
        check_experts(config, devices=2, platform="cpu")
    check_experts(config, devices=2, platform="gpu")
