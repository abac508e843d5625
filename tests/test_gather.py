"""Which evidence may enter an exhibit? Everything else is refused, with the file named."""

import json
import shutil

import pytest

import recorded
from complab import evidence
from complab.errors import Unverified
from complab.report import gather

E1 = "e1_opening_failure"
CELL = f"{E1}/static/cold/1"


@pytest.fixture
def results(tmp_path):
    return recorded.copied(tmp_path)


def gathered(results, experiment=E1):
    return gather.gather(recorded.settings(), experiment, results)


def refusal(results, experiment=E1) -> str:
    with pytest.raises(Unverified) as raised:
        gathered(results, experiment)
    return str(raised.value)


@pytest.mark.parametrize("experiment", list(recorded.settings()["experiments"]))
def test_every_planned_cell_is_accounted_for(experiment):
    told = gathered(recorded.ROOT, experiment)
    planned = recorded.settings().cells(experiment)
    assert [record.cell for record in told.records] == planned
    assert len(planned) == len(told.determinate) + len(told.failed) + len(told.indeterminate)
    assert set(told.facts) == {record.cell.path for record in told.determinate}


def test_a_fact_names_the_line_it_stands_on():
    told = gathered(recorded.ROOT)
    fact = told.facts[CELL]["new_variants"]["model"][0]
    line = (recorded.ROOT / recorded.RUN / fact.file).read_text(encoding="utf-8").split("\n")[fact.line - 1]
    assert line.startswith(f"{E1},static,cold,1,model,{fact.row.call},new_variants,1,")


@pytest.mark.fault("T2", "a cell without record, drawn")
def test_a_cell_without_provenance_is_refused(results):
    path = recorded.folder_of(results, CELL) / "provenance.json"
    path.unlink()
    assert refusal(results).startswith(f"{path}: missing")


@pytest.mark.fault("T7", "an altered table, drawn")
def test_an_altered_table_is_refused(results):
    path = recorded.folder_of(results, CELL) / "evidence.csv"
    path.write_text(path.read_text(encoding="utf-8").replace("new_variants,1", "new_variants,7", 1))
    assert refusal(results).startswith(f"{path}: was altered")


@pytest.mark.fault("T7", "a truncated table, drawn")
def test_a_truncated_table_is_refused(results):
    path = recorded.folder_of(results, CELL) / "evidence.csv"
    path.write_bytes(path.read_bytes()[:-40])
    assert refusal(results).startswith(f"{path}: has another size")


@pytest.mark.fault("T7", "an altered ledger, drawn")
def test_an_altered_ledger_is_refused(results):
    path = recorded.folder_of(results, CELL) / "ledger.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"STABLE"', '"TABLES"'))
    assert refusal(results).startswith(f"{path}: was altered")


def test_a_cell_from_elsewhere_is_refused(results):
    there = recorded.folder_of(results, f"{E1}/default/cold/1")
    here = recorded.folder_of(results, CELL)
    shutil.rmtree(here)
    shutil.copytree(there, here)
    message = refusal(results)
    assert (
        message.startswith(f"{here / 'provenance.json'}: tells of")
        and f"not of {recorded.RUN}/{CELL}" in message
    )


def test_a_cell_of_another_run_is_refused(results):
    recorded.edit_record(results, CELL, lambda record: record.update(run="elsewhere"))
    assert "tells of elsewhere/" in refusal(results)


@pytest.mark.fault("T16", "cells of two environments in one exhibit")
@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("environments ('torch')", lambda record: record["fingerprint"].update(torch="2.6.0+cpu")),
        ("configurations ('threads')", lambda record: record["config"].update(threads=7)),
        ("measuring code ('e0.py')", lambda record: record["code"]["modules"].update({"e0.py": "0"})),
    ],
)
def test_cells_that_do_not_belong_together_are_refused(results, what, change):
    recorded.edit_record(results, CELL, change)
    message = refusal(results)
    assert message.startswith(str(recorded.folder_of(results, CELL) / "provenance.json")) and what in message


def test_a_failed_cell_from_another_environment_is_refused_too(results):
    recorded.fail(results, CELL)
    recorded.edit_record(results, CELL, lambda record: record["fingerprint"].update(torch="2.6.0+cpu"))
    assert "environments ('torch')" in refusal(results)


def test_a_failed_cell_comes_back_as_failed_and_gives_no_fact(results):
    recorded.fail(results, CELL)
    told = gathered(results)
    assert [record.cell.path for record in told.failed] == [CELL]
    assert CELL not in told.facts and len(told.determinate) == len(told.records) - 1


def test_an_indeterminate_cell_is_counted_and_gives_no_fact(results):
    recorded.unproven(results, CELL)
    told = gathered(results)
    assert [record.cell.path for record in told.indeterminate] == [CELL]
    assert CELL not in told.facts


def test_the_digest_follows_the_evidence_and_nothing_else(results):
    before = gathered(recorded.ROOT).digest
    assert gathered(results).digest == before
    recorded.edit_record(results, CELL, lambda record: record.update(duration_s=1.0))
    assert gathered(results).digest == before
    recorded.edit_rows(results, CELL, lambda row: None if row.metric == "bitwise_equal" else row)
    assert gathered(results).digest != before


def test_a_warm_cell_that_did_not_start_from_the_cold_one_beside_it_is_refused(results):
    warm = f"{E1}/static/warm/1"
    recorded.edit_record(results, warm, lambda record: record["cache"]["before"].update(root="0" * 64))
    told = refusal(results)
    assert f"{warm}/provenance.json: did not start from the cache of the cold cell beside it" in told
    assert told.endswith("measure the warm cell again")


def test_a_seal_that_is_not_the_cold_cells_is_refused(results):
    cold = recorded.folder_of(results, CELL)
    listed = json.loads((cold / evidence.CACHE_MANIFEST).read_text())
    listed.popitem()
    (cold / evidence.CACHE_MANIFEST).write_text(evidence.json_text(listed))
    entry = evidence.file_entry(cold / evidence.CACHE_MANIFEST)
    recorded.edit_record(
        results, CELL, lambda record: record["files"].update({evidence.CACHE_MANIFEST: entry})
    )
    assert f"{cold / evidence.CACHE_MANIFEST}: is not the manifest of its cell's cache" in refusal(results)


def test_a_failed_cold_cell_leaves_its_failed_warm_cell_alone(results):
    recorded.fail(results, CELL)
    recorded.fail(results, f"{E1}/static/warm/1", "its cold cell failed")
    assert len(gathered(results).failed) == 2
