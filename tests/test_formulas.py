"""Do the formulas that combine processes say what they should? On made-up processes and recorded ones."""

import math

import pytest

import recorded
from complab import config, evidence
from complab.errors import UsageProblem
from complab.report import formulas, gather, lineage, number
from complab.report.gather import Fact
from complab.report.number import Ask
from complab.report.selection import Where, find

NOISE = {"confidence": 0.95, "practical_threshold": 0.03, "minimum_processes": 3, "spread_warning": 0.10}
RELATIVE = Ask(
    "relative ratio", ("steady_compiled",), "steady_eager", rounding="2 decimals", against="without"
)
VERDICT = Ask("relative verdict", ("steady_compiled",), "steady_eager", against="without")
EFFECT = Ask(
    "relative smallest effect",
    ("steady_compiled",),
    "steady_eager",
    rounding="1 decimals",
    against="without",
)
COLD = Ask("break even", ("first_call", "steady_compiled"), "steady_eager", cache="cold")
WARM = Ask("break even", ("first_call", "steady_compiled"), "steady_eager", cache="warm")


def process(policy="with", cache="cold", replicate=1, *, ratio=0.5, eager=0.001, first=2.0, control=1.0):
    """The facts of one process with three rounds."""
    cell = ("e99", policy, cache, replicate)
    told = [("first_call", None, first)]
    for call in range(3):
        drift = eager * (1 + call / 10)
        told += [
            ("steady_eager", call, drift),
            ("steady_compiled", call, drift * ratio),
            ("steady_control", call, drift * control),
        ]
    rows = [evidence.Row(*cell, "region", call, metric, value, "s") for metric, call, value in told]
    file = f"e99/{policy}/{cache}/{replicate}/{evidence.EVIDENCE}"
    return [Fact(row, file, line) for line, row in enumerate(rows, start=2)]


def pairs(ours, others, **more):
    """Facts of both policies, one pair of processes per ratio."""
    found = []
    for replicate, (our, other) in enumerate(zip(ours, others, strict=True), start=1):
        found += process("with", replicate=replicate, ratio=our, **more)
        found += process("without", replicate=replicate, ratio=other)
    return found


def evaluated(ask, facts, **noise):
    """The number under the usual thresholds, or those given."""
    return formulas.evaluate(ask, facts, NOISE | noise)


# One policy relative to another


def test_the_ratio_of_two_policies_is_taken_within_each_replicate():
    told = evaluated(RELATIVE, pairs([0.60, 1.20, 2.40], [0.50, 1.00, 2.00]))
    assert told.samples == pytest.approx([1.2, 1.2, 1.2])
    assert told.value == pytest.approx(1.2) and told.text == "1.20 [1.20, 1.20]"


def test_what_a_replicate_has_in_common_cancels_and_what_differs_does_not():
    """Machine and model may make one replicate slower than another: the verdict is on policies."""
    assert evaluated(VERDICT, pairs([0.60, 1.20, 2.41], [0.50, 1.00, 2.00])).text == "slower"
    assert evaluated(VERDICT, pairs([0.50, 1.00, 2.00], [0.61, 1.20, 2.40])).text == "faster"
    unrelated = evaluated(VERDICT, pairs([0.60, 1.20, 2.40], [2.00, 0.50, 1.00]))
    assert unrelated.text == "no resolved difference"


def test_a_difference_below_the_threshold_is_none():
    facts = pairs([0.510, 0.511, 0.509], [0.50, 0.50, 0.50])
    assert evaluated(VERDICT, facts).text == "no resolved difference"
    assert evaluated(VERDICT, facts, practical_threshold=0.005).text == "slower"


@pytest.mark.parametrize("policy", ["with", "without"])
def test_the_controls_of_both_policies_must_allow_the_verdict(policy):
    facts = []
    for replicate in (1, 2, 3):
        for name, ratio in (("with", 0.9), ("without", 0.5)):
            broken = 1.2 if name == policy else 1.0
            facts += process(name, replicate=replicate, ratio=ratio, control=broken)
    assert evaluated(VERDICT, facts).text == "not measurable"


