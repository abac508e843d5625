"""What is asked once is asked in the first replicate, and nothing else may be missing anywhere."""

import json
from types import SimpleNamespace

import pytest

import recorded
from complab import cell, once
from complab.config import Cell
from complab.measure import observers
from complab.report import formulas, gather
from complab.report.number import Ask
from complab.report.selection import Where, find

E3 = "e3_graph_breaks"
COLD = [f"{E3}/default/cold/{replicate}" for replicate in (1, 2, 3)]
BREAKS = Ask("count", ("explain_breaks",))
BROKEN = Where(case="with_break", cache="cold")


def job(policy="default", cache="cold", replicate=1):
    settings = {"probes": ["explain", "fullgraph", "trace"], "observers": ["control", "guards"]}
    return SimpleNamespace(cell=Cell("e99", policy, cache, replicate), settings=settings, stage="")


def started(told, monkeypatch, tmp_path):
    """Names of the processes that a cell starts beside the timed one."""
    names = []
    monkeypatch.setattr(cell, "_process", lambda job, name, *more: names.append(name) or {"name": name})
    monkeypatch.setattr(cell.cache, "seal", lambda *more: None)
    monkeypatch.setattr(cell.cache, "unpack", lambda sealed, left, target: target.mkdir(parents=True))
    told.clean = str
    place = SimpleNamespace(root=tmp_path, cache=tmp_path / "cache")
    cell._probes(told, place)
    cell._trace(told, place)
    cell._observers(told, place, {})
    return names


def test_the_first_cold_process_is_probed_traced_and_observed(monkeypatch, tmp_path):
    assert started(job(), monkeypatch, tmp_path) == ["probes", "trace"]
    names = started(job(observers.POLICY), monkeypatch, tmp_path)
    assert names == ["probes", "trace", "observer-control", "observer-guards"]


@pytest.mark.parametrize(
    "told",
    [
        job(replicate=2),
        job(observers.POLICY, replicate=3),
        job(cache="warm"),
        job("eager", "none"),
    ],
    ids=lambda told: str(told.cell),
)
def test_no_other_process_is(told, monkeypatch, tmp_path):
    assert started(told, monkeypatch, tmp_path) == []


# In exhibits.


def without(tmp_path, metrics, cells):
    """Recorded evidence of which some cells lack some metrics."""
    results = recorded.copied(tmp_path)
    for name in cells:
        recorded.edit_rows(results, name, lambda row: None if row.metric in metrics else row)
    return gather.gather(recorded.settings(results), E3, results)


def test_what_the_first_replicate_says_stands_for_all(tmp_path):
    found = find(without(tmp_path, once.METRICS, COLD[1:]), BREAKS, BROKEN)
    assert (found.head, len(found.facts)) == ("1", 1)
    assert found.facts[0].row.replicate == 1


def test_evidence_that_has_it_in_every_replicate_is_heard_in_full():
    found = find(gather.gather(recorded.settings(), E3, recorded.ROOT), BREAKS, BROKEN)
    assert (found.head, len(found.facts)) == ("1", 3)


@pytest.mark.parametrize("cells", [COLD[:1], COLD], ids=["the others have it", "none has it"])
def test_what_the_first_replicate_lacks_is_not_measured(tmp_path, cells):
    found = find(without(tmp_path, once.METRICS, cells), BREAKS, BROKEN)
    assert found.head == "not measured" and not found.facts


@pytest.mark.parametrize("metric", ["log_breaks", "graphs_captured", "steady_compiled", "first_call"])
def test_anything_else_is_missed_in_every_replicate(tmp_path, metric):
    formula = "median" if metric == "steady_compiled" else "count"
    found = find(without(tmp_path, {metric}, COLD[1:2]), Ask(formula, (metric,)), BROKEN)
    assert (found.head, found.because) == ("not measured", (f"not in {COLD[1]}",))


def test_a_question_that_is_not_about_probes_alone_is_missed_too(tmp_path):
    both = Ask("count", ("explain_breaks", "log_breaks"))
    assert find(without(tmp_path, once.METRICS, COLD[1:]), both, BROKEN).head == "not measured"


