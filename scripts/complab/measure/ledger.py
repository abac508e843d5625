"""Which of the five levels is the first that fails or lacks evidence?

A ledger is filled from the rows of one cell and nothing else, so anyone can fill it again. Levels are
judged in order, RUNS, CORRECT, CAPTURED, STABLE, WORTH IT; after the first that does not pass, the
rest are not judged.
"""

from collections import Counter
from dataclasses import replace

from complab import guards
from complab.errors import counted
from complab.evidence import Row

LEVELS = ("RUNS", "CORRECT", "CAPTURED", "STABLE", "WORTH IT")
PASS, FAIL, NO_EVIDENCE, NOT_JUDGED = "pass", "fail", "no evidence", "not judged"
FATES = ("new_variants", "reuses", "refused_attempts", "eager_calls", "skipped_frames")
NOT_MEASURED = "not measured"


class Facts:
    """The rows of one case, by metric."""

    def __init__(self, rows: list[Row]):
        self._rows = rows

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
    """The ledgers of a cell: ``{"regions": {case: ledger}}`` for each case that was compiled or probed."""
    cases = dict.fromkeys(row.case for row in rows if row.case not in ("", "process"))
    regions = {}
    for case in cases:
        facts = Facts([row for row in rows if row.case == case])
        first = next(row for row in rows if row.case == case)
        probed = any(facts.rows(metric) for metric in ("graphs_captured", "explain_graphs"))
        if probed and first.cache != "none":
            regions[case] = _ledger(case, first, facts, tolerance, limit)
    return {"regions": regions}


