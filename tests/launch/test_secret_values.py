"""Secrets reach the process and nothing else."""

import json
import os
import pathlib
import stat
import urllib.parse

import pytest

from launch import secret_values
from launch.secret_values import SecretError
from launch.spec import Secret, SecretForm

VALUE = "s3cr3t-tok$n 'x'\nsecond line"


@pytest.fixture
def reference(tmp_path) -> pathlib.Path:
    path = tmp_path / "token"
    path.write_text(VALUE + "\n")
    path.chmod(0o600)
    return path


def test_a_file_becomes_a_private_file(reference, tmp_path):
    secret = Secret(name="HUB_TOKEN", ref=f"file:{reference}")
    read = secret_values.read([secret], folder=tmp_path / "secrets")
    given = pathlib.Path(read.variables["HUB_TOKEN_FILE"])
    assert given.read_text() == VALUE
    assert stat.S_IMODE(given.stat().st_mode) == 0o600
    assert stat.S_IMODE(given.parent.stat().st_mode) == 0o700


def test_a_variable_only_where_that_is_asked_for(reference, tmp_path):
    secret = Secret(name="HUB_TOKEN", ref=f"file:{reference}", form=SecretForm.ENV)
    read = secret_values.read([secret], folder=tmp_path / "secrets")
    assert read.variables == {"HUB_TOKEN": VALUE}
    assert not (tmp_path / "secrets").exists()


def test_of_a_variable_of_the_host(tmp_path, monkeypatch):
    monkeypatch.setenv("SITE_TOKEN", VALUE)
    secret = Secret(name="HUB_TOKEN", ref="env:SITE_TOKEN", form=SecretForm.ENV)
    assert secret_values.read([secret], folder=tmp_path).variables == {"HUB_TOKEN": VALUE}


def test_kubernetes_has_put_its_own_in_place(tmp_path):
    secret = Secret(name="HUB_TOKEN", ref="k8s:hub/token")
    assert secret_values.read([secret], folder=tmp_path).variables == {}


def test_values_are_hidden_in_any_text(reference, tmp_path):
    secret = Secret(name="HUB_TOKEN", ref=f"file:{reference}")
    read = secret_values.read([secret], folder=tmp_path / "secrets")
    text = read.hide(f"cannot log in with {VALUE}!")
    assert text == "cannot log in with [secret]!"
    assert read.hide("only the second line here") == "only the [secret] here"
    assert VALUE not in repr(read)


@pytest.mark.parametrize(
    "value", ['pass"w\\ord', "a'b\"c\\d", "caf\u00e9/+ =&x", "p@ss:w/rd", "tab\there"]
)
@pytest.mark.parametrize(
    "written",
    [
        str,
        repr,
        json.dumps,
        lambda value: repr(KeyError(value)),
        lambda value: f"https://me:{urllib.parse.quote(value, safe='')}@hub",
        lambda value: urllib.parse.urlencode({"token": value}),
    ],
)
def test_values_are_hidden_however_messages_write_them(tmp_path, monkeypatch, value, written):
    monkeypatch.setenv("SITE_TOKEN", value)
    secret = Secret(name="HUB_TOKEN", ref="env:SITE_TOKEN", form=SecretForm.ENV)
    hide = secret_values.read([secret], folder=tmp_path).hide
    text = written(value)
    assert hide(f"failed: {text}!") == f"failed: {text.replace(inner(text), '[secret]')}!"


def inner(text: str) -> str:
    """Of quotes, of an address or of a parameter."""
    for before, after in (("https://me:", "@hub"), ("token=", ""), ("KeyError(", ")")):
        text = text.removeprefix(before).removesuffix(after) if text.startswith(before) else text
    return text[1:-1] if text[0] in "'\"" and text[0] == text[-1] else text


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_file_that_others_can_read_is_refused(reference, tmp_path, mode):
    reference.chmod(mode)
    with pytest.raises(SecretError, match="chmod 600"):
        secret_values.read([Secret(name="T", ref=f"file:{reference}")], folder=tmp_path)


def test_a_missing_one_is_named_by_its_reference(tmp_path):
    with pytest.raises(SecretError, match="file:/nowhere"):
        secret_values.read([Secret(name="T", ref="file:/nowhere")], folder=tmp_path)
    with pytest.raises(SecretError, match="NO_SUCH"):
        secret_values.read([Secret(name="T", ref="env:NO_SUCH")], folder=tmp_path)


def test_an_old_file_is_replaced(reference, tmp_path):
    folder = tmp_path / "secrets"
    secret = Secret(name="T", ref=f"file:{reference}")
    secret_values.read([secret], folder=folder)
    os.symlink("/etc/hostname", folder / "other")
    read = secret_values.read([secret], folder=folder)
    assert pathlib.Path(read.variables["T_FILE"]).read_text() == VALUE
