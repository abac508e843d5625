"""An audit finds whatever is not as it was measured, and takes a number back to the rows it came from."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

import recorded
from complab import attempts, cli, config, evidence, staleness
from complab.config import Settings
from complab.errors import UsageProblem
from complab.measure import cache, ledger
from complab.report import (
    audit,
    audit_evidence,
    chain,
    claims_table,
    classes,
    exhibits,
    ledgers,
    lineage,
    names,
    numbers,
    page,
    targets,
)
from complab.report.tree import Tree

RUN = recorded.RUN
E1, E3 = "e1_opening_failure", "e3_graph_breaks"
STATIC = f"{E1}/static/cold/1"
BROKEN = f"{E3}/default/cold/1"
MUTATIONS, SEED = 40, 20260131


class Project:
    """A folder with the results and figures of one run, and the settings that they are about."""

    def __init__(self, folder: Path, settings: Settings):
        self.folder = folder
        self.settings = settings

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def figures(self) -> Path:
        return self.folder / "figures"

    @property
    def exhibits(self) -> Path:
        return self.figures / RUN

    def cell(self, path: str = STATIC) -> Path:
        return self.results / RUN / path

    def record(self, path: str = STATIC) -> dict:
        return json.loads((self.cell(path) / evidence.PROVENANCE).read_text(encoding="utf-8"))

    def audit(self, **options) -> audit.Report:
        with Tree.open(RUN, self.results, self.figures) as tree:
            return audit.audit(tree, settings=self.settings, **options)

    def draw(self) -> None:
        shutil.rmtree(self.exhibits, ignore_errors=True)
        for experiment in self.settings["experiments"]:
            exhibits.draw(self.settings, experiment, self.results, self.figures)
        ledgers.draw(self.settings, self.results, self.figures)
        claims_table.draw(self.settings, self.results, self.figures)
        numbers.write(self.settings, self.figures)
        page.draw(self.settings, self.results, self.figures)
        self.seal()

    def seal(self) -> None:
        """Write the manifest anew, as one does who covers a change up."""
        exhibits.write_manifest(self.settings, self.exhibits, self.results, {"scale": "quick"})

    def copied(self, folder: Path) -> "Project":
        for name in ("results", "figures"):
            shutil.copytree(self.folder / name, folder / name)
        return Project(folder, self.settings)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Two experiments, measured and drawn by the code of today; nobody may change it."""
    folder = tmp_path_factory.mktemp("project")
    results = recorded.copied(folder)
    shutil.rmtree(results / RUN / "e6_dynamic_shapes")
    for replicate in ("2", "3"):
        for state in ("cold", "warm"):
            shutil.rmtree(results / RUN / E3 / "default" / state / replicate)
    project = Project(folder, recorded.as_if_measured_today(results))
    project.draw()
    return project


@pytest.fixture
def project(original, tmp_path):
    return original.copied(tmp_path)


@pytest.fixture
def as_recorded(original, monkeypatch):
    """The command audits under the settings of the recorded evidence."""
    monkeypatch.setattr(audit_evidence, "settings_of", lambda tree: original.settings)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8", newline="\n")


def told(report: audit.Report) -> str:
    return "\n".join(map(str, report.findings))


def test_what_was_just_measured_and_drawn_is_fresh(original):
    report = original.audit()
    assert (told(report), report.verdict) == ("", classes.FRESH)
    assert report.account.planned == report.account.measured == len(original.settings.cells())
    assert report.counts["numbers"] > 300
    assert report.counts["log_rows"] > 40
    assert report.counts["exhibits_redrawn"] == len(original.settings["experiments"]) + 3


def test_every_number_of_every_exhibit_is_recomputed_exactly(original):
    with Tree.open(RUN, original.results, original.figures) as tree:
        found = [chain.compare(tree, number) for number in tree.numbers]
        assert set(found) == {chain.SAME, chain.NOTHING}
        assert found.count(chain.SAME) == original.audit().counts["numbers"]


# Whatever is changed is found.


