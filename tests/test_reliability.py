"""The README's table of faults is that of the tests there are, and of the last time they all ran."""

import pytest

import faults


def test_every_fault_is_tried_and_named_in_words():
    assert list(faults.marked()) == list(faults.FAULTS) == [f"T{number}" for number in range(1, 19)]
    for number, tests in faults.marked().items():
        assert tests, f"no test tries {number}"
        for told in (*faults.FAULTS[number], *(what for each in tests.values() for what in each)):
            assert told and not told.endswith("."), told


@pytest.mark.parametrize("number", faults.FAULTS)
def test_the_last_run_was_of_the_tests_there_are_and_all_passed(number):
    record = faults.recorded()["tests"]
    for name in faults.marked()[number]:
        assert name in record, f"{name} was never run with `make reliability`"
        assert record[name]["passed"] > 0
        assert record[name]["failed"] == 0


def test_the_readme_shows_the_table_of_the_last_run():
    assert faults.in_readme() == faults.table(faults.recorded())


def test_a_test_that_was_not_run_is_not_called_passed():
    record = faults.recorded()
    name = next(iter(faults.marked()["T4"]))
    del record["tests"][name]
    row = next(line for line in faults.table(record).splitlines() if line.startswith("| T4 |"))
    assert row.endswith("| not all run yet |")


def test_what_failed_is_counted():
    record = faults.recorded()
    name = next(iter(faults.marked()["T1"]))
    record["tests"][name]["failed"] += 2
    row = next(line for line in faults.table(record).splitlines() if line.startswith("| T1 |"))
    passed, _, all_of_them = row.rsplit("|", 2)[1].strip().partition(" of ")
    assert int(all_of_them) == int(passed) + 2
