"""Are the chapter's claims judged from evidence and nothing else? On recorded cells and claims made here."""

import copy
import csv
import dataclasses
import json
import re

import pytest
import yaml

import recorded
from complab import config, evidence, torchlog
from complab.errors import UsageProblem
from complab.report import claims, claims_table, exhibits, gather, ledgers, lineage, names, number, register
from complab.report.claims import DIFFERS, HOLDS, NOT_COMPARABLE, NOT_MEASURED, Finding
from complab.report.number import Ask
from complab.report.numbers import write as name_numbers
from complab.report.page import draw as draw_page

E1, E3, E6 = EXPERIMENTS = ("e1_opening_failure", "e3_graph_breaks", "e6_dynamic_shapes")
STATIC = f"{E1}/static/cold/1"
GIVEN = yaml.safe_load(register.CLAIMS_FILE.read_text(encoding="utf-8"))

VARIANTS = {"policy": "static", "case": "model", "formula": "count", "of": "new_variants"}
TOTAL = {
    "policy": "static",
    "cache": "cold",
    "case": "model",
    "formula": "total",
    "of": "compiled_time",
    "unit": "s",
}
BROKEN = {
    "cache": "cold",
    "case": "with_break",
    "formula": "ratio",
    "of": "steady_compiled",
    "to": "steady_eager",
}
COST = {
    "cache": "cold",
    "formula": "ratio",
    "of": "with_break.steady_compiled",
    "to": "without_break.steady_compiled",
}
REASON = {"cache": "cold", "case": "with_break", "formula": "reason", "of": "log_breaks"}


def given(experiment: str, judged: dict, expect: dict, kind: str = "structural", **more) -> dict:
    """A claims file with one claim."""
    values = copy.deepcopy(GIVEN)
    told = {
        "id": f"{experiment.split('_')[0]}-test",
        "class": kind,
        "says": "Something.",
        "chapter": "a value",
    }
    values["claims"] = {experiment: [{**told, "judged": judged, "expect": expect, **more}]}
    return values


@pytest.fixture(scope="module")
def told():
    """The recorded evidence."""
    settings = recorded.settings()
    return {name: gather.gather(settings, name, recorded.ROOT) for name in EXPERIMENTS}


@pytest.fixture
def results(tmp_path):
    return recorded.copied(tmp_path)


def gathered(results, experiment, **noise):
    return {experiment: gather.gather(recorded.settings(results, **noise), experiment, results)}


def judged(told, *words, change=None, **more):
    """What becomes of one claim."""
    values = given(*words, **more)
    if change:
        change(values)
    (judgement,) = claims.judge(register.resolve(values), told)
    return judgement


def outcome(*words, **more):
    return judged(*words, **more).verdict


def on_the_chapters_machine(results, cell):
    """Make a cell one of the chapter's GPU and release."""

    def change(record):
        record["gpu"] = [{"index": 0, "name": GIVEN["chapter"]["gpu"]}]
        record["fingerprint"]["torch"] = "2.6.0+cu118"
        record["config"]["device"] = "cuda"
        record["config"]["workload"] = dict(GIVEN["chapter"]["workload"])

    recorded.edit_record(results, cell, change)


# Structural: what every process must say


def test_a_count_holds_where_every_process_has_it_and_differs_where_not(told):
    assert outcome(told, E1, VARIANTS, {"equals": 3}) == HOLDS
    found = judged(told, E1, VARIANTS, {"equals": 8})
    assert (found.verdict, found.measured, found.reason) == (DIFFERS, "3", "expected 8. Unexplained")


@pytest.mark.parametrize(
    ("expect", "verdict"),
    [
        ({"at least": 3}, HOLDS),
        ({"at least": 4}, DIFFERS),
        ({"at most": 3}, HOLDS),
        ({"at most": 2}, DIFFERS),
        ({"equals other": {"cache": "warm"}}, HOLDS),
        ({"equals other": {"of": "reuses"}}, DIFFERS),
        ({"more than other": {"of": "reuses"}}, HOLDS),
        ({"more than other": {"cache": "warm"}}, DIFFERS),
    ],
)
def test_each_operator_of_a_count(told, expect, verdict):
    assert outcome(told, E1, VARIANTS, expect) == verdict


