"""The ledger names the first level that does not pass, and lack of evidence is never a pass."""

import itertools
import random
from dataclasses import replace

import pytest

from complab import mechanisms, units
from complab.evidence import Row
from complab.measure import ledger
from complab.measure.ledger import FAIL, LEVELS, NO_EVIDENCE, NOT_JUDGED, PASS, Facts, fill, judge

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4, "reason": "sums in another order"}
SERVICE = [60, 63, 69, 16, 19, 75, 19, 55, 25, 35, 37, 66, 52]
BREAK = "$PROJECT/scripts/e3_graph_breaks.py:20: if x.sum().item() > 0: | Unsupported Tensor.item() call"


def row(
    metric: str, value: float, call: int | None = None, detail: str = "", *, case: str = "model", **cell
) -> Row:
    names = {"experiment": "e1_opening_failure", "policy": "static", "cache": "cold", "replicate": 1, **cell}
    unit = units.unit_of(metric) or "1"
    return Row(**names, case=case, call=call, metric=metric, value=float(value), unit=unit, detail=detail)


def captured(
    graphs: int, *, breaks: str = "", recompiles: int = 0, limit: str = "", case: str = "model"
) -> list[Row]:
    """What is recorded around the calls of a case."""
    return [
        row("frames_tried", graphs + bool(limit), case=case),
        row("frames_compiled", graphs, case=case),
        row("graphs_captured", graphs, case=case),
        row("log_breaks", bool(breaks), detail=breaks, case=case),
        row("log_break_messages", bool(breaks), case=case),
        row("log_recompiles", recompiles, case=case),
        row("limit_hits", bool(limit), detail=limit, case=case),
    ]


def steady(eager: float = 0.004, compiled: float = 0.002, case: str = "model") -> list[Row]:
    rows = []
    for call in range(5):
        rows += [row("steady_eager", eager, call, case=case), row("steady_control", eager, call, case=case)]
        rows.append(row("steady_compiled", compiled, call, case=case))
    return rows


def served(lengths: list[int], fates: list[str], expected: list[int] | None = None) -> list[Row]:
    """A stream call by call; ``expected`` holds, per recompile, the length its newest variant expected."""
    rows, seen, recompiles = [], [], iter(expected or [])
    for call, (length, fate) in enumerate(zip(lengths, fates, strict=True)):
        rows += [row("sequence_length", length, call), row("eager_time", 0.004, call), row(fate, 1, call)]
        if fate == "new_variants":
            seen.append(length)
        if (fate == "new_variants" and len(seen) > 1) or fate == "refused_attempts":
            newest = next(recompiles, seen[-1])
            detail = (
                f"0/{len(seen)}: tensor 'idx' size mismatch at index 1. expected {newest}, actual {length}"
            )
            rows.append(row("recompiles", 1, call, f"{detail} | 0/0: tensor 'idx' size mismatch at index 1"))
        rows += [
            row("within_tolerance", 1, call),
            row("bitwise_equal", 0, call),
            row("max_abs_diff", 7e-7, call),
        ]
        rows.append(row("compiled_time", 5.0 if fate == "new_variants" else 0.003, call))
    return rows


NEW, REUSE, REFUSED, EAGER = "new_variants", "reuses", "refused_attempts", "eager_calls"
E1_STATIC = [
    *served(SERVICE, [NEW] * 6 + [REUSE] + [NEW] * 2 + [REFUSED] + [EAGER] * 3),
    *captured(8, recompiles=8, limit="recompile_limit (8): 0/7: tensor 'idx' size mismatch at index 1"),
    *steady(),
]
E1_DEFAULT = [*served(SERVICE, [NEW] * 2 + [REUSE] * 11, [60]), *captured(2, recompiles=1), *steady()]
FEW_VARIANTS = [*served(SERVICE[:4], [NEW] * 4), *captured(4, recompiles=3), *steady()]
BROKEN = [
    row("within_tolerance", 1, 0, case="with_break"),
    row("bitwise_equal", 0, 0, case="with_break"),
    row("max_abs_diff", 1.5e-5, 0, case="with_break"),
    row("first_call", 10.0, case="with_break"),
    *captured(2, breaks=BREAK, case="with_break"),
    *steady(case="with_break"),
    row("explain_graphs", 2, case="with_break"),
    row("explain_breaks", 1, detail=BREAK, case="with_break"),
    row("fullgraph_accepts", 0, detail="UserError: Could not guard", case="with_break"),
]
WRONG = [
    replace(item, value=0.0) if item.metric == "within_tolerance" and item.call == 3 else item
    for item in E1_DEFAULT
]
STORIES = {
    "e1 static": E1_STATIC,
    "few variants": FEW_VARIANTS,
    "broken": BROKEN,
    "wrong": WRONG,
    "e1 default": E1_DEFAULT,
}


