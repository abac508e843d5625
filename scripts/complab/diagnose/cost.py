"""Is it worth compiling? The judge of WORTH IT, and what compiling costs whatever level failed."""

import math
import statistics

from complab.diagnose.case import Case
from complab.diagnose.judgement import COMPILED, EAGER, FAIL, NO_EVIDENCE, PASS, Judgement
from complab.errors import counted
from complab.report import statistics as ours

REUSE = "reuse"
CONFIDENCE = 0.95
# Less than this is no difference that a program would notice.
PRACTICAL = 0.03
# With one process only the rounds inside it tell, which share its fate: only a large effect is believed.
ONE_PROCESS = 0.15
WARM_PROCESSES = 2
STEADY_SECONDS = {False: 3.0, True: 1.0}


def worth_it(case: Case) -> Judgement:
    """Steady state of the stream against interleaved eager, then what is saved against what it costs."""
    samples = [case.stream.first("steady")]
    if samples[0] is None:
        return Judgement(NO_EVIDENCE, "no steady state was measured", instrument="interleaved rounds")
    warm = [] if case.quick else _warm(case)
    samples += [noted.first("steady") for noted in warm if noted.first("steady")]
    ratio = _ratio(samples)
    facts = cost(case, warm, ratio)
    bound = ONE_PROCESS if ratio.processes == 1 else PRACTICAL
    processes = counted(ratio.processes, "process")
    told = f"steady state {ratio.estimate:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] of eager in {processes}"
    if ratio.high >= 1 / (1 + bound):
        word = "slower" if ratio.low > 1 + bound else "not resolved as faster"
        return Judgement(FAIL, f"{told}: {word}", "no-saving", "interleaved rounds", facts=facts)
    return _lifetime(case, f"{told}: faster", facts)


def _lifetime(case: Case, told: str, facts: dict) -> Judgement:
    calls, low, high = (facts["break-even calls, cold"][key] for key in ("estimate", "low", "high"))
    told += f"; cold, compiling is paid after {calls:.0f} [{low:.0f}, {high:.0f}] calls"
    life = case.subject.get("real_calls")
    if life is None:
        return Judgement(PASS, told, instrument="interleaved rounds", facts=facts)
    told += f", and the program makes {life}"
    if low > life:
        return Judgement(
            FAIL, told, "never-amortised", "first calls against the saving per call", facts=facts
        )
    if high > life:
        return Judgement(NO_EVIDENCE, f"{told}: not resolved", instrument="interleaved rounds", facts=facts)
    return Judgement(PASS, told, instrument="interleaved rounds", facts=facts)


def _warm(case: Case) -> list:
    """The same stream in further processes, which find the cache that the first one left."""
    found = []
    for number in range(1, WARM_PROCESSES + 1):
        label = f"warm {number}"
        found.append(case.tried(label, cache="cache", steady=STEADY_SECONDS[case.quick]))
    return found


def _ratio(samples: list[dict]) -> ours.Interval:
    """Compiled over eager with its interval: over processes, or over the rounds of the only one."""
    ratios = [ours.paired_ratio(each["rounds"][COMPILED], each["rounds"][EAGER]) for each in samples]
    if len(ratios) > 1:
        return ours.interval(ratios, CONFIDENCE)
    rounds = samples[0]["rounds"]
    pairs = [above / below for above, below in zip(rounds[COMPILED], rounds[EAGER], strict=True)]
    inside = ours.interval(pairs, CONFIDENCE)
    return ours.Interval(ratios[0], inside.low, inside.high, 1)


def cost(case: Case, warm: list, ratio: ours.Interval | None) -> dict:
    """First calls, compile cost and break-even, cold and warm; seconds."""
    told = _first_pass(case.stream, "cold")
    if warm:
        passes = [_first_pass(noted, "warm") for noted in warm if noted.calls]
        told |= {key: statistics.median(each[key] for each in passes) for key in passes[0]} if passes else {}
    steady = case.stream.first("steady")
    if steady is None or ratio is None:
        return told
    eager = statistics.median(steady["rounds"][EAGER]) / steady["calls"]
    compiled = eager * ratio.estimate
    told |= {
        "eager per call": eager,
        "compiled per call": compiled,
        "steady ratio": {"estimate": ratio.estimate, "low": ratio.low, "high": ratio.high},
        "processes": ratio.processes,
        "A/A control": ours.paired_ratio(steady["rounds"]["control"], steady["rounds"][EAGER]),
    }
    for state, noted in (("cold", case.stream), ("warm", warm[0] if warm else None)):
        if noted is not None and noted.calls:
            told[f"break-even calls, {state}"] = _break_even(noted, eager, ratio)
    return told


def _first_pass(noted, state: str) -> dict:
    seconds = [line["seconds"] for line in noted.calls if COMPILED in line.get("seconds", {})]
    if not seconds:
        return {}
    return {
        f"first call, {state}": seconds[0][COMPILED],
        f"first pass, {state}": sum(each[COMPILED] for each in seconds),
        f"first pass, eager, {state}": sum(each[EAGER] for each in seconds),
    }


def _break_even(noted, eager: float, ratio: ours.Interval) -> dict:
    """Calls after which the time spent on compiling is saved: infinite where nothing is."""
    # A call that only reused a variant paid for no compilation, however slow it was.
    paid = [line for line in noted.calls if line.get("fate", REUSE) != REUSE]
    seconds = [line["seconds"][COMPILED] for line in paid if COMPILED in line.get("seconds", {})]

    def calls(each: float) -> float:
        saving = eager * (1 - each)
        overhead = sum(max(0.0, one - eager * each) for one in seconds)
        return overhead / saving if saving > 0 else math.inf

    return {"estimate": calls(ratio.estimate), "low": calls(ratio.low), "high": calls(ratio.high)}
