"""What a run starts from is looked at before there are devices, and compared with its model."""

import dataclasses
import pathlib

import pytest

from input_pipeline.data_config import TokenizerFile, TrainedBpe
from input_pipeline.huggingface_tokenizer import train_bpe
from input_pipeline.tokenizer import ByteTokenizer
from input_pipeline.tokenizer_files import load_tokenizer, save_tokenizer
from launch.contract import Verdict
from models.decoder_config import DecoderConfig
from tests.models.huggingface.folders import SMALL, write_folder
from trainer import config
from trainer.base_checks import base_finding, unlike_import, unlike_tokenizer
from trainer.importing import import_folder
from trainer.run_config import RunConfig

OTHER = dataclasses.replace(SMALL, rope_base=5e5)


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("bases")
    write_folder(folder / "model")
    import_folder(folder / "model", folder / "imported")
    return folder


def run_of(model: DecoderConfig, *, url: str) -> RunConfig:
    run = config.load(["configs/runs/quickstart.gin"]).run
    return dataclasses.replace(
        run,
        task=dataclasses.replace(run.task, model=model),
        train=dataclasses.replace(run.train, init_from=url),
    )


@pytest.mark.parametrize("place", ["model", "imported", "imported/checkpoints/0.a1"])
def test_the_model_of_a_base_is_ready(places, place: str) -> None:
    url = str(places / place)
    found = base_finding(run_of(SMALL, url=url), url=url)
    assert found.verdict is Verdict.OK, found.message
    assert unlike_import(run_of(SMALL, url=url)) == ""


def test_another_model_than_a_folder_is_an_error(places) -> None:
    url = str(places / "model")
    found = base_finding(run_of(OTHER, url=url), url=url)
    assert found.verdict is Verdict.ERROR
    assert "rope_base=500000.0" in found.message


@pytest.mark.parametrize("place", ["imported", "imported/checkpoints/0.a1"])
def test_another_model_than_an_import_is_a_warning_for_it_may_be_meant(places, place: str) -> None:
    url = str(places / place)
    found = base_finding(run_of(OTHER, url=url), url=url)
    assert found.verdict is Verdict.WARNING
    assert "rope_base=500000.0" in found.message
    assert "model.gin" in found.message


def test_nothing_to_start_from_is_an_error(tmp_path) -> None:
    found = base_finding(run_of(SMALL, url=str(tmp_path)), url=str(tmp_path))
    assert found.verdict is Verdict.ERROR
    assert "holds no checkpoint" in found.message


def test_tokens_of_another_model_are_warned_of_and_other_names_for_its_ends_are_not(
    places, tmp_path
) -> None:
    folder = tmp_path / "imported"
    import_folder(places / "model", folder)
    run = run_of(SMALL, url=str(folder / "checkpoints/0.a1"))
    assert unlike_tokenizer(run, ByteTokenizer()) == ""  # nothing to compare with
    save_tokenizer(folder, ByteTokenizer())
    without_start = load_tokenizer(TokenizerFile(path=str(folder), bos=""))
    assert without_start.digest != ByteTokenizer().digest
    assert unlike_tokenizer(run, without_start) == ""
    other = train_bpe(["def mean(values): of some numbers"], config=TrainedBpe(vocab_size=280))
    told = unlike_tokenizer(run, other)
    assert f"TokenizerFile.path = '{folder}'" in told
    meant = dataclasses.replace(run.data, tokenizer=TokenizerFile(path=str(folder)))
    assert unlike_tokenizer(dataclasses.replace(run, data=meant), other) == ""