def changes(folder: Path, rng: random.Random) -> tuple[Path, bytes]:
    """A random file with its content after one byte, or one digit, of it became another."""
    path = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size))
    content = bytearray(path.read_bytes())
    digits = [at for at, byte in enumerate(content) if 48 <= byte <= 57]
    if digits and rng.random() < 0.5:
        at, others = rng.choice(digits), range(48, 58)
    else:
        at, others = rng.randrange(len(content)), range(256)
    content[at] = rng.choice([byte for byte in others if byte != content[at]])
    return path, bytes(content)


@pytest.mark.fault("T7", "forty random changes of any file, and their repair")
def test_forty_random_changes_are_forty_findings_and_their_repair_is_green(project):
    rng = random.Random(SEED)
    for _ in range(MUTATIONS):
        path, content = changes(project.folder, rng)
        before = path.read_bytes()
        path.write_bytes(content)
        report = project.audit()
        name = path.relative_to(project.folder).as_posix()
        assert report.verdict == classes.TAMPERED, name
        # A wrong hash in the manifest is told of the file that it is of.
        named = [finding for finding in report.findings if finding.file == name]
        assert named or path.name == names.MANIFEST, (name, told(report))
        path.write_bytes(before)
    assert project.audit().verdict == classes.FRESH


def measured_anew(project: Project, path: str) -> None:
    """The cell as measured once more, a little slower, with what follows from that."""

    def slower(row: evidence.Row) -> evidence.Row:
        return replace(row, value=row.value * 1.01) if row.metric == "first_call" else row

    recorded.edit_rows(project.results, path, slower)
    record = project.record(path)
    rows = evidence.csv_to_rows((project.cell(path) / evidence.EVIDENCE).read_text(encoding="utf-8"), path)
    told = record["config"]
    filled = ledger.fill(rows, told["tolerance"], told["recompile_limit"])
    (project.cell(path) / evidence.LEDGER).write_text(evidence.json_text(filled), encoding="utf-8")
    recorded.measure_again(project.results, path, record | {"attempt": record["attempt"] + 1})


def test_a_cell_measured_again_leaves_its_exhibits_stale_until_they_are_drawn_again(project):
    measured_anew(project, BROKEN)
    report = project.audit()
    assert report.verdict == classes.STALE
    stale = {Path(finding.file).name for finding in report.findings}
    assert stale == {f"{name}.lineage.json" for name in (E3, "ledgers", "noise", "claims")}
    assert f"drawn before {BROKEN} was measured again" in told(report)
    # One experiment redrawn, as `snakemake e3` does; the manifest is of the whole run.
    exhibits.draw(project.settings, E3, project.results, project.figures)
    report = project.audit()
    assert report.verdict == classes.STALE
    assert f"{E3}.csv: evidence: measured and drawn again since the manifest was written" in told(report)
    project.draw()
    assert project.audit().verdict == classes.FRESH


@pytest.mark.fault("T7", "an altered table, the manifest made to fit")
@pytest.mark.parametrize("file", [f"{E3}.csv", f"{E3}.md", f"{E3}.tex"])
def test_a_table_is_held_against_its_lineage_though_the_manifest_was_made_to_fit(project, file):
    path = project.exhibits / file
    lines = path.read_text(encoding="utf-8").split("\n")
    separator = {"csv": ",", "md": " | ", "tex": " & "}[path.suffix[1:]]
    number = re.compile(rf"(?<={re.escape(separator)})\s*(\d+)\.\d")
    at = next(at for at, line in enumerate(lines) if at and number.search(line))
    found = number.search(lines[at])
    other = str(int(found[1]) + 1)
    lines[at] = lines[at][: found.start(1)] + other + lines[at][found.end(1) :]
    path.write_text("\n".join(lines), encoding="utf-8")
    project.seal()
    report = project.audit()
    assert report.verdict == classes.TAMPERED
    assert f"figures/{RUN}/{file}: row " in told(report)
    assert f" reads '{other}." in told(report)


@pytest.mark.fault("T7", "an altered number, all else made to fit")
def test_a_number_is_held_against_its_rows_though_everything_else_was_made_to_fit(project):
    path = project.exhibits / f"{E3}.lineage.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    entry = document["tables"]["main"]["with_break"]
    column = next(name for name, number in entry.items() if isinstance(number["value"], float))
    entry[column]["value"] *= 1.01
    path.write_text(lineage.json_text(document), encoding="utf-8")
    project.seal()
    report = project.audit()
    assert report.verdict == classes.TAMPERED
    assert f"row with_break, column {column}: value is" in told(report)


