"""What is the smallest experiment that tests the cause, and what came of it?

For each mechanism the tests that fit it, the cheapest first: one thing is changed, the same stream is run
before and after, and the fact that failed is counted again. Nothing is recommended that was not measured
here, and the subject's file is never touched.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from complab.diagnose import capture, cost
from complab.diagnose.case import Case, first_error
from complab.diagnose.judgement import COMPILED, EAGER, Judgement
from complab.diagnose.lab import Noted
from complab.errors import counted

CONFIRMED, NOT_CONFIRMED, NO_TEST = "cause confirmed", "not confirmed", "no automatic test"


class Test(NamedTuple):
    """One change: what it is in words, and the keys of a run that make it."""

    changed: str
    changes: dict


def run(case: Case, level: str, judged: Judgement) -> dict:
    """Run the tests that fit the cause; what came of the first that confirms it, else of the first."""
    if told := _told_already(case, judged):
        return told
    if level == "WORTH IT":
        return _overhead(case, judged)
    tests = list(_tests(case, level, judged))
    if not tests:
        return _narrowed(case, judged) if level == "CAPTURED" else _none()
    measure = MEASURES[level]
    found = _measured(case, tests, measure)
    return next((each for each in found if each["verdict"] == CONFIRMED), found[0])


def _none(why: str = "") -> dict:
    return {"changed": "", "before": "", "after": why, "verdict": NO_TEST}


def _told_already(case: Case, judged: Judgement) -> dict | None:
    """The test that told the mechanism apart is the experiment: it need not be run twice."""
    facts = judged.facts
    told = {
        "rng": ("eager's random stream for the compiled form (fallback_random)", "with fallback_random"),
        "stale-specialization": (
            "every variant forgotten before that call",
            "compiled anew before that call",
        ),
    }.get(judged.mechanism)
    if told:
        return _result(told[0], "differs", facts[told[1]], True)
    if judged.mechanism in ("low-precision", "ill-conditioned"):
        distances = facts["from float64"]
        after = f"eager is {distances['eager']:.3g} from it, compiled {distances['compiled']:.3g}"
        if judged.mechanism == "ill-conditioned":
            moved = facts["eager, inputs moved by their rounding"]
            after += f"; eager itself moves by {moved:.3g} with its inputs' rounding"
        return _result("the same calls in float64", judged.evidence, after, True)
    if judged.mechanism == "never-amortised":
        return _never_amortised(case, facts)
    return None


def _never_amortised(case: Case, facts: dict) -> dict:
    """The same calls once everything is compiled: what is lost then was lost to compiling."""
    life = case.subject["real_calls"]
    calls = min(life, len(case.stream.calls))
    first = [line["seconds"] for line in case.stream.calls[:calls]]
    before, eager = (sum(each[actor] for each in first) for actor in (COMPILED, EAGER))
    told = f"{counted(calls, 'call')}: {cost.seconds(before)}, eager {cost.seconds(eager)}"
    later, eager = facts["compiled per call"] * calls, facts["eager per call"] * calls
    after = f"{cost.seconds(later)}, eager {cost.seconds(eager)}"
    if warm := facts.get("break-even calls, warm"):
        calls = cost.number_of_calls(warm["estimate"])
        after += f"; with the cache of an earlier process, paid after {calls} calls"
    return _result("the same calls with everything compiled", told, after, later < eager)


def _overhead(case: Case, judged: Judgement) -> dict:
    """The graphs run by eager's own kernels: does what stands around them alone cost more than it saves?"""
    changed = "graphs run by eager's kernels (backend eager): guards and wrapper alone"
    steady = {}
    if case.backend != "eager":
        options = {"backend": "eager", "mode": None, "options": None}
        noted = case.tried(changed, options=options, steady=cost.STEADY_SECONDS[True])
        steady = noted.first("steady", {})
    if "rounds" not in steady:
        return _none("nothing that can be switched would make the same calls faster")
    alone, ratio = cost.ratio_of([steady]), judged.facts["steady ratio"]
    told = f"{alone.estimate:.2f} of eager"
    if cost.unsteady(steady):
        return _none(f"{changed} are {told}, in a process in which eager was not steady")
    if alone.high < 1 + cost.ONE_PROCESS:
        return _none(f"{changed} are {told}, so the compiled kernels themselves save nothing")
    return _result(changed, f"{ratio['estimate']:.2f} of eager", told, alone.low > 1 + cost.ONE_PROCESS)


