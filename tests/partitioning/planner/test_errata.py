"""The 42 slips of the documents: what they print, and what is right."""

import pytest

from tests.partitioning.planner.asking import answer

ERRATA = {section.name: section for section in answer("errata").sections}
FIGURES = {(name, q.name): (q.value, q.book) for name, s in ERRATA.items() for q in s.quantities}

EXPECTED = [
    ("E1", "bytes_per_second", 1_048_576, 8e6),
    ("E1", "at_700K", 1.4e6, None),
    ("E1", "at_700K_wide", 2.8e6, None),
    ("E1", "assumed", 4_194_304, None),
    ("E1", "over_ceiling", 3.48, None),
    ("E2", "opens", 0.524, 40_000),
    ("E2", "opens_assumed", 4.19, None),
    ("E3", "nvlink", 1.044e-3, 0.45e-3),
    ("E3", "nvlink_as_600", 0.783e-3, None),
    ("E3", "infiniband", 9.395e-3, 5.4e-3),
    ("E3", "ratio", 9, 12),
    ("E4", "calls", 640, 160),
    ("E4", "nvlink", 0.334, 0.072),
    ("E4", "infiniband", 3.006, 0.864),
    ("E4", "nvlink_as_600", 0.143, None),
    ("E5", "without", 10.737e9, 10.7e9),
    ("E5", "freed", 9.395e9, 8e9),
    ("E6", "bubble", 0.429, 0.75),
    ("E6", "one_microbatch", 0.75, None),
    ("E7", "2_stages", 0.111, None),
    ("E7", "4_stages", 0.158, None),
    ("E7", "8_stages", 0.1795, None),
    ("E7", "least_for_4", 28, 16),
    ("E7", "least_for_8", 64, 32),
    ("E8", "microbatches", 8, 32),
    ("E8", "bubble", 0.273, 0.0857),
    ("E8", "rows_for_32", 1024, 256),
    ("E8", "tokens_for_32", 4_194_304, 1_048_576),
    ("E9", "all_heads", 176e12, None),
    ("E9", "one_head_80_layers", 2.749e12, 2.56e12),
    ("E9", "keys_and_values", 0.537e9, 4.295e9),
    ("E9", "sent", 0.4698e9, 3.758e9),
    ("E10", "70B_at_64", 17.5e9, None),
    ("E10", "175B_at_256", 10.9e9, None),
    ("E11", "zero_1", 332.5e9, 334e9),
    ("E12", "sent", 12.30e9, 420e9),
    ("E12", "once", 0.246, 1.05),
    ("E12", "each_microbatch", 1.39, None),
    ("E12", "scattered_each_time", 1.97, None),
    ("E12", "pure_fsdp", 8.38, None),
    ("E13", "4_devices", 1.5, 2),
    ("E14", "exposed_perfect", 0.0, 0.644),
    ("E15", "failures", 1170.3, 1148),
    ("E15", "in_49_days", 1146.9, None),
    ("E15", "measured", 419, None),
    ("E15", "too_high", 3.016, None),
    ("E16", "interval", 1086.9, 77.46),
    ("E16", "daly", 1083.5, None),
    ("E16", "lost", 0.0143, 0.0660),
    ("E17", "saving", 0.00458, 0.0617),
    ("E17", "least_interval", 90, 76),
    ("E18", "full_cost", 1 / 3, 0.10),
    ("E18", "selective_saves", 0.847, None),
    ("E18", "full_saves", 0.924, None),
    ("E18", "1_rows", 5.37e9, 5.5e9),
    ("E18", "2_rows", 10.74e9, 11e9),
    ("E18", "4_rows", 21.47e9, None),
    ("E19", "ratio", 14.8, 8),
    ("E20", "gain", 6.83, 1.2),
    ("E20", "fill_of_20_percent", 0.8333, None),
    ("E21", "devices", 96, 102),
    ("E21", "state", 11.67e9, 186.7e9),
    ("E22", "left", 0.658, 0.60),
    ("E23", "work_of", 122.88, 123),
    ("E24", "ratio", 1.5, 3),
    ("E25", "mfu", 0.0302, 0.287),
    ("E25", "for_28_7", 403_688, None),
    ("E25", "for_28", 393_842, None),
    ("E27", "zero_3", 2.1875e9, 70e9),
    ("E27", "no_zero", 35e9, 1120e9),
    ("E27", "zero_1", 10.39e9, 332.5e9),
    ("E27", "7B_zero_1", 38.5e9, None),
    ("E27", "least_replicas", 0.4667, 14.93),
    ("E27", "with_activations", 25.0e9, 81e9),
    ("E28", "transfer", 0.3355e-3, 2.7e-3),
    ("E29", "mfu", 0.719, 0.721),
    ("E29", "tokens_per_second", 866_851.0, 869_320),
    ("E29", "mfu_8_microbatches", 0.572, None),
    ("E29", "tokens_per_second_8_microbatches", 689_713, None),
    ("E30", "per_year", 1_458_176, 364_000),
    ("E31", "tokens", 1_400_000_000_000, 300e9),
    ("E31", "duration", 23.15 * 86_400, None),
    ("E31", "cost", 568_889, None),
    ("E32", "saved", 20_480, 90_000),
    ("E32", "fifth_of_119_h", 24_371, None),
    ("E33", "days", 14.41, 13),
    ("E33", "saved", 354_219, 748_800),
    ("E33", "13_days", 319_488, None),
    ("E33", "days_for_748800", 30.47, None),
    ("E34", "lowest", 0.38, 0.65),
    ("E34", "highest", 0.43, 0.65),
    ("E35", "4_stages", 0.273, None),
    ("E35", "most_stages", 2, None),
    ("E35", "least_chunks", 3, None),
    ("E35", "3_chunks", 0.111, None),
    ("E36", "kv_cache", 0, None),
    ("E37", "recovery", 37.1, 600),
    ("E37", "availability", 0.9248, 0.995),
    ("E37", "mtbf", 33.17 * 3600, 7382.8),
    ("E38", "parameters", 38_654_705_664, 30e9),
    ("E39", "in_a_step", 162_350, None),
    ("E39", "tokens_per_second", 548_993.0, 85_000),
    ("E39", "mfu", 0.455, 0.0705),
    ("E40", "full", 0.0767, None),
    ("E40", "causal", 0.0383, None),
]
WORDS = {
    "E10": "PP = 1",
    "E23": "missing",
    "E26": "48 is the uncorrectable double-bit ECC error",
    "E34": "We know no source",
    "E41": "(i + 1) mod n",
    "E42": "no such list",
}