def test_words_and_texts(told):
    level = {"policy": "static", "case": "model", "formula": "first failing level"}
    assert outcome(told, E1, level, {"is": "STABLE"}) == HOLDS
    assert outcome(told, E1, level, {"is": "CAPTURED"}) == DIFFERS
    fate = {"policy": "static", "case": "model", "call": 4, "formula": "fate", "of": "refused_attempts"}
    assert outcome(told, E1, fate, {"is": "refused attempt"}) == HOLDS
    assert outcome(told, E3, REASON, {"contains": "Tensor.item"}) == HOLDS


def test_one_process_that_says_something_else_keeps_a_claim_from_holding(results):
    def change(row):
        return dataclasses.replace(row, detail="x:1: y | z") if row.metric == "log_breaks" else row

    recorded.edit_rows(results, f"{E3}/default/cold/2", change)
    found = judged(gathered(results, E3), E3, REASON, {"contains": "Tensor.item"})
    assert found.verdict == DIFFERS and "so in 2 of 3 processes" in found.reason

    def count(row):
        return dataclasses.replace(row, value=2) if row.metric == "log_breaks" else row

    recorded.edit_rows(results, f"{E3}/default/cold/2", count)
    breaks = {**REASON, "formula": "count"}
    assert outcome(gathered(results, E3), E3, breaks, {"equals": 1}) == DIFFERS


def test_a_difference_by_design_is_explained_and_any_other_is_not(told):
    wording = {"contains": "Unsupported: Tensor.item"}
    since = {"torch": "2.7", "why": "the wording changed"}
    found = judged(told, E3, REASON, wording, differs_since=since)
    assert found.verdict == DIFFERS
    assert found.reason.endswith("By design: since torch 2.7, the wording changed")
    later = {"torch": "2.14", "why": "the wording changed"}
    assert judged(told, E3, REASON, wording, differs_since=later).reason.endswith("Unexplained")


def test_all_parts_must_hold(told):
    further = [{"of": "reuses", "expect": {"equals": 2}}, {"of": "refused_attempts", "expect": {"equals": 1}}]
    assert outcome(told, E1, VARIANTS, {"equals": 3}, also=further) == HOLDS
    further[1]["expect"] = {"equals": 9}
    found = judged(told, E1, VARIANTS, {"equals": 3}, also=further)
    assert found.verdict == DIFFERS and found.reason.startswith(
        "refused_attempts of static, model: expected 9"
    )
    assert found.measured == "3; 2; 1"


# Ordinal: what an interval excludes


@pytest.mark.parametrize(
    ("low", "high", "claimed", "verdict"),
    [
        (0.80, 0.90, "faster", HOLDS),
        (1.10, 1.20, "faster", DIFFERS),
        (0.99, 1.01, "faster", DIFFERS),
        (0.90, 1.10, "faster", NOT_COMPARABLE),
        (1.10, 1.20, "slower", HOLDS),
        (0.80, 0.90, "slower", DIFFERS),
        (0.90, 1.10, "slower", NOT_COMPARABLE),
        (0.98, 1.05, "same", HOLDS),
        (1.04, 1.06, "same", DIFFERS),
        (0.80, 1.20, "same", NOT_COMPARABLE),
        (0.99, 1.20, "not faster", HOLDS),
        (0.80, 0.90, "not faster", DIFFERS),
        (0.80, 1.20, "not faster", NOT_COMPARABLE),
        (0.80, 1.01, "not slower", HOLDS),
    ],
)
def test_what_an_interval_leaves_open_is_not_comparable(told, low, high, claimed, verdict):
    loaded = register.resolve(given(E1, TOTAL, {"below other": {"cache": "warm"}}, "ordinal"))
    (claim,) = loaded.claims
    fact = gather.facts_of(told[E1].determinate[0])[0]
    numbers = (number.Number(Ask("total"), "1", 1.0, facts=(fact,)),) * 2
    matter = claims.Matter(loaded, claim, claim.checks[0], told[E1], numbers)
    found = claims._resolved(matter, claimed, low, high, None)
    assert found.verdict == verdict
    assert f"[{low:.2f}, {high:.2f}]" in found.reason


