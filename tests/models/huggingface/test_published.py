"""Published models, by the facts in published/: config.json, parameters, names of tensors.

Parameters are what model cards and the files' own metadata state. Where an index of the files was
at hand its size, and number and digest of its sorted names, are there, too.
"""

import hashlib
import json
import math
import pathlib

import jax
import pytest
from flax import nnx

from models.decoder import Decoder
from models.decoder_config import DecoderConfig
from models.huggingface import config_file
from models.huggingface.architectures import ARCHITECTURES, fitting
from partitioning.planner import decoder_parameters
from partitioning.planner.inputs import load_model

FACTS = {
    path.stem: json.loads(path.read_text())
    for path in sorted(pathlib.Path(__file__).with_name("published").glob("*.json"))
}


def read(name: str):
    return config_file.read(FACTS[name]["config"], where=name)


def shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Returns path -> shape of the real model, without allocating anything."""
    module = nnx.eval_shape(lambda: Decoder(config, key=jax.random.key(0)))
    flat = nnx.to_flat_state(nnx.state(module, nnx.Param))
    return {"/".join(map(str, path)): tuple(leaf.shape) for path, leaf in flat}


@pytest.mark.parametrize("name", FACTS)
def test_its_config_is_the_architecture_it_names(name):
    architecture, config = read(name)
    assert [architecture.name] == FACTS[name]["config"]["architectures"]
    assert not architecture.differences(config)


@pytest.mark.parametrize("name", FACTS)
def test_it_has_its_published_number_of_parameters(name):
    _, config = read(name)
    assert (
        decoder_parameters.count(decoder_parameters.parameters(config))
        == (FACTS[name]["parameters"])
    )


@pytest.mark.parametrize("name", FACTS)
def test_its_tensors_fill_every_parameter_of_the_real_model_once(name):
    architecture, config = read(name)
    filled: dict[str, set[tuple[int, ...]]] = {}
    for tensor in architecture.tensors(config):
        places = filled.setdefault(tensor.path, set())
        assert tensor.at not in places
        places.add(tensor.at)
        assert math.prod(tensor.their_shape) == math.prod(tensor.shape)
    for path, shape in shapes(config).items():
        [depth] = {len(at) for at in filled[path]}
        assert len(filled.pop(path)) == math.prod(shape[:depth])
    assert not filled


@pytest.mark.parametrize("name", [name for name, facts in FACTS.items() if "index" in facts])
def test_its_tensors_are_those_of_the_published_index(name):
    architecture, config = read(name)
    tensors, index = architecture.tensors(config), FACTS[name]["index"]
    names = "\n".join(sorted(tensor.name for tensor in tensors))
    assert len(tensors) == index["tensors"]
    assert hashlib.sha256(names.encode()).hexdigest() == index["sha256"]
    assert 2 * sum(math.prod(tensor.their_shape) for tensor in tensors) == index["bytes"]


@pytest.mark.parametrize("name", [name for name, facts in FACTS.items() if "gin" in facts])
def test_the_gin_file_describes_the_published_model(name):
    architecture, config = read(name)
    ours = load_model([f"configs/models/{FACTS[name]['gin']}.gin"])
    one, other = (
        config_file.write(each, architecture=architecture, dtype="bfloat16")
        for each in (ours, config)
    )
    assert one == other


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, facts in FACTS.items()
        if "gin" in facts and "router_aux_loss_coef" in facts["config"]
    ],
)
def test_the_gin_file_of_a_mixture_balances_as_hard_as_published(name):
    """Theirs averages layers and adds up choices; ours adds up layers and averages choices."""
    published = FACTS[name]["config"]["router_aux_loss_coef"]
    ours = load_model([f"configs/models/{FACTS[name]['gin']}.gin"])
    assert ours.experts is not None
    assert ours.experts.balance_weight == pytest.approx(
        published * ours.experts.chosen / ours.layers, rel=1e-4
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda each: each.name)
def test_every_architecture_has_a_published_model(architecture):
    assert any(FACTS[name]["config"]["architectures"] == [architecture.name] for name in FACTS)


def test_the_first_architecture_that_can_express_a_model_is_found():
    found = {name: fitting(read(name)[1]).name for name in FACTS}
    named = {name: facts["config"]["architectures"][0] for name, facts in FACTS.items()}
    # Without a window a Mistral is a Llama.
    windowless = ("mistral_7b_v0_3", "mistral_nemo_12b", "dolphin_3_mistral_24b")
    assert found == named | dict.fromkeys(windowless, "LlamaForCausalLM")
