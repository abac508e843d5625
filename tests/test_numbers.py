"""Has every number of a run one name, and does each file of names say what the exhibits say?"""

import json
import re
import shutil

import pytest

from complab import config
from complab.config import PROJECT
from complab.errors import Unverified, UsageProblem
from complab.report import exhibits, names, numbers
from complab.report.escaping import latex
from complab.report.tree import Tree

REFERENCE = "torch-2.13-cpu"
FOLDER = PROJECT / "figures" / REFERENCE
E6 = "e6_dynamic_shapes"
STEADY = f"{E6}.main.default.steady_ms"


@pytest.fixture(scope="module")
def known():
    """The numbers of the committed reference run by name."""
    return numbers.collect(FOLDER)


@pytest.fixture
def lineages(tmp_path):
    """A run's folder with the reference's lineage files only, to be altered."""
    folder = tmp_path / REFERENCE
    folder.mkdir()
    for path in numbers.lineage_files(FOLDER):
        shutil.copyfile(path, folder / path.name)
    return folder


def edit(folder, exhibit, change):
    path = folder / f"{exhibit}{names.LINEAGE}"
    told = json.loads(path.read_text(encoding="utf-8"))
    change(told)
    path.write_text(json.dumps(told), encoding="utf-8")


def entries_of(path):
    """Every lineage entry in a file, wherever it stands."""
    waiting = [json.loads(path.read_text(encoding="utf-8"))]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict) and "formula" in value:
            yield value
        elif isinstance(value, dict | list):
            waiting.extend(value.values() if isinstance(value, dict) else value)


# Names


def test_every_cell_mark_and_claim_of_the_reference_has_one_name(known):
    told = sorted(json.dumps(entry) for path in numbers.lineage_files(FOLDER) for entry in entries_of(path))
    named = sorted(json.dumps(number.entry) for number in known.values() if number.entry)
    assert named == told
    assert len(named) > 2000


def test_numbers_stand_where_the_audit_looks_for_them(known):
    with Tree("torch", FOLDER, FOLDER) as tree:
        printed = {(told.exhibit, told.table, told.row, told.column): told.told for told in tree.numbers}
    named = {
        (told.exhibit, told.table, told.row, told.column): told.entry for told in known.values() if told.entry
    }
    assert named == printed


def test_a_name_says_where_its_number_stands(known):
    number = known[STEADY]
    assert (number.exhibit, number.table, number.row, number.column) == (E6, "main", "default", "steady_ms")
    assert number.file == f"{E6}.csv"
    assert (FOLDER / number.file).is_file()
    assert known[f"{E6}.figure.static/cold/sweep"].file == f"{E6}.png"
    assert known["ledgers.e6_dynamic_shapes/static/model.stable"].text == "fail"
    assert known["claims.e1-totals"].entry["text"] != known["claims.e1-totals.2"].entry["text"]
    assert known["ledgers.ledger_opening_failure.cost.cold-first-call-s"].file == "ledger_opening_failure.txt"


def test_names_need_no_quoting_anywhere(known):
    for name in known:
        assert re.fullmatch(r"[\w./-]+", name, re.ASCII), name


def test_processes_and_claims_are_counted_too(known):
    assert known["run.cells.planned"].value == sum(
        number.value for name, number in known.items() if re.fullmatch(r"e\w+\.cells\.planned", name)
    )
    verdicts = ("holds", "differs", "not-comparable", "not-measured")
    assert known["claims.count.all"].value == sum(known[f"claims.count.{word}"].value for word in verdicts)
    assert known["run.noise.confidence"].text == "95 %"


def test_experiments_come_by_number_and_what_is_about_all_of_them_last():
    stems = [path.name.removesuffix(names.LINEAGE) for path in numbers.lineage_files(FOLDER)]
    assert stems[:2] == ["e1_opening_failure", "e2_eager_first"]
    assert stems[-4:] == ["e14_structured_trace", "ledgers", "noise", "claims"]