def _result(changed: str, before: str, after: str, confirmed: bool) -> dict:
    verdict = CONFIRMED if confirmed else NOT_CONFIRMED
    return {"changed": changed, "before": before, "after": after, "verdict": verdict}


def _measured(case: Case, tests: list[Test], measure: Callable) -> list[dict]:
    """Each test against the unchanged program, all in one process and under the same backend."""
    own = {"own_backend": True} if any(test.changes.get("own_backend") for test in tests) else {}
    runs = [{"kind": "compiled", "label": "unchanged", **_backend(case, own)}]
    runs += [{"kind": "compiled", "label": test.changed, **_backend(case, test.changes)} for test in tests]
    # The unchanged program is there already; every change makes another entry.
    done = case.lab.process(runs, "cache")
    before = measure(done.runs.get("unchanged", Noted()))
    found = []
    for test in tests:
        after = measure(done.runs.get(test.changed, Noted()))
        if not before.fails:
            found.append(_result(test.changed, before.told, "the failure does not show here", False))
            continue
        found.append(_result(test.changed, before.told, after.told, not after.fails))
    return found


def _backend(case: Case, changes: dict) -> dict:
    """The changes under AOTAutograd's backend where the cause lies before Inductor: it takes no compiler."""
    if changes.get("own_backend") or case.backend != "inductor":
        return {key: value for key, value in changes.items() if key != "own_backend"}
    options = {"backend": "aot_eager", "mode": None, "options": None} | changes.get("options", {})
    return {**changes, "options": options}


class Count(NamedTuple):
    """What failed, counted again: whether it still fails, and in words how much of it there is."""

    fails: bool
    told: str


def _count_runs(noted: Noted) -> Count:
    failed = first_error(noted, COMPILED)
    if failed:
        return Count(True, f"call {failed[0]} raises {failed[1]['told']}")
    return Count(not noted.calls, f"{counted(len(noted.calls), 'call')}, none raised")


def _count_correct(noted: Noted) -> Count:
    failed = first_error(noted, COMPILED)
    if failed:
        return Count(True, f"call {failed[0]} raises {failed[1]['told']}")
    wrong = [line for line in noted.calls if not line.get("within", True)]
    return Count(bool(wrong) or not noted.calls, f"{counted(len(wrong), 'call')} differ")


def _count_captured(noted: Noted) -> Count:
    if (failed := _count_runs(noted)).fails:
        return failed
    calls = noted.calls
    breaks = {(each[0], each[1]) for line in calls for each in line["breaks"]}
    skipped = sum(len(line["skipped"]) for line in calls)
    graphs = calls[-1]["runs"]
    told = f"{counted(len(breaks), 'break')}, {counted(skipped, 'frame')} skipped, "
    told += f"{counted(graphs, 'graph')} a call"
    return Count(bool(breaks or skipped) or graphs != 1, told)


def _count_stable(noted: Noted) -> Count:
    if (failed := _count_runs(noted)).fails:
        return failed
    calls = noted.calls
    recompiling = [line["call"] for line in calls if line["call"] > 0 and line["kept"]]
    limited = any(line["limits"] for line in calls)
    told = f"{counted(len(recompiling), 'recompile')}{', limit hit' if limited else ''}"
    return Count(limited or len(recompiling) > capture.WARM_UP, told)


MEASURES = {
    "RUNS": _count_runs,
    "CORRECT": _count_correct,
    "CAPTURED": _count_captured,
    "STABLE": _count_stable,
}


def _tests(case: Case, level: str, judged: Judgement) -> Iterator[Test]:
    word = judged.mechanism
    if level == "RUNS":
        yield from _tests_of_runs(case, word, judged)
    elif level == "CORRECT":
        yield from _tests_of_correct(word)
    elif level == "CAPTURED":
        yield from _tests_of_captured(word, judged)
    elif level == "STABLE":
        yield from _tests_of_stable(case, word)


def _tests_of_runs(case: Case, word: str, judged: Judgement) -> Iterator[Test]:
    if word == "capture-refused":
        yield Test("fullgraph=False", {"options": {"fullgraph": False}})
    if word == "constraint-violated":
        yield Test("mark_dynamic as a hint (maybe_mark_dynamic)", {"weak_marks": True})
        yield Test("dynamic=None", {"options": {"dynamic": None}})
    if word == "limit-raised":
        yield Test("a limit of 64 variants", {"settings": {"recompile_limit": 64}})
        yield Test("fullgraph=False", {"options": {"fullgraph": False}})
    if word == "aot-autograd-error":
        yield Test("autograd calls traced (trace_autograd_ops)", {"settings": {"trace_autograd_ops": True}})
    if word == "inductor-error":
        yield from _inductor_settings()
    if word == "dynamo-error" and case.options.get("dynamic") is not None:
        yield Test("dynamic=None", {"options": {"dynamic": None}})


