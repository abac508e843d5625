"""Does every exhibit say what its evidence says, and nothing else? Drawn from recorded cells."""

import ast
import csv
import hashlib
import json
import re
import subprocess
import sys

import pytest
from PIL import Image

import recorded
from complab import config, evidence
from complab.errors import Unverified
from complab.report import (
    call_stream,
    cost_against_steady,
    exhibits,
    gather,
    lineage,
    names,
    number,
    tables,
)
from complab.report.number import Ask

E1, E3, E6 = EXPERIMENTS = ("e1_opening_failure", "e3_graph_breaks", "e6_dynamic_shapes")
STATIC_COLD = f"{E1}/static/cold/1"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Every exhibit of the recorded evidence, drawn once."""
    return recorded.draw(recorded.ROOT, tmp_path_factory.mktemp("exhibits"))


@pytest.fixture
def results(tmp_path):
    return recorded.copied(tmp_path)


def redrawn(results, tmp_path, experiment):
    """The exhibit of altered evidence: its folder and its lineage."""
    exhibits.draw(recorded.settings(results), experiment, results, tmp_path / "figures")
    folder = tmp_path / "figures" / recorded.RUN
    return folder, lineage_of(folder, experiment)


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
from pathlib import Path
from complab.report import claims_table, exhibits, ledgers, numbers, page
for experiment in {EXPERIMENTS!r}:
    exhibits.draw(recorded.settings(), experiment, recorded.ROOT, {str(tmp_path)!r})
ledgers.draw(recorded.settings(), recorded.ROOT, {str(tmp_path)!r})
claims_table.draw(recorded.settings(), recorded.ROOT, {str(tmp_path)!r})
numbers.write(recorded.settings(), {str(tmp_path)!r})
page.draw(recorded.settings(), recorded.ROOT, Path({str(tmp_path)!r}))
exhibits.write_manifest(recorded.settings(), {str(tmp_path / recorded.RUN)!r})
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


@pytest.mark.fault("T17", "a failed cell in table and figure")
def test_one_failed_cell_fails_its_row_and_the_picture(results, tmp_path, drawn):
    recorded.fail(results, f"{E1}/static/warm/1")
    folder, told = redrawn(results, tmp_path, E1)
    lines = rows_of(folder / f"{E1}.csv")
    assert {text for column, text in lines["static"].items() if column != "policy"} == {"failed"}
    assert lines["default"] == rows_of(drawn / f"{E1}.csv")["default"]
    for end in ("md", "tex"):
        text = (folder / f"{E1}.{end}").read_text(encoding="utf-8")
        text = text.replace("\\allowbreak{}", "").replace("\\_", "_")
        assert f"Failed: {E1}/static/warm/1 while timed: process 'timed' was killed" in text
        assert "1 failed" in text
    svg = (folder / f"{E1}.svg").read_text(encoding="utf-8")
    assert f"{E1}/static/warm/1" in svg and "not drawn" in svg and "new variant" not in svg
    assert told["figure"] == {} and told["cells"]["failed"] == [f"{E1}/static/warm/1"]


@pytest.mark.fault("T18", "every cell indeterminate")
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
    for path in (path for path in drawn.glob("*.tex") if path.name not in names.NUMBERS):
        body = path.read_text(encoding="utf-8").split("\\toprule")[1]
        assert not re.search(r"(?<!\\)[_%$#]", body), path.name


def test_what_only_cold_cells_are_asked_fills_every_table_and_figure(tmp_path):
    """A warm cell is not probed, so nothing may wait for what it would say."""
    results, probes = recorded.copied(tmp_path), ("explain_graphs", "explain_breaks", "fullgraph_accepts")
    for cell in recorded.cells_in(results, E3):
        if cell.cache == "warm":
            recorded.edit_rows(results, str(cell), lambda row: None if row.metric in probes else row)
    exhibits.draw(recorded.settings(results), E3, results, tmp_path)
    told = json.loads((tmp_path / recorded.RUN / f"{E3}.lineage.json").read_text(encoding="utf-8"))
    entries = [*told["tables"]["main"]["with_break"].values(), *told["figure"].values()]
    asked = [entry for entry in entries if set(entry["of"]) & set(probes)]
    assert len(asked) > 5
    assert all(entry["rows"] for entry in asked)


def test_a_warm_sweep_is_drawn_against_the_steady_state_of_the_cold_processes():
    told = gather.gather(recorded.settings(), "e6_dynamic_shapes", recorded.ROOT)
    marks = cost_against_steady.marks(told, {"cases": ["model"]})
    assert {fact.row.cache for fact in marks["static/warm/sweep"].facts} == {"warm"}
    assert {fact.row.cache for fact in marks["static/warm/steady"].facts} == {"cold"}
    assert marks["static/warm/steady"].text == marks["static/cold/steady"].text


def test_fates_are_those_that_are_measured():
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
