"""Does every exhibit say what its evidence says, and nothing else? Drawn from recorded cells."""

import ast
import csv
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml
from PIL import Image

import recorded
from complab import config, evidence
from complab.errors import Unverified, UsageProblem
from complab.measure import ledger
from complab.report import call_stream, exhibits, formulas, gather, lineage, names, number, tables
from complab.report.number import Ask
from complab.report.selection import Where, find

E1, E3, E6 = EXPERIMENTS = ("e1_opening_failure", "e3_graph_breaks", "e6_dynamic_shapes")
STATIC_COLD = f"{E1}/static/cold/1"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Every exhibit of the recorded evidence, drawn once."""
    folder = tmp_path_factory.mktemp("exhibits")
    for experiment in EXPERIMENTS:
        exhibits.draw(recorded.settings(), experiment, recorded.ROOT, folder)
    return folder / recorded.RUN


@pytest.fixture
def results(tmp_path):
    return recorded.copied(tmp_path)


def redrawn(results, tmp_path, experiment):
    """The exhibit of altered evidence: its folder and its lineage."""
    exhibits.draw(recorded.settings(results), experiment, results, tmp_path / "figures")
    folder = tmp_path / "figures" / recorded.RUN
    return folder, lineage_of(folder, experiment)


def tabled(results, experiment, name="main", **noise):
    """A table of altered evidence: its numbers by row and column, its csv lines by row, its text."""
    settings = recorded.settings(results, **noise)
    gathered = gather.gather(settings, experiment, results)
    table = tables.build(gathered, settings, name)
    lines = csv.DictReader(tables.to_csv(table).splitlines())
    return table.cells, by_key(lines), tables.to_md(gathered, table)


def rows_of(path):
    with open(path, encoding="utf-8", newline="") as stream:
        return by_key(csv.DictReader(stream))


def by_key(lines):
    return {next(iter(line.values())): line for line in lines}


def lineage_of(drawn, experiment):
    return json.loads((drawn / f"{experiment}.lineage.json").read_text(encoding="utf-8"))


def entries(told):
    """Every lineage entry of an exhibit, table cells and figure marks alike."""
    for name, rows in told["tables"].items():
        for key, cells in rows.items():
            yield from ((f"{name}/{key}/{column}", entry) for column, entry in cells.items())
    yield from told["figure"].items()


# What an exhibit consists of, and that it can be drawn again


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_files_are_those_that_the_rules_expect(drawn, experiment):
    found = sorted(path.name for path in drawn.iterdir() if path.name.startswith(experiment))
    assert found == sorted(names.outputs(recorded.settings(), experiment))
    kinds = {path.partition(".")[2] for path in found}
    assert {"csv", "md", "tex", "pdf", "svg", "png", "lineage.json"} <= kinds


def test_a_redraw_is_the_same_to_the_byte_in_a_process_without_torch_and_snakemake(drawn, tmp_path):
    program = f"""
import sys
import recorded
from complab.report import exhibits
for experiment in {EXPERIMENTS!r}:
    exhibits.draw(recorded.settings(), experiment, recorded.ROOT, {str(tmp_path)!r})
