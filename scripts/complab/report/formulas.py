"""How does a printed number follow from evidence rows?

A closed set of formulas. Each is a pure function of the rows it is given, so that the rows and the
`Ask` named in a lineage file are enough to compute the number again, by anyone.
"""

import statistics as stats
from collections.abc import Callable, Iterable, Sequence

from complab.errors import Unverified, UsageProblem
from complab.measure.ledger import FAIL, FATES, NO_EVIDENCE, PASS
from complab.report import statistics
from complab.report.gather import Fact
from complab.report.ledger_formulas import LAST_LEVEL, LEDGER_FORMULAS
from complab.report.number import DIFFER, FACTORS, NOT_MEASURED, Ask, Number, absent, agreed, rounded

CONTROL, EAGER = "steady_control", "steady_eager"
EVERYTHING = None
BREAK_EVEN = "break even"
NEVER, NEVER_SLOWER = "never: no saving is resolved", "never: compiled is slower"
# Those that add up the calls of a process, of which none may be missing.
SUMMING = ("total", "total ratio", "smallest cost effect")
# The calls of what was recorded once for all of them, as the seconds of a whole loop.
ONCE = {None}
RELATIVE = ("relative ratio", "relative verdict", "relative smallest effect")
# Those that judge a steady-state ratio, for which its A/A controls are read as well.
WORTH = ("worth it", "worth it sentence", "worth it mechanism", "worth it verdict")
JUDGING = ("verdict", "smallest effect", "relative verdict", "relative smallest effect", BREAK_EVEN, *WORTH)
NO_SAVING = "no-saving"


class Process:
    """The rows that one measured process contributes."""

    def __init__(self, facts: list[Fact]):
        self.facts = facts
        self.policy, self.cache = facts[0].row.policy, facts[0].row.cache
        self.replicate = facts[0].row.replicate
        self._by_metric: dict[str, list[Fact]] = {}
        for fact in facts:
            self._by_metric.setdefault(fact.row.metric, []).append(fact)

    def rows(self, name: str) -> list[Fact]:
        """Rows of a metric, which may bear its case."""
        case, _, metric = name.rpartition(".")
        found = self._by_metric.get(metric, [])
        return [fact for fact in found if fact.row.case == case] if case else found

    def values(self, name: str) -> list[float]:
        """Values of a metric in the order recorded."""
        return [fact.row.value for fact in self.rows(name)]

    def by_call(self, name: str) -> dict[int | None, float]:
        """Values of a metric by call; Unverified if a call has two."""
        found: dict[int | None, float] = {}
        for fact in self.rows(name):
            if fact.row.call in found:
                raise Unverified(f"{fact.file}: line {fact.line} is a second {name} of call {fact.row.call}")
            found[fact.row.call] = fact.row.value
        return found


def evaluate(ask: Ask, facts: Iterable[Fact], noise: dict, ledgers: dict[str, dict] | None = None) -> Number:
    """The number that ``ask`` finds in the facts, all of them from determinate cells.

    ``noise`` holds the thresholds of the configuration, ``ledgers`` one region's ledger by the path of
    the file it stands in. A metric that was not recorded, or not by every process, is not measured.
    """
    wanted = reads(ask)
    used = list(facts) if wanted is EVERYTHING else [fact for fact in facts if fact.row.metric in wanted]
    if used and ask.formula in LEDGER_FORMULAS:
        return LEDGER_FORMULAS[ask.formula](ask, used, ledgers or {})
    groups: dict[str, list[Fact]] = {}
    for fact in used:
        groups.setdefault(fact.file, []).append(fact)
    processes = [Process(group) for group in groups.values()]
    lacking = [process.facts[0].file for process in processes if not _complete(ask, process)]
    if not used or lacking:
        return absent(ask, NOT_MEASURED, tuple(f"not in {file}" for file in lacking))
    _check_unit(ask, used)
    return _FORMULAS[ask.formula](ask, processes, noise)