def test_two_pairs_are_too_few_for_a_verdict():
    facts = pairs([0.9, 0.9], [0.5, 0.5])
    assert evaluated(VERDICT, facts).text == evaluated(EFFECT, facts).text == "not measurable"
    assert evaluated(RELATIVE, facts).text == "1.80 (n = 2)"


def test_a_process_without_its_pair_is_in_no_number():
    facts = pairs([0.6, 0.6, 0.6], [0.5, 0.5, 0.5])
    lonely = process("with", replicate=4, ratio=60.0)
    told = evaluated(RELATIVE, facts + lonely)
    assert told.value == pytest.approx(1.2) and not set(lonely) & set(told.facts)
    alone = evaluated(RELATIVE, process("with") + process("without", replicate=2))
    assert alone.text == "not measured" and "without" in alone.because[0]


def test_the_smallest_relative_effect_is_where_the_verdict_turns():
    others = [0.5, 0.5, 0.5]
    effect = evaluated(EFFECT, pairs([0.495, 0.5, 0.505], others)).value
    for factor, word in ((effect + 1e-3, "slower"), (effect - 1e-3, "no resolved difference")):
        moved = [(1 + factor) * ratio for ratio in (0.495, 0.5, 0.505)]
        assert evaluated(VERDICT, pairs(moved, others)).text == word


# Calls until compiling has paid


def test_the_break_even_is_the_excess_over_the_saving():
    # A first call of 2 s is 1.1 ms of eager and 1998.9 ms more; half of 1.1 ms is saved per later call.
    facts = [fact for replicate in (1, 2, 3) for fact in process(replicate=replicate)]
    told = evaluated(COLD, facts)
    assert told.value == pytest.approx((2.0 - 0.0011) / (0.0011 * 0.5))
    assert told.low == pytest.approx(told.value) and told.high == pytest.approx(told.value)


def test_after_that_many_calls_eager_and_compiled_have_taken_the_same_time():
    calls = evaluated(COLD, [f for r in (1, 2, 3) for f in process(replicate=r, ratio=0.8)]).value
    eager = 0.0011
    assert 2.0 + calls * 0.8 * eager == pytest.approx((1 + calls) * eager)


def test_warm_processes_tell_the_cost_and_cold_ones_the_saving():
    cold = [fact for replicate in (1, 2, 3) for fact in process(replicate=replicate)]
    warm = [f for r in (1, 2, 3) for f in process(cache="warm", replicate=r, ratio=0.9, first=0.2)]
    told = evaluated(WARM, cold + warm)
    assert told.value == pytest.approx((0.2 - 0.0011) / (0.0011 * 0.5))
    metrics = {(fact.row.cache, fact.row.metric) for fact in told.facts}
    assert ("cold", "first_call") not in metrics and ("warm", "steady_compiled") not in metrics


def test_the_interval_pairs_the_ends_that_are_furthest_apart():
    spread = ((1.9, 0.49), (2.0, 0.5), (2.1, 0.51))
    facts = [
        f
        for r, (first, ratio) in enumerate(spread, 1)
        for f in process(replicate=r, first=first, ratio=ratio)
    ]
    told = evaluated(COLD, facts)
    # By hand: t = 4.302653 times the standard error of the logs.
    ends = []
    for samples in ([first / 0.0011 for first, _ in spread], [ratio for _, ratio in spread]):
        logs = [math.log(sample) for sample in samples]
        mean = sum(logs) / 3
        error = math.sqrt(sum((log - mean) ** 2 for log in logs) / 2 / 3)
        ends.append([math.exp(mean + sign * 4.302653 * error) for sign in (-1, 1)])
    (cheap, dear), (fast, slow) = ends
    assert told.low == pytest.approx((cheap - 1) / (1 - fast), rel=1e-6)
    assert told.high == pytest.approx((dear - 1) / (1 - slow), rel=1e-6)
    assert told.low < told.value < told.high


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.99, "never: no saving is resolved"),
        (1.0, "never: no saving is resolved"),
        (2.0, formulas.NEVER_SLOWER),
    ],
)
def test_without_a_resolved_saving_compiling_never_pays(ratio, text):
    told = evaluated(COLD, [f for r in (1, 2, 3) for f in process(replicate=r, ratio=ratio)])
    assert told.text == text and told.low is None