def test_a_number_that_leaves_out_a_row_is_found_though_its_rows_give_it(project):
    path = project.exhibits / f"{E3}.lineage.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    with Tree.open(RUN, project.results, project.figures) as tree:
        number = next(
            number
            for number in tree.numbers_of(E3)
            if number.told["formula"] == "median" and number.column != "" and len(number.told["rows"]) == 1
        )
        cell = document["tables"][number.table][number.row]
        file, lines = next(iter(number.told["rows"].items()))
        first, _, last = lines[0].partition("-")
        wanted = number.told | {"rows": {file: [f"{int(first) + 1}-{last}"]}}
        less = type(number)(E3, number.table, number.row, number.column, wanted, number.noise)
        cell[number.column] = lineage.entry(chain.recompute(tree, less))
    path.write_text(lineage.json_text(document), encoding="utf-8")
    project.seal()
    report = project.audit()
    assert report.verdict == classes.TAMPERED
    assert f"column {number.column}" in told(report)


def test_a_verdict_on_a_claim_is_judged_again(project):
    path = project.exhibits / "claims.lineage.json"
    edit(path, '"verdict": "holds"', '"verdict": "differs"')
    project.seal()
    report = project.audit()
    assert report.verdict == classes.TAMPERED
    assert "verdict is 'differs', judged again 'holds'" in told(report)


@pytest.mark.fault("T7", "an altered log, its hash made to fit")
def test_a_log_is_counted_again_though_its_hash_was_made_to_fit(project):
    path = project.cell(BROKEN) / evidence.TORCH_LOG
    text = path.read_text(encoding="utf-8")
    path.write_text(
        text.replace("Graph break in user code at", "Graph brake in user code at"), encoding="utf-8"
    )
    recorded.measure_again(project.results, BROKEN, project.record(BROKEN))
    report = project.audit()
    assert report.verdict == classes.TAMPERED
    assert "the rows say 1 log_breaks of case with_break" in told(report)


@pytest.mark.fault("T7", "an altered ledger, its hash made to fit")
def test_a_ledger_is_filled_again_though_its_hash_was_made_to_fit(project):
    edit(project.cell(BROKEN) / evidence.LEDGER, '"verdict": "pass"', '"verdict": "fail"')
    recorded.measure_again(project.results, BROKEN, project.record(BROKEN))
    assert "ledger.json: is not what its rows make of it: levels of region" in told(project.audit())


@pytest.mark.fault("T7", "a figure of other evidence")
def test_a_figure_of_other_evidence_is_found(project):
    with Tree.open(RUN, project.results, project.figures) as tree:
        digest = tree.lineages[E3]["evidence_digest"]
    path = project.exhibits / f"{E3}.svg"
    path.write_text(path.read_text(encoding="utf-8").replace(digest, "0" * 64), encoding="utf-8")
    project.seal()
    assert f"{E3}.svg: bears the digest of other evidence" in told(project.audit())


@pytest.mark.fault("T7", "a file that nothing lists")
@pytest.mark.parametrize("where", ["cell", "exhibits"])
def test_a_file_that_nothing_lists_is_found(project, where):
    folder = project.cell() if where == "cell" else project.exhibits
    (folder / "extra.csv").write_text("1\n", encoding="utf-8")
    report = project.audit()
    assert report.verdict == classes.TAMPERED
    assert "extra.csv: lies" in told(report)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            lambda number: number["rows"].update({f"{BROKEN}/evidence.csv": ["2-999999999"]}),
            "has no row on line",
        ),
        (lambda number: number["rows"].update({"../../some/evidence.csv": ["2"]}), "cites ../../some"),
        (lambda number: number.update(formula="os.system"), "cannot be computed"),
        (lambda number: number.pop("rows"), "not a lineage"),
        (lambda number: number.update(of=None), "not a lineage"),
    ],
)
def test_a_lineage_made_to_do_harm_is_found_and_does_none(project, change, what):
    path = project.exhibits / f"{E3}.lineage.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document["tables"]["main"]["with_break"]["log_breaks"])
    path.write_text(lineage.json_text(document), encoding="utf-8")
    project.seal()
    report = project.audit()
    assert report.verdict in (classes.TAMPERED, classes.MISSING)
    assert what in told(report)


