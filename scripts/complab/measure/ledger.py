"""Which of the five levels is the first that fails or lacks evidence?

A ledger is filled from the rows of one cell and nothing else, so anyone can fill it again. Levels are
judged in order, RUNS, CORRECT, CAPTURED, STABLE, WORTH IT; after the first that does not pass, the
rest are not judged. Beside a failure stands its mechanism, one word for the cause, where rows decide it.
"""

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from complab import guards, mechanisms, once
from complab.diagnose.judgement import FAIL, LEVELS, NO_EVIDENCE, NOT_JUDGED, PASS
from complab.errors import counted
from complab.evidence import Row
from complab.measure.observers import observed

FATES = ("new_variants", "reuses", "refused_attempts", "eager_calls", "skipped_frames")
NOT_MEASURED, NOT_REPORTED = "not measured", "not reported"
# Why a warm cell has no steady state.
OF_COLD_CELL = "a warm cell's steady state is that of its cold cell"
# Nothing is compiled under it, so there is no region to judge.
EAGER = "eager"
# Recorded where a stance was set between the calls of a case.
STANCE_SET = "setting_raises"
# A compiled output this many times as far from float64 as eager's is still rounding, not another result.
ROUNDING = 2
# Where a program is sent through one layer after another: the layer each backend adds.
LAYERS = {
    "dynamo": "backend_eager_agrees",
    "aot_autograd": "backend_aot_eager_agrees",
    "inductor": "backend_inductor_agrees",
}
# The layer that raised, by the name of its error.
_LAYER_OF_ERROR = {
    **dict.fromkeys(("InductorError", "LoweringException", "CppCompileError"), "inductor-error"),
    **dict.fromkeys(("InternalTorchDynamoError", "TorchRuntimeError"), "dynamo-error"),
}


class Judgement(NamedTuple):
    """What one level says, the sentence that decided it, and the cause of a failure if the rows tell it."""

    verdict: str
    evidence: str
    mechanism: str = ""


class Facts:
    """The rows of one case, by metric."""

    def __init__(self, rows: list[Row]):
        self._rows = rows

    @property
    def cache(self) -> str:
        """Cache state of the cell, empty without any row."""
        return self._rows[0].cache if self._rows else ""

    def rows(self, metric: str) -> list[Row]:
        """Rows of a metric in order."""
        return [row for row in self._rows if row.metric == metric]

    def values(self, metric: str) -> list[float]:
        """Values of a metric in order."""
        return [row.value for row in self.rows(metric)]

    def value(self, metric: str) -> float | None:
        """The value of a metric recorded once, None where it was not measured."""
        values = self.values(metric)
        return values[0] if values else None

    def detail(self, metric: str) -> str:
        """The text beside a metric recorded once."""
        return next((row.detail for row in self.rows(metric)), "")

    def total(self, metric: str) -> int:
        """Sum of a count over calls."""
        return int(sum(self.values(metric)))


def fill(rows: list[Row], tolerance: dict, limit: int) -> dict:
    """The ledgers of a cell: ``{"regions": {case: ledger}}`` for each case that is a region."""
    by_case: dict[str, list[Row]] = {}
    for row in rows:
        if row.case not in ("", "process"):
            by_case.setdefault(row.case, []).append(row)
    return {
        "regions": {
            case: _ledger(case, told[0], Facts(told), tolerance, limit)
            for case, told in by_case.items()
            if is_region(told[0].policy, case, {row.metric for row in told})
        }
    }


def is_region(policy: str, case: str, metrics: Collection[str]) -> bool:
    """Whether a case with these metrics is one compiled region, which its own rows can judge.

    An observer's process keeps no log. Under a stance each call of a case is one of its own, and one that
    raises is what was asked for.
    """
    return not (policy == EAGER or observed(policy, case) or STANCE_SET in metrics)


def _ledger(case: str, first: Row, facts: Facts, tolerance: dict, limit: int) -> dict:
    levels = judge(facts, tolerance, limit)
    stopped = next((level for level in levels if level["verdict"] != PASS), None)
    failing = stopped["level"] if stopped and stopped["verdict"] == FAIL else None
    return {
        "region": f"{case} under policy {first.policy}",
        "capture": _capture(facts, first),
        "assumptions": _assumptions(facts),
        "stability": _stability(facts, limit),
        "cost": _cost(facts, first.cache),
        "correctness": _correctness(facts, tolerance),
        "levels": levels,
        "first_failing_level": failing,
        "mechanism": stopped["mechanism"] if stopped else "",
        "sentence": _sentence(stopped),
    }