def reads(ask: Ask) -> set[str] | None:
    """Names of the metrics the formula reads, or EVERYTHING for the whole of a case."""
    if ask.formula in LEDGER_FORMULAS:
        return EVERYTHING
    names = {_metric(name) for name in named(ask)}
    if ask.formula == "fate" or names & set(FATES):
        names |= set(FATES)
    if ask.formula in SUMMING:
        names.add("sequence_length")
    if ask.formula == "maximum" and "max_abs_diff" in names:
        names.add("within_tolerance")
    return names


def _metric(name: str) -> str:
    return name.rpartition(".")[2]


def named(ask: Ask) -> list[str]:
    """Metrics the question names, and those of the controls that it is judged by."""
    names = [*ask.of, *([ask.to] if ask.to else [])]
    if ask.formula in JUDGING:
        names += [name for pair in _control_pairs(ask) for name in pair]
    return names


def _required(ask: Ask, process: Process) -> list[str]:
    """Metrics that a process must have, or it has nothing to say."""
    if ask.formula != BREAK_EVEN:
        return named(ask)
    cost = [ask.of[0], ask.to] if process.cache == ask.cache else []
    return cost + (named(ask)[1:] if process.cache == "cold" else [])


def _control_pairs(ask: Ask) -> list[tuple[str, str]]:
    """The two eager passes of each case that a steady-state ratio compares."""
    cases = dict.fromkeys(name.rpartition(".")[0] for name in (ask.of[-1], ask.to))
    return [tuple(f"{case}.{name}" if case else name for name in (CONTROL, EAGER)) for case in cases]


def _complete(ask: Ask, process: Process) -> bool:
    """Whether a process has all the formula needs of it: no number is made from what is left."""
    if ask.formula == "fate" or set(map(_metric, ask.of)) & set(FATES):
        return True
    required = _required(ask, process)
    if not all(process.rows(name) for name in required):
        return False
    # A call whose output is wrong has no time, and one whose output is not finite has no difference.
    calls = set(process.by_call("sequence_length")) if ask.formula in SUMMING else set()
    if ask.formula == "maximum":
        calls = set(process.by_call("within_tolerance"))
    recorded = [set(process.by_call(name)) for name in required]
    return all(calls <= told or told == ONCE for told in recorded)


def _check_unit(ask: Ask, facts: list[Fact]) -> None:
    for fact in facts:
        if ask.unit in ("s", "ms") and fact.row.metric in map(_metric, ask.of) and fact.row.unit != "s":
            raise UsageProblem(
                f"a column in {ask.unit} asks for {fact.row.metric}, which is recorded in '{fact.row.unit}'; "
                "name the column without that unit"
            )


def _facts(processes: Sequence[Process]) -> tuple[Fact, ...]:
    return tuple(fact for process in processes for fact in process.facts)


def _in_unit(ask: Ask, values: Iterable[float]) -> tuple[float, ...]:
    return tuple(value * FACTORS[ask.unit] for value in values)


def _spread_flags(samples: Sequence[float], noise: dict) -> tuple[tuple[str, str], ...]:
    found = statistics.spread(samples) if len(samples) > 1 and min(samples) > 0 else 0
    if found <= noise["spread_warning"]:
        return ()
    rule = f"largest process over smallest, less one, is above {noise['spread_warning'] * 100:.0f} %"
    return ((rule, f"{found * 100:.0f} %"),)


def _from_samples(ask: Ask, processes: Sequence[Process], samples: tuple[float, ...], noise: dict) -> Number:
    """Geometric mean with its interval, or, of too few processes for one, their median with their number."""
    enough = len(samples) >= noise["minimum_processes"]
    told = statistics.interval(samples, noise["confidence"])
    value = told.estimate if enough else stats.median(samples)
    head = rounded(value, ask.rounding)
    # The ends of an interval are told as finely as its middle.
    places = f"{len(head.partition('.')[2])} decimals"
    ends = f"[{rounded(told.low, places)}, {rounded(told.high, places)}]" if enough else ""
    return Number(
        ask,
        head,
        value,
        tail=ends or f"(n = {len(samples)})",
        low=told.low if enough else None,
        high=told.high if enough else None,
        facts=_facts(processes),
        samples=samples,
        flags=_spread_flags(samples, noise),
        estimator="geometric mean" if enough else "median",
    )