def _ledger(case: str, first: Row, facts: Facts, tolerance: dict, limit: int) -> dict:
    levels = judge(facts, tolerance, limit)
    stopped = next((level for level in levels if level["verdict"] != PASS), None)
    failing = stopped["level"] if stopped and stopped["verdict"] == FAIL else None
    return {
        "region": f"{case} under policy {first.policy}",
        "capture": _capture(facts),
        "assumptions": _assumptions(facts),
        "stability": _stability(facts, limit),
        "cost": _cost(facts, first.cache),
        "correctness": _correctness(facts, tolerance),
        "levels": levels,
        "first_failing_level": failing,
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
    """Each level's verdict with the sentence of evidence that decided it."""
    judges = (
        _judge_runs,
        lambda told: _judge_correct(told, tolerance),
        _judge_captured,
        lambda told: _judge_stable(told, limit),
        _judge_worth_it,
    )
    levels, open_ = [], True
    for level, judge_level in zip(LEVELS, judges, strict=True):
        verdict, sentence = judge_level(facts) if open_ else (NOT_JUDGED, "an earlier level did not pass")
        levels.append({"level": level, "verdict": verdict, "evidence": sentence})
        open_ = open_ and verdict == PASS
    return levels


def _judge_runs(facts: Facts) -> tuple[str, str]:
    calls = len(facts.values("within_tolerance"))
    if calls == 0:
        return NO_EVIDENCE, "no compiled call was made; only capture was probed"
    return PASS, f"{counted(calls, 'compiled call')}, none raised"


def _judge_correct(facts: Facts, tolerance: dict) -> tuple[str, str]:
    bounds = f"rtol {tolerance['rtol']:g}, atol {tolerance['atol']:g}"
    for row in facts.rows("within_tolerance"):
        if not row.value:
            return FAIL, f"call {row.call} differs from eager beyond {bounds}"
    largest = max(facts.values("max_abs_diff"), default=None)
    told = (
        "no finite difference from eager"
        if largest is None
        else f"largest difference from eager {largest:.3g}"
    )
    return PASS, f"{told}, within {bounds}"


def _judge_captured(facts: Facts) -> tuple[str, str]:
    told = {
        "log breaks": facts.value("log_breaks"),
        "explain breaks": facts.value("explain_breaks"),
        "fullgraph": facts.value("fullgraph_accepts"),
    }
    if told["log breaks"] is None:
        return NO_EVIDENCE, "no captured log of the compiled calls"
    seen = ", ".join(f"{name} {int(value)}" for name, value in told.items() if value is not None)
    variants = facts.total("new_variants") or 1
    graphs = facts.value("graphs_captured")
    if told["log breaks"] or told["explain breaks"]:
        where = facts.detail("log_breaks") or facts.detail("explain_breaks")
        return FAIL, f"{where} ({seen})"
    if told["fullgraph"] == 0:
        return FAIL, f"fullgraph rejects the call: {facts.detail('fullgraph_accepts')} ({seen})"
    if graphs is None:
        return NO_EVIDENCE, f"the captured graphs were not counted ({seen})"
    if graphs != variants:
        return FAIL, f"{counted(graphs, 'graph')} for {counted(variants, 'variant')} ({seen})"
    return PASS, f"one graph per variant, no break ({seen})"


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


def _judge_stable(facts: Facts, limit: int) -> tuple[str, str]:
    failed = _failed_assumptions(facts)
    counts = Counter(_without_values(assumption) for _, assumption in failed)
    variants, refused = facts.total("new_variants"), facts.rows("refused_attempts")
    if refused:
        worst = counts.most_common(1)[0][0] if counts else "the guard was not logged"
        return FAIL, (
            f"{worst}; {counted(variants, 'variant')} fill the limit of {limit}, "
            f"request {refused[0].call} was refused, "
            f"{counted(facts.total('eager_calls'), 'later call')} ran eager"
        )
    if eager := facts.total("eager_calls"):
        return FAIL, f"{counted(eager, 'call')} ran eager after the limit"
    # Warm-up is an assumption that fails once and is then generalised; one that fails again recurs.
    recurring = [(text, count) for text, count in counts.most_common() if count > 1]
    if recurring:
        return FAIL, f"{recurring[0][0]} failed {recurring[0][1]} times; {counted(variants, 'variant')}"
    if variants - 1 > len(failed):
        return NO_EVIDENCE, f"{counted(variants, 'variant')}, but {counted(len(failed), 'logged recompile')}"
    if not any(facts.rows(fate) for fate in FATES):
        if facts.total("log_recompiles"):
            return FAIL, f"{counted(facts.total('log_recompiles'), 'recompile')} under one input"
        return PASS, "no recompile under one input"
    once = f", once each: {'; '.join(counts)}" if counts else ""
    kept = counted(variants, "variant")
    return PASS, f"{counted(len(failed), 'recompile')}{once}; every later call reuses one of {kept}"


def _judge_worth_it(facts: Facts) -> tuple[str, str]:
    eager, compiled = facts.values("steady_eager"), facts.values("steady_compiled")
    if not eager or not compiled:
        return NO_EVIDENCE, "no steady state was measured"
    ratio = _median(compiled) / _median(eager)
    return NO_EVIDENCE, f"one process cannot resolve it (steady state {ratio:.2f} times eager here)"


def _capture(facts: Facts) -> dict:
    told = {name: facts.value(name) for name in ("frames_tried", "frames_compiled", "graphs_captured")}
    told["graph_breaks_log"] = facts.value("log_breaks")
    told["graph_breaks_explain"] = facts.value("explain_breaks")
    told["graphs_explain"] = facts.value("explain_graphs")
    told["fullgraph_accepts"] = facts.value("fullgraph_accepts")
    capture = {name: NOT_MEASURED if value is None else int(value) for name, value in told.items()}
    capture["where"] = facts.detail("log_breaks") or facts.detail("explain_breaks")
    return capture


def _assumptions(facts: Facts) -> dict:
    counts = Counter((item.kind, _without_values(item)) for _, item in _failed_assumptions(facts))
    return {
        "failed": [{"kind": kind, "guard": text, "times": times} for (kind, text), times in counts.items()],
        "held": f"{NOT_MEASURED}: only guards that fail are logged",
    }


def _stability(facts: Facts, limit: int) -> dict:
    lengths = facts.values("sequence_length")
    stability = (
        {fate: facts.total(fate) for fate in FATES} if lengths else {fate: NOT_MEASURED for fate in FATES}
    )
    return stability | {
        "calls": len(facts.values("within_tolerance")),
        "distinct_inputs": len(set(lengths)) if lengths else NOT_MEASURED,
        "recompiles_logged": facts.total("log_recompiles"),
        "limit": limit,
        "limit_reached": bool(facts.total("limit_hits")),
    }


def _cost(facts: Facts, cache: str) -> dict:
    first = facts.values("compiled_time") or facts.values("first_call")
    other = f"{NOT_MEASURED}: this cell's cache is {cache}"
    steady, eager = facts.values("steady_compiled"), facts.values("steady_eager")
    return {
        "cold_first_call_s": other if cache != "cold" else first[0] if first else NOT_MEASURED,
        "warm_first_call_s": other if cache != "warm" else first[0] if first else NOT_MEASURED,
        "steady_s": _median(steady) if steady else NOT_MEASURED,
        "steady_eager_s": _median(eager) if steady and eager else NOT_MEASURED,
        **{
            f"{metric}_bytes": facts.value(metric) if facts.rows(metric) else NOT_MEASURED
            for metric in ("peak_memory", "peak_memory_growth")
        },
    }


def _correctness(facts: Facts, tolerance: dict) -> dict:
    differences, bitwise = facts.values("max_abs_diff"), facts.values("bitwise_equal")
    return {
        "max_abs_diff": max(differences) if differences else NOT_MEASURED,
        "bitwise": bool(min(bitwise)) if bitwise else NOT_MEASURED,
        **{key: tolerance[key] for key in ("rtol", "atol", "reason")},
    }


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
