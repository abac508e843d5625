"""What does a table say where evidence is whole, and what where it is not?"""

import csv
import re
from dataclasses import replace

import pytest
import yaml

import recorded
from complab import config, evidence
from complab.errors import UsageProblem
from complab.report import escaping, formulas, gather, number, statistics, tables
from complab.report.number import Ask
from complab.report.selection import Where, find

E1, E3, E6 = EXPERIMENTS = ("e1_opening_failure", "e3_graph_breaks", "e6_dynamic_shapes")
STATIC_COLD = f"{E1}/static/cold/1"


@pytest.fixture
def results(tmp_path):
    return recorded.copied(tmp_path)


def tabled(results, experiment, name="main", **noise):
    """A table of altered evidence: its numbers by row and column, its csv lines by row, its text."""
    settings = recorded.settings(results, **noise)
    gathered = gather.gather(settings, experiment, results)
    table = tables.build(gathered, settings, name)
    lines = csv.DictReader(tables.to_csv(table).splitlines())
    return table.cells, by_key(lines), tables.to_md(gathered, table)


def by_key(lines):
    return {next(iter(line.values())): line for line in lines}


# What is not there, and why


@pytest.mark.fault("T17", "a failed cell in a table")
def test_a_failed_cell_fails_only_the_columns_that_need_it_where_rows_are_requests(results):
    recorded.fail(results, f"{E1}/static/warm/1")
    _, lines, _ = tabled(results, E1, "requests")
    assert {line["static_warm_s"] for line in lines.values()} == {"failed"}
    assert {line["static_fate"] for line in lines.values()} == {"failed"}
    assert all(float(line["default_cold_s"]) > 0 for line in lines.values())


def test_one_indeterminate_process_leaves_the_others_and_says_how_many(results):
    recorded.unproven(results, f"{E3}/default/cold/1")
    cells, _, _ = tabled(results, E3)
    steady = cells["with_break"]["steady_ms"]
    cold = [cell for cell in recorded.cells_in(results, E3) if cell.cache == "cold"]
    assert steady.processes == len(cold) - 1
    assert not any("default/cold/1" in fact.file for fact in steady.facts)


def test_what_was_not_recorded_is_not_measured_and_never_zero(results):
    for cell in recorded.cells_in(results, E3):
        recorded.edit_rows(results, cell.path, lambda row: None if row.metric == "log_breaks" else row)
    cells, lines, _ = tabled(results, E3)
    assert lines["with_break"]["log_breaks"] == "not measured"
    assert cells["with_break"]["log_breaks"].value is None


def test_what_one_process_of_several_did_not_record_is_not_measured(results):
    cell = f"{E3}/default/cold/2"
    recorded.edit_rows(results, cell, lambda row: None if row.metric == "steady_compiled" else row)
    _, lines, text = tabled(results, E3)
    assert lines["with_break"]["ratio"] == "not measured"
    assert f"not in {cell}" in text


@pytest.mark.fault("T18", "a wrong output")
def test_a_wrong_output_leaves_its_stream_without_a_total(results):
    def wrong(row):
        return None if (row.metric, row.call) == ("compiled_time", 3) else row

    recorded.edit_rows(results, STATIC_COLD, wrong)
    _, lines, _ = tabled(results, E1)
    assert lines["static"]["compiled_total_cold_s"] == lines["static"]["slowdown_cold"] == "not measured"
    _, lines, _ = tabled(results, E1, "requests")
    assert lines["3"]["static_cold_s"] == "not measured"


@pytest.mark.fault("T18", "an output that is not finite")
def test_an_output_that_is_not_finite_leaves_no_largest_difference(results):
    def not_finite(row):
        return None if (row.metric, row.call) == ("max_abs_diff", 2) else row

    recorded.edit_rows(results, STATIC_COLD, not_finite)
    _, lines, _ = tabled(results, E1)
    assert lines["static"]["max_abs_diff"] == "not measured"