def _count(ask: Ask, processes: Sequence[Process], noise: dict) -> Number:
    """A count summed over calls, which every process must have alike."""
    sums = tuple(sum(sum(process.values(name)) for name in ask.of) for process in processes)
    low, high = min(sums), max(sums)
    if low == high:
        return Number(ask, rounded(low, ask.rounding), _plain(low), facts=_facts(processes), samples=sums)
    return Number(
        ask,
        f"{rounded(low, ask.rounding)}\N{EN DASH}{rounded(high, ask.rounding)}",
        facts=_facts(processes),
        samples=sums,
        flags=((DIFFER, ""),),
    )


def _plain(value: float) -> float | int:
    return int(value) if float(value).is_integer() else value


def _total(ask: Ask, processes: Sequence[Process], noise: dict) -> Number:
    """Seconds of all calls of a process, one number per process."""
    return _from_samples(ask, processes, _in_unit(ask, (sum(p.values(ask.of[0])) for p in processes)), noise)


def _total_ratio(ask: Ask, processes: Sequence[Process], noise: dict) -> Number:
    """All calls of one kind over all calls of another, inside each process."""
    samples = tuple(sum(p.values(ask.of[0])) / sum(p.values(ask.to)) for p in processes)
    return _from_samples(ask, processes, samples, noise)


def _median(ask: Ask, processes: Sequence[Process], noise: dict) -> Number:
    """Median over processes of each process's median."""
    samples = _in_unit(ask, (stats.median(p.values(ask.of[0])) for p in processes))
    value = stats.median(samples)
    return Number(
        ask,
        rounded(value, ask.rounding),
        value,
        facts=_facts(processes),
        samples=samples,
        flags=_spread_flags(samples, noise),
        estimator="median",
    )


def _maximum(ask: Ask, processes: Sequence[Process], noise: dict) -> Number:
    """Largest value over all calls of all processes."""
    samples = _in_unit(ask, (max(p.values(ask.of[0])) for p in processes))
    value = _plain(max(samples))
    return Number(ask, rounded(value, ask.rounding), value, facts=_facts(processes), samples=samples)


def _round_ratio(process: Process, above: str, below: str) -> float:
    over, under = process.by_call(above), process.by_call(below)
    if over.keys() != under.keys():
        raise Unverified(f"{process.facts[0].file}: {above} and {below} were not measured in the same rounds")
    return statistics.paired_ratio(list(over.values()), [under[call] for call in over])


def _ratio(ask: Ask, processes: Sequence[Process], noise: dict) -> Number:
    """Steady state: per process the median over rounds of the ratio within a round."""
    samples = tuple(_round_ratio(process, ask.of[0], ask.to) for process in processes)
    return _from_samples(ask, processes, samples, noise)


def _controls(ask: Ask, processes: Sequence[Process], noise: dict) -> list[statistics.Interval]:
    """The A/A control of each case that the ratio compares."""
    return [
        statistics.interval([_round_ratio(process, *pair) for process in processes], noise["confidence"])
        for pair in _control_pairs(ask)
    ]


def _interval(ask: Ask, processes: Sequence[Process], noise: dict) -> statistics.Interval:
    samples = [_round_ratio(process, ask.of[-1], ask.to) for process in processes]
    return statistics.interval(samples, noise["confidence"])


def _word(ratio: statistics.Interval, controls: Iterable[statistics.Interval], noise: dict) -> str:
    """The verdict that every control allows."""
    words = {
        statistics.verdict(ratio, control, noise["practical_threshold"], noise["minimum_processes"])
        for control in controls
    }
    if statistics.NOT_MEASURABLE in words:
        return statistics.NOT_MEASURABLE
    return words.pop() if len(words) == 1 else statistics.NO_DIFFERENCE


def _effect(
    ask: Ask, ratio: statistics.Interval, controls: Iterable[statistics.Interval], noise: dict, facts: tuple
) -> Number:
    """The smallest difference that the comparison could have resolved by every control."""
    if ratio.processes < noise["minimum_processes"]:
        return Number(ask, statistics.NOT_MEASURABLE, facts=facts)
    value = max(
        statistics.smallest_effect(ratio, control, noise["practical_threshold"]) for control in controls
    )
    return Number(ask, f"{rounded(value * 100, ask.rounding)} %", value, facts=facts)


