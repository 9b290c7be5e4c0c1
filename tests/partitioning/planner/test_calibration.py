"""How far predictions are off published runs; the page that says so is as the command prints it."""

import json
import pathlib
import statistics

import pytest

from partitioning.planner.__main__ import main
from partitioning.planner.cost_model.calibration import Row, calibrate
from partitioning.planner.cost_model.published_runs import FOLDER, read_runs
from partitioning.planner.decoder_parameters import count, parameters
from partitioning.planner.inputs import load_model

FITTED, HELD_OUT = calibrate().groups.values()
HEADER = (FOLDER / "fitted.csv").read_text().splitlines()[0]
ROW = "1,llama3.1-8b,v6e,8,fsdp8,3,8192,full,bf16,3.443,,,,AI-Hypercomputer/x,"


def errors(rows: tuple[Row, ...], source: str) -> list[float]:
    return [
        abs(row.error)
        for row in rows
        if row.error is not None and not row.run.narrow and source in row.run.source.lower()
    ]


def written(tmp_path: pathlib.Path, row: str, *, header: str = HEADER) -> str:
    path = tmp_path / "runs.csv"
    path.write_text(f"# mine\n{header}\n{row}\n")
    return str(path)


def test_steps_of_jax_runs_are_within_an_eighth_and_most_far_closer() -> None:
    for rows, typical, worst in ((FITTED, 0.02, 0.08), (HELD_OUT, 0.03, 0.12)):
        found = errors(rows, "maxtext") + errors(rows, "-recipes")
        assert len(found) >= 10
        assert statistics.median(found) < typical
        assert max(found) < worst


def test_steps_of_another_framework_that_compiles_are_within_a_tenth() -> None:
    for rows in (FITTED, HELD_OUT):
        assert max(errors(rows, "torchtitan")) < 0.10


def test_memory_is_within_a_tenth_wherever_it_was_published() -> None:
    found = {
        row.run.name: row.memory_error
        for row in (*FITTED, *HELD_OUT)
        if row.memory_error is not None and not row.run.narrow
    }
    assert set(found) == {"19", "29a", "29b", "u13"}
    assert all(abs(error) < 0.10 for error in found.values())


def test_the_run_that_ran_out_of_memory_does_and_its_half_fits() -> None:
    fits = {row.run.name: (row.run.expected_to_fit, row.run.fits) for row in FITTED}
    assert fits["24a"] == (True, True)
    assert fits["24b"] == (False, False)


def test_eight_bits_rank_above_sixteen_on_the_same_devices() -> None:
    rows = {row.run.name: row for row in (*FITTED, *HELD_OUT)}
    for narrow, wide in (("u14", "19"), ("u15", "u13")):
        assert rows[narrow].seconds < rows[wide].seconds
        assert rows[narrow].run.seconds < rows[wide].run.seconds


def test_published_models_have_their_published_sizes() -> None:
    sizes = {"7b": 6_738_415_616, "13b": 13_015_864_320, "70b": 68_976_648_192}
    for name, size in sizes.items():
        model = load_model([str(FOLDER / "models" / f"llama2-{name}.gin")])
        assert count(parameters(model)) == size
    for billions in (16, 32, 64, 128):
        model = load_model([str(FOLDER / "models" / f"maxtext-{billions}b.gin")])
        assert count(parameters(model)) == pytest.approx(billions * 1e9, rel=0.03)


def test_no_run_is_in_both_files() -> None:
    fitted, held_out = (
        {run.name for run in read_runs(FOLDER / f"{name}.csv")} for name in ("fitted", "held_out")
    )
    assert len(fitted) == len(FITTED)
    assert not fitted & held_out


def test_the_page_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibration"]) == 0
    page = pathlib.Path("docs/calibration.md").read_text()
    assert capsys.readouterr().out.strip() in page


def test_rows_of_ones_own_are_predicted_too(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = written(tmp_path, ROW)
    assert main(["calibration", "--rows", name, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)[name]
    assert row["measured_s"] == 3.443
    assert row["error"] == pytest.approx(row["predicted_s"] / 3.443 - 1)


def test_a_step_is_known_by_its_tokens_or_its_flops_as_well(tmp_path: pathlib.Path) -> None:
    seconds = []
    for measured in ("3.443,,", ",413.4,", ",,7139"):
        (run,) = read_runs(pathlib.Path(written(tmp_path, ROW.replace("3.443,,", measured))))
        seconds.append(run.seconds)
    assert seconds == pytest.approx([3.443] * 3, rel=0.005)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (ROW.replace("llama3.1-8b", "llama9"), "Unknown model 'llama9'"),
        (ROW.replace("fsdp8", "fsdp4"), "row 1: Mesh 'fsdp4' is not of 8 chips"),
        (ROW.replace("fsdp8", "rows8"), "is not a mesh"),
        (ROW.replace(",8192,", ",long,"), "row 1: invalid literal for int() with base 10: 'long'"),
        (ROW.replace("v6e", "v9"), "--cluster=v9_8: unknown"),
    ],
)
def test_a_wrong_row_is_refused(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], row: str, said: str
) -> None:
    assert main(["calibration", "--rows", written(tmp_path, row)]) == 64
    assert said in capsys.readouterr().err


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibration", "--rows=nowhere.csv"]) == 64
    assert "nowhere.csv cannot be read" in capsys.readouterr().err


def test_a_missing_column_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="there is no column 'dtype'"):
        read_runs(pathlib.Path(written(tmp_path, "1", header="id")))