def test_a_bundle_cannot_steer_the_terminal_that_it_is_audited_on(project, as_recorded, monkeypatch, capsys):
    recorded.fail(project.results, STATIC, "\x1b[2J gone")
    monkeypatch.setattr(cli, "RESULTS", project.results)
    monkeypatch.setattr(cli, "FIGURES", project.figures)
    with pytest.raises(SystemExit):
        cli.main(["audit"])
    out = capsys.readouterr().out
    assert "?[2J gone" in out
    assert "\x1b" not in out


# The other classes, from bad to good.


def test_what_is_listed_and_not_there_is_missing(project):
    (project.exhibits / f"{E3}.png").unlink()
    report = project.audit()
    assert report.verdict == classes.MISSING
    assert f"figures/{RUN}/{E3}.png: though the manifest lists it" in told(report)


@pytest.mark.parametrize("name", [evidence.TORCH_LOG, evidence.EVIDENCE])
def test_a_missing_file_of_a_cell_is_missing(project, name):
    (project.cell() / name).unlink()
    report = project.audit()
    assert report.verdict == classes.MISSING
    assert report.counts["numbers_not_recomputed"]


def test_a_planned_cell_without_a_record_breaks_the_sum(project):
    shutil.rmtree(project.cell())
    report = project.audit()
    assert report.verdict == classes.MISSING
    assert (report.account.missing, report.account.whole) == (1, False)
    assert f"results/{RUN}/{STATIC}: planned, but not measured" in told(report)


@pytest.mark.fault("T17", "a failed cell, audited")
def test_a_failed_cell_is_unproven_and_counted(project):
    recorded.fail(project.results, STATIC)
    record = project.record()
    attempts.append(project.results / RUN, {"cell": STATIC, "event": attempts.STARTED})
    left = evidence.sha256_of(project.cell() / evidence.PROVENANCE)
    attempts.append(project.results / RUN, {"cell": STATIC, "event": attempts.FAILED, "provenance": left})
    shutil.rmtree(project.exhibits)
    report = project.audit()
    assert (report.account.failed, report.account.whole) == (1, True)
    assert f"failed while timed: {record['failure']['message']}" in told(report)
    kinds = {finding.kind for finding in report.findings if STATIC in finding.file}
    assert kinds == {classes.UNPROVEN}


def again(project: Project, path: str, **changes) -> None:
    """Change a record as if the cell had been measured so."""
    recorded.measure_again(project.results, path, project.record(path) | changes)


def test_an_indeterminate_cell_is_unproven(project):
    cache = project.record()["cache"] | {"verdict": "indeterminate", "reasons": ["a test says so"]}
    again(project, STATIC, cache=cache)
    project.draw()
    report = project.audit()
    assert report.verdict == classes.UNPROVEN
    assert report.account.indeterminate == 1
    assert "indeterminate: a test says so" in told(report)


@pytest.mark.fault("T1", "a killed attempt, audited")
def test_a_cell_whose_last_attempt_was_killed_is_unproven(project):
    attempts.append(project.results / RUN, {"cell": STATIC, "event": attempts.STARTED, "attempt": 2})
    report = project.audit()
    assert report.verdict == classes.UNPROVEN
    assert "the last attempt was interrupted; an earlier one left this" in told(report)


def test_an_earlier_attempt_put_back_is_unproven(project):
    kept = (project.cell() / evidence.PROVENANCE).read_bytes()
    again(project, STATIC, attempt=2)
    (project.cell() / evidence.PROVENANCE).write_bytes(kept)
    report = project.audit()
    assert report.verdict == classes.UNPROVEN
    assert "left by an earlier attempt than the last one" in told(report)


def test_without_a_list_of_attempts_nothing_shows_that_these_are_the_last(project):
    (project.results / RUN / attempts.FILE).unlink()
    project.seal()
    report = project.audit()
    assert report.verdict == classes.UNPROVEN
    assert "no list of attempts" in told(report)