def test_a_broken_control_or_too_few_processes_leave_the_break_even_open():
    broken = [f for r in (1, 2, 3) for f in process(replicate=r, control=1.2)]
    assert evaluated(COLD, broken).text == "not measurable"
    few = [f for r in (1, 2) for f in process(replicate=r)]
    assert evaluated(COLD, few).text == "not measurable"
    cold = [f for r in (1, 2, 3) for f in process(replicate=r)]
    assert evaluated(WARM, cold + process(cache="warm")).text == "not measurable"


def test_a_first_call_that_costs_nothing_pays_at_once():
    told = evaluated(COLD, [f for r in (1, 2, 3) for f in process(replicate=r, first=0.0005)])
    assert (told.value, told.low, told.high) == (0, 0, 0)


# The smallest change of a compile cost


def test_the_smallest_cost_effect_is_that_of_two_groups_of_this_spread():
    facts = [f for r, first in enumerate((1.0, 1.1, 1.21), 1) for f in process(replicate=r, first=first)]
    told = evaluated(Ask("smallest cost effect", ("first_call",), rounding="1 decimals"), facts)
    # Logs differ by 0.0953102 from one to the next, which is their deviation; t for 4 degrees is 2.776445.
    assert told.value == pytest.approx(math.expm1(2.776445 * 0.0953102 * math.sqrt(2 / 3)), rel=1e-6)
    assert told.text == "24.1 %"
    few = evaluated(Ask("smallest cost effect", ("first_call",)), process())
    assert few.text == "not measurable"


# Nothing is added up that lacks a part


def stream(times, *, whole=None):
    """The facts of a process that served one call per length, some of which have no time."""
    cell = ("e99", "with", "cold", 1, "region")
    rows = [evidence.Row(*cell, call, "sequence_length", 32 + call, "elements") for call in range(3)]
    rows += [evidence.Row(*cell, call, "compiled_time", seconds, "s") for call, seconds in times.items()]
    rows += [] if whole is None else [evidence.Row(*cell, None, "loop_time", whole, "s")]
    return [Fact(row, f"e99/with/cold/1/{evidence.EVIDENCE}", line) for line, row in enumerate(rows, start=2)]


@pytest.mark.parametrize("formula", ["total", "smallest cost effect"])
def test_a_call_without_a_time_leaves_no_sum(formula):
    ask = Ask(formula, ("compiled_time",), rounding="1 decimals")
    assert evaluated(ask, stream({0: 1.0, 1: 2.0, 2: 3.0})).text != number.NOT_MEASURED
    assert evaluated(ask, stream({0: 1.0, 2: 3.0})).text == number.NOT_MEASURED


def test_the_seconds_of_a_whole_loop_stand_for_all_its_calls():
    told = evaluated(Ask("total", ("loop_time",), unit="s", rounding="1 decimals"), stream({}, whole=6.0))
    assert told.value == 6.0


def test_a_flag_that_calls_tell_differently_is_told_as_both():
    rows = [
        evidence.Row("e99", "with", "cold", 1, "region", call, "bitwise_equal", call, "1") for call in (0, 1)
    ]
    facts = [Fact(row, "e99/with/cold/1/evidence.csv", line) for line, row in enumerate(rows, start=2)]
    told = evaluated(Ask("flag", ("bitwise_equal",)), facts)
    assert set(told.text.split(" / ")) == {"yes", "no"} and told.flags
    assert evaluated(Ask("flag", ("bitwise_equal",)), facts[1:]).text == "yes"


# Found in evidence, and made again from lineage alone