def test_two_numbers_never_share_a_name(lineages):
    def twice(told):
        told["tables"]["main"]["de fault"] = told["tables"]["main"]["default"]
        told["tables"]["main"]["de-fault"] = told["tables"]["main"]["default"]

    edit(lineages, E6, twice)
    with pytest.raises(UsageProblem, match=r"e6_dynamic_shapes.main.de-fault.* two numbers"):
        numbers.collect(lineages)


def test_without_exhibits_there_are_no_numbers(tmp_path):
    with pytest.raises(UsageProblem, match="draw the exhibits first"):
        numbers.collect(tmp_path)
    with pytest.raises(UsageProblem, match="is missing; draw the exhibits first"):
        numbers.collect(tmp_path, [tmp_path / "e1.lineage.json"])


def test_a_file_that_is_no_lineage_is_refused(lineages):
    for text in ("no JSON", "{}", "[]", '{"experiment": "e1"}'):
        (lineages / f"{E6}{names.LINEAGE}").write_text(text, encoding="utf-8")
        with pytest.raises(Unverified, match="not a lineage file"):
            numbers.collect(lineages)


# Parts of a number


@pytest.mark.parametrize(
    ("text", "value", "head", "tail", "ends"),
    [
        ("6.24", 6.2371, "6.24", "", ("", "")),
        ("0.92 [0.89, 0.96]", 0.9238, "0.92", "[0.89, 0.96]", ("0.89", "0.96")),
        ("1.03 (n = 1)", 1.0283, "1.03", "(n = 1)", ("", "")),
        ("22.8 %", 0.2279, "22.8 %", "", ("", "")),
        ("1–2", None, "1–2", "", ("1", "2")),
        ("not measured", None, "not measured", "", ("", "")),
        ("steady state 0.92 [0.90, 0.95] times eager", "", "", "", ("", "")),
    ],
)
def test_a_text_is_a_number_and_its_uncertainty(text, value, head, tail, ends):
    number = numbers.Numbered("name", "e", "main", "row", "column", "e.csv", text, value)
    assert (number.head, number.tail, number.printed_ends) == (head or text, tail, ends)


def test_a_fact_that_is_told_as_text_but_is_a_count_can_be_computed_with(known):
    told = known["ledgers.ledger_opening_failure.capture.frames-tried"]
    assert told.entry["value"] == told.text == str(told.value)


# Files


@pytest.fixture
def written(lineages):
    settings = config.load(overrides={"run": REFERENCE})
    numbers.write(settings, lineages.parent)
    return settings, lineages


def test_the_json_file_has_every_number_with_its_value_and_place(written, known):
    _, folder = written
    told = json.loads((folder / "numbers.json").read_text(encoding="utf-8"))
    assert told["run"] == REFERENCE
    assert set(told["numbers"]) == set(known)
    steady = told["numbers"][f"{E6}.main.default.ratio"]
    entry = known[f"{E6}.main.default.ratio"].entry
    assert {key: steady[key] for key in ("text", "value", "unit", "low", "high")} == {
        key: entry[key] for key in ("text", "value", "unit", "low", "high")
    }
    lineage = json.loads((folder / f"{E6}{names.LINEAGE}").read_text(encoding="utf-8"))
    assert steady["evidence_digest"] == lineage["evidence_digest"]
    assert (steady["n"], steady["row"], steady["column"]) == (5, "default", "ratio")


def test_the_same_lineage_gives_the_same_files_and_the_manifest_hashes_them(written, monkeypatch):
    settings, folder = written
    before = [(folder / name).read_bytes() for name in names.NUMBERS]
    numbers.write(settings, folder.parent)
    assert [(folder / name).read_bytes() for name in names.NUMBERS] == before
    monkeypatch.setattr(names, "drawn_outputs", lambda settings: [])
    (folder / names.PAGE).touch()
    listed = json.loads(exhibits.write_manifest(settings, folder).read_text(encoding="utf-8"))["files"]
    assert set(listed) == {*names.NUMBERS, names.PAGE}