def _inductor_settings() -> Iterator[Test]:
    for name, value in (("pattern_matcher", False), ("max_fusion_size", 1)):
        yield Test(
            f"inductor {name} = {value}", {"settings": {f"inductor.{name}": value}, "own_backend": True}
        )


def _tests_of_correct(word: str) -> Iterator[Test]:
    if word == "wrong-inductor":
        yield from _inductor_settings()


def _tests_of_captured(word: str, judged: Judgement) -> Iterator[Test]:
    if word == "tensor-to-python":
        yield Test(
            "scalars captured (capture_scalar_outputs)", {"settings": {"capture_scalar_outputs": True}}
        )
    if word == "data-dependent-shape":
        both = {"capture_dynamic_output_shape_ops": True, "capture_scalar_outputs": True}
        yield Test(
            "shapes that depend on values captured (capture_dynamic_output_shape_ops)", {"settings": both}
        )
    if word == "nested-autograd":
        yield Test("autograd calls traced (trace_autograd_ops)", {"settings": {"trace_autograd_ops": True}})
    if word == "dispatch-mode-active":
        yield Test("calls made outside of every dispatch mode", {"without_modes": True})
    if name := _left_out(judged):
        yield Test(f"{name} left out of the graph", {"settings": {"left_out": [name]}})


# The function whose call broke the graph, where it only reports: leaving it out changes no result.
_REPORTING = (
    (r"method: <(?:Logger|RootLogger) .*?>\.(\w+)", "logging.Logger.{}"),
    (r"builtin operator `(print)`", "{}"),
    (r"module: _warnings, qualname: (warn)\b", "warnings.{}"),
)


def _left_out(judged: Judgement) -> str:
    reason = judged.facts.get("reason", "")
    for pattern, name in _REPORTING:
        if found := re.search(pattern, reason):
            return name.format(found[1])
    return ""


def _tests_of_stable(case: Case, word: str) -> Iterator[Test]:
    moved = [each for each in case.moved if capture.kind_of_move(each) == word]
    if word == "shape":
        if case.options.get("dynamic") is False:
            yield Test("dynamic=None instead of dynamic=False", {"options": {"dynamic": None}})
        axes = [
            [each["path"], int(each["property"].rpartition(" ")[2])]
            for each in moved
            if each["property"].startswith("size")
        ]
        if axes:
            places = ", ".join(f"{path} axis {axis}" for path, axis in axes[:4])
            yield Test(f"the moving axes marked as dynamic: {places}", {"mark": axes})
    if word == "module-attribute":
        setting = {"allow_unspec_int_on_nn_module": True}
        yield Test("integers of modules as symbols (allow_unspec_int_on_nn_module)", {"settings": setting})
    if moved:
        names = ", ".join(dict.fromkeys(each["name"] for each in moved[:4]))
        hold = [[each["place"], each["path"]] for each in moved]
        yield Test(f"{names} held as in the first call", {"hold": hold})
    if (
        word in ("container-length", "python-value", "shape", "module-attribute", "global-state")
        and not moved
    ):
        yield Test("a limit of 64 variants", {"settings": {"recompile_limit": 64}})


def _narrowed(case: Case, judged: Judgement) -> dict:
    """Without a switch to test: the smallest submodule that alone is not one graph, as a recorded search."""
    if not case.subject.get("is_module"):
        return _none()
    index = next((line["call"] for line in case.stream.calls if line.get("breaks") or line.get("skipped")), 0)
    run_ = {"kind": "narrowed", "label": "narrowed", "call": index}
    steps = case.lab.process([run_]).runs.get("narrowed", Noted()).all("step")
    failing = [step for step in steps if step["fails"]]
    if not failing:
        return _none("no submodule alone breaks: the break is in the module's own forward")
    last = failing[-1]
    changed = (
        f"{last['submodule']} ({last['class']}) compiled alone, {counted(len(steps), 'submodule')} tried"
    )
    told = last["raises"] or f"{counted(last['graphs'], 'graph')}"
    return _result(changed, judged.evidence, f"still not one graph: {told}", True) | {"steps": steps}