def _sentence(stopped: dict | None) -> str:
    if stopped is None:
        return "every level passes"
    if stopped["verdict"] == FAIL:
        return f"{stopped['level']} fails: {stopped['evidence']}"
    before = LEVELS[: LEVELS.index(stopped["level"])]
    passed = f"{', '.join(before)} pass; " if before else ""
    return f"{passed}{stopped['level']} has no evidence: {stopped['evidence']}"


def judge(facts: Facts, tolerance: dict, limit: int) -> list[dict]:
    """Each level's verdict with the sentence of evidence that decided it, and its mechanism if it fails."""
    judges = (
        _judge_runs,
        lambda told: _judge_correct(told, tolerance),
        _judge_captured,
        lambda told: _judge_stable(told, limit),
        _judge_worth_it,
    )
    levels, open_ = [], True
    for level, judge_level in zip(LEVELS, judges, strict=True):
        told = judge_level(facts) if open_ else Judgement(NOT_JUDGED, "an earlier level did not pass")
        levels.append({"level": level} | told._asdict())
        open_ = open_ and told.verdict == PASS
    return levels


def _error_word(name: str) -> str:
    # An experiment that lets the compiled form raise asks for one graph, or Dynamo would have broken it.
    return mechanisms.of_error([name], one_graph=True) or _LAYER_OF_ERROR.get(name, "")


def _judge_runs(facts: Facts) -> Judgement:
    if failed := _failing(facts, "eager_runs"):
        return Judgement(FAIL, f"eager bug, not a compiler bug: {_root_cause(facts, failed)}", "eager-error")
    if failed := _failing(facts, "compiled_runs"):
        layer = facts.detail("faulty_layer")
        word = _layer_word(layer, "{}-error") or _error_word(failed.detail.split(": ")[0])
        return Judgement(FAIL, f"the compiled form raises where eager runs: {failed.detail}", word)
    layer, fault = _faulty_layer(facts)
    if fault and _is_error(fault.detail):
        return Judgement(
            FAIL, f"first fails at the layer {layer}: {fault.detail}", _layer_word(layer, "{}-error")
        )
    calls = _compiled_calls(facts)
    if calls == 0:
        if facts.rows("explain_graphs") or facts.rows("fullgraph_accepts"):
            return Judgement(NO_EVIDENCE, "no compiled call was made; only capture was probed")
        return Judgement(NO_EVIDENCE, "no compiled call was recorded")
    return Judgement(PASS, f"{counted(calls, 'compiled call')}, none raised")


def _failing(facts: Facts, metric: str) -> Row | None:
    return next((row for row in facts.rows(metric) if not row.value), None)


def _root_cause(facts: Facts, failed: Row) -> str:
    if facts.value("same_cause") == 1:
        return facts.detail("same_cause") or failed.detail
    other = _failing(facts, "compiled_runs")
    return failed.detail + (f"; the compiled form fails with another cause: {other.detail}" if other else "")


def _faulty_layer(facts: Facts) -> tuple[str, Row | None]:
    """The first layer at which the program fails or differs, with the row that says how."""
    found = ((layer, _failing(facts, metric)) for layer, metric in LAYERS.items())
    return next(((layer, row) for layer, row in found if row), ("", None))


def _layer_word(layer: str, pattern: str) -> str:
    return pattern.format(layer.replace("_", "-")) if layer in LAYERS else ""


def _is_error(detail: str) -> bool:
    """Whether the text is "ErrorClass: message" and not a difference."""
    return re.match(r"(\w+\.)*[A-Z]\w+: ", detail) is not None


def _compiled_calls(facts: Facts) -> int:
    """Calls of the compiled form that are on record, by whichever fact was recorded of each."""
    agreed = sum(len(facts.rows(metric)) for metric in LAYERS.values())
    once = max(len(facts.rows(metric)) for metric in ("within_tolerance", "compiled_time", "first_call"))
    return max(once, agreed, sum(facts.total(fate) for fate in FATES), facts.total("compiled_runs"))