def test_there_are_42_each_with_a_reason_and_with_a_value_or_words():
    assert list(ERRATA) == [f"E{number}" for number in range(1, 43)]
    assert all(section.text for section in ERRATA.values())
    assert {number for number, *_ in EXPECTED} | set(WORDS) == set(ERRATA)


@pytest.mark.parametrize(("number", "name", "value", "book"), EXPECTED)
def test_value(number, name, value, book):
    right, printed = FIGURES[number, name]
    assert (round(right) if isinstance(value, int) else right) == pytest.approx(value, rel=0.005)
    assert printed == (None if book is None else pytest.approx(book, rel=0.005))


@pytest.mark.parametrize("number", WORDS)
def test_words(number):
    assert WORDS[number] in " ".join(ERRATA[number].text)


def test_every_note_of_the_planner_names_a_slip_that_exists():
    commands = ("state", "bubble", "collective", "overlap", "mfu", "data", "failures", "interval")
    more = ("spares", "length", "cost", "rlhf", "sheet", "review")
    asked = [answer(command) for command in (*commands, *more)]
    notes = [q.note for one in asked for s in one.sections for q in s.quantities if q.note]
    notes += [note for one in asked for note in one.notes if note.startswith("E")]
    assert len(notes) > 20
    assert {note.partition(":")[0] for note in notes} <= set(ERRATA)