def region(rows: list[Row], limit: int = 8) -> dict:
    """The one ledger of rows about one case."""
    (found,) = fill(rows, TOLERANCE, limit)["regions"].values()
    return found


def verdicts(rows: list[Row], limit: int = 8) -> dict[str, str]:
    return {level["level"]: level["verdict"] for level in judge(Facts(rows), TOLERANCE, limit)}


# The stories of the chapter.


def test_static_shapes_fail_stable_at_request_9_for_the_size_at_index_1():
    found = region(E1_STATIC)
    assert found["first_failing_level"] == "STABLE"
    assert found["sentence"] == (
        "STABLE fails: idx: size mismatch at index 1; 8 variants fill the limit of 8, request 9 was refused, "
        "3 later calls ran eager"
    )


def test_static_shapes_are_counted_call_by_call():
    told = region(E1_STATIC)["stability"]
    assert {fate: told[fate] for fate in ledger.FATES} == {
        "new_variants": 8,
        "reuses": 1,
        "refused_attempts": 1,
        "eager_calls": 3,
        "skipped_frames": 0,
    }
    assert (told["calls"], told["distinct_inputs"], told["limit"], told["limit_reached"]) == (13, 12, 8, True)


def test_the_failed_assumption_is_one_however_many_lengths_failed_it():
    failed = region(E1_STATIC)["assumptions"]["failed"]
    assert failed == [{"kind": "shape", "guard": "idx: size mismatch at index 1", "times": 8}]


def test_one_recompile_and_then_silence_is_stable():
    found = region(E1_DEFAULT)
    assert verdicts(E1_DEFAULT) == {
        "RUNS": PASS,
        "CORRECT": PASS,
        "CAPTURED": PASS,
        "STABLE": PASS,
        "WORTH IT": NO_EVIDENCE,
    }
    assert found["first_failing_level"] is None
    stable = found["levels"][3]["evidence"]
    assert "idx: size mismatch at index 1" in stable
    assert "every later call reuses one of 2 variants" in stable


def test_an_assumption_that_fails_again_is_not_stable_even_below_the_limit():
    found = region(FEW_VARIANTS)
    assert found["first_failing_level"] == "STABLE"
    assert "idx: size mismatch at index 1 failed 3 times; 4 variants" in found["sentence"]


def test_a_break_fails_captured_with_its_source_line():
    found = region(BROKEN)
    assert found["first_failing_level"] == "CAPTURED"
    assert "e3_graph_breaks.py:20: if x.sum().item() > 0:" in found["sentence"]
    assert "(log breaks 1, explain breaks 1, fullgraph 0)" in found["sentence"]


def test_a_wrong_output_fails_correct_and_names_the_call_and_the_bounds():
    found = region(WRONG)
    assert found["first_failing_level"] == "CORRECT"
    assert found["sentence"] == "CORRECT fails: call 3 differs from eager beyond rtol 0.0001, atol 0.0001"


def test_whether_it_is_worth_it_cannot_be_told_from_one_process():
    level = region(E1_DEFAULT)["levels"][4]
    assert level["verdict"] == NO_EVIDENCE
    assert level["evidence"] == "one process cannot resolve it (steady state 0.50 times eager here)"


# Order and lack of evidence.


