"""A structured trace is drawn as pages that are complete, alone, and the same each time."""

import copy
import json
import re
import shutil
from pathlib import Path

import pytest

import recorded
from complab import config, evidence
from complab.config import Settings
from complab.errors import EnvironmentProblem, UsageProblem
from complab.report import exhibits, names, pages

E3 = "e3_graph_breaks"
CELL = f"{E3}/default/cold/1"
TRACES = Path(__file__).parent / "data" / "traces"
# The one site that a page may name: a break's page links to what PyTorch says about that break.
SITE = "https://meta-pytorch.github.io/compile-graph-break-site/"


@pytest.fixture
def results(tmp_path):
    """Recorded cells, one of them with a recorded trace."""
    folder = recorded.copied(tmp_path)
    trace = recorded.folder_of(folder, CELL) / evidence.TRACE_LOG
    shutil.copyfile(TRACES / "2.13.0" / "trace.log", trace)
    recorded.edit_record(
        folder, CELL, lambda record: record["files"].update({trace.name: evidence.file_entry(trace)})
    )
    return folder


def settings(results):
    """The recorded settings with an exhibit that draws the trace."""
    values = copy.deepcopy(recorded.settings(results).values)
    values["experiments"] = {E3: values["experiments"][E3]}
    values["experiments"][E3]["exhibit"]["trace"] = True
    return Settings(values)


def draw(results, target):
    exhibits.draw(settings(results), E3, results, target)
    return target / recorded.RUN


def content(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_pages_are_the_same_to_the_byte_each_time(results, tmp_path):
    first = content(draw(results, tmp_path / "a"))
    assert len([name for name in first if "/" in name]) > 20
    assert content(draw(results, tmp_path / "b")) == first


def test_every_link_leads_to_a_page_and_nothing_is_loaded(results, tmp_path):
    folder = draw(results, tmp_path / "figures") / f"{E3}.tlparse"
    for page in folder.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"\bsrc=|<link|@import|\bfetch\(|XMLHttpRequest", text), page
        for link in re.findall(r"""href=["']([^"']+)["']""", text):
            target = link.partition("#")[0]
            known = not target or link.startswith(SITE) or (page.parent / target).exists()
            # tlparse links to this report from every index, and writes it for distributed programs only.
            assert known or target == "collectives_parity.json", (page, link)


def test_the_table_leads_to_the_pages_and_the_manifest_holds_each(results, tmp_path):
    folder = draw(results, tmp_path / "figures")
    assert f"]({names.pages_index(E3)})" in (folder / f"{E3}.md").read_text(encoding="utf-8")
    for name in names.every_output(settings(results)):
        # What is drawn of all experiments together is not the question here.
        (folder / name).touch()
    manifest = exhibits.write_manifest(settings(results), folder)
    listed = json.loads(manifest.read_text(encoding="utf-8"))["files"]
    assert listed.keys() | {names.MANIFEST} == content(folder).keys()


def test_a_page_of_an_earlier_drawing_does_not_stay(results, tmp_path):
    folder = draw(results, tmp_path / "figures")
    before = content(folder)
    (folder / f"{E3}.tlparse" / "old.html").write_text("old", encoding="utf-8")
    assert content(draw(results, tmp_path / "figures")) == before


def test_a_failed_cell_is_told_in_place_of_pages(results, tmp_path):
    recorded.fail(results, f"{E3}/default/cold/2", "a test <says> so")
    folder = draw(results, tmp_path / "figures")
    told = [name for name in content(folder) if "/" in name]
    assert told == [names.pages_index(E3)]
    assert "a test &lt;says&gt; so" in (folder / told[0]).read_text(encoding="utf-8")


def test_a_machine_without_the_program_is_told_what_to_install(results, tmp_path, monkeypatch):
    monkeypatch.setattr(pages.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(EnvironmentProblem, match=r"tlparse: missing.*install the lock"):
        draw(results, tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


def test_pages_need_the_probe_that_leaves_a_trace():
    given = {
        "experiments": {E3: {"title": "A", "policies": {"default": ["cold"]}, "exhibit": {"trace": True}}}
    }
    with pytest.raises(UsageProblem, match=f"{E3}.exhibit.trace: .*probes"):
        config.resolve(given)
