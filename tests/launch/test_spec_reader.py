"""Job files: what is right reads back equal; what is wrong is told at once, with its line."""

import pathlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launch import spec_reader
from launch.spec import JobSpec, Priority, SpotUse
from launch.spec_problems import SpecError
from tests.launch.job_files import SMALLEST, as_yaml, valid_specs, write

in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def messages(folder: pathlib.Path, text: str, *, engine: str | None = None) -> list[str]:
    """What is said of a job file, without the folder in front."""
    path = write(folder, text)
    with pytest.raises(SpecError) as caught:
        spec_reader.load(path, engine=engine)
    return [str(problem).replace(f"{path}:", "job.yaml:") for problem in caught.value.problems]


def changed(old: str, new: str) -> str:
    assert old in SMALLEST
    return SMALLEST.replace(old, new)


def test_the_smallest_job_file_takes_the_defaults(tmp_path: pathlib.Path) -> None:
    job = spec_reader.load(write(tmp_path))
    assert job.spec.name == "tiny"
    assert job.spec.priority is Priority.NORMAL
    assert job.places["resources.accelerator"] == 8
    assert job.warnings == ()


@in_one_folder
@given(job=valid_specs())
def test_any_valid_job_written_as_yaml_reads_back_equal(
    tmp_path: pathlib.Path, job: JobSpec
) -> None:
    assert spec_reader.load(write(tmp_path, as_yaml(job))).spec == job


@in_one_folder
@given(job=valid_specs(), data=st.data())
def test_a_damaged_job_file_is_refused_or_read_but_never_ends_in_a_traceback(
    tmp_path: pathlib.Path, job: JobSpec, data: st.DataObject
) -> None:
    text = as_yaml(job)
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, min(len(text), start + 20)))
    put = data.draw(st.text(max_size=6) | st.sampled_from(["\t", ": ", "- ", "*a", "!!x ", "no"]))
    path = tmp_path / "job.yaml"
    path.write_bytes((text[:start] + put + text[stop:]).encode("utf-8", "surrogatepass"))
    try:
        spec_reader.load(path, engine="local")
    except SpecError as error:
        named = {problem.file for problem in error.problems}
    else:
        named = {str(path)}
    assert named == {str(path)}


@in_one_folder
@given(content=st.binary(max_size=60))
def test_any_bytes_are_refused_in_a_sentence(tmp_path: pathlib.Path, content: bytes) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError):
        spec_reader.load(path)


def test_everything_that_is_wrong_is_told_at_once_in_the_order_of_the_file(
    tmp_path: pathlib.Path,
) -> None:
    text = (
        "version: 1\nname: Tiny Job\nowner: {team: research, account: no}\n"
        "workload:\n  gin_file: [a.gin]\n  gin_files: a.gin\n  env: {DEPTH: 3}\n"
        "resources:\n  accelerator: cpu\n  hosts: '8'\n  per_host: true\n  min_hosts: 9\n"
        "topology: {slices: 3, level: racks}\nruntime: {grace_s: 2 hours}\n"
    )
    told = messages(tmp_path, text)
    assert [line.split(": ")[:2] for line in told] == [
        ["job.yaml:1", "checkpoint"],
        ["job.yaml:2", "name"],
        ["job.yaml:3", "owner.account"],
        ["job.yaml:5", "workload.gin_file"],
        ["job.yaml:6", "workload.gin_files"],
        ["job.yaml:7", "workload.env.DEPTH"],
        ["job.yaml:10", "resources.hosts"],
        ["job.yaml:11", "resources.per_host"],
        ["job.yaml:13", "topology.level"],
        ["job.yaml:14", "runtime.grace_s"],
    ]