@pytest.mark.parametrize("story", STORIES)
def test_levels_are_judged_in_order_up_to_the_first_that_does_not_pass(story):
    levels = region(STORIES[story])["levels"]
    assert [level["level"] for level in levels] == list(LEVELS)
    told = [level["verdict"] for level in levels]
    stopped = next(index for index, verdict in enumerate(told) if verdict != PASS)
    assert set(told[stopped + 1 :]) <= {NOT_JUDGED}
    assert NOT_JUDGED not in told[: stopped + 1]
    assert all(level["evidence"] for level in levels)


def test_without_any_fact_no_level_passes():
    assert verdicts([]) == {"RUNS": NO_EVIDENCE, **dict.fromkeys(LEVELS[1:], NOT_JUDGED)}


def test_a_region_that_was_only_probed_is_not_said_to_run():
    found = region([row("explain_graphs", 1), row("explain_breaks", 0), row("fullgraph_accepts", 1)])
    assert found["first_failing_level"] is None
    assert found["sentence"] == "RUNS has no evidence: no compiled call was made; only capture was probed"
    assert found["capture"]["graphs_explain"] == 1
    assert found["capture"]["graphs_captured"] == "not measured: no compiled call was watched"


def test_calls_without_a_captured_log_are_no_evidence_of_capture():
    rows = [item for item in E1_DEFAULT if item.metric != "log_breaks"]
    assert verdicts(rows)["CAPTURED"] == NO_EVIDENCE


def test_without_a_steady_state_its_worth_has_no_evidence():
    rows = [item for item in E1_DEFAULT if not item.metric.startswith("steady")]
    level = region(rows)["levels"][4]
    assert (level["verdict"], level["evidence"]) == (NO_EVIDENCE, "no steady state was measured")


def test_a_warm_cell_without_a_steady_state_points_to_its_cold_cell():
    rows = [replace(item, cache="warm") for item in E1_DEFAULT if not item.metric.startswith("steady")]
    told, why = region(rows), "a warm cell's steady state is that of its cold cell"
    assert (told["levels"][4]["verdict"], told["levels"][4]["evidence"]) == (NO_EVIDENCE, why)
    assert told["cost"]["steady_s"] == told["cost"]["steady_eager_s"] == f"not measured: {why}"


def test_more_graphs_than_variants_fail_captured_even_if_no_break_was_logged():
    rows = [replace(item, value=3.0) if item.metric == "graphs_captured" else item for item in E1_DEFAULT]
    found = region(rows)
    assert found["first_failing_level"] == "CAPTURED"
    assert "3 graphs for 2 variants" in found["sentence"]


def test_a_call_that_fullgraph_rejects_fails_captured_with_the_refusal():
    rows = [*E1_DEFAULT, row("fullgraph_accepts", 0, detail="Unsupported: generator")]
    assert "fullgraph rejects the call: Unsupported: generator" in region(rows)["sentence"]


def test_a_refusal_whose_guard_was_not_logged_still_fails_stable():
    found = region([item for item in E1_STATIC if item.metric != "recompiles"])
    assert found["first_failing_level"] == "STABLE"
    assert "the guard was not logged" in found["sentence"]


def test_variants_whose_recompiles_were_not_logged_are_not_called_stable():
    assert verdicts([item for item in FEW_VARIANTS if item.metric != "recompiles"])["STABLE"] != PASS


def test_calls_that_ran_eager_are_not_called_stable():
    told = [item for item in E1_STATIC if item.metric not in ("refused_attempts", "recompiles")]
    assert verdicts(told)["STABLE"] != PASS


def test_outputs_that_agree_in_an_infinity_have_no_largest_difference():
    """Equal infinities are within tolerance, and their difference is no number."""
    rows = [item for item in E1_DEFAULT if item.metric != "max_abs_diff"]
    assert verdicts(rows)["CORRECT"] in (PASS, NO_EVIDENCE)