def _judge_correct(facts: Facts, tolerance: dict) -> Judgement:
    bounds = f"rtol {tolerance['rtol']:g}, atol {tolerance['atol']:g}"
    beyond = [
        _judge_difference(facts, row, bounds) for row in facts.rows("within_tolerance") if not row.value
    ]
    if beyond:
        return next((told for told in beyond if told.verdict == FAIL), beyond[0])
    layer, fault = _faulty_layer(facts)
    if fault:
        text = f"first differs at the layer {layer}: {fault.detail}"
        return Judgement(FAIL, text, _layer_word(layer, "wrong-{}"))
    compared = facts.values("within_tolerance")
    if not compared:
        if any(facts.rows(metric) for metric in LAYERS.values()):
            return Judgement(PASS, "every layer agrees with eager")
        return Judgement(NO_EVIDENCE, "no compiled output was compared with eager")
    largest = max(facts.values("max_abs_diff"), default=None)
    told = (
        "no finite difference from eager"
        if largest is None
        else f"largest difference from eager {largest:.3g}"
    )
    return Judgement(PASS, f"{told}, within {bounds}{_against_float64(facts)}")


def _judge_difference(facts: Facts, failed: Row, bounds: str) -> Judgement:
    """A call beyond the tolerance, judged further by a float64 run and by eager against itself.

    Neither excuses a call without a finite difference of its own.
    """
    told = f"call {failed.call} differs from eager beyond {bounds}"
    difference = next((row.value for row in facts.rows("max_abs_diff") if row.call == failed.call), None)
    repeat = facts.value("eager_repeat_diff")
    if repeat and difference is not None and difference <= repeat:
        return Judgement(NO_EVIDENCE, f"{told}, but eager differs from itself by {repeat:.3g}")
    eager, compiled = facts.value("eager_error"), facts.value("compiled_error")
    errors_known = None not in (difference, eager, compiled)
    if errors_known and compiled <= ROUNDING * eager:
        told += f": the tolerance is tighter than the dtype{_against_float64(facts)}"
        return Judgement(FAIL, told, "low-precision")
    layer = facts.detail("faulty_layer") or _faulty_layer(facts)[0]
    return Judgement(FAIL, told + _against_float64(facts), _layer_word(layer, "wrong-{}"))


def _against_float64(facts: Facts) -> str:
    eager, compiled = facts.value("eager_error"), facts.value("compiled_error")
    if eager is None or compiled is None:
        return ""
    repeat = facts.value("eager_repeat_diff")
    control = "" if repeat is None else f"; eager differs from itself by {repeat:.3g}"
    return f" (from float64: eager {eager:.3g}, compiled {compiled:.3g}{control})"


def _judge_captured(facts: Facts) -> Judgement:
    told = {
        "log breaks": facts.value("log_breaks"),
        "explain breaks": facts.value("explain_breaks"),
        "fullgraph": facts.value("fullgraph_accepts"),
        "frames skipped": facts.value("frames_skipped"),
    }
    if told["log breaks"] is None:
        return Judgement(NO_EVIDENCE, "no captured log of the compiled calls")
    seen = ", ".join(f"{name} {int(value)}" for name, value in told.items() if value is not None)
    if told["log breaks"] or told["explain breaks"]:
        where = facts.detail("log_breaks") or facts.detail("explain_breaks")
        return Judgement(FAIL, f"{where} ({seen})", _break_word(where))
    if told["frames skipped"]:
        why = facts.detail("frames_skipped")
        skipped = f"Dynamo skipped {counted(told['frames skipped'], 'frame')}"
        return Judgement(FAIL, f"{skipped}{f': {why}' if why else ''} ({seen})", _break_word(why))
    if told["fullgraph"] == 0:
        why = facts.detail("fullgraph_accepts")
        return Judgement(FAIL, f"fullgraph rejects the call: {why} ({seen})", _break_word(why))
    return _judge_graphs(facts, seen)


def _break_word(text: str) -> str:
    """The mechanism of the first of "place: source | reason; place: ..." or "frame [0/0]: reason; ..."."""
    first = text.split("; ")[0]
    # Source line and frame are the program's own text and no reason of Dynamo's.
    return mechanisms.told_of_break(re.split(r" \| |\]: ", first)[-1])


