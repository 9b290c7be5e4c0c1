"""No command of the planner answers a bad value with a traceback, a hang or broken JSON."""

import argparse
import contextlib
import io
import json

import pytest

from partitioning.planner.__main__ import main, parser
from partitioning.planner.commands import advise
from trainer.fleet import load_cluster

PLAN = ["--gin_file=configs/models/tiny.gin", "--cluster=h100_8"]
WORK = [*PLAN, "--batch_tokens=32K", "--seq_len=512"]
SHORT, LONG = " ".join(PLAN), " ".join(WORK)
NEEDED = {"memory": WORK, "step": WORK, "parameters": PLAN[:1], "advise": PLAN}
BAD = ("", "--", "-1", "0", "²", "☃", "nan", "1e999", "1e308", "1e-320", "1e400%", "9" * 5000)


def leaves(of: argparse.ArgumentParser, path: tuple[str, ...] = ()):
    inner = [a for a in of._actions if isinstance(a, argparse._SubParsersAction)]
    if not inner:
        yield path, of
    for action in inner:
        for name, one in action.choices.items():
            yield from leaves(one, (*path, name))


LEAVES = dict(leaves(parser()))


def strictly(text: str) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    json.loads(text, parse_constant=refuse)


def leave(argv: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(argv)
        except SystemExit as leaving:
            code = leaving.code
    return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_help_can_be_shown(path: tuple[str, ...]) -> None:
    code, out, _ = leave([*path, "--help"])
    assert code in (0, None)
    assert "examples:" in out


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_option_refuses_what_makes_no_sense_in_words(path: tuple[str, ...]) -> None:
    options = [a for a in LEAVES[path]._actions if a.option_strings and a.nargs != 0]
    for option in options:
        flag = option.option_strings[-1]
        needed = [word for word in NEEDED.get(path[-1], []) if not word.startswith(f"{flag}=")]
        for value in BAD:
            code, out, err = leave([*path, *needed, f"{flag}={value}", "--json"])
            assert code in (0, 64), (flag, value[:20])
            assert err or out, (flag, value[:20])
            if out:
                strictly(out)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("simulate run --devices=1000000000", "are too many to simulate"),
        ("simulate run --interval=0.000001", "are too many to simulate"),
        ("simulate cluster --jobs=1000000", "too many to simulate"),
        ("checkpoint --within=0", "no time at all"),
        ("bubble --bound=0.0000001", "between 0 and 1, exclusive"),
        ("length --batch=0.1", "less than one token"),
        (f"step {LONG} --mesh=fsdp=8,fsdp=1", "gives fsdp twice"),
        (f"step {LONG} --mesh=fsdp=--8", "is not an axis with its size"),
        (f"advise {SHORT} --tokens_per_batch=1e11 --seq_len=1", "a schedule has at most"),
    ],
)
def test_what_would_take_forever_or_divides_by_nothing_is_refused(command: str, said: str) -> None:
    code, _, err = leave(command.split())
    assert code == 64
    assert said in err


def test_numbers_that_are_not_finite_stay_json() -> None:
    code, out, _ = leave(["simulate", "run", "--failures=0", "--trials=1", "--days=1", "--json"])
    assert code == 0
    strictly(out)
    assert '"Infinity"' in out


@pytest.mark.parametrize("name", ["rules", "schedule", "context_attention", "offload"])
def test_a_word_that_cannot_be_fixed_is_told_with_those_that_can(name: str) -> None:
    code, _, err = leave(["advise", *PLAN, "--tokens_per_batch=32K", f"--fix={name}=7"])
    assert code == 64
    assert f"{name} is one of {', '.join(advise._WORDS[name])}" in err


@pytest.mark.parametrize(
    ("links", "joined"),
    [("()", "[]"), ("(@a/LinkConfig(),)", "[8]"), ("(@b/LinkConfig(), @a/LinkConfig())", "16, 8")],
)
def test_links_go_from_the_innermost_outwards_and_join_all(
    tmp_path, links: str, joined: str
) -> None:
    path = tmp_path / "ours.gin"
    lines = ["include 'configs/clusters/chips/h100.gin'", "ClusterConfig.name = 'ours'"]
    lines += ["ClusterConfig.devices = 16", f"ClusterConfig.links = {links}"]
    for scope, devices in (("a", 8), ("b", 0)):
        if f"@{scope}/" in links:
            lines += [f"{scope}/LinkConfig.{x}" for x in ("name = 'x'", "bandwidth = 1e9")]
            lines += [f"{scope}/LinkConfig.devices = {devices}"]
    path.write_text("\n".join(lines))
    with pytest.raises(ValueError, match="from the innermost outwards") as refused:
        load_cluster(str(path))
    assert joined in str(refused.value)


def test_a_cluster_file_that_is_no_text_is_named(tmp_path) -> None:
    path = tmp_path / "ours.gin"
    path.write_bytes(b"\xef\xff")
    with pytest.raises(ValueError, match=r"ours.gin cannot be read"):
        load_cluster(str(path))


@pytest.mark.parametrize("name", ["adafactor", "lion", "muon", "sgd", "adamw"])
def test_a_model_and_a_file_of_an_optimizer_are_a_plan(name: str) -> None:
    code, out, err = leave(["memory", *WORK, f"--gin_file=configs/optimizers/{name}.gin", "--json"])
    assert code == 0, err
    strictly(out)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hosts: -1", "hosts: -1 is not a number of at least 0"),
        ("hosts: x", "hosts: 'x' is not"),
        ("hosts: 2, borrow: x", "borrow: 'x' is not"),
        ("hosts: 2}], weight: 0, more: [{a: 1", "weight: 0 is not"),
        ("hosts: 2}], weight: .nan, more: [{a: 1", "weight: nan is not"),
        ("hosts: 9", "make quotas smaller"),
    ],
)
def test_a_teams_file_with_a_bad_number_is_refused(tmp_path, text: str, said: str) -> None:
    path = tmp_path / "teams.yaml"
    path.write_text(
        "accelerators: [{kind: h100, hosts: 4}]\n"
        f"teams: [{{name: ours, quotas: [{{kind: h100, {text}}}]}}]\n"
    )
    code, _, err = leave(["simulate", "cluster", f"--teams_file={path}", "--days=0.1"])
    assert code == 64
    assert said in err


def test_a_kind_that_no_team_owns_is_told(tmp_path) -> None:
    path = tmp_path / "teams.yaml"
    path.write_text("accelerators: [{kind: h100, hosts: 4}]\nteams: []\n")
    code, _, err = leave(["simulate", "cluster", f"--teams_file={path}"])
    assert code == 64
    assert "no team has a quota of h100" in err