def test_only_exhibits_of_the_configuration_are_named(written):
    settings, folder = written
    edit(folder, E6, lambda told: told.update(experiment="e99_left_over"))
    (folder / f"{E6}{names.LINEAGE}").rename(folder / f"e99_left_over{names.LINEAGE}")
    shutil.copyfile(FOLDER / f"{E6}{names.LINEAGE}", folder / f"{E6}{names.LINEAGE}")
    numbers.write(settings, folder.parent)
    assert "e99_left_over" not in (folder / "numbers.json").read_text(encoding="utf-8")


# The LaTeX file, read by a reader that knows braces and nothing else


def groups(line):
    """The groups in braces that follow `\\complab@set`."""
    found, depth, start = [], 0, 0
    for at, character in enumerate(line):
        escaped = at and line[at - 1] == "\\" and (at < 2 or line[at - 2] != "\\")
        if character == "{" and not escaped:
            depth += 1
            start = at + 1 if depth == 1 else start
        elif character == "}" and not escaped:
            depth -= 1
            if depth == 0:
                found.append(line[start:at])
    assert depth == 0, line
    return found


def set_in(text):
    lines = [line for line in text.splitlines() if line.startswith(r"\complab@set{")]
    return {name: dict(zip(numbers.FIELDS, fields, strict=True)) for name, *fields in map(groups, lines)}


def test_the_latex_file_sets_every_field_of_every_number(known):
    told = set_in(numbers.to_tex(REFERENCE, known))
    assert set(told) == set(known)
    for name, number in known.items():
        wanted = {key: latex(" ".join(text.split())) for key, text in numbers.fields_of(number).items()}
        assert told[name] == wanted, name
    ratio = told[f"{E6}.main.default.ratio"]
    assert ratio["text"] == f"{ratio['number']} {ratio['interval']}"
    assert ratio["interval"] == f"[{ratio['low']}, {ratio['high']}]"


def test_nothing_in_the_latex_file_is_taken_for_markup(known):
    for name, fields in set_in(numbers.to_tex(REFERENCE, known)).items():
        for text in fields.values():
            bare = re.sub(r"\\[%&$#_{}]|\\[a-z]+\{[<>]?\}", "", text)
            assert not re.search(r"[\\%&$#_{}^~]", bare), (name, text)


def test_a_text_from_the_evidence_stays_text(lineages):
    planted = r"<script>alert(1)</script> \input{/etc/passwd} 100 % #1 $x_1^2$ ~ }{ &"

    def plant(told):
        told["tables"]["main"]["default"]["steady_ms"] |= {"text": planted, "value": planted}

    edit(lineages, E6, plant)
    found = numbers.collect(lineages)
    told = set_in(numbers.to_tex(REFERENCE, found))[STEADY]
    assert told["number"] == latex(planted)
    assert "\\input" not in told["number"]
    assert json.loads(numbers.to_json(REFERENCE, found))["numbers"][STEADY]["text"] == planted


def test_the_macro_says_so_on_the_page_and_in_the_log_where_a_name_is_unknown(known):
    text = numbers.to_tex(REFERENCE, known)
    macro = text[: text.index(r"\complab@set{")]
    assert r"\ifcsname complab@#1@\detokenize{#2}\endcsname" in macro
    otherwise = macro.split(r"\else")[1]
    assert r"\PackageError{complab}" in otherwise and r"\textbf{??" in otherwise
    assert text.rstrip().endswith(r"\makeatother")
    # Within the definitions a line must not end in a space of its own.
    body = macro[macro.index(r"\makeatletter") :].splitlines()
    assert all(line.endswith(("%", "}")) or line.lstrip().startswith(("\\", "%")) for line in body if line)