# Which fact is removed never makes a failure a success.


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("limit", [8, 64])
def test_removing_any_metric_never_turns_a_fail_into_a_pass(story, limit):
    rows = STORIES[story]
    failed = [name for name, verdict in verdicts(rows, limit).items() if verdict == FAIL]
    for metric in sorted({item.metric for item in rows}):
        told = verdicts([item for item in rows if item.metric != metric], limit)
        assert not [name for name in failed if told[name] == PASS], metric


@pytest.mark.parametrize("story", STORIES)
def test_removing_any_two_metrics_never_turns_a_fail_into_a_pass(story):
    rows = STORIES[story]
    failed = [name for name, verdict in verdicts(rows).items() if verdict == FAIL]
    for removed in itertools.combinations(sorted({item.metric for item in rows}), 2):
        told = verdicts([item for item in rows if item.metric not in removed])
        assert not [name for name in failed if told[name] == PASS], removed


@pytest.mark.parametrize("story", STORIES)
def test_a_ledger_can_be_filled_from_whatever_rows_there_are(story):
    draw = random.Random(13)
    for _ in range(60):
        rows = [item for item in STORIES[story] if draw.random() < 0.6]
        for found in fill(rows, TOLERANCE, 8)["regions"].values():
            assert found["sentence"]
            assert found["first_failing_level"] in (None, *LEVELS)


@pytest.mark.parametrize("story", STORIES)
def test_the_order_of_facts_does_not_matter_between_metrics(story):
    by_metric = sorted(STORIES[story], key=lambda item: item.metric)
    assert region(by_metric) == region(STORIES[story])


# Which regions there are.


def test_an_eager_cell_has_no_region():
    rows = [
        replace(item, policy="eager", cache="none") for item in steady() if item.metric != "steady_compiled"
    ]
    rows += [
        row("sequence_length", 60, 0, policy="eager", cache="none"),
        row("import_time", 1.0, case="process"),
    ]
    assert fill(rows, TOLERANCE, 8) == {"regions": {}}


def test_what_happens_under_a_stance_is_no_region():
    rows = [*healthy(case="force_eager"), row("setting_raises", 0, case="force_eager"), *healthy()]
    assert list(fill(rows, TOLERANCE, 8)["regions"]) == ["step"]


def test_each_compiled_case_has_a_region_and_the_process_has_none():
    rows = [*E1_DEFAULT, *BROKEN, row("import_time", 1.0, case="process")]
    regions = fill(rows, TOLERANCE, 8)["regions"]
    assert list(regions) == ["model", "with_break"]
    assert regions["model"]["region"] == "model under policy static"


def test_one_regions_facts_do_not_leak_into_another():
    together = fill([*E1_DEFAULT, *BROKEN], TOLERANCE, 8)["regions"]
    assert together["model"] == region(E1_DEFAULT)
    assert together["with_break"] == region(BROKEN)


# Costs.


def test_a_cold_cell_tells_its_first_call_and_says_why_there_is_no_warm_one():
    cost = region(E1_DEFAULT)["cost"]
    assert cost["cold_first_call_s"] == 5.0
    assert cost["warm_first_call_s"] == "not measured: this cell's cache is cold"
    assert (cost["steady_s"], cost["steady_eager_s"]) == (0.002, 0.004)


def test_a_warm_cell_tells_the_other_one():
    cost = region([replace(item, cache="warm") for item in E1_DEFAULT])["cost"]
    assert cost["warm_first_call_s"] == 5.0
    assert cost["cold_first_call_s"] == "not measured: this cell's cache is warm"


def test_the_second_call_is_not_told_as_the_first_whose_output_was_wrong():
    rows = [item for item in E1_DEFAULT if (item.metric, item.call) != ("compiled_time", 0)]
    told = [
        replace(item, value=0.0) if (item.metric, item.call) == ("within_tolerance", 0) else item
        for item in rows
    ]
    assert region(told)["cost"]["cold_first_call_s"] == "not measured: the first call's output was wrong"
    assert region(rows)["cost"]["cold_first_call_s"] == "not measured: the first compiled call was not timed"