def _judge_graphs(facts: Facts, seen: str) -> Judgement:
    """Whether each variant is one graph: a break that no instrument names still leaves more of them.

    Without a stream one input is one variant, and each recompile adds one. A training step counts once:
    the graph of its backward pass is AOTAutograd's, not Dynamo's.
    """
    graphs, frames = facts.value("graphs_captured"), facts.value("frames_tried")
    if graphs is None:
        return Judgement(NO_EVIDENCE, f"the captured graphs were not counted ({seen})")
    if not graphs and frames == 0:
        return Judgement(NO_EVIDENCE, f"Dynamo tried no frame, so nothing was compiled ({seen})")
    served = any(facts.rows(fate) for fate in FATES)
    variants = (facts.total("new_variants") if served else 1 + facts.total("log_recompiles")) or 1
    if graphs == variants:
        return Judgement(PASS, f"one graph per variant, no break ({seen})")
    return Judgement(FAIL, f"{counted(graphs, 'graph')} for {counted(variants, 'variant')} ({seen})")


def _failed_assumptions(facts: Facts) -> list[tuple[int | None, guards.Assumption]]:
    """The first failing guard of each recompile, with its call."""
    failed = []
    for row in facts.rows("recompiles"):
        # "0/1: reason | 0/0: reason": the newest variant's reason stands first.
        text = row.detail.split(" | ")[0].split(": ", 1)[-1]
        failed.append((row.call, guards.classify_guard(text)))
    return failed


def _without_values(assumption: guards.Assumption) -> str:
    """The assumption as one text for all its values: the same axis moving again is the same assumption."""
    return replace(assumption, expected=None, actual=None).describe()


def _judge_stable(facts: Facts, limit: int) -> Judgement:
    failed = _failed_assumptions(facts)
    counts = Counter((assumption.kind, _without_values(assumption)) for _, assumption in failed)
    (kind, worst), times = next(iter(counts.most_common(1)), (("", "the guard was not logged"), 0))
    word = "" if kind == "other" else kind
    variants, refused = facts.total("new_variants"), facts.rows("refused_attempts")
    if refused:
        told = (
            f"{worst}; {counted(variants, 'variant')} fill the limit of {limit}, "
            f"request {refused[0].call} was refused, "
            f"{counted(facts.total('eager_calls'), 'later call')} ran eager"
        )
        return Judgement(FAIL, told, word)
    if eager := facts.total("eager_calls"):
        return Judgement(FAIL, f"{counted(eager, 'call')} ran eager after the limit", word)
    # Warm-up is an assumption that fails once and is then generalised; one that fails again recurs.
    if times > 1:
        return Judgement(FAIL, f"{worst} failed {times} times; {counted(variants, 'variant')}", word)
    if variants - 1 > len(failed):
        lacking = f"{counted(variants, 'variant')}, but {counted(len(failed), 'logged recompile')}"
        return Judgement(NO_EVIDENCE, lacking)
    if not any(facts.rows(fate) for fate in FATES):
        if facts.total("log_recompiles"):
            told = f"{counted(facts.total('log_recompiles'), 'recompile')} under one input"
            return Judgement(FAIL, told + (f": {worst}" if failed else ""), word)
        return Judgement(PASS, "no recompile under one input")
    once = f", once each: {'; '.join(text for _, text in counts)}" if counts else ""
    kept = counted(variants, "variant")
    return Judgement(
        PASS, f"{counted(len(failed), 'recompile')}{once}; every later call reuses one of {kept}"
    )


def _judge_worth_it(facts: Facts) -> Judgement:
    eager, compiled = facts.values("steady_eager"), facts.values("steady_compiled")
    if not eager or not compiled:
        warm = facts.cache == "warm"
        return Judgement(NO_EVIDENCE, OF_COLD_CELL if warm else "no steady state was measured")
    ratio = _median(compiled) / _median(eager)
    return Judgement(
        NO_EVIDENCE, f"one process cannot resolve it (steady state {ratio:.2f} times eager here)"
    )


def _not_measured(why: str) -> str:
    return f"{NOT_MEASURED}: {why}"


