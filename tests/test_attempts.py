"""The list of a run's attempts: what is on it, and that nobody can change it without being found out."""

import json

import pytest

from complab import attempts
from complab.errors import Unverified


@pytest.fixture
def run_folder(tmp_path):
    """A run with three events."""
    for number, event in enumerate((attempts.STARTED, attempts.FAILED, attempts.STARTED)):
        attempts.append(tmp_path, {"event": event, "cell": "e/p/cold/1", "attempt": 1 + number // 2})
    return tmp_path


def lines_of(folder):
    return (folder / attempts.FILE).read_bytes().splitlines(keepends=True)


def test_a_run_without_attempts_has_an_empty_list(tmp_path):
    assert attempts.read(tmp_path) == []


def test_every_attempt_is_on_the_list_in_order(run_folder):
    told = [(each["event"], each["attempt"]) for each in attempts.read(run_folder)]
    assert told == [("started", 1), ("failed", 1), ("started", 2)]


@pytest.mark.fault("T7", "an altered line of attempts.jsonl")
@pytest.mark.parametrize("number", [0, 1])
def test_an_altered_line_is_found_by_the_line_after_it(run_folder, number):
    lines = lines_of(run_folder)
    lines[number] = lines[number].replace(b"e/p/cold/1", b"e/p/cold/2")
    (run_folder / attempts.FILE).write_bytes(b"".join(lines))
    with pytest.raises(Unverified, match=f"line {number + 2} does not follow"):
        attempts.read(run_folder)


@pytest.mark.fault("T7", "a removed line of attempts.jsonl")
def test_a_removed_line_is_found(run_folder):
    lines = lines_of(run_folder)
    (run_folder / attempts.FILE).write_bytes(lines[0] + lines[2])
    with pytest.raises(Unverified, match="line 2 does not follow"):
        attempts.read(run_folder)


def test_a_removed_first_line_is_found(run_folder):
    (run_folder / attempts.FILE).write_bytes(b"".join(lines_of(run_folder)[1:]))
    with pytest.raises(Unverified, match="line 1 does not follow"):
        attempts.read(run_folder)


@pytest.mark.fault("T7", "an inserted line of attempts.jsonl")
def test_an_inserted_line_is_found(run_folder):
    lines = lines_of(run_folder)
    (run_folder / attempts.FILE).write_bytes(b"".join([lines[0], lines[0], *lines[1:]]))
    with pytest.raises(Unverified, match="line 2 does not follow"):
        attempts.read(run_folder)


@pytest.mark.fault("T4", "disk full: a line of attempts.jsonl cut off")
def test_a_line_cut_off_is_refused_until_the_next_attempt_goes_on_over_it(run_folder):
    path = run_folder / attempts.FILE
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(Unverified, match="cut off"):
        attempts.read(run_folder)
    attempts.append(run_folder, {"event": attempts.STARTED, "cell": "e/p/cold/1", "attempt": 2})
    told = [each["event"] for each in attempts.read(run_folder)]
    assert told == ["started", "failed", "started"]
    assert len(lines_of(run_folder)) == 4


def test_each_line_is_plain_json(run_folder):
    assert all("previous" in json.loads(line) for line in lines_of(run_folder))