def test_a_first_call_that_was_not_made_is_not_blamed_on_the_cache():
    cost = region([row("explain_graphs", 1), row("explain_breaks", 0)])["cost"]
    assert cost["cold_first_call_s"] == "not measured: no compiled call was timed"
    assert cost["steady_s"] == "not measured: no steady state was timed"
    assert cost["peak_memory_bytes"] == "not measured: no memory was watched"


def test_the_largest_difference_and_the_bounds_are_told():
    told = region(E1_DEFAULT)["correctness"]
    lacking = "not measured: no float64 run was made"
    errors = dict.fromkeys(("eager_error", "compiled_error", "eager_repeat_diff"), lacking)
    assert told == {"max_abs_diff": 7e-7, "bitwise": False, **errors, **TOLERANCE}


# The cells of the other experiments, as they record themselves.

BUG = "RuntimeError: shape '[8, 64, 256]' is invalid for input of size 98304"
EAGER_BUG = [
    row("eager_runs", 0, detail=BUG),
    row("compiled_runs", 0, detail=f"TorchRuntimeError: {BUG}"),
    row("same_cause", 1, detail="invalid for input of size 98304"),
    *captured(0),
]


def healthy(case="step", **cell):
    """One compiled call that is right, captured whole, and timed."""
    rows = [row("eager_runs", 1, case=case), row("compiled_runs", 1, case=case)]
    rows += [row("within_tolerance", 1, 0, case=case), row("bitwise_equal", 0, 0, case=case)]
    rows += [row("max_abs_diff", 1e-6, 0, case=case), row("first_call", 4.0, case=case)]
    rows += [row("frames_skipped", 0, case=case), *captured(1, case=case), *steady(case=case)]
    return [replace(item, **cell) for item in rows]


def without(rows, *metrics):
    return [item for item in rows if item.metric not in metrics]


def changed(rows, metric, value, detail=""):
    return [
        replace(item, value=float(value), detail=detail) if item.metric == metric else item for item in rows
    ]


def test_a_program_that_fails_in_eager_is_no_compiler_bug():
    found = region(EAGER_BUG)
    assert (found["first_failing_level"], found["mechanism"]) == ("RUNS", "eager-error")
    assert found["sentence"] == ("RUNS fails: eager bug, not a compiler bug: invalid for input of size 98304")


def test_an_eager_failure_that_the_compiled_form_hides_is_still_one():
    rows = changed(without(EAGER_BUG, "same_cause"), "compiled_runs", 1)
    assert region(rows)["mechanism"] == "eager-error"


def test_a_compiled_form_with_another_error_is_told_beside_eagers():
    rows = changed(without(EAGER_BUG, "same_cause"), "compiled_runs", 0, "Unsupported: generator")
    assert "the compiled form fails with another cause: Unsupported: generator" in region(rows)["sentence"]


@pytest.mark.parametrize(
    ("error", "mechanism"),
    [
        ("ConstraintViolationError: marked as dynamic but specialized", "constraint-violated"),
        ("Unsupported: Data-dependent branching", "capture-refused"),
        ("InternalTorchDynamoError: list index out of range", "dynamo-error"),
        ("InductorError: CppCompileError: C++ compile error", "inductor-error"),
        ("FailOnRecompileLimitHit: recompile_limit reached", "limit-raised"),
        ("RuntimeError: something else", ""),
    ],
)
def test_a_compiled_form_that_raises_where_eager_runs_fails_in_the_compiler(error, mechanism):
    rows = changed(without(healthy(), "within_tolerance"), "compiled_runs", 0, error)
    found = region(rows)
    assert (found["first_failing_level"], found["mechanism"]) == ("RUNS", mechanism)
    assert error in found["sentence"]


@pytest.mark.parametrize("metrics", [(), ("frames_skipped",), ("eager_runs", "compiled_runs")])
def test_a_healthy_region_without_a_stream_passes_up_to_worth_it(metrics):
    found = verdicts(without(healthy(), *metrics))
    assert found == {**dict.fromkeys(LEVELS[:4], PASS), "WORTH IT": NO_EVIDENCE}
    assert region(healthy())["mechanism"] == ""