WORKLOAD = {"vocabulary": 512, "dim": 64, "heads": 2, "blocks": 2}


def small_model(values):
    values["chapter"]["workload"] = WORKLOAD


def test_a_resolved_difference_holds_and_its_opposite_differs(told):
    assert outcome(told, E3, BROKEN, {"ratio": "slower"}, "ordinal") == HOLDS
    found = judged(told, E3, BROKEN, {"ratio": "faster"}, "ordinal")
    assert found.verdict == DIFFERS and found.reason.startswith("slower: 1.")


def test_a_difference_lost_in_noise_is_not_comparable_and_says_the_interval(told):
    found = judged(told, E3, COST, {"ratio": "slower"}, "ordinal")
    assert found.verdict == NOT_COMPARABLE
    assert re.fullmatch(r"no resolved difference: 1\.\d\d \[0\.\d\d, 1\.\d\d\]", found.reason)


def test_one_process_is_too_few_for_an_order(told):
    found = judged(told, E1, TOTAL, {"above other": {"cache": "warm"}}, "ordinal", change=small_model)
    assert (found.verdict, found.reason) == (NOT_COMPARABLE, "1 process; an interval needs 3")


def test_an_order_of_two_times_needs_intervals_apart(told):
    first_call = {"cache": "cold", "case": "with_break", "formula": "total", "of": "first_call", "unit": "s"}
    assert outcome(told, E3, first_call, {"above other": {"cache": "warm"}}, "ordinal") == HOLDS
    assert outcome(told, E3, first_call, {"below other": {"cache": "warm"}}, "ordinal") == DIFFERS


def test_an_order_measured_on_a_smaller_model_is_not_comparable(told):
    found = judged(told, E1, TOTAL, {"above other": {"cache": "warm"}}, "ordinal")
    assert (found.verdict, found.reason) == (NOT_COMPARABLE, "needs dim 256; measured with 64")


# Timing: a number of one machine


@pytest.mark.fault("T9", "claims about a GPU, measured without one")
def test_a_time_stands_beside_ours_and_is_not_judged_elsewhere(told):
    found = judged(
        told, E3, {**BROKEN, "to": "", "formula": "median", "unit": "ms"}, {"about": 0.323}, "timing"
    )
    assert found.verdict == NOT_COMPARABLE
    assert re.fullmatch(r"0\.\d+ ms", found.measured)
    assert "NVIDIA GeForce RTX 2060" in found.reason and "cpu" in found.reason


def test_on_the_chapters_machine_a_time_is_judged(results):
    for record in gathered(results, E3)[E3].records:
        on_the_chapters_machine(results, record.cell.path)
    told = gathered(results, E3)
    asked = {**BROKEN, "to": "", "formula": "median", "unit": "ms"}
    ours = told[E3]
    value = claims.find(
        ours, Ask("median", ("steady_compiled",), unit="ms"), claims.Where(cache="cold", case="with_break")
    ).value
    assert outcome(told, E3, asked, {"about": value * 1.2}, "timing") == HOLDS
    found = judged(told, E3, asked, {"about": value * 3}, "timing")
    assert (found.verdict, found.reason) == (DIFFERS, "0.33 times the chapter's. Unexplained")


# Needs, and evidence that is not there


def test_an_unmet_need_makes_it_not_comparable(told):
    found = judged(told, E1, VARIANTS, {"equals": 3}, needs={"recompile_limit": 8})
    assert (found.verdict, found.reason) == (
        NOT_COMPARABLE,
        "needs a recompile limit of 8; measured under 3",
    )
    assert outcome(told, E1, VARIANTS, {"equals": 3}, needs={"recompile_limit": 3}) == HOLDS
    found = judged(told, E1, VARIANTS, {"equals": 3}, needs={"stream": "service"})
    assert (found.verdict, found.reason) == (NOT_COMPARABLE, "needs the chapter's stream of 13 requests")
    assert outcome(told, E1, VARIANTS, {"equals": 3}, needs={"stream": "service", "first": 3}) == HOLDS
    assert (
        outcome(told, E1, VARIANTS, {"equals": 3}, needs={"stream": "service", "first": 4}) == NOT_COMPARABLE
    )
    assert outcome(told, E1, VARIANTS, {"equals": 3}, needs={"device": "cuda"}) == NOT_COMPARABLE


