"""A diagnosed subject becomes exhibits and an entry on the page; what was changed since is found."""

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

import recorded
from complab import config, evidence, staleness
from complab.config import Settings
from complab.diagnose import kept, ledger
from complab.errors import Unverified
from complab.report import drawing, names, page, subjects
from complab.report.tree import Tree
from project_copy import copy_project, edit_config

NAME = "double"
FILE = "scripts/complab/units.py"


def told(**changes) -> dict:
    """The ledger of a subject with one graph break, as the command writes it."""
    about = {"name": FILE, "sha256": staleness.file_digest(str(config.PROJECT / FILE))}
    base = ledger.undiagnosed(about, "")
    levels = [each | {"verdict": "pass"} for each in base["levels"]]
    levels[2] |= {"verdict": "fail", "evidence": "graph break at a.py:7: if x.sum() > 0: | <b>no</b>"}
    calls = [
        {"call": at, "eager_s": 1e-4, "compiled_s": 2.0 if at == 0 else 5e-5, "fate": fate}
        for at, fate in enumerate(("new variant", "reuse", "reuse"))
    ]
    found = base | {
        "first_failing_level": "CAPTURED",
        "mechanism": "data-dependent-branch",
        "sentence": "CAPTURED fails, data-dependent-branch",
        "levels": levels,
        "stream": calls,
        "stability": {"calls": 3, "fates": {"new variant": 1, "reuse": 2}, "failed": []},
        "code": staleness.diagnosing_code(),
    }
    return found | changes


def settings_with(*names_: str) -> Settings:
    loaded = recorded.settings()
    loaded.values["subjects"] = {name: {"subject": FILE, "quick": False} for name in names_}
    return loaded


@pytest.fixture
def run(tmp_path):
    """``run(ledger)`` writes it into a run's results and draws its exhibits; returns the tree."""

    def of(document: dict) -> Tree:
        results, figures = recorded.copied(tmp_path), tmp_path / "figures"
        ledger_file = results / recorded.RUN / kept.FOLDER / NAME / evidence.LEDGER
        ledger_file.parent.mkdir(parents=True)
        ledger_file.write_text(evidence.json_text(document), encoding="utf-8")
        settings = settings_with(NAME)
        subjects.draw(settings, NAME, results, figures)
        drawn = drawing.drawn_by(settings)
        evidence.write_atomically(
            figures / recorded.RUN / names.MANIFEST, json.dumps({"files": {}, "drawn_by": drawn})
        )
        return Tree(recorded.RUN, results / recorded.RUN, figures / recorded.RUN)

    return of


def findings(tree: Tree) -> list[tuple[str, str, str]]:
    found = subjects.findings(tree, settings_with(NAME))
    return [(each.kind, each.file, each.told) for each in found]


def test_everything_shown_of_a_subject_is_drawn_from_its_ledger(run):
    tree = run(told())
    assert {path.name for path in tree.exhibits.glob("subject_*")} == set(names.subject_outputs(NAME))
    assert "data-dependent-branch" in (tree.exhibits / f"subject_{NAME}.md").read_text()
    assert findings(tree) == []


def test_the_page_shows_the_ledger_as_text_and_the_picture(run):
    (entry,) = subjects.entries(settings_with(NAME), run(told()).exhibits)
    assert "x CAPTURED  fail" in entry["text"]
    assert entry["source"].startswith("data:image/svg+xml;base64,")
    template = page._environment().from_string("{{ text }}")
    assert "&lt;b&gt;no&lt;/b&gt;" in template.render(entry)


def test_in_markdown_too_the_ledger_stays_text_in_one_row_and_behind_it():
    guard = "if x.sum() > 0: | <b>no</b>\nelse"
    document = told()
    document["levels"][2]["evidence"] = guard
    document["evidence"] = document["evidence"] | {"text": "type(x) is <class 'int'> *kept*"}
    lines = ledger.markdown(document).splitlines()
    assert "| CAPTURED | fail | if x.sum() > 0: \\| &lt;b>no&lt;/b> else |" in lines
    assert any(line.startswith("- **evidence**: type(x) is &lt;class 'int'> \\*kept\\*") for line in lines)