def test_a_region_without_a_cache_is_judged_and_tells_its_first_call():
    found = region(healthy(policy="backend-eager", cache="none"))
    assert found["levels"][2]["verdict"] == PASS
    assert found["cost"]["cold_first_call_s"] == 4.0
    assert found["cost"]["warm_first_call_s"] == "not measured: this cell's cache is none"


def test_a_warm_cell_says_that_it_is_not_probed():
    told = region(healthy(cache="warm"))["capture"]
    assert told["fullgraph_accepts"] == "not measured: a warm cell is not probed"


def test_a_further_replicate_says_that_the_first_is_probed():
    told = region(healthy(replicate=2))["capture"]
    for entry in ("graph_breaks_explain", "graphs_explain", "fullgraph_accepts"):
        assert told[entry] == "not measured: only the first replicate is probed"
    assert region(healthy())["capture"]["graphs_explain"] == "not measured: this was not asked"


def test_a_skipped_frame_fails_captured_even_where_the_graphs_of_its_callees_add_up():
    rows = changed(healthy(), "frames_skipped", 1, "graph break in a for loop")
    found = region(rows)
    assert found["first_failing_level"] == "CAPTURED"
    assert "Dynamo skipped 1 frame: graph break in a for loop" in found["sentence"]


def test_what_a_release_does_not_tell_is_not_reported_and_not_zero():
    assert region(without(healthy(), "frames_skipped"))["capture"]["frames_skipped"] == "not reported"


def test_a_recompile_without_a_stream_adds_a_graph_and_fails_stable_with_its_cause():
    failed = row("recompiles", 1, 3, "0/0: GLOBAL_STATE changed: grad_mode", case="step")
    rows = [*changed(changed(healthy(), "graphs_captured", 2), "log_recompiles", 1), failed]
    found = region(rows)
    assert (found["first_failing_level"], found["mechanism"]) == ("STABLE", "grad-mode")


def test_where_dynamo_tried_nothing_nothing_was_captured_or_broken():
    rows = changed(changed(healthy(), "graphs_captured", 0), "frames_tried", 0)
    assert verdicts(rows)["CAPTURED"] == NO_EVIDENCE


# The cause of a break, in the words of two releases.


@pytest.mark.parametrize(
    ("label", "mechanism"),
    [
        ("Unsupported Tensor.item() call with capture_scalar_outputs=False", "tensor-to-python"),
        ("Unsupported: Tensor.item", "tensor-to-python"),
        ("Data-dependent branching", "data-dependent-branch"),
        ("Data-dependent jump", "data-dependent-branch"),
        ("Unsupported: Dynamic control flow is not supported at the moment", "data-dependent-branch"),
        ("Dynamic shape operator", "data-dependent-shape"),
        ("Unsupported Tensor.backward() call", "nested-autograd"),
        ("Skip calling `torch.compiler.disable()`d function", "unsupported-call"),
        ("Unsupported: call torch._dynamo.disable() wrapped function <function report>", "unsupported-call"),
        ("Failed to trace builtin operator", "unsupported-call"),
        ("Unsupported: builtin: print [<class 'ConstantVariable'>] False", "unsupported-call"),
        ("Call to `torch._dynamo.graph_break()`", "unsupported-call"),
        ("Unsupported: 'skip function graph_break in file decorators.py'", "unsupported-call"),
        ("Unsupported context manager", "unsupported-construct"),
        ("a reason that no release gives", ""),
    ],
)
def test_a_break_is_classified_by_dynamos_words(label, mechanism):
    rows = changed(healthy(), "log_breaks", 1, f"$PROJECT/scripts/e.py:7: if x.item(): | {label}")
    found = region(rows)
    assert (found["first_failing_level"], found["mechanism"]) == ("CAPTURED", mechanism)


def test_the_programs_own_text_does_not_decide_the_cause_of_its_break():
    detail = "e.py:7: x = backward(call(Tensor.item)) | a reason that no release gives"
    assert region(changed(healthy(), "log_breaks", 1, detail))["mechanism"] == ""