@pytest.mark.fault("T7", "attempts that were dropped")
def test_attempts_that_were_dropped_since_the_exhibits_were_drawn_are_found(project):
    path = project.results / RUN / attempts.FILE
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:-2]), encoding="utf-8")
    assert "does not begin with the list that the exhibits were drawn under" in told(project.audit())


def test_the_log_of_a_failed_attempt_is_the_one_that_was_listed(project):
    folder = project.results / RUN
    kept = folder / attempts.LOGS / f"{'0' * 64}.log"
    event = {"cell": STATIC, "event": attempts.FAILED, "log": "0" * 64}
    attempts.append(folder, event)
    assert f"{kept.name}: the log of a failed attempt" in told(project.audit())
    evidence.write_atomically(kept, "another\n")
    assert f"{kept.name}: is not what its name, a hash, says" in told(project.audit())


def test_old_evidence_without_sections_and_attempts_is_unproven_and_says_why(original, tmp_path):
    results = recorded.copied(tmp_path)
    with Tree.open(RUN, results, tmp_path / "figures") as tree:
        report = audit.audit(tree, settings=recorded.settings(results))
    kinds = {finding.kind for finding in report.findings}
    assert classes.TAMPERED not in kinds
    assert "no list of attempts" in told(report)


@pytest.mark.fault("T16", "other measuring code, audited")
def test_other_measuring_code_is_stale(project, monkeypatch):
    today = dict(audit_evidence.measuring_code())
    monkeypatch.setattr(
        audit_evidence, "measuring_code", lambda: today | {"complab/measure/bench.py": "0" * 64}
    )
    report = project.audit()
    assert report.verdict == classes.STALE
    assert "code: complab/measure/bench.py changed since" in told(report)


@pytest.mark.fault("T16", "other settings, audited")
def test_other_settings_are_stale_and_a_cell_that_is_planned_no_more_too(project):
    values = json.loads(json.dumps(project.settings.values))
    values["seed"] += 1
    del values["experiments"][E1]["policies"]["static"]
    report = Project(project.folder, Settings(values)).audit()
    assert report.verdict == classes.STALE
    assert "config: seed was" in told(report)
    assert f"results/{RUN}/{STATIC}: config: no cell of the configuration any more" in told(report)


@pytest.mark.fault("T16", "another environment, audited")
def test_another_environment_is_stale_for_a_run_of_this_machine_only(project, monkeypatch):
    found = audit_evidence.facts.collect_fingerprint()
    monkeypatch.setattr(audit_evidence.facts, "collect_fingerprint", lambda: found | {"torch": "3.0.0"})
    report = project.audit()
    assert report.verdict == classes.STALE
    assert "environment: torch was" in told(report)
    for folder in (project.results, project.figures):
        (folder / RUN).rename(folder / "reference")
    with Tree.open("reference", project.results, project.figures) as tree:
        assert "environment" not in "".join(
            finding.told for finding in audit_evidence.stale(tree, project.settings, tree.cells)
        )


def test_exhibits_drawn_by_other_code_are_stale(project):
    path = project.exhibits / f"{E3}.md"
    edit(path, "\n- ", "\n- A note that no code writes any more.\n- ")
    manifest = json.loads((project.exhibits / names.MANIFEST).read_text(encoding="utf-8"))
    manifest["files"][path.name] = evidence.file_entry(path)
    manifest["drawn_by"]["code"] = "0" * 64
    del manifest["sha256"]
    manifest["sha256"] = staleness.digest_of(manifest)
    evidence.write_atomically(project.exhibits / names.MANIFEST, evidence.json_text(manifest))
    report = project.audit()
    assert report.verdict == classes.STALE
    assert "code: line" in told(report)


def test_the_worst_class_decides_and_each_has_its_exit_status():
    assert [classes.EXIT[kind] for kind in classes.CLASSES] == [0, 5, 6, 7, 8]
    assert audit.worst([classes.STALE, classes.TAMPERED, classes.MISSING]) == classes.TAMPERED
    assert audit.worst([]) == classes.FRESH


# From a number to its rows.


def asked(project: Project, target: object, **wanted) -> list[targets.Answer]:
    found = targets.answers(str(target), targets.Wanted(**wanted), project.results, project.figures)
    return list(found)