def _capture(facts: Facts, first: Row) -> dict:
    watched = bool(facts.rows("frames_tried"))
    unwatched = _not_measured("no compiled call was watched")
    why = "this was not asked"
    if first.cache == "warm":
        why = "a warm cell is not probed"
    elif first.replicate != once.REPLICATE:
        why = "only the first replicate is probed"
    unprobed = _not_measured(why)
    asked = {
        "frames_tried": ("frames_tried", unwatched),
        "frames_compiled": ("frames_compiled", unwatched),
        "frames_skipped": ("frames_skipped", NOT_REPORTED if watched else unwatched),
        "graphs_captured": ("graphs_captured", unwatched),
        "graph_breaks_log": ("log_breaks", unwatched),
        "graph_breaks_explain": ("explain_breaks", unprobed),
        "graphs_explain": ("explain_graphs", unprobed),
        "fullgraph_accepts": ("fullgraph_accepts", unprobed),
    }
    values = {name: (facts.value(metric), lacking) for name, (metric, lacking) in asked.items()}
    capture = {name: lacking if value is None else int(value) for name, (value, lacking) in values.items()}
    capture["where"] = facts.detail("log_breaks") or facts.detail("explain_breaks")
    capture["why_skipped"] = facts.detail("frames_skipped")
    return capture


def _assumptions(facts: Facts) -> dict:
    counts = Counter((item.kind, _without_values(item)) for _, item in _failed_assumptions(facts))
    return {
        "failed": [{"kind": kind, "guard": text, "times": times} for (kind, text), times in counts.items()],
        "held": _not_measured("only guards that fail are logged"),
    }


def _stability(facts: Facts, limit: int) -> dict:
    lengths = facts.values("sequence_length")
    served = any(facts.rows(fate) for fate in FATES)
    no_stream = _not_measured("no stream was served, only one input")
    unwatched = _not_measured("no compiled call was watched")
    return {fate: facts.total(fate) if served else no_stream for fate in FATES} | {
        "calls": _compiled_calls(facts),
        "distinct_inputs": len(set(lengths)) if lengths else no_stream,
        "recompiles_logged": facts.total("log_recompiles") if facts.rows("log_recompiles") else unwatched,
        "limit": limit,
        "limit_reached": bool(facts.total("limit_hits")) if facts.rows("limit_hits") else unwatched,
    }


def _first_call(facts: Facts) -> float | str:
    """Seconds of the first compiled call, or why they are not known; a later call's are not its."""
    timed = facts.rows("compiled_time") or facts.rows("first_call")
    first = next((row.value for row in timed if row.call in (None, 0)), None)
    if first is not None:
        return first
    if any(row.call in (None, 0) and not row.value for row in facts.rows("within_tolerance")):
        return _not_measured("the first call's output was wrong")
    return _not_measured("the first compiled call was not timed" if timed else "no compiled call was timed")


def _cost(facts: Facts, cache: str) -> dict:
    told = _first_call(facts)
    other = _not_measured(f"this cell's cache is {cache}")
    steady, eager = facts.values("steady_compiled"), facts.values("steady_eager")
    untimed = _not_measured(OF_COLD_CELL if cache == "warm" else "no steady state was timed")
    return {
        # Where no cache is kept, nothing of an earlier process is there to be used either.
        "cold_first_call_s": other if cache == "warm" else told,
        "warm_first_call_s": told if cache == "warm" else other,
        "steady_s": _median(steady) if steady else untimed,
        "steady_eager_s": _median(eager) if steady and eager else untimed,
        **_memory(facts),
    }


def _memory(facts: Facts) -> dict:
    """A device tells one of two: its allocator's peak, or how much the process grew."""
    metrics = ("peak_memory", "peak_memory_growth")
    why = "this device tells the other" if any(map(facts.rows, metrics)) else "no memory was watched"
    return {
        f"{metric}_bytes": facts.value(metric) if facts.rows(metric) else _not_measured(why)
        for metric in metrics
    }


def _correctness(facts: Facts, tolerance: dict) -> dict:
    differences, bitwise = facts.values("max_abs_diff"), facts.values("bitwise_equal")
    compared = bool(facts.rows("within_tolerance"))
    why = "no finite difference was found" if compared else "no compiled output was compared"
    no_float64 = _not_measured("no float64 run was made")
    told = {
        "max_abs_diff": max(differences) if differences else _not_measured(why),
        "bitwise": bool(min(bitwise)) if bitwise else _not_measured(why),
    }
    for metric in ("eager_error", "compiled_error", "eager_repeat_diff"):
        told[metric] = facts.value(metric) if facts.rows(metric) else no_float64
    return told | {key: tolerance[key] for key in ("rtol", "atol", "reason")}


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
