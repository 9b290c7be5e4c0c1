"""The calculators through their front door: the documents' cases, and what is refused."""

import json

import pytest

from partitioning.planner.__main__ import main, parser
from tests.partitioning.planner.asking import answer, quantity

GB = 1e9
OVERLAP = "overlap --backward=900ms --communication=480ms --hidden=80%"
UPTIME = "interval --devices=4096 --recovery=5min --save"
RUN_META = "interval --devices=4096 --rate=meta --save=8 --recovery=5min"
SPLIT_70B = "state --tensor=8 --stage=4 --data=16"

RIGHT = [
    # What the input delivers.
    ("data --rows=2048", "reading.bytes_per_second", 8_388_608),
    ("data --rows=2048 --shard=1M", "reading.opens_per_second", 4.19),
    ("data", "reading.bytes_per_second", 1_048_576),
    ("data --document=600", "packing.padding", 0.8535),
    ("data --fill=83.3333%", "packing.gain", 1.2),
    # State, by stage of ZeRO.
    ("state", "whole.weights", 140 * GB),
    ("state", "whole.optimizer", 840 * GB),
    ("state", "whole.all", 1120 * GB),
    (SPLIT_70B, "device.no_zero", 35 * GB),
    (SPLIT_70B, "device.zero_1", 10.39 * GB),
    (SPLIT_70B, "device.zero_2", 6.289 * GB),
    (SPLIT_70B, "device.zero_3", 2.1875 * GB),
    ("state --tensor=1 --stage=1 --data=16", "device.zero_1", 332.5 * GB),
    ("state --tensor=1 --stage=1 --data=16", "device.zero_2", 201.25 * GB),
    ("state --tensor=1 --stage=1 --data=16", "device.zero_3", 70 * GB),
    ("state --tensor=1 --stage=1 --data=16", "device.least_replicas", 14.93),
    ("state --parameters=7B --tensor=1 --stage=1 --data=8", "device.no_zero", 112 * GB),
    ("state --parameters=7B --tensor=1 --stage=1 --data=8", "device.zero_1", 38.5 * GB),
    ("state --parameters=7B --tensor=1 --stage=1 --data=8", "device.zero_2", 26.25 * GB),
    ("state --parameters=7B --tensor=1 --stage=1 --data=8", "device.zero_3", 14 * GB),
    ("state --parameters=200B --stage=8 --data=32", "whole.all", 3200 * GB),
    ("state --parameters=200B --stage=8 --data=32", "device.no_zero", 50 * GB),
    ("state --parameters=200B --stage=8 --data=32", "device.zero_1", 13.67 * GB),
    ("state --parameters=200B --stage=8 --data=32", "device.zero_3", 1.5625 * GB),
    ("state --stage=1 --data=512", "device.zero_3", 0.273 * GB),
    # Pipelines.
    ("bubble --stage=4 --microbatches=8", "pipeline.bubble", 0.2727),
    ("bubble --stage=4 --microbatches=8 --chunks=2", "pipeline.bubble", 0.1579),
    ("bubble --stage=4 --microbatches=8 --chunks=3", "pipeline.bubble", 0.1111),
    ("bubble --stage=4 --microbatches=4", "pipeline.bubble", 0.4286),
    ("bubble --stage=4 --microbatches=16", "pipeline.bubble", 0.1579),
    ("bubble --stage=4 --microbatches=32", "pipeline.bubble", 0.0857),
    ("bubble --stage=4 --microbatches=128", "pipeline.bubble", 0.0229),
    ("bubble --stage=8 --microbatches=32", "pipeline.bubble", 0.1795),
    ("bubble --stage=4", "bound.least_microbatches", 28),
    ("bubble --stage=4 --bound=8%", "bound.least_microbatches", 35),
    ("bubble --stage=8 --bound=8%", "bound.least_microbatches", 81),
    ("bubble --stage=4 --bound=15%", "bound.least_microbatches", 18),
    ("bubble --bound=15%", "bound.least_chunks", 3),
    ("bubble --bound=15%", "bound.most_stages", 2),
    ("bubble", "batch.rows", 256),
    ("bubble", "batch.tokens", 1_048_576),
    ("bubble --microbatches=16", "batch.tokens", 2_097_152),
    # Collectives.
    ("collective --rows=4", "tensor.message", 268_435_456),
    ("collective --rows=4", "tensor.inner_call", 1.044e-3),
    ("collective", "tensor.calls", 640),
    ("collective", "tensor.inner_step", 0.334),
    ("collective", "tensor.outer_step", 3.006),
    ("collective", "zero_3.one_microbatch", 12.3047 * GB),
    ("collective", "zero_3.each_microbatch_time", 1.394),
    ("collective --tensor=1 --stage=1 --bucket=5M", "zero_3.buckets", 28_000),
    ("collective", "stages.activation", 134_217_728),
    ("collective", "stages.transfer", 0.3355e-3),
    ("collective --context=8 --length=128K", "layer.keys_and_values", 536_870_912),
    (
        "collective --expert=8 --rows=1 --width=4096 --tensor=1",
        "layer.expert_exchange",
        58_720_256,
    ),
    # Overlap.
    ("overlap", "sequential.step", 2.680),
    ("overlap", "perfect.step", 1.630),
    ("overlap", "overlapped.step", 1.945),
    ("overlap", "perfect.speed", 1.644),
    ("overlap", "overlapped.speed", 1.378),
    (OVERLAP, "overlapped.step", 1.526),
    # Utilisation.
    ("mfu --tokens_per_second=500K", "measured.mfu", 0.4147),
    ("mfu --tokens_per_second=700K", "measured.mfu", 0.5806),
    ("mfu --tokens_per_second=300K", "measured.mfu", 0.2488),
    ("mfu --tokens_per_second=482255", "measured.mfu", 0.40),
    ("mfu", "measured.mfu_full", 0.4465),
    ("mfu", "measured.ceiling", 1_205_638.0),
    ("mfu --parameters=30B --devices=256 --tokens_per_second=42500", "measured.mfu", 0.0302),
    ("mfu", "waterfall.left", 0.658),
    ("mfu --losses=8.6%,10%,8%,5%", "waterfall.left", 0.71895),
    ("mfu --losses=8.6%,10%,8%,5%", "waterfall.tokens_per_second", 866_851.0),
    # Failures and saving.
    ("failures", "512.failures_per_week", 5.12),
    ("failures", "512.mtbf", 118_125),
    ("failures", "1024.mtbf", 16.41 * 3600),
    ("failures", "4096.mtbf", 4.1016 * 3600),
    ("failures", "16384.mtbf", 1.0254 * 3600),
    ("failures --devices=16384 --rate=meta", "16384.mtbf", 3.093 * 3600),
    ("failures --devices=4096 --save=8 --rate=meta", "4096.young", 844.2),
    ("interval --devices=512", "chosen.steps", 543),
    ("interval --devices=512", "cost.checkpoint", 0.00458),
    ("interval --devices=512", "cost.lost", 0.01426),
    ("interval --devices=512", "book.lost", 0.0660),
    (f"{UPTIME}=8", "formulas.young", 486.06),
    (f"{UPTIME}=8", "formulas.daly", 480.74),
    (f"{UPTIME}=8", "cost.checkpoint", 0.0162),
    (f"{UPTIME}=8", "cost.rework", 0.01646),
    (f"{UPTIME}=8", "cost.effective", 0.9470),
    (f"{UPTIME}=2", "cost.effective", 0.9633),
    (f"{UPTIME}=8 --progress=5min --budget=5%", "chosen.interval", 300),
    (f"{UPTIME}=8 --progress=5min --budget=5%", "cost.checkpoint", 0.0260),
    (f"{UPTIME}=8 --recovery=10min", "book.checkpoint", 0.0755),
    ("interval --devices=1000 --save=8", "formulas.young", 983.7),
    ("interval --devices=1000 --save=8 --progress=10min", "chosen.interval", 600),
    (RUN_META, "formulas.young", 844.2),
    (RUN_META, "cost.lost", 0.0256),
    (RUN_META, "cost.effective", 0.974),
    ("failures --devices=256", "256.per_failure", 256 * (768.5 + 600) / 3600),
    ("spares --devices=512", "512.by_share", 4),
    ("spares --devices=8192", "8192.repair_4_h", 6),
    ("spares --devices=8192", "8192.availability", 0.9248),
    ("spares --devices=8192", "8192.recovery_needed", 37.1),
    ("spares --devices=8192", "8192.mtbf_needed", 33.17 * 3600),
    ("downtime", "99.95.30_days", 21.6),
    ("downtime", "99.95.year", 4.38 * 60),
    # Checkpoints, time and money.
    ("checkpoint", "size.size", 840 * GB),
    ("checkpoint", "size.with_copy", 980 * GB),
    ("checkpoint", "size.per_device", 1.640625 * GB),
    ("checkpoint", "write.bandwidth_needed", 9.333 * GB),
    ("length --tokens=300B", "run.duration", 428_571.0),
    ("length", "run.tokens", 1_400_000_000_000),
    ("length", "run.duration", 23.148 * 86_400),
    ("length --tokens=300B", "schedule.steps", 286_103),
    ("length --tokens=300B", "schedule.step", 1.498),
    ("length --tokens=300B", "schedule.interval", 1086.9),
    ("length --tokens=300B", "schedule.wall", 428_571 / (1 - 0.01426)),
    ("length --tokens=300B", "schedule.failures", 434_771 / 118_125),
    ("length --tokens=300B", "schedule.checkpoints", 428_571 / 1086.9),
    ("cost", "cost.useful", 121_905.0),
    ("cost --tokens_per_second=400K", "cost.useful", 213_333.0),
    ("cost", "saved.per_run", 91_429.0),
    ("cost --mfu=65% --slower_mfu=35%", "saved.ratio", 1.857),
    ("cost --tokens=26.704T --mfu=35%", "cost.useful", 18e6),
    ("cost --tokens=26.704T --mfu=65%", "cost.useful", 9.69e6),
    ("cost", "levers.packing_20_percent", 123_674 / 6),
    ("cost --lost=0 --idle=20%", "levers.nothing_idle", 121_905 / 4),
    ("cost", "saved.per_quarter", 365_714.0),
    ("cost", "saved.per_year", 1_462_857.0),
    # Reinforcement learning.
    ("rlhf", "devices.rollout", 204.8),
    ("rlhf", "devices.reward", 76.8),
    ("rlhf", "devices.reference", 128),
    ("rlhf", "devices.update", 102.4),
    ("rlhf", "replicas.rollout_replicas", 25),
    ("rlhf", "replicas.reward_replicas", 19),
    ("rlhf", "replicas.reference_replicas", 16),
    ("rlhf", "replicas.update_replicas", 6),
    ("rlhf", "replicas.update_devices", 96),
    # The quick reference.
    ("sheet", "formulas.mfu", 0.5806),
    ("sheet", "parameters.mtbf", 118_125),
    ("sheet", "numbers.least_microbatches", 28),
    ("sheet", "numbers.zero_3_over_all_reduce", 1.5),
    ("sheet", "parameters.saving", 0.00458),
]
BOOK = [
    ("collective --rows=4", "tensor.inner_call", 0.4474e-3),
    ("collective --rows=4", "tensor.outer_call", 5.369e-3),
    ("collective --rows=4", "tensor.inner_step", 71.58e-3),
    ("collective --rows=4", "tensor.outer_step", 858.99e-3),
    ("collective", "zero_3.one_microbatch", 420 * GB),
    ("collective", "zero_3.buckets", 2800),
    ("collective", "stages.transfer", 2.684e-3),
    ("collective", "stages.transfers", 3),
    ("collective --context=8 --length=128K", "layer.keys_and_values", 4.295 * GB),
    ("bubble", "batch.microbatches", 32),
    ("bubble", "bound.least_microbatches", 16),
    (SPLIT_70B, "device.zero_3", 70 * GB),
    ("interval", "formulas.young", 77.46),
    ("interval", "formulas.young_steps", 38.7),
    ("mfu", "waterfall.left", 0.60),
    ("cost", "saved.per_year", 364_544),
    ("cost", "saved.per_run", 91_136),
    ("interval", "chosen.steps", 38),
    ("length", "run.optimal_tokens", 300e9),
    ("sheet", "parameters.typical_mfu", 0.65),
    ("sheet", "parameters.saving", 0.0617),
    ("sheet", "formulas.sharded", 420 * GB),
    ("sheet", "formulas.bubble", 0.0857),
]
REFUSED = {
    "interval --progress=60s": "Write faster, or allow more loss or a larger budget",
    "interval --save=0": "--save=0: it takes some time",
    "interval --budget=0": "--budget=0 leaves no time to save",
    "interval --step=0": "--step=0",
    "downtime --availability=0": "between 0 and 100%, exclusive",
    "spares --availability=100%": "between 0 and 100%, exclusive",
    "collective --context=3": "--length=4096 does not divide by --context=3",
    "data --fill=0": "--fill=0",
    "bubble --bound=100%": "between 0 and 1, exclusive",
    "cost --lost=60% --idle=40%": "leave no time to train",
    "length --devices=1000000": "fewer devices, a lower --rate or a shorter --recovery",
    "length --mfu=0": "--mfu=0 trains nothing",
    "rlhf --rollout=50%": "add to 110%; they must be 100%",
    "overlap --forward=0 --backward=0 --communication=0 --optimizer=0": "A step of no time",
    "errata --only=E99": "There is no E99",
}
MISREAD = {
    "interval --save=5lightyears": "is not a duration; write 450ms, 90s",
    "failures --rate=0": "A rate of 0 means that nothing fails",
    "failures --devices=512,x": "'x' is not a positive whole number",
    "cost --spares=-1": "is not a positive whole number",
    "state --parameters=seventy": "is not an amount",
}
COMMANDS = {
    name
    for action in parser()._subparsers._group_actions
    for name in action.choices
    if name not in ("parameters",)
}
OURS = {
    *("state", "bubble", "activations", "collective", "overlap", "mfu", "data", "failures"),
    *(
        "interval",
        "spares",
        "downtime",
        "checkpoint",
        "length",
        "cost",
        "rlhf",
        "sheet",
        "review",
        "errata",
    ),
}