def test_what_the_release_does_not_report_is_not_measured(told):
    found = judged(told, E1, VARIANTS, {"equals": 3}, needs={"capability": "clairvoyance"})
    assert found.verdict == NOT_MEASURED
    assert found.reason == "not reported: this torch release has no clairvoyance"


def test_an_experiment_or_a_policy_that_is_not_configured_is_not_measured(told):
    found = judged(told, "e2_eager_first", {"formula": "count", "of": "eager_runs"}, {"equals": 1})
    assert (found.verdict, found.reason) == (NOT_MEASURED, "e2_eager_first is not in the configuration")
    settings = recorded.settings()
    del settings.values["experiments"][E1]["policies"]["static"]
    less = {E1: gather.gather(settings, E1, recorded.ROOT)}
    found = judged(less, E1, VARIANTS, {"equals": 3})
    assert (found.verdict, found.reason) == (NOT_MEASURED, "the configuration has no such cell")


@pytest.mark.fault("T17", "claims without proven evidence")
@pytest.mark.parametrize("spoil", [recorded.fail, recorded.unproven])
def test_a_failed_or_unproven_cell_is_no_evidence(results, spoil):
    for cache in ("cold", "warm"):
        spoil(results, f"{E1}/static/{cache}/1")
    for expect in ({"equals": 3}, {"equals": 8}):
        found = judged(gathered(results, E1), E1, VARIANTS, expect)
        assert found.verdict == NOT_MEASURED and "e1_opening_failure/static/cold/1" in found.reason


@pytest.mark.parametrize("verdict", [HOLDS, DIFFERS])
@pytest.mark.parametrize("head", number.ABSENT)
def test_a_verdict_cannot_be_made_without_evidence_rows(verdict, head):
    (claim,) = register.resolve(given(E1, VARIANTS, {"equals": 3})).claims
    missing = number.absent(claim.checks[0].ask, head)
    for numbers in ((), (missing,)):
        with pytest.raises(ValueError, match="no evidence row"):
            Finding(claim.checks[0], numbers, verdict, "because")


# Bad input, refused with its name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"of": "new_variant"}, "e1-test: unknown metric 'new_variant'; did you mean 'new_variants'?"),
        ({"policy": "statics"}, "e1-test: unknown policy 'statics'; did you mean 'static'?"),
        ({"case": "modell"}, "e1-test: unknown case 'modell'; did you mean 'model'?"),
        ({"of": "modell.new_variants"}, "e1-test: unknown case 'modell'; did you mean 'model'?"),
        ({"formula": "counts"}, "e1-test: unknown formula 'counts'; did you mean 'count'?"),
        ({"polcy": "static"}, "e1-test: unknown key 'judged.polcy'; did you mean 'policy'?"),
        ({"of": []}, "e1-test: 'count' needs a metric; add of"),
        ({"to": "reuses"}, "e1-test: 'count' takes no metric to compare with"),
        ({"against": "default"}, "e1-test: 'count' takes no policy to compare with (against)"),
        ({"formula": "text"}, "e1-test: 'equals' judges count, maximum, not 'text'"),
        ({"cache": "hot"}, "e1-test: judged.cache: 'hot' is not one of"),
    ],
)
def test_a_claim_that_names_something_unknown_is_refused(change, message):
    values = given(E1, {**VARIANTS, **change}, {"equals": 3})
    with pytest.raises(UsageProblem) as problem:
        register.resolve(values)
    assert str(problem.value).startswith(f"claims.yaml: {message}")
    assert "\n" not in str(problem.value)


