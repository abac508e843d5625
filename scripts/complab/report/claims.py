"""Does what the chapter says hold here?

Each claim of the register is judged from verified evidence and gets one of four verdicts:

- *holds* and *differs* only from numbers with evidence rows behind them; a `Finding` with any of the
  two cannot be made without.
- *not comparable*: measured, but it neither supports nor contradicts the claim. The chapter's number is
  of another device, release or model size, the run lacks what the claim needs, or noise hides whether
  there is a difference.
- *not measured*: there is no number. Its cells failed, could not prove their cache state, are not in
  the configuration, or the release does not report it.

A claim of several parts differs if one part does, and holds only if all do.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from complab.errors import UsageProblem, counted
from complab.report import formulas, statistics
from complab.report.gather import Fact, Gathered
from complab.report.number import ABSENT, NOT_APPLICABLE, Ask, Number, rounded
from complab.report.register import CLAIMS_FILE, ORDINAL, STRUCTURAL, TIMING, Check, Claim, Register
from complab.report.selection import Where, find

HOLDS, DIFFERS, NOT_COMPARABLE, NOT_MEASURED = VERDICTS = (
    "holds",
    "differs",
    "not comparable",
    "not measured",
)

# Rows that stand only where the event took place: their absence is no sign of a misspelt claim.
EVENTS = (*formulas.FATES, "recompiles", "limit_hit")
# Rows that stand only where the configuration asks for the probe.
OF_PROBES = {"explain_graphs": "explain", "explain_breaks": "explain", "fullgraph_accepts": "fullgraph"}


@dataclass(frozen=True)
class Finding:
    """What one check of a claim came to.

    ``numbers`` are the answer and, where two are compared, the other; ``word`` is the verdict on a steady
    state that the answer was judged by.
    """

    check: Check
    numbers: tuple[Number, ...]
    verdict: str
    reason: str
    word: Number | None = None

    def __post_init__(self):
        told = [*self.numbers, *([self.word] if self.word else [])]
        baseless = not self.numbers or any(not number.facts or number.head in ABSENT for number in told)
        if self.verdict not in VERDICTS or (self.verdict in (HOLDS, DIFFERS) and baseless):
            raise ValueError(f"{self.check.ask}: '{self.verdict}' has no evidence row behind it")

    @property
    def measured(self) -> str:
        """The answer with its unit, and the other."""
        return " against ".join(_with_unit(told) for told in self.numbers)

    @property
    def asked(self) -> str:
        """What was asked, in the names of the evidence."""
        ask, where = self.check.ask, self.check.where
        corner = [where.policy, where.case, "" if where.call is None else f"call {where.call}"]
        return f"{', '.join(ask.of) or ask.formula} of {', '.join(part for part in corner if part)}"


def _with_unit(number: Number) -> str:
    unit = "" if number.head in ABSENT else number.ask.unit
    return " ".join(part for part in (number.head, unit, number.tail) if part)


@dataclass(frozen=True)
class Judgement:
    """A claim with its findings, none where its experiment is not in the configuration.

    ``design`` says why the release measured is bound to differ, empty where that does not explain it.
    """

    claim: Claim
    findings: tuple[Finding, ...]
    design: str = ""

    @property
    def verdict(self) -> str:
        """The verdict of the decisive finding."""
        return self.decisive.verdict if self.decisive else NOT_MEASURED

    @property
    def decisive(self) -> Finding | None:
        """The first finding that keeps the claim from holding, or the first of all."""
        for verdict in (DIFFERS, NOT_MEASURED, NOT_COMPARABLE):
            for finding in self.findings:
                if finding.verdict == verdict:
                    return finding
        return self.findings[0] if self.findings else None

    @property
    def measured(self) -> str:
        """What was measured here: the answers of all checks, the same one told once."""
        told = dict.fromkeys(finding.measured for finding in self.findings)
        return "; ".join(told) or NOT_APPLICABLE

    @property
    def reason(self) -> str:
        """Why the verdict is what it is, for a difference whether the release explains it."""
        if self.decisive is None:
            return f"{self.claim.experiment} is not in the configuration"
        if self.verdict == HOLDS:
            return "; ".join(dict.fromkeys(finding.reason for finding in self.findings))
        told = self.decisive.reason
        if len({(finding.verdict, finding.reason) for finding in self.findings}) > 1:
            told = f"{self.decisive.asked}: {told}"
        if self.verdict != DIFFERS:
            return told
        return f"{told}. {f'By design: {self.design}' if self.design else 'Unexplained'}"


def judge(register: Register, evidence: Mapping[str, Gathered]) -> list[Judgement]:
    """Every claim judged; ``evidence`` is that of the configured experiments by name.

    UsageProblem names a claim that asks for a metric or a case that the evidence does not know.
    """
    return [_judgement(register, claim, evidence.get(claim.experiment)) for claim in register.claims]


def _judgement(register: Register, claim: Claim, gathered: Gathered | None) -> Judgement:
    if gathered is None:
        return Judgement(claim, ())
    unmet = _unmet_need(register, claim, gathered)
    if not unmet:
        for check in claim.checks:
            _refuse_unknown_evidence(claim, check, gathered)
    try:
        findings = tuple(_finding(register, claim, check, gathered, unmet) for check in claim.checks)
    except UsageProblem as problem:
        raise UsageProblem(f"{CLAIMS_FILE.name}: {claim.id}: {problem}") from problem
    since, why = claim.differs_since or ("", "")
    bound = since and _release(gathered) >= tuple(map(int, since.split(".")))
    return Judgement(claim, findings, f"since torch {since}, {why}" if bound else "")


def _release(gathered: Gathered) -> tuple[int, ...]:
    """The release without its build: 2.13.0+cpu becomes (2, 13, 0)."""
    return tuple(int(part) for part in _version(gathered).split(".") if part.isdecimal())


def _version(gathered: Gathered) -> str:
    return gathered.torch.partition("+")[0]


def _unmet_need(register: Register, claim: Claim, gathered: Gathered) -> str:
    """Why this evidence cannot judge the claim whatever it says, empty if it can."""
    measured = gathered.provenance["config"]
    needs = claim.needs
    limit = needs.get("recompile_limit", measured["recompile_limit"])
    if measured["recompile_limit"] != limit:
        return f"needs a recompile limit of {limit}; measured under {measured['recompile_limit']}"
    if "stream" in needs:
        wanted, first = register.chapter["streams"][needs["stream"]], needs.get("first")
        if measured["settings"].get("lengths", [])[:first] != wanted[:first]:
            return f"needs the chapter's stream of {len(wanted)} requests"
    if needs.get("device", measured["device"]) != measured["device"]:
        return f"needs {needs['device']}; measured on {measured['device']}"
    if claim.kind == STRUCTURAL:
        return ""
    for part, sizes in register.sizes(claim.experiment).items():
        for name, size in sizes.items():
            if measured[part].get(name) != size:
                return f"needs {name} {size}; measured with {measured[part].get(name)}"
    return ""


def _refuse_unknown_evidence(claim: Claim, check: Check, gathered: Gathered) -> None:
    """Whole and right evidence has every metric and case there is; one it lacks does not exist.

    A failed or unproven cell, a wrong output (which is not timed) or a probe that was not asked for may
    well lack some. So may a release that does not report it, which the claim must then say.
    """
    if len(gathered.determinate) < len(gathered.records) or "capability" in claim.needs:
        return
    if not gathered.correct:
        return
    asked_for = gathered.provenance["config"]["probes"]
    metrics, cases = gathered.vocabulary
    metrics = metrics | set(EVENTS)
    metrics |= {metric for metric, probe in OF_PROBES.items() if probe not in asked_for}
    cases = cases | {""}
    for ask, where in check.questions:
        if not any(where.holds(record) for record in gathered.records):
            continue
        names = [*ask.of, *([ask.to] if ask.to else [])]
        asked = {name.rpartition(".")[2] for name in names}
        told = {where.case, *(name.rpartition(".")[0] for name in names)}
        for what, unknown in (("metric", asked - metrics), ("case", told - cases)):
            if unknown:
                raise UsageProblem(
                    f"{CLAIMS_FILE.name}: {claim.id}: no cell of {claim.experiment} has a {what} "
                    f"'{min(unknown)}'; correct the claim"
                )


def _finding(register: Register, claim: Claim, check: Check, gathered: Gathered, unmet: str) -> Finding:
    numbers = tuple(_number(gathered, claim, ask, where) for ask, where in check.questions)
    missing = next((number for number in numbers if number.head in ABSENT), None)
    if missing is not None:
        why = "; ".join([_why_absent(missing), *([unmet] if unmet else [])])
        return Finding(check, numbers, NOT_MEASURED, why)
    if unmet:
        return Finding(check, numbers, NOT_COMPARABLE, unmet)
    return _JUDGES[check.kind](Matter(register, claim, check, gathered, numbers))


def _number(gathered: Gathered, claim: Claim, ask: Ask, where: Where) -> Number:
    return find(gathered, ask, replace(where, capability=claim.needs.get("capability", "")))


def _why_absent(number: Number) -> str:
    if number.head == NOT_APPLICABLE:
        return "the configuration has no such cell"
    return f"{number.head}: {', '.join(number.because)}" if number.because else f"{number.head} in its cells"


@dataclass(frozen=True)
class Matter:
    """What an operator judges: a check whose numbers are there and whose needs are met."""

    register: Register
    claim: Claim
    check: Check
    gathered: Gathered
    numbers: tuple[Number, ...]

    def finding(self, verdict: str, reason: str, word: Number | None = None) -> Finding:
        """The outcome."""
        return Finding(self.check, self.numbers, verdict, reason, word)

    @property
    def noise(self) -> dict:
        return self.gathered.noise


# Structural: what every process must say.


def _structural(matter: Matter) -> Finding:
    check = matter.check
    told = [_tellings(matter.gathered, number) for number in matter.numbers]
    if check.operator == "equals other":
        fits = [len({number.head for number in matter.numbers}) == 1 and not any(map(_split, matter.numbers))]
    elif check.operator == "more than other":
        fits = [value > max(told[1]) for value in told[0]]
    else:
        fits = [_FITS[check.operator](value, check.wanted) for value in told[0]]
    reason = f"expected {_EXPECTED[check.operator]}{check.wanted}".strip()
    if any(fits) and not all(fits):
        reason += f", so in {sum(fits)} of {len(fits)} processes"
    return matter.finding(HOLDS if all(fits) else DIFFERS, reason)


_EXPECTED = {
    "equals": "",
    "is": "",
    "at least": "at least ",
    "at most": "at most ",
    "contains": "a text with ",
    "equals other": "the same",
    "more than other": "more than the other",
}
_FITS = {
    "equals": lambda value, wanted: value == wanted,
    "at least": lambda value, wanted: value >= wanted,
    "at most": lambda value, wanted: value <= wanted,
    "is": lambda value, wanted: value == wanted,
    "contains": lambda value, wanted: wanted in str(value),
}


def _split(number: Number) -> bool:
    return any(rule == formulas.DIFFER for rule, _ in number.flags)


def _tellings(gathered: Gathered, number: Number) -> list:
    """What each process says; one telling where all say the same."""
    if number.samples:
        return list(number.samples)
    if not _split(number):
        return [number.value]
    if number.ask.formula in formulas.LEDGER_FORMULAS:
        return str(number.value).split(" / ")
    by_file: dict[str, list[Fact]] = {}
    for fact in number.facts:
        by_file.setdefault(fact.file, []).append(fact)
    return [formulas.evaluate(number.ask, facts, gathered.noise).value for facts in by_file.values()]


# Timing: a number of one machine. It stands beside ours always; only the same machine can judge it.


def _timing(matter: Matter) -> Finding:
    number, chapter = matter.numbers[0], matter.register.chapter
    if not _same_machine(chapter, matter.gathered):
        return matter.finding(
            NOT_COMPARABLE,
            f"the chapter's is of {chapter['gpu']}, torch {chapter['torch']}; "
            f"here {matter.gathered.device}, torch {matter.gathered.torch}",
        )
    if len(number.samples) < matter.noise["minimum_processes"]:
        return matter.finding(NOT_COMPARABLE, _too_few(matter, number))
    factor = number.value / matter.check.wanted
    allowed = matter.register.rules["time_factor"]
    near = 1 / allowed <= factor <= allowed
    return matter.finding(HOLDS if near else DIFFERS, f"{factor:.2f} times the chapter's")


def _same_machine(chapter: dict, gathered: Gathered) -> bool:
    gpus = gathered.provenance["gpu"]
    name = gpus[0].get("name") if isinstance(gpus, list) and gpus else None
    device = gathered.provenance["config"]["device"]
    return (device, name, _version(gathered)) == (chapter["device"], chapter["gpu"], chapter["torch"])


def _too_few(matter: Matter, number: Number) -> str:
    least = matter.noise["minimum_processes"]
    return f"{counted(len(number.samples), 'process')}; an interval needs {least}"


# Ordinal: what the interval of a ratio excludes.


def _ordinal(matter: Matter) -> Finding:
    """Holds or differs only as far as the interval says so; what it leaves open is not comparable.

    A claimed difference is contradicted by the opposite one and by an interval that leaves no room for
    a difference worth the name. The same is contradicted by a resolved difference, and holds only if
    the whole interval is close to 1: not having seen a difference is not having seen none.
    """
    few = [n for n in matter.numbers if len(n.samples) < matter.noise["minimum_processes"]]
    if few:
        return matter.finding(NOT_COMPARABLE, _too_few(matter, few[0]))
    if matter.check.operator != "ratio":
        low, high = _quotient(matter)
        return _resolved(matter, _WORDS[matter.check.operator], low, high, None)
    number = matter.numbers[0]
    word = _steady_word(matter) if number.ask.formula in _STEADY else None
    if word is not None and word.head in (*ABSENT, statistics.NOT_MEASURABLE):
        why = "the A/A control is missing, or finds a difference where there is none"
        return matter.finding(NOT_COMPARABLE, why)
    return _resolved(matter, matter.check.wanted, number.low, number.high, word)


def _steady_word(matter: Matter) -> Number:
    """The verdict on a steady state, which knows its noise floor."""
    formula = _STEADY[matter.check.ask.formula]
    ask = replace(matter.check.ask, formula=formula, rounding="0 decimals")
    return _number(matter.gathered, matter.claim, ask, matter.check.where)


def _quotient(matter: Matter) -> tuple[float, float]:
    """The widest interval of the one over the other: they come from processes of their own."""
    one, other = (statistics.interval(n.samples, matter.noise["confidence"]) for n in matter.numbers)
    return one.low / other.high, one.high / other.low


def _resolved(matter: Matter, claimed: str, low: float, high: float, word: Number | None) -> Finding:
    threshold = 1 + matter.noise["practical_threshold"]
    faster, slower = high < 1 / threshold, low > threshold
    if word is not None:
        faster, slower = word.head == statistics.FASTER, word.head == statistics.SLOWER
    not_faster, not_slower = low >= 1 / threshold, high <= threshold
    near = 1 + matter.register.rules["same_within"]
    same = 1 / near <= low and high <= near and not (faster or slower)
    holds, contradicted = {
        "faster": (faster, not_faster),
        "slower": (slower, not_slower),
        "same": (same, faster or slower),
        "not faster": (not_faster, faster),
        "not slower": (not_slower, slower),
    }[claimed]
    verdict = HOLDS if holds else DIFFERS if contradicted else NOT_COMPARABLE
    found = statistics.FASTER if faster else statistics.SLOWER if slower else statistics.NO_DIFFERENCE
    told = f"{found}: {_short(math.sqrt(low * high))} [{_short(low)}, {_short(high)}]"
    return matter.finding(verdict, told, word)


def _short(ratio: float) -> str:
    return f"{ratio:.2f}" if 0.1 <= ratio < 10 else rounded(ratio, "3 significant")


# The word for a steady-state ratio, by the formula of the ratio.
_STEADY = {"ratio": "verdict", "relative ratio": "relative verdict"}
_WORDS = {"below other": "faster", "above other": "slower", "same as other": "same"}
_JUDGES = {STRUCTURAL: _structural, ORDINAL: _ordinal, TIMING: _timing}