@pytest.mark.parametrize(("command", "key", "expected"), RIGHT)
def test_right(command, key, expected):
    value = quantity(command, key).value
    if isinstance(expected, int):
        assert round(value, 6) == expected
    else:
        assert value == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize(("command", "key", "expected"), BOOK)
def test_by_the_book_with_the_reason_why_it_differs(command, key, expected):
    found = quantity(command, key)
    assert found.under("book") == pytest.approx(expected, rel=0.005)
    section = next(s for s in answer(command).sections if s.name == key.rpartition(".")[0])
    assert any(q.note.startswith("E") for q in section.quantities)


@pytest.mark.parametrize("command", sorted(OURS))
def test_a_command_answers_without_flags_in_both_forms_and_by_both_policies(command, capsys):
    for policy in ("right", "book"):
        assert main([command, f"--policy={policy}"]) == 0
        assert "=" in capsys.readouterr().out
        assert main([command, f"--policy={policy}", "--json"]) == 0
        plain = json.loads(capsys.readouterr().out)
        assert plain["policy"] == policy
        assert all(plain["sections"].values())


@pytest.mark.parametrize("command", sorted(OURS))
def test_the_examples_of_its_help_run(command, capsys):
    assert command in COMMANDS
    with pytest.raises(SystemExit):
        parser().parse_args([command, "--help"])
    lines = capsys.readouterr().out.partition("examples:\n")[2].splitlines()
    examples = [line.partition("partitioning.planner ")[2] for line in lines]
    assert examples
    for example in examples:
        assert answer(example).sections


def test_names_are_unique_in_a_section():
    for command in OURS:
        for section in answer(command).sections:
            names = [q.name for q in section.quantities]
            assert len(set(names)) == len(names), (command, section.name)


@pytest.mark.parametrize("command", REFUSED)
def test_what_makes_no_sense_is_refused(command, capsys):
    assert main(command.split()) == 64
    assert REFUSED[command] in capsys.readouterr().err


@pytest.mark.parametrize("command", MISREAD)
def test_what_cannot_be_read_is_refused(command, capsys):
    with pytest.raises(SystemExit) as left:
        parser().parse_args(command.split())
    assert left.value.code == 64
    assert MISREAD[command] in capsys.readouterr().err


def test_a_state_that_fits_nowhere_leaves_with_64(capsys):
    assert main(["state", "--parameters=1T", "--tensor=1", "--stage=1", "--data=8"]) == 64
    assert "Not even ZeRO-3 fits" in capsys.readouterr().out


def test_whole_hours_are_what_the_chapter_pays():
    useful = quantity("cost", "cost.useful")
    assert useful.book == 121_856
    assert quantity("cost --tokens_per_second=400K", "cost.useful").book == 212_992