@pytest.mark.parametrize("ask", [RELATIVE, VERDICT, EFFECT, COLD, WARM], ids=lambda ask: ask.formula)
def test_lineage_gives_the_same_number_again(tmp_path, ask):
    facts = pairs([0.60, 0.61, 0.62], [0.5, 0.5, 0.5])
    if ask.formula == formulas.BREAK_EVEN:
        facts = [f for f in facts if f.row.policy == "with"]
        facts += [f for r in (1, 2, 3) for f in process(cache="warm", replicate=r, first=0.1)]
        facts = [f for f in facts if f.row.cache in ("cold", ask.cache)]
    by_file = {}
    for fact in facts:
        by_file.setdefault(fact.file, []).append(fact.row)
    for file, rows in by_file.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True)
        path.write_text(evidence.rows_to_csv(rows), encoding="utf-8")
    told = evaluated(ask, facts)
    assert told.facts and told.value is not None
    entry = lineage.entry(told)
    assert lineage.entry(lineage.recompute(entry, NOISE, tmp_path)) == entry


def recorded_e3(**noise):
    settings = recorded.settings(**noise)
    return gather.gather(settings, "e3_graph_breaks", recorded.ROOT)


@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_a_break_even_of_recorded_cells_comes_again_from_its_lineage(cache):
    told = recorded_e3()
    ask = Ask("break even", ("first_call", "steady_compiled"), "steady_eager", cache=cache)
    for case in ("with_break", "without_break"):
        found = find(told, ask, Where("default", cache, case))
        assert found.facts and found.text.split()[0] not in number.ABSENT
        entry = lineage.entry(found)
        again = lineage.recompute(entry, told.noise, recorded.ROOT / recorded.RUN)
        assert lineage.entry(again) == entry


def test_policies_of_recorded_cells_are_compared_and_the_one_with_itself_is_not():
    told = gather.gather(recorded.settings(), "e6_dynamic_shapes", recorded.ROOT)
    ask = Ask("relative ratio", ("steady_compiled",), "steady_eager", rounding="2 decimals", against="static")
    found = find(told, ask, Where("dynamic", "cold", "model"))
    assert found.tail == "(n = 1)" and {fact.row.policy for fact in found.facts} == {"dynamic", "static"}
    entry = lineage.entry(found)
    again = lineage.recompute(entry, told.noise, recorded.ROOT / recorded.RUN)
    assert lineage.entry(again) == entry
    for policy in ("static", "eager"):
        assert find(told, ask, Where(policy, "cold", "model")).text == number.NOT_APPLICABLE


def test_a_failed_cell_of_either_policy_fails_the_comparison(tmp_path):
    results = recorded.copied(tmp_path)
    recorded.fail(results, "e6_dynamic_shapes/static/cold/1")
    told = gather.gather(recorded.settings(results), "e6_dynamic_shapes", results)
    ask = Ask("relative verdict", ("steady_compiled",), "steady_eager", against="static")
    assert find(told, ask, Where("dynamic", "cold", "model")).text == "failed"


def test_an_unproven_cold_state_leaves_the_warm_break_even_open(tmp_path):
    results = recorded.copied(tmp_path)
    for replicate in (1, 2, 3):
        recorded.unproven(results, f"e3_graph_breaks/default/cold/{replicate}")
    told = gather.gather(recorded.settings(results), "e3_graph_breaks", results)
    assert find(told, WARM, Where("default", "warm", "with_break")).text == "indeterminate"


def test_a_comparison_without_the_other_policy_is_refused():
    told = recorded_e3()
    with pytest.raises(UsageProblem, match="name the other one with against"):
        find(told, Ask("relative ratio", ("steady_compiled",), "steady_eager"), Where("default", "cold"))
    with pytest.raises(UsageProblem, match="name cold or warm with cache"):
        find(told, Ask("break even", ("first_call", "steady_compiled"), "steady_eager"), Where("default"))


def test_a_comparison_with_an_unknown_policy_is_refused_before_anything_is_measured():
    column = {
        "formula": "relative ratio",
        "of": "steady_compiled",
        "to": "steady_eager",
        "against": "quicker",
    }
    tables = {"main": {"rows": "policy", "columns": {"relative": column}}}
    changed = {"experiments": {"e3_graph_breaks": {"exhibit": {"tables": tables}}}}
    with pytest.raises(UsageProblem, match=r"relative\.against: no policy 'quicker'; choose from default"):
        config.load(overrides=changed)