def test_what_a_release_does_not_give_is_not_reported():
    told = gather.gather(recorded.settings(), E1, recorded.ROOT)
    ask = Ask("count", ("frames_compiled",))
    lacking = find(told, ask, Where("static", "compiled", "model", capability="telepathy"))
    assert lacking.text == "not reported" and lacking.value is None
    assert find(told, ask, Where("static", "compiled", "model", capability="cache_entries")).facts


def test_eager_compiles_nothing_and_so_has_no_compile_counts():
    line = tabled(recorded.ROOT, E1)[1]["eager"]
    assert line["new_variants"] == line["slowdown_cold"] == "not applicable"
    assert float(line["eager_total_s"]) > 0


def test_a_zero_count_is_proven_by_what_happened_instead():
    refused = tabled(recorded.ROOT, E1)[0]["default"]["refused_attempts"]
    calls = len(tabled(recorded.ROOT, E1, "requests")[0])
    assert refused.value == 0
    assert len(refused.facts) == calls * refused.processes
    assert {fact.row.metric for fact in refused.facts} == {"new_variants", "reuses"}


# What is there, and what it is called


def test_processes_that_count_differently_are_shown_as_a_range(results):
    def fewer(row):
        return replace(row, value=row.value - 1) if row.metric == "log_recompiles" else row

    recorded.edit_rows(results, STATIC_COLD, fewer)
    cells, _, text = tabled(results, E1)
    count = cells["static"]["recompiles_logged"]
    assert re.fullmatch("\\d+\N{EN DASH}\\d+", count.text) and count.value is None
    assert count.flags == ((formulas.DIFFER, ""),)
    assert "Processes do not agree. Recompiles logged: static" in text


def test_processes_that_tell_different_fates_are_both_shown(results):
    def reused(row):
        changed = row.call == 0 and row.metric == "new_variants"
        return replace(row, metric="reuses", detail="reuse") if changed else row

    recorded.edit_rows(results, STATIC_COLD, reused)
    _, lines, _ = tabled(results, E1, "requests")
    assert lines["0"]["static_fate"] == "reuse / new variant"


def test_a_process_far_from_the_others_is_flagged_and_kept(results):
    def slow(row):
        return replace(row, value=row.value * 3) if row.metric == "steady_compiled" else row

    recorded.edit_rows(results, f"{E3}/default/cold/2", slow)
    cells, _, text = tabled(results, E3)
    ratio = cells["with_break"]["ratio"]
    assert max(ratio.samples) > 2 * min(ratio.samples)
    assert ratio.high > ratio.value > min(ratio.samples)
    assert "is above 10 %" in ratio.flags[0][0] and tables.MARK in text


@pytest.mark.fault("T18", "the same variant twice, in a table")
def test_eager_held_against_itself_shows_no_resolved_difference():
    """The A/A control of every recorded process, as if one of the two eager passes were compiled."""
    ratios = []
    for experiment in EXPERIMENTS:
        told = gather.gather(recorded.settings(), experiment, recorded.ROOT)
        for metrics in told.facts.values():
            process = formulas.Process(
                [fact for by_case in metrics.values() for facts in by_case.values() for fact in facts]
            )
            case = process.rows("steady_control")[0].row.case
            ratios.append(formulas._round_ratio(process, f"{case}.steady_control", f"{case}.steady_eager"))
    control = statistics.interval(ratios, 0.95)
    assert control.processes >= 10
    assert statistics.verdict(control, control, 0.03, 3) == "no resolved difference"


@pytest.mark.fault("T18", "a planted slowdown, in a table")
def test_a_slowdown_planted_in_recorded_samples_is_found(results):
    """Compiled becomes eager's own control made 25 % slower: the verdict follows the change alone."""
    for cell in recorded.cells_in(results, E3):
        planted = {
            (row.case, row.call): row.value
            for row in gather_rows(results, cell)
            if row.metric == "steady_eager"
        }

        def compiled(row, planted=planted):
            value = planted.get((row.case, row.call))
            if row.metric == "steady_compiled":
                return replace(row, value=value * 1.25)
            return replace(row, value=value) if row.metric == "steady_control" else row

        recorded.edit_rows(results, cell.path, compiled)
    cells, _, _ = tabled(results, E3)
    assert cells["with_break"]["ratio"].text == "1.25 [1.25, 1.25]"
    assert cells["with_break"]["verdict"].text == "slower"