def _verdict(ask: Ask, processes: Sequence[Process], noise: dict) -> Number:
    """The word for a steady-state ratio; where two cases are compared, the controls of both must allow it."""
    word = _word(_interval(ask, processes, noise), _controls(ask, processes, noise), noise)
    return Number(ask, word, word, facts=_facts(processes))


def _smallest_effect(ask: Ask, processes: Sequence[Process], noise: dict) -> Number:
    """Relative difference from which on the comparison could have said faster or slower."""
    ratio, controls = _interval(ask, processes, noise), _controls(ask, processes, noise)
    return _effect(ask, ratio, controls, noise, _facts(processes))


def _paired(ask: Ask, processes: Sequence[Process]) -> tuple[list[Process], list[Process]]:
    """The processes of the row's policy and those of ``against``, by replicate; one without its pair is left.

    Each process brings its own eager passes, so what the machine did between the two of a pair cancels.
    """
    others = {process.replicate: process for process in processes if process.policy == ask.against}
    ours = {process.replicate: process for process in processes if process.policy != ask.against}
    both = sorted(ours.keys() & others.keys())
    return [ours[replicate] for replicate in both], [others[replicate] for replicate in both]


def _worth(ask: Ask, processes: Sequence[Process], noise: dict) -> tuple[str, str]:
    """Whether the steady state saves anything, over processes, and the sentence that says so."""
    ratio = _interval(ask, processes, noise)
    word = _word(ratio, _controls(ask, processes, noise), noise)
    ends = "" if ratio.low is None else f" [{ratio.low:.2f}, {ratio.high:.2f}]"
    told = f"steady state {ratio.estimate:.2f}{ends} times eager"
    if ratio.processes < noise["minimum_processes"]:
        needed = noise["minimum_processes"]
        return NO_EVIDENCE, f"{told}, but of {ratio.processes} where {needed} processes are needed"
    if word == statistics.NOT_MEASURABLE:
        return NO_EVIDENCE, f"{told}, but eager differs from itself here"
    if word == statistics.FASTER:
        return PASS, f"{told}: faster"
    return FAIL, f"{told}: {word}, so no saving"


def _worth_it(ask: Ask, processes: Sequence[Process], noise: dict) -> Number:
    """The last level, which takes several processes: passes only where the steady state is faster."""
    verdict, _ = _worth(ask, processes, noise)
    return Number(ask, verdict, verdict, facts=_facts(processes))


def _worth_it_sentence(ask: Ask, processes: Sequence[Process], noise: dict) -> Number:
    """The evidence of the last level."""
    _, sentence = _worth(ask, processes, noise)
    return Number(ask, sentence, sentence, facts=_facts(processes))


def _worth_it_mechanism(ask: Ask, processes: Sequence[Process], noise: dict) -> Number:
    """The cause if the last level fails."""
    verdict, _ = _worth(ask, processes, noise)
    text = NO_SAVING if verdict == FAIL else "none"
    return Number(ask, text, text, facts=_facts(processes))


def _worth_it_verdict(ask: Ask, processes: Sequence[Process], noise: dict) -> Number:
    """The verdict on a region whose other levels pass."""
    verdict, _ = _worth(ask, processes, noise)
    text = {PASS: "every level passes", FAIL: f"{LAST_LEVEL} fails"}.get(
        verdict, f"{LAST_LEVEL} has no evidence"
    )
    return Number(ask, text, text, facts=_facts(processes))


def _control_difference(ask: Ask, processes: Sequence[Process], noise: dict) -> Number:
    """Whether the A/A control finds a difference where there is none."""
    control = _interval(ask, processes, noise)
    if control.processes < noise["minimum_processes"]:
        return Number(ask, statistics.NOT_MEASURABLE, statistics.NOT_MEASURABLE, facts=_facts(processes))
    threshold = noise["practical_threshold"]
    if control.low <= 1 <= control.high:
        word = "no"
    else:
        beyond = control.low > 1 + threshold or control.high < 1 / (1 + threshold)
        word = "yes" if beyond else f"within {threshold * 100:g} %"
    return Number(ask, word, word, facts=_facts(processes))