def test_a_table_file_with_row_and_column_is_one_number_with_its_chain(original, as_recorded):
    path = original.exhibits / f"{E3}.csv"
    (answer,) = asked(original, path, row="with_break", column="first_call_cold_s")
    (number,) = answer.numbers
    with Tree.open(RUN, original.results, original.figures) as tree:
        found = chain.chain(tree, number)
    assert found.recomputed == chain.SAME
    assert found.place == f"{E3}, table main, row with_break, column first_call_cold_s"
    (rows,) = found.rows
    line = (
        (original.results / RUN / rows["file"])
        .read_text(encoding="utf-8")
        .split("\n")[rows["first"]["line"] - 1]
    )
    assert rows["first"]["text"] == line
    (cell,) = found.cells
    assert cell["verdict"] == "cold-proven"
    assert (
        cell["by_hand"] == f"python scripts/{E3}.py --policy default --cache cold --replicate 1 --scale quick"
    )
    assert json.loads(json.dumps(found.as_dict())) == found.as_dict()
    assert answer.report.verdict == classes.FRESH


def test_a_number_from_the_log_shows_the_lines_of_its_messages(original):
    with Tree.open(RUN, original.results, original.figures) as tree:
        number = next(
            each
            for each in tree.numbers_of(E3)
            if each.told["of"] == ["log_breaks"] and each.row == "with_break"
        )
        found = chain.chain(tree, number)
        (message, *_) = found.cells[0]["log"]["messages"]
        lines = (
            (original.cell(found.cells[0]["cell"]) / evidence.TORCH_LOG)
            .read_text(encoding="utf-8")
            .split("\n")
        )
    assert "Graph break in user code" in message["text"]
    assert message["text"].startswith(lines[message["line"] - 1])
    assert found.cells[0]["log"]["sections"][0]["text"] == "# case with_break"
    assert message["text"].split("\n")[0] in chain.text_of(found)


def test_a_printed_number_finds_every_place_that_reads_so(original, as_recorded):
    with Tree.open(RUN, original.results, original.figures) as tree:
        number = next(each for each in tree.numbers if isinstance(each.told["value"], float))
    (answer,) = asked(original, number.told["text"])
    assert all(number.told["text"] in each.told["text"] for each in answer.numbers)
    assert number in answer.numbers
    (answer,) = asked(original, repr(number.told["value"]))
    assert number in answer.numbers


def test_a_figure_alone_leads_to_its_exhibit_by_the_digest_in_it(original, as_recorded, tmp_path):
    for kind in names.FIGURE_FORMATS:
        alone = tmp_path / f"from-a-slide.{kind}"
        shutil.copyfile(original.exhibits / f"{E3}.{kind}", alone)
        (answer,) = asked(original, alone)
        assert {(number.exhibit, number.table) for number in answer.numbers} == {(E3, "figure")}
        assert answer.report.verdict == classes.FRESH
    alone.write_bytes(alone.read_bytes() + b"\n")
    (answer,) = asked(original, alone)
    assert answer.report.verdict == classes.TAMPERED


def test_a_figure_of_evidence_that_is_not_here_is_unproven(original, as_recorded, tmp_path):
    alone = tmp_path / "alone.svg"
    alone.write_text(f"<desc>evidence sha256 {'0' * 64}</desc>", encoding="utf-8")
    (answer,) = asked(original, alone)
    assert answer.report.verdict == classes.UNPROVEN


@pytest.mark.parametrize(
    ("target", "wanted", "problem"),
    [
        ("9.87654", {}, "no number that reads like it"),
        (f"{E3}.csv", {"row": "no_break"}, "has no row 'no_break'; it has model, with_break, without_break"),
        ("", {"row": "with_break"}, "are parts of an exhibit"),
        ("nothing.png", {}, "no such file"),
    ],
)
def test_what_nobody_can_mean_is_refused_with_what_there_is(original, target, wanted, problem):
    path = original.exhibits / target
    with pytest.raises(UsageProblem, match=problem):
        asked(original, path if target and path.is_file() else target, **wanted)


