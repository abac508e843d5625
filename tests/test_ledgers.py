"""Are all ledgers of a run told side by side, and is each printed number backed by evidence?"""

import csv
import json
import re
import shutil

import pytest

import recorded
from complab import config, evidence
from complab.errors import Unverified, UsageProblem
from complab.measure import ledger
from complab.report import formulas, gather, ledgers, lineage, names, tables
from complab.report.number import Ask

E1, E3 = "e1_opening_failure", "e3_graph_breaks"
STATIC, BROKEN, WHOLE = f"{E1}/static/model", f"{E3}/default/with_break", f"{E3}/default/without_break"


def refilled(results):
    """The recorded ledgers, filled again from the recorded rows by the rules of today."""
    settings = recorded.settings(results)
    for cell in settings.cells():
        folder = recorded.folder_of(results, str(cell))
        path = folder / evidence.EVIDENCE
        rows = evidence.csv_to_rows(path.read_text(encoding="utf-8"), path)
        told = ledger.fill(rows, settings["tolerance"], settings["recompile_limit"])
        (folder / evidence.LEDGER).write_text(evidence.json_text(told), encoding="utf-8")
        hashed = evidence.file_entry(folder / evidence.LEDGER)
        recorded.edit_record(
            results,
            str(cell),
            lambda record, hashed=hashed: record["files"].update({evidence.LEDGER: hashed}),
        )
    return results


@pytest.fixture(scope="module")
def evident(tmp_path_factory):
    return refilled(recorded.copied(tmp_path_factory.mktemp("recorded")))