def test_bad_registers_are_refused_by_name(tmp_path):
    def refusal(change):
        values = given(E1, VARIANTS, {"equals": 3})
        change(values)
        with pytest.raises(UsageProblem) as problem:
            register.resolve(values)
        return str(problem.value)

    def twice(values):
        values["claims"][E1] *= 2

    def elsewhere(values):
        values["claims"]["e1_opening_failures"] = values["claims"].pop(E1)

    def softer(values):
        values["claims"][E1][0]["class"] = "timing"

    def two_operators(values):
        values["claims"][E1][0]["expect"] = {"equals": 3, "at least": 3}

    def strange_operator(values):
        values["claims"][E1][0]["expect"] = {"equal": 3}

    def strange_stream(values):
        values["claims"][E1][0]["needs"] = {"stream": "services"}

    def misplaced(values):
        values["claims"][E1][0]["id"] = "e3-test"

    assert "e1-test: two claims have this id" in refusal(twice)
    assert "unknown experiment 'e1_opening_failures'; did you mean 'e1_opening_failure'?" in refusal(
        elsewhere
    )
    assert "e1-test: is called timing, but its operators judge what is structural" in refusal(softer)
    assert "e1-test: expect: " in refusal(two_operators)
    assert "e1-test: unknown key 'expect.equal'; did you mean 'equals'?" in refusal(strange_operator)
    assert "e1-test: unknown stream 'services'; did you mean 'service'?" in refusal(strange_stream)
    assert "e3-test: stands under e1_opening_failure" in refusal(misplaced)
    path = tmp_path / "claims.yaml"
    path.write_text("claims: {}\nclaims: {}\n")
    with pytest.raises(UsageProblem, match="'claims' stands twice in one place"):
        register.load(path)


def test_a_metric_or_case_that_whole_evidence_lacks_is_refused(told, results):
    unknown = {**VARIANTS, "of": "same_cause"}
    with pytest.raises(
        UsageProblem, match="e1-test: no cell of e1_opening_failure has a metric 'same_cause'"
    ):
        judged(told, E1, unknown, {"equals": 1})
    cases = copy.deepcopy(GIVEN["vocabulary"]["experiments"][E1]["cases"])

    def further_case(values):
        values["vocabulary"]["experiments"][E1]["cases"] = [*cases, "twin"]

    with pytest.raises(UsageProblem, match="e1-test: no cell of e1_opening_failure has a case 'twin'"):
        judged(told, E1, {**VARIANTS, "case": "twin"}, {"equals": 1}, change=further_case)
    # Where a policy is not configured, or a probe not asked for, what they would tell is not missing.
    settings = recorded.settings()
    settings.values["experiments"][E1]["policies"] = {"eager": ["none"]}
    only_eager = {E1: gather.gather(settings, E1, recorded.ROOT)}
    compiled = {**TOTAL, "formula": "median"}
    assert outcome(only_eager, E1, compiled, {"about": 1}, "timing") == NOT_MEASURED
    # What a failed cell might have told is not known to be missing.
    recorded.fail(results, f"{E1}/default/warm/1")
    assert outcome(gathered(results, E1), E1, unknown, {"equals": 1}) == NOT_MEASURED


# The register and its exhibit


WORDINGS = [
    ("e1-limit-message", "limit_hit", lambda log: f"{log.limits[0].setting} (8)"),
    ("e3-log-message", "break_on_item_branch", lambda log: log.breaks[0].label),
    ("e1-recompile-message", "shape_of_argument", lambda log: log.recompiles[0].failures[0].text),
    ("e5-dtype-guard", "dtype_of_argument", lambda log: log.recompiles[0].failures[0].text),
    ("e7-print-message", "break_in_loop_on_item", lambda log: log.breaks[0].label),
]