def test_without_a_proven_first_replicate_nothing_is_told(tmp_path):
    results = recorded.copied(tmp_path)
    for name in COLD[1:]:
        recorded.edit_rows(results, name, lambda row: None if row.metric in once.METRICS else row)
    recorded.unproven(results, COLD[0])
    found = find(gather.gather(recorded.settings(results), E3, results), BREAKS, BROKEN)
    assert found.head == "not measured"


def test_a_region_that_is_only_probed_has_the_ledger_of_the_first_replicate(tmp_path):
    """The model of the break experiment is asked about and never called."""
    gathered = without(tmp_path, once.METRICS, COLD[1:])
    for name in COLD[1:]:
        path = gathered.records[0].folder.parents[3] / name / "ledger.json"
        told = json.loads(path.read_text(encoding="utf-8"))
        del told["regions"]["model"]
        path.write_text(json.dumps(told), encoding="utf-8")
    found = find(gathered, Ask("ledger verdict"), Where(case="model", cache="cold"))
    assert (found.head, found.ledgers) == ("RUNS has no evidence", (f"{COLD[0]}/ledger.json",))


# Ledgers of cells that were not asked alike.

FACTS = gather.facts_of(gather.gather(recorded.settings(), E3, recorded.ROOT).records[0])
NOISE = recorded.settings()["noise"]
LEVELS = ("RUNS", "CORRECT", "CAPTURED", "STABLE", "WORTH IT")


def ledger(stop, evidence="", probed=False, verdict="fail", where=""):
    """A ledger that stops at a level."""
    levels, passed = [], True
    for level in LEVELS:
        passed = passed and level != stop
        told = "pass" if passed else verdict if level == stop else "not judged"
        levels.append({"level": level, "verdict": told, "evidence": evidence if level == stop else ""})
    unasked = "not measured: only the first replicate is probed"
    capture = {"graphs_explain": 2 if probed else unasked, "where": where}
    return {"levels": levels, "capture": capture, "mechanism": "", "sentence": f"{stop}: {evidence}"}


def told(formula, *ledgers, of=()):
    named = {f"e99/static/cold/{index}/ledger.json": each for index, each in enumerate(ledgers, start=1)}
    number = formulas.evaluate(Ask(formula, of), FACTS, NOISE, named)
    return number.head, bool(number.flags)


PROBED = ledger("CAPTURED", "fullgraph rejects the call (log breaks 0, fullgraph 0)", probed=True)


@pytest.mark.parametrize("other", [ledger("CAPTURED", "x (log breaks 0)"), ledger("STABLE", "x"), ledger("")])
def test_what_only_a_probe_finds_is_no_disagreement(other):
    assert told("first failing level", PROBED, other) == ("CAPTURED", False)
    assert told("level evidence", PROBED, other) == (PROBED["levels"][2]["evidence"], False)
    assert told("ledger verdict", PROBED, other) == ("CAPTURED fails", False)


def test_a_replicate_that_stops_before_capture_is_heard_without_a_probe():
    assert told("first failing level", PROBED, ledger("CORRECT", "x")) == ("CAPTURED / CORRECT", True)
    assert told("ledger verdict", PROBED, ledger("CORRECT", "x")) == ("CORRECT fails", True)


def test_replicates_that_differ_after_capture_do_not_agree_probed_or_not():
    assert told("first failing level", ledger("", probed=True), ledger("STABLE", "x")) == (
        "none / STABLE",
        True,
    )


def test_where_it_breaks_is_told_by_those_that_were_probed():
    probed, other = ledger("CAPTURED", probed=True, where="a.py:1"), ledger("STABLE")
    assert told("ledger fact", probed, other, of=("capture/where",)) == ("a.py:1", False)


def test_reasons_for_not_asking_do_not_disagree():
    first, other = ledger("STABLE"), ledger("STABLE")
    first["capture"]["graphs_explain"] = "not measured: this was not asked"
    asked = told("ledger fact", first, other, of=("capture/graphs_explain",))
    assert asked == ("not measured: this was not asked", False)
