"""Is it worth compiling? The judge of WORTH IT, and what compiling costs whatever level failed."""

import math
import statistics

from complab.diagnose.case import Case
from complab.diagnose.judgement import COMPILED, EAGER, FAIL, NO_EVIDENCE, PASS, Judgement
from complab.diagnose.lab import Noted, Process
from complab.errors import counted
from complab.report import statistics as ours

REUSE = "reuse"
WARM = "warm"
CONFIDENCE = 0.95
# Less than this is no difference that a program would notice.
PRACTICAL = 0.03
# With one process only the rounds inside it tell, which share its fate: only a large effect is believed.
ONE_PROCESS = 0.15
FEWEST_PROCESSES, MAXIMUM_PROCESSES = 3, 6
# An interval whose ends lie further apart than by this factor holds large savings and large losses alike.
TOO_WIDE = 2
STEADY_SECONDS = {False: 3.0, True: 1.0}


def worth_it(case: Case) -> Judgement:
    """Steady state of the stream against interleaved eager, then what is saved against what it costs.

    Further processes are made until the ratio is resolved, up to `MAXIMUM_PROCESSES`. A single one, as with
    `--quick`, resolves large effects only: what it leaves open is no evidence, where several would say
    `no-saving`.
    """
    steady = case.stream.first("steady", {"problem": "no steady state was measured"})
    if problem := steady.get("problem"):
        return Judgement(NO_EVIDENCE, problem, instrument="interleaved rounds", facts=cost(case, [], None))
    warm, samples = [], [steady]
    ratio = ratio_of(samples)
    while not case.quick and _wants_more(ratio):
        warm.append(_warm(case, len(warm) + 1))
        samples += [each for each in warm[-1].all("steady") if "rounds" in each]
        ratio = ratio_of(samples)
        if len(warm) >= MAXIMUM_PROCESSES - 1:
            break
    facts = cost(case, warm, ratio)
    processes = counted(ratio.processes, "process")
    told = f"steady state {ratio.estimate:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] of eager in {processes}"
    if ratio.high < _faster(ratio):
        return _lifetime(case, f"{told}: faster", facts)
    if ratio.low > 1 / _faster(ratio):
        return Judgement(FAIL, f"{told}: slower", "no-saving", "interleaved rounds", facts=facts)
    told += ": not resolved as faster"
    if _too_short(case, ratio, facts["break-even calls, cold"]):
        return _lifetime(case, told, facts)
    if ratio.processes == 1:
        told += f"; one process does not tell{', run it without --quick' if case.quick else ''}"
        return Judgement(NO_EVIDENCE, told, instrument="interleaved rounds", facts=facts)
    if ratio.high > TOO_WIDE * ratio.low:
        told += "; so wide an interval tells nothing: let the machine rest, or take fewer --threads"
        return Judgement(NO_EVIDENCE, told, instrument="interleaved rounds", facts=facts)
    return Judgement(FAIL, told, "no-saving", "interleaved rounds", facts=facts)


def _too_short(case: Case, ratio: ours.Interval, paid: dict) -> bool:
    """Whether compiling is not paid in the program's life, wherever in its interval the ratio is."""
    life = case.subject.get("real_calls")
    if life is None:
        return False
    return paid["if compiled calls took no time"] > life or (
        paid["low"] > life and ratio.estimate < 1 / (1 + PRACTICAL)
    )


def _faster(ratio: ours.Interval) -> float:
    """The ratio below which a program would notice that it is faster, and so many processes resolve it."""
    return 1 / (1 + (ONE_PROCESS if ratio.processes == 1 else PRACTICAL))


def _wants_more(ratio: ours.Interval) -> bool:
    """Fewer than three processes, or an effect that a few more may yet resolve as faster."""
    if ratio.processes < FEWEST_PROCESSES:
        return True
    return ratio.high >= _faster(ratio) and ratio.estimate < _faster(ratio)


def _lifetime(case: Case, told: str, facts: dict) -> Judgement:
    paid = facts["break-even calls, cold"]
    low, high = paid["low"], paid["high"]
    shown = [number_of_calls(calls) for calls in (paid["estimate"], low, high)]
    told += f"; cold, compiling is paid after {shown[0]} [{shown[1]}, {shown[2]}] calls"
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


def number_of_calls(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else "never"


def is_warm(process: Process) -> bool:
    """Whether it ran on the cache that the first process had left."""
    return any(label.startswith(WARM) for label in process.runs)


def _warm(case: Case, number: int) -> Noted:
    """The same stream in one more process, which finds the cache that the first one left."""
    return case.tried(f"{WARM} {number}", cache="cache", steady=STEADY_SECONDS[case.quick])


def ratio_of(samples: list[dict]) -> ours.Interval:
    """Compiled over eager with its interval: over processes, or over the rounds of the only one."""
    ratios = [ours.paired_ratio(each["rounds"][COMPILED], _eager(each["rounds"])) for each in samples]
    if len(ratios) > 1:
        return ours.interval(ratios, CONFIDENCE)
    rounds = samples[0]["rounds"]
    pairs = [above / below for above, below in zip(rounds[COMPILED], _eager(rounds), strict=True)]
    inside = ours.interval(pairs, CONFIDENCE)
    return ours.Interval(ratios[0], inside.low, inside.high, 1)


def _eager(rounds: dict[str, list[float]]) -> list[float]:
    """Seconds of eager in each round, before and after the compiled pass: a drift in between cancels."""
    return [math.sqrt(one * other) for one, other in zip(rounds[EAGER], rounds["control"], strict=True)]


def unsteady(sample: dict) -> bool:
    """Whether eager against itself differs, in one process, by as much as is believed of one process."""
    rounds = sample["rounds"]
    return abs(math.log(ours.paired_ratio(rounds["control"], rounds[EAGER]))) > math.log(1 + ONE_PROCESS)


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

    told = {"estimate": calls(ratio.estimate), "low": calls(ratio.low), "high": calls(ratio.high)}
    return told | {"if compiled calls took no time": calls(0)}


def seconds(value: object) -> str:
    """A duration with a unit that suits it."""
    if not isinstance(value, int | float):
        return str(value)
    for size, unit in ((1, "s"), (1e-3, "ms")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"