exhibits.write_manifest({str(tmp_path / recorded.RUN)!r})
sys.exit(bool({{"torch", "snakemake"}} & set(sys.modules)))
"""
    # Another date, time zone and hash seed than this process has.
    environment = {
        "PYTHONPATH": f"{config.PROJECT / 'scripts'}:{config.PROJECT / 'tests'}",
        "PYTHONHASHSEED": "4711",
        "TZ": "Asia/Tokyo",
        "SOURCE_DATE_EPOCH": "1000000000",
        "MPLCONFIGDIR": str(tmp_path / "matplotlib"),
    }
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    listed = json.loads((tmp_path / recorded.RUN / names.MANIFEST).read_text(encoding="utf-8"))["files"]
    assert listed == {path.name: evidence.file_entry(path) for path in sorted(drawn.iterdir())}


def test_what_the_rules_import_is_light():
    program = "import sys, complab.report.names; print(*sys.modules)"
    environment = {"PYTHONPATH": str(config.PROJECT / "scripts")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert not {"matplotlib", "scipy", "tabulate", "numpy", "torch"} & set(done.stdout.split())


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_picture_carries_the_digest_of_its_evidence_and_no_date(drawn, experiment):
    told = gather.gather(recorded.settings(), experiment, recorded.ROOT)
    lines = [
        f"{record.cell.path} {evidence.sha256_of(record.folder / 'evidence.csv')}\n"
        for record in sorted(told.records, key=lambda record: record.cell.path)
    ]
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert lineage_of(drawn, experiment)["evidence_digest"] == digest
    assert Image.open(drawn / f"{experiment}.png").text["Evidence"] == digest
    svg = (drawn / f"{experiment}.svg").read_text(encoding="utf-8")
    pdf = (drawn / f"{experiment}.pdf").read_bytes()
    assert digest in svg and "dc:date" not in svg
    assert digest.encode() in pdf and b"Date" not in pdf


def test_a_refused_draw_leaves_the_folder_as_it_was(results, tmp_path):
    folder, _ = redrawn(results, tmp_path, E3)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    path = recorded.folder_of(results, f"{E3}/default/cold/1") / "evidence.csv"
    path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    with pytest.raises(Unverified, match=re.escape(str(path))):
        redrawn(results, tmp_path, E3)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


# Lineage: no number without the rows it came from


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_number_comes_again_from_the_rows_its_lineage_names(drawn, experiment):
    told = lineage_of(drawn, experiment)
    folder = recorded.ROOT / recorded.RUN
    count = 0
    for name, entry in entries(told):
        again = lineage.entry(lineage.recompute(entry, told["noise"], folder))
        if entry["rows"]:
            assert again == entry, name
            count += 1
        else:
            assert entry["text"] in number.ABSENT, name
    assert count > 20


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_printed_cell_is_the_text_of_its_lineage(drawn, experiment):
    told = lineage_of(drawn, experiment)
    for name, spec in recorded.settings().experiment(experiment)["exhibit"]["tables"].items():
        stem = names.table_stem(experiment, name)
        inside = {column for column, about in spec["columns"].items() if about["place"] == "table"}
        printed = markdown_cells(drawn / f"{stem}.md", spec["transposed"])
        expected = {
            key: [entry["text"] for column, entry in cells.items() if column in inside]
            for key, cells in told["tables"][name].items()
        }
        assert printed == expected
        notes = (drawn / f"{stem}.md").read_text(encoding="utf-8").replace("\\*", "*").replace("&lt;", "<")
        for cells in told["tables"][name].values():
            for column, entry in cells.items():
                missing = entry["text"] in (*number.ABSENT, "none")
                assert column in inside or missing or entry["text"] in notes


def markdown_cells(path, transposed):
    """The cells of a printed table by row key, marks removed, an interval joined to its number."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    split = [[text.strip() for text in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    header, body = split[0], split[2:]
    clean = [[text.replace(f" {tables.MARK}", "") for text in line] for line in body]
    if not transposed:
        return {line[0]: line[1:] for line in clean}
    merged = []
    for line in clean:
        if line[0].endswith("% interval"):
            merged[-1] = [" ".join(pair).strip() for pair in zip(merged[-1], line, strict=True)]
        else:
            merged.append(line)
    return {key: [line[at] for line in merged] for at, key in enumerate(header) if at}


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_raw_values_stand_in_the_csv_unrounded(drawn, experiment):
    told = lineage_of(drawn, experiment)
    for name, rows in told["tables"].items():
        lines = rows_of(drawn / f"{names.table_stem(experiment, name)}.csv")
        assert list(lines) == list(rows)
        for key, cells in rows.items():
            for column, entry in cells.items():
                value = entry.get("value")
                if isinstance(value, float):
                    assert float(lines[key][column]) == value
                elif isinstance(value, int | str):
                    assert lines[key][column] == str(value)
                if "low" in entry:
                    assert float(lines[key][f"{column}_low"]) == entry["low"]


def test_a_number_cannot_be_made_without_rows():
    with pytest.raises(ValueError, match="no evidence row behind it"):
        number.Number(Ask("count"), "8", 8)
    assert number.absent(Ask("count"), number.NOT_MEASURED).text == "not measured"