def test_the_shape_that_keeps_moving_is_the_cause():
    assert region(E1_STATIC)["mechanism"] == region(FEW_VARIANTS)["mechanism"] == "shape"


def test_every_mechanism_is_of_the_closed_vocabulary():
    assert set(ledger._LAYER_OF_ERROR.values()) <= set(mechanisms.WORDS)


# Wrong numbers: which are wrong, and by whose fault?


def wrong(**errors):
    rows = changed(changed(healthy(), "within_tolerance", 0), "max_abs_diff", 0.02)
    return [*rows, *(row(metric, value, case="step") for metric, value in errors.items())]


def test_a_difference_that_float64_puts_on_the_dtype_is_low_precision():
    found = region(wrong(eager_error=0.015, compiled_error=0.02, eager_repeat_diff=0.0))
    assert (found["first_failing_level"], found["mechanism"]) == ("CORRECT", "low-precision")


def test_a_difference_far_from_float64_is_wrong():
    found = region(wrong(eager_error=1e-6, compiled_error=0.02, eager_repeat_diff=0.0))
    assert (found["first_failing_level"], found["mechanism"]) == ("CORRECT", "")
    assert "from float64: eager 1e-06, compiled 0.02; eager differs from itself by 0" in found["sentence"]


def test_where_eager_differs_from_itself_as_much_nothing_is_decided():
    assert verdicts(wrong(eager_repeat_diff=0.05))["CORRECT"] == NO_EVIDENCE


def nan_at(call):
    """A call without any finite difference from eager, after one that is right."""
    return [row("within_tolerance", 0, call, case="step"), row("bitwise_equal", 0, call, case="step")]


def test_no_difference_of_another_call_excuses_an_output_that_is_no_number():
    rows = [*healthy(), *nan_at(1), row("eager_repeat_diff", 0.05, case="step")]
    found = region(rows)
    assert (found["first_failing_level"], found["mechanism"]) == ("CORRECT", "")
    assert "call 1 differs from eager" in found["sentence"]


def test_a_wrong_call_after_an_excused_one_is_not_excused_with_it():
    rows = [*wrong(eager_repeat_diff=0.05), *nan_at(1)]
    assert region(rows)["first_failing_level"] == "CORRECT"
    assert "call 1 differs from eager" in region(rows)["sentence"]


def test_an_output_that_is_no_number_is_not_called_low_precision():
    rows = without(wrong(eager_error=0.015, compiled_error=0.02), "max_abs_diff")
    found = region(rows)
    assert (found["first_failing_level"], found["mechanism"]) == ("CORRECT", "")


def test_compiled_calls_whose_output_was_not_compared_are_no_evidence_of_correctness():
    rows = without(E1_DEFAULT, "within_tolerance", "bitwise_equal", "max_abs_diff")
    told = verdicts(rows)
    assert (told["RUNS"], told["CORRECT"]) == (PASS, NO_EVIDENCE)


# Planted faults: one layer after another.


@pytest.mark.parametrize(
    ("layer", "detail", "level", "mechanism"),
    [
        ("dynamo", "Unsupported: generator", "RUNS", "dynamo-error"),
        ("aot_autograd", "RuntimeError: no double backward", "RUNS", "aot-autograd-error"),
        ("inductor", "largest difference 0.5", "CORRECT", "wrong-inductor"),
    ],
)
def test_the_first_layer_that_fails_or_differs_is_named(layer, detail, level, mechanism):
    rows, reached = [row("eager_runs", 1)], False
    for name, metric in ledger.LAYERS.items():
        reached = reached or name == layer
        rows.append(row(metric, not reached, detail=detail if reached else ""))
    found = region(rows)
    assert (found["first_failing_level"], found["mechanism"]) == (level, mechanism)
    assert layer in found["sentence"]


def test_a_program_on_which_all_layers_agree_is_correct():
    rows = [row(metric, 1) for metric in ledger.LAYERS.values()]
    assert (verdicts(rows)["RUNS"], verdicts(rows)["CORRECT"]) == (PASS, PASS)