def test_a_subject_that_was_not_diagnosed_is_drawn_and_named_in_the_account(run):
    tree = run(told() | ledger.undiagnosed({"name": FILE, "sha256": None}, "subject: it has no make()"))
    (problem,) = subjects.problems(settings_with(NAME), tree.evidence.parent)
    assert problem == "subjects/double: subject: it has no make()"
    assert b"no compiled call was made" in (tree.exhibits / f"subject_{NAME}.svg").read_bytes()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        (f"subject_{NAME}.md", "1", "2"),
        (f"subject_{NAME}.json", '"compiled_s": 2.0', '"compiled_s": 1.0'),
        (f"subject_{NAME}.json", "{", "["),
    ],
)
def test_a_change_of_an_exhibit_is_found(run, file, old, new):
    tree = run(told())
    path = tree.exhibits / file
    path.write_text(path.read_text().replace(old, new, 1))
    assert {kind for kind, _, _ in findings(tree)} == {"tampered"}


def test_a_change_of_the_ledger_alone_is_found(run):
    tree = run(told())
    ledger_file = tree.evidence / kept.FOLDER / NAME / evidence.LEDGER
    ledger_file.write_text(ledger_file.read_text().replace("2.0", "1.0", 1))
    assert [(kind, file) for kind, file, _ in findings(tree)] == [
        ("tampered", f"results/{recorded.RUN}/subjects/{NAME}/ledger.json")
    ]


def test_a_diagnosis_by_other_code_or_of_another_file_is_stale(run):
    document = told(code="other")
    document["subject"]["sha256"] = "other"
    assert [(kind, text) for kind, _, text in findings(run(document))] == [
        ("stale", "code: diagnosed by other code than today's"),
        ("stale", f"code: {FILE} is not what was diagnosed"),
    ]


def test_a_subject_without_a_diagnosis_is_named(run, tmp_path):
    tree = run(told())
    (tree.exhibits / f"subject_{NAME}.json").unlink()
    assert [kind for kind, _, _ in findings(tree)] == ["stale"]
    with pytest.raises(Unverified, match="missing; diagnose the subject"):
        subjects.draw(settings_with("other"), "other", tree.evidence.parent, tmp_path)


# What is asked of a plan.
TODAY = SimpleNamespace(
    conditions={"torch": "2.13.0", "cpu": "a cpu", "device": "cpu", "threads": 1},
    settings={"subjects": {NAME: {"subject": FILE, "quick": False}}},
)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"code": "0" * 64}, "code: diagnosed by other code than today's"),
        ({"subject": {"name": FILE, "sha256": "0" * 64}}, f"code: {FILE} is not what was diagnosed"),
        ({"quick": True}, "config: quick was true, is false"),
        ({"problem": "it has no make()"}, "the last diagnosis failed: it has no make()"),
        (
            {"environment": {"torch": "2.6.0", "cpu": "a cpu", "device": "cpu", "threads": 1}},
            'environment: torch was "2.6.0", is "2.13.0"',
        ),
        ({"environment": None, "subject": None}, "its ledger is none ("),
    ],
)
def test_a_subject_is_diagnosed_again_if_its_ledger_is_about_something_else(tmp_path, changes, why):
    path = tmp_path / evidence.LEDGER
    standing = told(environment=TODAY.conditions, problem="")
    path.write_text(evidence.json_text(standing | changes), encoding="utf-8")
    found = kept.why_stale(path, NAME, TODAY, staleness.diagnosing_code())
    assert found.startswith(why) if why else found == ""


def test_a_subject_without_a_ledger_is_not_diagnosed_yet(tmp_path):
    assert kept.why_stale(tmp_path / evidence.LEDGER, NAME, TODAY, "") == "not diagnosed yet"


def test_a_run_without_memory_diagnoses_exactly_the_subjects_that_are_stale(tmp_path):
    project = copy_project(tmp_path / "project")
    names_ = ("standing", "other_code")
    asked = {name: {"subject": FILE} for name in names_}
    edit_config(project, lambda values: values.update(subjects=asked))
    plan = staleness.Plan(config.load(project / "config.yaml"))
    for name, code in zip(names_, (staleness.diagnosing_code(), "0" * 64), strict=True):
        path = project / "results" / plan.settings.run / kept.FOLDER / name / evidence.LEDGER
        path.parent.mkdir(parents=True)
        document = told(environment=plan.conditions, problem="", code=code)
        path.write_text(evidence.json_text(document), encoding="utf-8")
    targets = [f"results/{plan.settings.run}/{kept.FOLDER}/{name}/{evidence.LEDGER}" for name in names_]
    answer = subprocess.run(
        [sys.executable, "-m", "snakemake", "-n", "--cores", "1", *targets],
        cwd=project,
        capture_output=True,
        text=True,
        check=True,
    )
    printed = answer.stdout + answer.stderr
    assert f"1 subject to diagnose ({targets[1]}): code: diagnosed by other code than today's" in printed
    assert re.findall(r"^rule subject_(\w+):", printed, re.MULTILINE) == ["other_code"]