def gather_rows(results, cell):
    path = recorded.folder_of(results, cell.path) / evidence.EVIDENCE
    return evidence.csv_to_rows(path.read_text(encoding="utf-8"), path)


def test_one_process_gives_a_median_its_number_and_no_verdict():
    cells = tabled(recorded.ROOT, E1)[0]["static"]
    assert cells["ratio"].tail == "(n = 1)" and cells["ratio"].estimator == "median"
    assert cells["verdict"].text == "not measurable"


def test_the_first_failing_level_is_the_ledgers():
    cells, _, text = tabled(recorded.ROOT, E1)
    level = cells["static"]["first_failing_level"]
    assert level.text == "STABLE"
    assert level.ledgers == tuple(f"{E1}/static/{cache}/1/ledger.json" for cache in ("cold", "warm"))
    assert cells["default"]["first_failing_level"].text == "none"
    assert "size mismatch at index 1" in text


def test_a_break_is_told_with_its_place_and_reason():
    text = tabled(recorded.ROOT, E3)[2]
    assert re.search(r"with_break: scripts/e3_graph_breaks\.py:\d+: if x\.sum\(\)\.item\(\) > 0:\n", text)
    assert "$PROJECT" not in text


def test_a_column_in_seconds_refuses_what_is_no_time():
    told = gather.gather(recorded.settings(), E1, recorded.ROOT)
    with pytest.raises(UsageProblem, match="asks for sequence_length, which is recorded in 'elements'"):
        find(told, Ask("median", ("sequence_length",), unit="ms"), Where("static", "cold", "model"))


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (Where(cache="cold", case="model"), "would mix policies default, static"),
        (Where("static", "compiled", "model"), "of static would mix cold and warm processes"),
    ],
)
def test_a_time_is_of_one_policy_and_one_cache_state(where, message):
    told = gather.gather(recorded.settings(), E1, recorded.ROOT)
    with pytest.raises(UsageProblem, match=message):
        find(told, Ask("total", ("compiled_time",), unit="s"), where)


@pytest.mark.parametrize(
    ("value", "rounding", "text"),
    [
        (465.2, "3 significant", "465"),
        (1234567.0, "3 significant", "1234567"),
        (0.0123456, "3 significant", "0.0123"),
        (9.996, "3 significant", "10.0"),
        (0, "3 significant", "0"),
        (7.15e-07, "2 scientific", "7.15e-07"),
        (1.005, "2 decimals", "1.00"),
        (8, "0 decimals", "8"),
    ],
)
def test_numbers_are_rounded_as_declared(value, rounding, text):
    assert number.rounded(value, rounding) == text


def test_the_schema_offers_exactly_the_formulas_there_are():
    schema = yaml.safe_load(config.SCHEMA_FILE.read_text(encoding="utf-8"))
    exhibit = schema["properties"]["experiments"]["additionalProperties"]["properties"]["exhibit"]
    column = exhibit["properties"]["tables"]["additionalProperties"]["properties"]["columns"][
        "additionalProperties"
    ]
    assert sorted(column["properties"]["formula"]["enum"]) == sorted(formulas.FORMULAS)


# Printed


def test_what_latex_would_print_as_a_dash_stays_what_it_is():
    assert escaping.latex("a | b --run _c") == r"a \textbar{} b -{}-run \_c"


def test_a_printed_table_has_three_rules_and_cells_that_stay_text():
    printed = tables.booktabs(["what|", "n"], [["a_b | c", "1"]]).splitlines()
    assert [" ".join(line.split()) for line in printed] == [
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"what\textbar{} & n \\",
        r"\midrule",
        r"a\_b \textbar{} c & 1 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