def _relative_samples(ask: Ask, ours: list[Process], others: list[Process]) -> tuple[float, ...]:
    ratios = ([_round_ratio(process, ask.of[0], ask.to) for process in side] for side in (ours, others))
    return tuple(above / below for above, below in zip(*ratios, strict=True))


def _unpaired(ask: Ask) -> Number:
    return absent(ask, NOT_MEASURED, (f"no replicate has a process of {ask.against} as well",))


def _relative_ratio(ask: Ask, processes: Sequence[Process], noise: dict) -> Number:
    """A policy's steady-state ratio over that of another policy, pair by pair."""
    ours, others = _paired(ask, processes)
    if not ours:
        return _unpaired(ask)
    return _from_samples(ask, [*ours, *others], _relative_samples(ask, ours, others), noise)


def _relative(
    ask: Ask, processes: Sequence[Process], noise: dict
) -> tuple[statistics.Interval, list[statistics.Interval], tuple[Fact, ...]] | None:
    """The interval over pairs, the A/A controls of both policies and the facts; None without a pair."""
    ours, others = _paired(ask, processes)
    if not ours:
        return None
    ratio = statistics.interval(_relative_samples(ask, ours, others), noise["confidence"])
    controls = [control for side in (ours, others) for control in _controls(ask, side, noise)]
    return ratio, controls, _facts([*ours, *others])


def _relative_verdict(ask: Ask, processes: Sequence[Process], noise: dict) -> Number:
    """The word for a relative ratio; the A/A controls of both policies must allow it."""
    found = _relative(ask, processes, noise)
    if found is None:
        return _unpaired(ask)
    ratio, controls, facts = found
    word = _word(ratio, controls, noise)
    return Number(ask, word, word, facts=facts)


def _relative_smallest_effect(ask: Ask, processes: Sequence[Process], noise: dict) -> Number:
    """Relative difference between two policies from which on the comparison could have said so."""
    found = _relative(ask, processes, noise)
    if found is None:
        return _unpaired(ask)
    ratio, controls, facts = found
    return _effect(ask, ratio, controls, noise, facts)


def _break_even(ask: Ask, processes: Sequence[Process], noise: dict) -> Number:
    """Calls after the first until compiling has paid for itself: the excess over the saving per call.

    Excess: first call over an eager call, less one, in eager calls, of the processes whose cache state is
    asked about. Saving: one less the steady-state ratio of the cold processes, whatever that state is: a
    warm process runs the same binaries, so it is no independent sample. ``of`` names the first call and
    the steady state, ``to`` eager's.

    The lower end takes the smallest excess and the largest saving of both t-intervals, the upper end the
    opposite: it holds wherever both intervals hold, and is wider than the two together would need. No
    saving is no break even, so only a verdict of faster gives a number.
    """
    paying = [process for process in processes if process.cache == ask.cache]
    saving = [process for process in processes if process.cache == "cold"]
    facts = tuple(
        dict.fromkeys(
            fact
            for process in (*paying, *saving)
            for name in dict.fromkeys(_required(ask, process))
            for fact in process.rows(name)
        )
    )
    ratio = _interval(ask, saving, noise)
    word = _word(ratio, _controls(ask, saving, noise), noise)
    if word == statistics.NOT_MEASURABLE or len(paying) < noise["minimum_processes"]:
        return Number(ask, statistics.NOT_MEASURABLE, statistics.NOT_MEASURABLE, facts=facts)
    if word != statistics.FASTER:
        why = NEVER_SLOWER if word == statistics.SLOWER else NEVER
        return Number(ask, why, why, facts=facts)
    firsts = [sum(p.values(ask.of[0])) / stats.median(p.values(ask.to)) for p in paying]
    told = statistics.interval(firsts, noise["confidence"])
    value, low, high = (
        max(first - 1, 0) / (1 - steady)
        for first, steady in ((told.estimate, ratio.estimate), (told.low, ratio.low), (told.high, ratio.high))
    )
    ends = f"[{rounded(low, ask.rounding)}, {rounded(high, ask.rounding)}]"
    return Number(
        ask,
        rounded(value, ask.rounding),
        value,
        tail=ends,
        low=low,
        high=high,
        facts=facts,
        estimator="excess over saving",
    )