def test_a_deep_audit_draws_every_file_again_and_finds_what_was_made_to_fit(project):
    report = project.audit(deep=True)
    assert (told(report), report.verdict) == ("", classes.FRESH)
    assert report.counts["files_redrawn"] > 15
    for name in (f"{E3}.pdf", "numbers.json"):
        path = project.exhibits / name
        path.write_bytes(path.read_bytes() + b"\n")
    project.seal()
    assert project.audit().verdict == classes.FRESH
    report = project.audit(deep=True)
    assert sorted(finding.file for finding in report.findings) == [
        f"figures/{RUN}/{E3}.pdf",
        f"figures/{RUN}/numbers.json",
    ]
    assert report.verdict == classes.TAMPERED


@pytest.mark.fault("T5", "a sealed cache, audited in depth")
def test_a_deep_audit_opens_the_sealed_caches(project, tmp_path):
    cache.seal(tmp_path / "none", tmp_path / "empty.tar")
    for folder in project.results.glob(f"{RUN}/*/*/cold/*"):
        listed = json.loads((folder / evidence.CACHE_MANIFEST).read_text(encoding="utf-8"))
        assert listed
        shutil.copyfile(tmp_path / "empty.tar", folder / evidence.SEALED_CACHE)
    report = project.audit(deep=True)
    assert report.verdict == classes.TAMPERED
    assert "cache.tar: in the sealed cache" in told(report)
    assert project.audit().verdict == classes.FRESH


# Where it works.


def bundled(project: Project, path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(project.results.glob(f"{RUN}/*/*/*/*/*")):
            archive.write(file, file.relative_to(project.results).as_posix())
    return path


def test_a_clone_without_results_is_audited_from_the_bundle(project, as_recorded):
    bundled(project, project.exhibits / "bundle.zip")
    shutil.rmtree(project.results)
    (answer,) = asked(project, RUN)
    # A bundle of old, which has no list of attempts, though the manifest tells of one.
    assert told(answer.report).startswith(f"missing: bundle.zip:{RUN}/{attempts.FILE}: no list of attempts")
    assert len(answer.report.findings) == 1
    assert answer.report.counts["numbers"] > 300
    (answer,) = asked(project, project.exhibits / "bundle.zip")
    assert answer.report.counts["numbers"] > 300


@pytest.mark.fault("T7", "a damaged bundle")
def test_a_damaged_bundle_is_tampered(project, tmp_path):
    path = bundled(project, tmp_path / "some.zip")
    path.write_bytes(path.read_bytes()[:-40])
    (answer,) = asked(project, path)
    assert answer.report.verdict == classes.TAMPERED


@pytest.mark.fault("T15", "a moved and read-only tree, audited")
def test_a_moved_and_read_only_tree_is_audited_and_left_alone(original, tmp_path):
    moved = original.copied(tmp_path / "elsewhere é")
    before = {path: path.stat().st_mtime_ns for path in moved.folder.rglob("*")}
    for path in [moved.folder, *before]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert moved.audit().verdict == classes.FRESH
    finally:
        for path in [moved.folder, *before]:
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert {path: path.stat().st_mtime_ns for path in moved.folder.rglob("*")} == before


def test_the_command_tells_the_class_by_its_exit_status(original, as_recorded, monkeypatch, capsys):
    monkeypatch.setattr(cli, "RESULTS", original.results)
    monkeypatch.setattr(cli, "FIGURES", original.figures)
    for arguments, status in (
        (["audit"], 0),
        (["audit", "--run", RUN, "--json"], 0),
        (["audit", "9.87654"], 2),
    ):
        with pytest.raises(SystemExit) as stopped:
            cli.main(arguments)
        assert stopped.value.code == status
    out = capsys.readouterr().out
    assert "\nfresh\n" in out
    document = json.loads(out[out.index("{") :])
    assert (document["class"], document["exit"]) == ("fresh", 0)
    assert document["runs"][0]["account"]["whole"] is True


def test_an_audit_imports_neither_torch_nor_snakemake_nor_what_draws():
    program = (
        "import sys; from complab.report import audit, targets, chain\n"
        "print(sorted({'torch', 'snakemake', 'matplotlib', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(config.PROJECT / "scripts")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_a_reader_who_has_seen_enough_ends_an_audit_without_a_complaint():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "complab.cli", "audit", "8", "--run", "torch-2.13-cpu"]
    environment = os.environ | {"PYTHONPATH": str(config.PROJECT / "scripts")}
    done = subprocess.run(
        command, env=environment, stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")
