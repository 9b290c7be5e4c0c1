"""What a run directory records about its run."""

from launch.contract import JournalEntry
from trainer.checkpoints.root import LocalRoot
from trainer.run_records import append_line, attempts, has_steps, last_resolved, read_journal


def test_a_torn_line_of_the_journal_is_passed_over(tmp_path):
    root = LocalRoot(tmp_path)
    entries = [JournalEntry(time=1.0, event=name, attempt=1, details={}) for name in "ab"]
    append_line(root, "journal.jsonl", entries[0].to_json())
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"version": 1, "ti')
    append_line(root, "journal.jsonl", entries[1].to_json())
    assert read_journal(root) == (entries, 1)


def test_the_newest_configuration_that_was_written_counts(tmp_path):
    root = LocalRoot(tmp_path)
    assert (attempts(root), last_resolved(root)) == ([], None)
    for attempt in (2, 10):
        root.write(f"attempts/{attempt}/config/resolved.json", b'{"of": %d}' % attempt)
    (tmp_path / "attempts/11").mkdir()
    assert attempts(root) == [2, 10, 11]
    assert last_resolved(root) == {"of": 10}


def test_a_step_counts_from_the_moment_it_is_begun(tmp_path):
    root = LocalRoot(tmp_path)
    (tmp_path / "checkpoints/sealed").mkdir(parents=True)
    assert not has_steps(root)
    (tmp_path / "checkpoints/10.a1").mkdir()
    assert has_steps(root)