def _smallest_cost_effect(ask: Ask, processes: Sequence[Process], noise: dict) -> Number:
    """Relative change of a compile cost that as many processes of this spread, before and after, resolve.

    The half width of the two-sample t-interval on log ratios, of two groups with the number of processes
    and the spread found here: a smaller observed change lies inside it, so it could not be told from none.
    """
    samples = [sum(process.values(ask.of[0])) for process in processes]
    if len(samples) < noise["minimum_processes"]:
        return Number(ask, statistics.NOT_MEASURABLE, facts=_facts(processes))
    value = statistics.smallest_change(samples, noise["confidence"])
    return Number(ask, f"{rounded(value * 100, ask.rounding)} %", value, facts=_facts(processes))


def _flag(ask: Ask, processes: Sequence[Process], noise: dict) -> Number:
    """Yes where the value is not 0, no where it is; both where calls or processes do not agree."""
    told = ("yes" if value else "no" for process in processes for value in process.values(ask.of[0]))
    return agreed(ask, told, _facts(processes))


def _fate(ask: Ask, processes: Sequence[Process], noise: dict) -> Number:
    """What happened to the call, as the process recorded it."""
    return agreed(ask, (fact.row.detail for p in processes for fact in p.facts), _facts(processes))


def _details(process: Process, ask: Ask) -> str:
    return "; ".join(fact.row.detail for fact in process.rows(ask.of[0]) if fact.row.detail)


def _text(ask: Ask, processes: Sequence[Process], noise: dict) -> Number:
    """The text recorded beside a value."""
    return agreed(ask, (_details(p, ask) or "none" for p in processes), _facts(processes))


def _part(index: int) -> Callable[[Ask, Sequence[Process], dict], Number]:
    """One side of a text "place | reason"; more than one break are parted by semicolons."""

    def part(ask: Ask, processes: Sequence[Process], noise: dict) -> Number:
        told = []
        for process in processes:
            pieces = [piece.split(" | ") for piece in _details(process, ask).split("; ")]
            # A reason may hold a semicolon itself; then the pieces do not pair and the whole is told.
            paired = all(len(piece) == 2 for piece in pieces)
            text = "; ".join(piece[index] for piece in pieces) if paired else _details(process, ask)
            told.append(text or "none")
        return agreed(ask, told, _facts(processes))

    return part


_FORMULAS = {
    "count": _count,
    "total": _total,
    "total ratio": _total_ratio,
    "median": _median,
    "maximum": _maximum,
    "ratio": _ratio,
    "verdict": _verdict,
    "smallest effect": _smallest_effect,
    "relative ratio": _relative_ratio,
    "relative verdict": _relative_verdict,
    "relative smallest effect": _relative_smallest_effect,
    BREAK_EVEN: _break_even,
    "smallest cost effect": _smallest_cost_effect,
    "control difference": _control_difference,
    "worth it": _worth_it,
    "worth it sentence": _worth_it_sentence,
    "worth it mechanism": _worth_it_mechanism,
    "worth it verdict": _worth_it_verdict,
    "flag": _flag,
    "fate": _fate,
    "text": _text,
    "place": _part(0),
    "reason": _part(1),
}

# Those that compare or tell times, which cold and warm processes do not have in common.
TIMES = (
    "total",
    "total ratio",
    "median",
    "ratio",
    "relative ratio",
    "smallest cost effect",
    *JUDGING,
    "control difference",
)

# Those that take one metric to another.
COMPARING = ("total ratio", "ratio", "relative ratio", "control difference", *JUDGING)

# How each is printed unless the configuration says otherwise.
ROUNDINGS = {
    "total": "3 significant",
    "total ratio": "3 significant",
    "median": "3 significant",
    "maximum": "2 scientific",
    "ratio": "2 decimals",
    "smallest effect": "1 decimals",
    "relative ratio": "2 decimals",
    "relative smallest effect": "1 decimals",
    "smallest cost effect": "1 decimals",
}
FORMULAS = (*_FORMULAS, *LEDGER_FORMULAS)