def test_line_ranges_come_back_as_they_were():
    assert lineage.ranges([9, 2, 3, 4, 4]) == ["2-4", "9"]
    assert lineage.lines_of(["2-4", "9"]) == [2, 3, 4, 9]


# What is not there, and why


def test_one_failed_cell_fails_its_row_and_the_picture(results, tmp_path, drawn):
    recorded.fail(results, f"{E1}/static/warm/1")
    folder, told = redrawn(results, tmp_path, E1)
    lines = rows_of(folder / f"{E1}.csv")
    assert {text for column, text in lines["static"].items() if column != "policy"} == {"failed"}
    assert lines["default"] == rows_of(drawn / f"{E1}.csv")["default"]
    for end in ("md", "tex"):
        text = (folder / f"{E1}.{end}").read_text(encoding="utf-8").replace("\\_", "_")
        assert f"Failed: {E1}/static/warm/1 while timed: process 'timed' was killed" in text
        assert "1 failed" in text
    svg = (folder / f"{E1}.svg").read_text(encoding="utf-8")
    assert f"{E1}/static/warm/1" in svg and "not drawn" in svg and "new variant" not in svg
    assert told["figure"] == {} and told["cells"]["failed"] == [f"{E1}/static/warm/1"]


def test_a_failed_cell_fails_only_the_columns_that_need_it_where_rows_are_requests(results):
    recorded.fail(results, f"{E1}/static/warm/1")
    _, lines, _ = tabled(results, E1, "requests")
    assert {line["static_warm_s"] for line in lines.values()} == {"failed"}
    assert {line["static_fate"] for line in lines.values()} == {"failed"}
    assert all(float(line["default_cold_s"]) > 0 for line in lines.values())


def test_indeterminate_cells_give_no_number_and_are_counted(results, tmp_path):
    for cache in ("cold", "warm"):
        recorded.unproven(results, f"{E6}/static/{cache}/1", "the counters and the manifest do not agree")
    folder, told = redrawn(results, tmp_path, E6)
    line = rows_of(folder / f"{E6}.csv")["static"]
    assert {text for column, text in line.items() if column != "policy"} == {"indeterminate"}
    text = (folder / f"{E6}.md").read_text(encoding="utf-8")
    assert "so in no number" in text and "the counters and the manifest do not agree" in text
    assert not any(E6 + "/static" in file for _, entry in entries(told) for file in entry["rows"])
    assert f"{E6}/static/cold/1" in told["cells"]["indeterminate"]


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


def test_a_wrong_output_leaves_its_stream_without_a_total(results):
    def wrong(row):
        return None if (row.metric, row.call) == ("compiled_time", 3) else row

    recorded.edit_rows(results, STATIC_COLD, wrong)
    _, lines, _ = tabled(results, E1)
    assert lines["static"]["compiled_total_cold_s"] == lines["static"]["slowdown_cold"] == "not measured"
    _, lines, _ = tabled(results, E1, "requests")
    assert lines["3"]["static_cold_s"] == "not measured"


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


def test_eager_compiles_nothing_and_so_has_no_compile_counts(drawn):
    line = rows_of(drawn / f"{E1}.csv")["eager"]
    assert line["new_variants"] == line["slowdown_cold"] == "not applicable"
    assert float(line["eager_total_s"]) > 0


def test_a_zero_count_is_proven_by_what_happened_instead(drawn):
    entry = lineage_of(drawn, E1)["tables"]["main"]["default"]["refused_attempts"]
    calls = len(rows_of(drawn / f"{E1}.requests.csv"))
    assert entry["value"] == 0
    assert all(len(lineage.lines_of(lines)) == calls for lines in entry["rows"].values())


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


def test_eager_held_against_itself_shows_no_resolved_difference():
    """The A/A control of every recorded process, as if one of the two eager passes were compiled."""
    ratios = []
    for experiment in EXPERIMENTS:
        told = gather.gather(recorded.settings(), experiment, recorded.ROOT)
        for metrics in told.facts.values():
            process = formulas.Process([fact for facts in metrics.values() for fact in facts])
            case = process.rows("steady_control")[0].row.case
            ratios.append(formulas._round_ratio(process, f"{case}.steady_control", f"{case}.steady_eager"))
    control = formulas.statistics.interval(ratios, 0.95)
    assert control.processes >= 10
    assert formulas.statistics.verdict(control, control, 0.03, 3) == "no resolved difference"


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