@pytest.mark.parametrize(("name", "program", "told"), WORDINGS)
def test_a_wording_is_the_chapters_release_and_changed_where_the_register_says_so(name, program, told):
    (claim,) = (claim for claim in register.load().claims if claim.id == name)
    (check,) = claim.checks
    logs = config.PROJECT / "tests" / "data" / "torchlogs"
    texts = {
        release: told(torchlog.parse((logs / release / f"{program}.log").read_text(encoding="utf-8")))
        for release in ("2.6.0", "2.13.0")
    }
    assert check.operator == "contains" and check.wanted in texts["2.6.0"]
    assert (check.wanted not in texts["2.13.0"]) == (claim.differs_since is not None)


def test_the_register_covers_the_chapter_and_knows_what_is_configured():
    loaded = register.load()
    assert 85 <= len(loaded.claims) <= 95
    configured = config.load()["experiments"]
    for name, entry in configured.items():
        assert set(loaded.vocabulary["experiments"][name]["policies"]) == set(entry["policies"]), name
        assert any(claim.experiment == name for claim in loaded.claims), name
        sizes = loaded.vocabulary["experiments"][name].get("settings", {})
        assert sizes.items() <= entry["settings"].items(), name
    streams = config.load()["streams"]
    for name, lengths in loaded.chapter["streams"].items():
        assert streams.get(name, lengths) == lengths, name


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("claims")
    claims_table.draw(recorded.settings(), recorded.ROOT, folder)
    return folder / recorded.RUN


def test_the_exhibit_has_every_claim_with_verdict_and_reason(drawn):
    assert sorted(path.name for path in drawn.iterdir()) == sorted(names.CLAIMS)
    with open(drawn / "claims.csv", encoding="utf-8", newline="") as stream:
        lines = list(csv.DictReader(stream))
    assert [line["id"] for line in lines] == [claim.id for claim in register.load().claims]
    assert {line["verdict"] for line in lines} <= set(claims.VERDICTS)
    assert all(line["reason"] and line["measured"] and line["chapter"] for line in lines)
    markdown = (drawn / "claims.md").read_text(encoding="utf-8")
    latex = (drawn / "claims.tex").read_text(encoding="utf-8")
    for line in lines:
        assert f"| {line['id']} " in markdown and line["id"] in latex


def test_the_summary_counts_each_claim_once(told):
    listed = register.load()
    lines = claims_table.counts(claims.judge(listed, told))
    assert [line[0] for line in lines] == [*register.CLASSES, "all"]
    assert lines[-1][-1] == str(len(listed.claims))
    for line in lines:
        assert sum(int(cell.split()[0]) for cell in line[1:-1]) == int(line[-1])


def test_every_number_comes_again_from_the_rows_its_lineage_names(drawn):
    told = json.loads((drawn / "claims.lineage.json").read_text(encoding="utf-8"))
    count = 0
    for name, claim in told["claims"].items():
        for check in claim["checks"]:
            for entry in (check[key] for key in ("number", "other", "word") if key in check):
                if entry["rows"]:
                    again = lineage.recompute(entry, told["noise"], recorded.ROOT / recorded.RUN)
                    assert lineage.entry(again) == entry, name
                    count += 1
                else:
                    assert claim["verdict"] != HOLDS, name
    assert count > 30


def test_a_redraw_is_the_same_to_the_byte(drawn, tmp_path):
    claims_table.draw(recorded.settings(), recorded.ROOT, tmp_path)
    for name in names.CLAIMS:
        assert (tmp_path / recorded.RUN / name).read_bytes() == (drawn / name).read_bytes()


def test_the_manifest_lists_the_claims(tmp_path):
    settings = recorded.settings()
    settings.values["experiments"] = {E1: settings["experiments"][E1]}
    exhibits.draw(settings, E1, recorded.ROOT, tmp_path)
    ledgers.draw(settings, recorded.ROOT, tmp_path)
    claims_table.draw(settings, recorded.ROOT, tmp_path)
    name_numbers(settings, tmp_path)
    draw_page(settings, recorded.ROOT, tmp_path)
    manifest = exhibits.write_manifest(settings, tmp_path / recorded.RUN)
    files = json.loads(manifest.read_text(encoding="utf-8"))["files"]
    assert {name: files[name] for name in names.CLAIMS} == {
        name: evidence.file_entry(manifest.parent / name) for name in names.CLAIMS
    }