def test_what_depends_on_a_broken_value_is_not_complained_of(tmp_path: pathlib.Path) -> None:
    told = messages(tmp_path, changed("cpu", "cpu\n  hosts: eight\n  min_hosts: 9"))
    assert len(told) == 1
    assert "resources.hosts: given 'eight'" in told[0]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("  team:", "  teem:", "owner.teem: there is no such key under owner"),
        ("  team:", "  teem:", "Did you mean team?"),
        ("name: tiny", "name: tiny\nhosts: 8", "Did you mean resources.hosts?"),
        ("name: tiny", "name: 8", 'YAML reads 8 as a whole number; a text is wanted: write "8".'),
        ("name: tiny", "name: no", 'YAML reads no as a yes or no; a text is wanted: write "no".'),
        ("name: tiny", "name: 2026-01-01", "as a date"),
        ("name: tiny", "name:", 'given nothing, but a text is wanted; write "" for an empty one.'),
        ("name: tiny", "name: [tiny]", "given a list, but a text is wanted"),
        ("name: tiny", "name: tiny\nname: tiny", "stands here again, first on line 2"),
        ("name: tiny", "name: tiny\npriority: urgent", "allowed are critical, high, normal, low"),
        ("name: tiny", "name: tiny\npriority: hihg", "Did you mean high?"),
        ("name: tiny", "name: tiny\ncode:", "code: given nothing; give a value, or leave"),
        ("name: tiny", "name: tiny\n? [a]\n: 1", "given a list as a key"),
        ("name: tiny", "name: tiny\n<<: {trials: 2}", "<<: there is no such key"),
        ("cpu", "cpu\n  hosts: '8'", 'given the text "8"; write 8 without quotes'),
        ("cpu", "cpu\n  hosts: true", "given true (a yes or no), but a whole number is wanted"),
        ("cpu", "cpu\n  hosts: 1.0", "given 1.0 (a number), but a whole number is wanted"),
        ("cpu", "cpu\n  hosts: 010", "given 010 (a whole number), but a whole number is wanted"),
        ("cpu", "cpu\n  hosts: 1:30", "but a whole number is wanted"),
        ("cpu", f"cpu\n  hosts: {'9' * 5000}", "but a whole number is wanted"),
        ("cpu", "cpu\n  hosts: {a: 1}", "given keys with values, but a whole number is wanted"),
        ("name: tiny", "name: tiny\nruntime: {grace_s: -5}", "a number with a unit such as 90s"),
        ("name: tiny", "name: tiny\nruntime: {grace_s: 12:30}", "a number with a unit"),
        ("name: tiny", "name: tiny\nruntime: {grace_s: '90'}", "a number with a unit"),
        ("name: tiny", "name: tiny\nruntime: {grace_s: .inf}", "a number with a unit"),
        ("name: tiny", f"name: tiny\nruntime: {{grace_s: {'9' * 400}s}}", "at most ten years"),
        ("name: tiny", f"name: tiny\nruntime: {{grace_s: {('9' * 308 + 's') * 2}}}", "ten years"),
        ("name: tiny", "name: tiny\nruntime: {grace_s: 1e999}", "a number is wanted"),
        ("name: tiny", "name: tiny\nisolation: {deny_other_jobs: 1}", "true or false is wanted"),
        ("name: tiny", "name: tiny\nisolation: {deny_other_jobs: 'no'}", "without quotes"),
        ("name: tiny", 'name: "a\\0b"', "U+0000, which no program can be given"),
        ("  team: research", "  - team: research", "given a list, but keys with values"),
        ("[configs/runs/quickstart.gin]", "a.gin", "given 'a.gin', but a list is wanted"),
        ("[configs/runs/quickstart.gin]", "[a.gin, 7]", "gin_files[1]: YAML reads 7"),
        ("  gin_files", "  env: {no: a}\n  gin_files", "env.no: YAML reads no as a yes or no"),
        ("  gin_files", "  env: [a]\n  gin_files", "given a list, but keys with values"),
        ("  root: runs/tiny", "  {}", "checkpoint.root: is missing: the run directory"),
        ("version: 1\n", "", "version: is missing; this software reads version: 1."),
        ("version: 1", "version: 2", "given 2 (a whole number); this software reads version: 1"),
        ("version: 1", "version: '1'", "given '1'; this software reads version: 1"),
        ("name: tiny", "name: &a tiny", "&a is an anchor; write the value out"),
        ("name: tiny", "name: *a", "*a is an alias; write the value out"),
        ("name: tiny", "name: !!python/object:os.system tiny", "is a tag; leave it out"),
        ("  team: research", "\tteam: research", "a tab; YAML is indented with spaces"),
        ("name: tiny", "name: a: b", "put quotes around a text with ': '"),
        ("name: tiny", "name: @tiny", "put quotes around the text"),
        ("name: tiny", "name: 'tiny", "not YAML: while scanning a quoted scalar"),
        ("name: tiny", "name: [[[[[[[[[[[[[[[[[a]]]]]]]]]]]]]]]]]", "nested more than 16 deep"),
        ("name: tiny", "name: tiny\n---\nname: b", "a second document starts; a file is one job"),
        ("name: tiny", "name: \a", "a character that YAML does not allow, U+0007"),
        ("name: tiny", 'name: "\\UFFFFFFFF"', "not YAML"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_what_to_do(
    tmp_path: pathlib.Path, old: str, new: str, expected: str
) -> None:
    told = messages(tmp_path, changed(old, new))
    assert any(expected in line for line in told), told
    assert all(line.startswith("job.yaml:") for line in told) or "\a" in new or "FFFF" in new


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "the file is empty"),
        ("# nothing\n", "the file is empty"),
        ("- name: tiny\n", "the file holds a list at its top"),
        ("tiny\n", "the file holds 'tiny' at its top"),
        ("a: 1\n" * 300_000, "larger than 1 MiB"),
    ],
)
def test_a_file_without_keys_is_refused(tmp_path: pathlib.Path, text: str, expected: str) -> None:
    assert expected in messages(tmp_path, text)[0]


def test_a_file_that_cannot_be_read_is_refused(tmp_path: pathlib.Path) -> None:
    for path, reason in ((tmp_path / "absent", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(SpecError, match=reason):
            spec_reader.load(path)


def test_a_billion_laughs_are_refused_before_they_are_counted(tmp_path: pathlib.Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert "&a0 is an anchor" in messages(tmp_path, "\n".join(lines))[0]


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90s", 90),
        ("30m", 1800),
        ("12h", 43200),
        ("7d", 604800),
        ("1h30m", 5400),
        ("0.5h", 1800),
        ("45", 45),
        ("1.5", 1.5),
        ("1e2", 100),
    ],
)
def test_durations(tmp_path: pathlib.Path, written: str, seconds: float) -> None:
    text = f"{SMALLEST}runtime: {{grace_s: {written}}}\n"
    assert spec_reader.load(write(tmp_path, text)).spec.runtime.grace_s == seconds


@pytest.mark.parametrize(("written", "hosts"), [("1_0", 10), ("1__0", 10), ("10_", 10), ("+8", 8)])
def test_whole_numbers_are_those_of_yaml(tmp_path: pathlib.Path, written: str, hosts: int) -> None:
    text = changed("cpu", f"cpu\n  hosts: {written}")
    assert spec_reader.load(write(tmp_path, text)).spec.resources.hosts == hosts


def test_warnings_do_not_keep_a_job_from_being_read(tmp_path: pathlib.Path) -> None:
    job = spec_reader.load(write(tmp_path, f"{SMALLEST}spot: {{use: allow}}\n"))
    assert job.spec.spot.use is SpotUse.ALLOW
    assert [problem.path for problem in job.warnings] == ["spot.notice_s"]
    assert "job.yaml:11: spot.notice_s" in str(job.warnings[0])