def test_one_process_gives_a_median_its_number_and_no_verdict(drawn):
    cells = lineage_of(drawn, E1)["tables"]["main"]["static"]
    assert cells["ratio"]["text"].endswith("(n = 1)") and cells["ratio"]["estimator"] == "median"
    assert cells["verdict"]["text"] == "not measurable"


def test_the_first_failing_level_is_the_ledgers(drawn):
    cells = lineage_of(drawn, E1)["tables"]["main"]
    assert cells["static"]["first_failing_level"]["text"] == "STABLE"
    assert cells["default"]["first_failing_level"]["text"] == "none"
    assert cells["static"]["first_failing_level"]["ledgers"] == [
        f"{E1}/static/{cache}/1/ledger.json" for cache in ("cold", "warm")
    ]
    assert "size mismatch at index 1" in (drawn / f"{E1}.md").read_text(encoding="utf-8")


def test_a_break_is_told_with_its_place_and_reason(drawn):
    text = (drawn / f"{E3}.md").read_text(encoding="utf-8")
    assert re.search(r"with_break: scripts/e3_graph_breaks\.py:\d+: if x\.sum\(\)\.item\(\) > 0:\n", text)
    assert "$PROJECT" not in text


def test_the_caption_names_run_release_device_and_processes(drawn):
    first = (drawn / f"{E1}.md").read_text(encoding="utf-8").splitlines()[0]
    told = gather.gather(recorded.settings(), E1, recorded.ROOT)
    for part in (
        "Opening failure.",
        f"Run {recorded.RUN};",
        f"torch {told.torch};",
        "cpu,",
        "5 of 5 processes",
    ):
        assert part in first
    assert "0 failed, 0 indeterminate" in first


def test_a_caption_on_cuda_names_the_gpu(results):
    for cell in recorded.cells_in(results, E1):
        recorded.edit_record(results, cell.path, lambda record: record["config"].update(device="cuda"))
        recorded.edit_record(results, cell.path, lambda record: record.update(gpu=[{"name": "NVIDIA H200"}]))
    assert gather.gather(recorded.settings(results), E1, results).device == "cuda, NVIDIA H200"


def test_a_latex_table_has_nothing_left_to_escape(drawn):
    for path in drawn.glob("*.tex"):
        body = path.read_text(encoding="utf-8").split("\\toprule")[1]
        assert not re.search(r"(?<!\\)[_%$#]", body), path.name


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


# The closed sets that other places spell out again


def test_the_schema_offers_exactly_the_formulas_there_are():
    schema = yaml.safe_load(config.SCHEMA_FILE.read_text(encoding="utf-8"))
    exhibit = schema["properties"]["experiments"]["additionalProperties"]["properties"]["exhibit"]
    column = exhibit["properties"]["tables"]["additionalProperties"]["properties"]["columns"][
        "additionalProperties"
    ]
    assert sorted(column["properties"]["formula"]["enum"]) == sorted(formulas.FORMULAS)


def test_fates_are_those_that_are_measured():
    assert formulas.FATES == ledger.FATES
    # The measuring module imports torch, so its labels are read, not imported.
    source = (config.PROJECT / "scripts" / "complab" / "measure" / "calls.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    labels = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "LABELS"
    )
    assert [value.value for value in labels.values] == list(call_stream.FATES)


def test_no_letter_in_a_figure_is_smaller_than_seven_points():
    style = (config.PROJECT / "figures" / "complab.mplstyle").read_text(encoding="utf-8")
    sizes = re.findall(r"^(?:font\.size|\S+\.(?:label|title|font)size): ([0-9.]+)$", style, re.MULTILINE)
    for path in (config.PROJECT / "scripts" / "complab" / "report").glob("*.py"):
        sizes += re.findall(r"fontsize=([0-9.]+)", path.read_text(encoding="utf-8"))
    assert len(sizes) > 5 and min(map(float, sizes)) >= 7