@pytest.fixture(scope="module")
def drawn(evident, tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn")
    ledgers.draw(recorded.settings(evident), evident, folder)
    return folder / recorded.RUN


def drawn_again(results, tmp_path):
    ledgers.draw(recorded.settings(results), results, tmp_path / "figures")
    return tmp_path / "figures" / recorded.RUN


def table(folder, name):
    with open(folder / f"{name}.csv", encoding="utf-8", newline="") as stream:
        return {line["region"]: line for line in csv.DictReader(stream)}


def test_the_files_are_those_that_the_rules_expect(drawn, evident):
    assert sorted(path.name for path in drawn.iterdir()) == sorted(
        names.ledger_outputs(recorded.settings(evident))
    )


def test_every_compiled_case_has_one_row_and_eager_none(drawn):
    rows = table(drawn, "ledgers")
    assert {STATIC, BROKEN, WHOLE, f"{E3}/default/model"} <= set(rows)
    assert not [key for key in rows if "/eager/" in key]


def test_a_row_tells_the_levels_the_cause_and_the_verdict(drawn):
    told = table(drawn, "ledgers")[STATIC]
    levels = [told[name] for name in ("runs", "correct", "captured", "stable", "worth_it")]
    assert levels == ["pass", "pass", "pass", "fail", "not judged"]
    assert (told["mechanism"], told["verdict"]) == ("shape", "STABLE fails")
    assert "size mismatch at index 1" in told["evidence"]
    assert float(told["cold_first_call_s"]) > float(told["warm_first_call_s"]) > 0


def test_a_break_stops_the_ladder_at_captured(drawn):
    told = table(drawn, "ledgers")[BROKEN]
    assert (told["captured"], told["stable"], told["mechanism"]) == ("fail", "not judged", "tensor-to-python")


def test_the_last_level_is_judged_over_processes(drawn):
    told = table(drawn, "ledgers")[WHOLE]
    assert told["worth_it"] in ("pass", "fail")
    assert told["mechanism"] == ("none" if told["worth_it"] == "pass" else "no-saving")
    assert table(drawn, "ledgers")[f"{E1}/default/model"]["worth_it"] == "no evidence"


@pytest.mark.parametrize(("factor", "verdict"), [(0.5, "pass"), (1.0, "fail"), (2.0, "fail")])
def test_only_a_resolved_saving_is_worth_it(evident, tmp_path, factor, verdict):
    results = copied(evident, tmp_path)
    for cell in recorded.cells_in(results, E3):
        path = recorded.folder_of(results, str(cell)) / evidence.EVIDENCE
        rows = evidence.csv_to_rows(path.read_text(encoding="utf-8"), path)
        eager = {(row.case, row.call): row.value for row in rows if row.metric == "steady_control"}
        recorded.edit_rows(results, str(cell), lambda row, eager=eager: slowed(row, eager, factor))
    told = table(drawn_again(results, tmp_path), "ledgers")[WHOLE]
    assert told["worth_it"] == verdict
    assert told["verdict"] == ("every level passes" if verdict == "pass" else "WORTH IT fails")


def slowed(row, eager, factor):
    if row.metric != "steady_compiled":
        return row
    return evidence.Row(**{**vars(row), "value": factor * eager[row.case, row.call]})


def copied(results, tmp_path):
    return shutil.copytree(results, tmp_path / "results")


def test_a_failed_process_fails_its_row_and_no_other(evident, tmp_path):
    results = copied(evident, tmp_path)
    recorded.fail(results, f"{E3}/default/warm/2")
    rows = table(drawn_again(results, tmp_path), "ledgers")
    assert rows[BROKEN]["captured"] == rows[BROKEN]["cold_first_call_s"] == "failed"
    assert rows[STATIC]["stable"] == "fail"


@pytest.mark.parametrize(
    ("policy", "case", "metrics", "has"),
    [
        ("static", "model", {"new_variants"}, True),
        ("static", "", set(), True),
        ("eager", "model", {"eager_time"}, False),
        ("observers", "chain", {"first_call"}, True),
        ("observers", "profiler", {"first_call"}, False),
        ("default", "force_eager", {"first_call", "setting_raises"}, False),
    ],
)
def test_a_ledger_is_of_what_one_process_compiles_and_watches(policy, case, metrics, has):
    assert ledgers.Region(None, policy, case, ("cold",), frozenset(metrics)).has_ledger == has


def test_the_compile_cost_of_an_observed_process_is_neither_cold_nor_warm(evident):
    gathered = gather.gather(recorded.settings(evident), E3, evident)
    region = ledgers.Region(gathered, "observers", "control", ("cold",), frozenset({"first_call"}))
    row = ledgers.noise_row(region)
    assert row["smallest_cold_cost_effect"].text == row["smallest_warm_cost_effect"].text == "\N{EN DASH}"


def test_a_policy_without_any_process_left_still_has_a_row(evident, tmp_path):
    results = copied(evident, tmp_path)
    for cache in ("cold", "warm"):
        recorded.fail(results, f"{E1}/static/{cache}/1")
    rows = table(drawn_again(results, tmp_path), "ledgers")
    assert rows[f"{E1}/static"]["runs"] == "failed"


def test_evidence_of_two_environments_shares_no_ledger_table(evident, tmp_path):
    results = copied(evident, tmp_path)
    for cell in recorded.cells_in(results, E3):
        recorded.edit_record(results, str(cell), lambda record: record["fingerprint"].update(torch="9.9.9"))
    with pytest.raises(Unverified, match="environments"):
        drawn_again(results, tmp_path)
    assert not (tmp_path / "figures" / recorded.RUN).exists()


def test_a_table_too_long_for_a_page_is_parted_over_several(evident, monkeypatch):
    gathered = gather.gather(recorded.settings(evident), E3, evident)
    table = ledgers.ledger_table([gathered])
    assert "longtable" not in tables.to_tex(gathered, table)
    monkeypatch.setattr(tables, "LONG", len(table.cells) - 1)
    text = tables.to_tex(gathered, table)
    body = text.split("\\endfoot\n")[1].split("\\end{longtable}")[0]
    lines = body.strip().splitlines()
    assert len(lines) == len(table.cells)
    assert {line.count(" & ") for line in lines} == {len(table.shown)}
    widths = [float(width) for width in re.findall(r"p\{([\d.]+)", text)]
    assert len(widths) == len(table.shown) + 1 and sum(widths) < 0.9


# The ledger that is written out.


def test_the_written_ledger_has_its_sections_and_the_ladder(drawn):
    text = (drawn / "ledger_opening_failure.txt").read_text(encoding="utf-8")
    sections = [line.split()[0] for line in text.splitlines() if line[:1].isalpha()]
    assert sections == [
        *("COMPILATION", "region", "capture", "assumptions", "stability"),
        *("cost", "correctness", "verdict", "ladder"),
    ]
    ladder = text[text.index("\nladder") :]
    assert [ladder.index(level) for level in ledgers.LEVELS] == sorted(map(ladder.index, ledgers.LEVELS))
    assert "STABLE    fail" in ladder
    assert "shape: idx: size mismatch at index 1, failed 3x" in text
    assert re.search(r"fullgraph accepts +yes\n", text)
    assert max(map(len, text.splitlines())) <= ledgers.WIDTH


def test_a_region_that_was_not_measured_says_so(evident, tmp_path):
    settings = recorded.settings(evident)
    settings.values["ledgers"] = {"gone": {"title": "x", "experiment": E1, "policy": "static", "case": "no"}}
    ledgers.draw(settings, evident, tmp_path)
    text = (tmp_path / recorded.RUN / "ledger_gone.txt").read_text(encoding="utf-8")
    assert "not measured" in text


def test_a_ledger_of_a_policy_that_is_not_there_is_refused():
    told = {"x": {"title": "x", "experiment": E1, "policy": "statics", "case": "model"}}
    with pytest.raises(UsageProblem, match=r"ledgers\.x\.policy: .* no policy 'statics'"):
        config.load(overrides={"ledgers": told})


# The noise of the run.


def test_noise_is_told_for_every_region_that_was_timed(drawn):
    rows = table(drawn, "noise")
    assert f"{E1}/eager/model" in rows
    told = rows[BROKEN]
    assert float(told["control_low"]) < float(told["control"]) < float(told["control_high"])
    assert told["control_differs"] == "no"
    assert 0.03 < float(told["smallest_steady_effect"]) < 1
    assert float(told["smallest_cold_cost_effect"]) > 0


def test_one_process_tells_no_smallest_effect(drawn):
    told = table(drawn, "noise")[STATIC]
    assert told["control_differs"] == told["smallest_steady_effect"] == "not measurable"
    assert told["smallest_cold_cost_effect"] == "not measurable"


@pytest.mark.parametrize(
    ("factor", "word"), [(1.0, "no"), (1.02, "within 3 %"), (1.2, "yes"), (1 / 1.2, "yes")]
)
def test_a_control_that_differs_from_itself_is_told(evident, factor, word):
    gathered = gather.gather(recorded.settings(evident), E3, evident)
    facts = []
    for record in gathered.determinate:
        if record.cell.cache == "cold":
            told = gathered.facts[record.cell.path]
            facts += told["steady_eager"]["with_break"]
    values = {(fact.file, fact.row.call): fact.row.value for fact in facts}
    spread = {file: 1 + 0.002 * index for index, file in enumerate({fact.file: 0 for fact in facts})}
    controls = [
        gather.Fact(
            evidence.Row(
                **{
                    **vars(fact.row),
                    "metric": "steady_control",
                    "value": values[fact.file, fact.row.call] * factor * spread[fact.file] / 1.002,
                }
            ),
            fact.file,
            fact.line,
        )
        for fact in facts
    ]
    ask = Ask("control difference", ("steady_control",), "steady_eager")
    assert formulas.evaluate(ask, [*facts, *controls], gathered.noise).value == word


# Every number can be made again from what its lineage names.


@pytest.mark.parametrize("name", ["ledgers", "noise"])
def test_every_number_can_be_made_again_from_its_lineage(drawn, evident, name):
    told = json.loads((drawn / f"{name}.lineage.json").read_text(encoding="utf-8"))
    count = 0
    for rows in told["tables"].values():
        for cells in rows.values():
            for entry in cells.values():
                if entry["rows"]:
                    again = lineage.recompute(entry, told["noise"], evident / recorded.RUN)
                    assert (again.text, again.value) == (entry["text"], entry["value"])
                    count += 1
    assert count > 20


def test_the_written_ledger_has_lineage_too(drawn):
    told = json.loads((drawn / "ledgers.lineage.json").read_text(encoding="utf-8"))["tables"]
    text = " ".join((drawn / "ledger_opening_failure.txt").read_text(encoding="utf-8").split())
    for cells in told["ledger_opening_failure"].values():
        for entry in cells.values():
            assert " ".join(entry["text"].split()) in text
