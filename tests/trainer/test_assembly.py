"""What cannot work is refused before anything is compiled, not where the step is traced."""

import dataclasses

import pytest

from partitioning.mesh_config import MeshConfig
from trainer.assembly import assemble
from trainer.certificate import programs
from trainer.endings import UserError
from trainer.optimizer_config import SGD, AdamW
from trainer.run_config import LanguageModel


@pytest.mark.parametrize("optimizer", [SGD(), SGD(momentum=0.9), AdamW()])
def test_gradients_that_do_not_divide_are_refused_whatever_the_optimizer_keeps(optimizer):
    run = programs.load(rules="zero1")
    model = programs.decoder(embed_dim=36, head_dim=4, dtype="float32", param_dtype="float32")
    run = dataclasses.replace(
        run,
        task=LanguageModel(model=model),
        mesh=MeshConfig(data=8),
        optimizer=optimizer,
    )
    with pytest.raises(UserError, match=r"'embed' fits its size 36: .*not a multiple of 8"):
        assemble(run)
