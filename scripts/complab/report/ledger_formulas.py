"""How does what a table says of ledgers follow from the filled ledgers of its cells?

The part of the closed set of formulas that reads ledgers instead of rows.
"""

from collections.abc import Callable

from complab.measure.ledger import FAIL, LEVELS, PASS
from complab.report.gather import Fact
from complab.report.number import DIFFER, NOT_MEASURED, NOT_REPORTED, Ask, Number, absent, agreed

LAST_LEVEL = LEVELS[-1]
# Entries of a ledger that say yes or no, though 1 or 0 stands there.
LEDGER_FLAGS = ("fullgraph_accepts",)
# Entries of a ledger's capture that only a probed cell has, and the level that they bear on.
PROBED_ENTRIES = ("graph_breaks_explain", "graphs_explain", "fullgraph_accepts")
CAPTURED = LEVELS.index("CAPTURED")
UNDECIDED = "not decided"


def _probed(ledger: dict) -> bool:
    """Whether the cell was asked what can be captured."""
    return any(not isinstance(ledger.get("capture", {}).get(entry, ""), str) for entry in PROBED_ENTRIES)


def _heard(ledgers: dict[str, dict]) -> list[dict]:
    """The ledgers that must agree on where a region stops.

    Cells of one region do not look equally closely: only the first cold one is probed. Where that one
    stops at CAPTURED, a cell that was not probed and came as far has nothing to say about it; one that
    stops before is heard.
    """
    told = list(ledgers.values())
    if not any(_probed(ledger) and _stop_place(ledger) == CAPTURED for ledger in told):
        return told
    return [ledger for ledger in told if _probed(ledger) or _stop_place(ledger) < CAPTURED]


def _stop_place(ledger: dict) -> int:
    """Place among the levels of the one that the ledger stops at, after all where it passes every one."""
    stop = _stopped_at(ledger)
    return len(LEVELS) if stop is None else LEVELS.index(stop["level"])


def _stopped_at(ledger: dict) -> dict | None:
    return next((level for level in ledger["levels"] if level["verdict"] != PASS), None)


def _first_failing_level(ask: Ask, facts: list[Fact], ledgers: dict[str, dict]) -> Number:
    """The first of the five levels that fails. One process cannot judge the last level; the verdict does."""
    stops = list(map(_stopped_at, _heard(ledgers)))
    told = ["none" if stop is None or stop["level"] == LAST_LEVEL else _level(stop) for stop in stops]
    return _with_ledgers(agreed(ask, told, tuple(facts)), ledgers)


def _level(stop: dict) -> str:
    return stop["level"] if stop["verdict"] == FAIL else f"{stop['level']} has no evidence"


def _level_evidence(ask: Ask, facts: list[Fact], ledgers: dict[str, dict]) -> Number:
    """The sentence that decided the first failing level."""
    stops = list(map(_stopped_at, _heard(ledgers)))
    told = [stop["evidence"] if stop and stop["verdict"] == FAIL else "none" for stop in stops]
    return _with_ledgers(agreed(ask, told, tuple(facts)), ledgers)


def _deciding(ledgers: dict[str, dict]) -> dict:
    """The ledger that stops at the earliest level, a failure before a lack of evidence: it speaks for all."""

    def rank(ledger: dict) -> tuple[int, bool]:
        stop = _stopped_at(ledger)
        return _stop_place(ledger), stop is not None and stop["verdict"] != FAIL

    return min(_heard(ledgers), key=rank)


def _decided(tell: Callable[[Ask, dict], str]) -> Callable[[Ask, list[Fact], dict[str, dict]], Number]:
    """A formula that tells something of the ledger that decides, flagged where the others stop elsewhere."""

    def decided(ask: Ask, facts: list[Fact], ledgers: dict[str, dict]) -> Number:
        if not ledgers:
            return absent(ask, NOT_MEASURED)
        stops = {_first_stop(ledger) for ledger in _heard(ledgers)}
        flags = ((DIFFER, ""),) if len(stops) > 1 else ()
        text = tell(ask, _deciding(ledgers)).replace("$PROJECT/", "")
        return _with_ledgers(Number(ask, text, text, facts=tuple(facts), flags=flags), ledgers)

    return decided


def _first_stop(ledger: dict) -> str:
    stop = _stopped_at(ledger)
    return "none" if stop is None else _level(stop)


def _of_level(key: str) -> Callable[[Ask, dict], str]:
    """What a ledger says of the level that is asked about."""

    def tell(ask: Ask, ledger: dict) -> str:
        return next(level[key] for level in ledger["levels"] if level["level"] == ask.of[0])

    return tell


def _stop_in_words(ask: Ask, ledger: dict) -> str:
    """Which level fails or lacks evidence."""
    stop = _stopped_at(ledger)
    if stop is None:
        return "every level passes"
    return f"{stop['level']} {'fails' if stop['verdict'] == FAIL else 'has no evidence'}"


def _mechanism_of(ask: Ask, ledger: dict) -> str:
    stop = _stopped_at(ledger)
    failed = stop is not None and stop["verdict"] == FAIL
    return (ledger.get("mechanism") or UNDECIDED) if failed else "none"


def _ledger_fact(ask: Ask, facts: list[Fact], ledgers: dict[str, dict]) -> Number:
    """One entry of the ledger, named "section/entry"; a cell that did not measure it is passed over.

    Reasons for not measuring it are not held against each other: the first cell's stands for all. Where a
    region breaks is told by explain too, so by the probed cells, if there are any.
    """
    section, _, entry = ask.of[0].partition("/")
    asked = list(ledgers.values())
    if entry == "where":
        asked = list(filter(_probed, asked)) or asked
    values = [ledger[section].get(entry, NOT_MEASURED) for ledger in asked]
    if entry in LEDGER_FLAGS:
        values = [value if isinstance(value, str) else bool(value) for value in values]
    told = list(map(_in_words, values))
    measured = [text for text in told if not text.startswith((NOT_MEASURED, NOT_REPORTED))]
    return _with_ledgers(agreed(ask, measured or told[:1], tuple(facts)), ledgers)


def _in_words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return (
            "; ".join(f"{item['kind']}: {item['guard']}, failed {item['times']}x" for item in value) or "none"
        )
    return f"{value:.4g}" if isinstance(value, float) else str(value) or "none"


def _with_ledgers(number: Number, ledgers: dict[str, dict]) -> Number:
    if not ledgers:
        return absent(number.ask, NOT_MEASURED)
    return Number(
        number.ask, number.head, number.value, facts=number.facts, flags=number.flags, ledgers=tuple(ledgers)
    )


LEDGER_FORMULAS = {
    "first failing level": _first_failing_level,
    "level evidence": _level_evidence,
    "level verdict": _decided(_of_level("verdict")),
    "level sentence": _decided(_of_level("evidence")),
    "ledger verdict": _decided(_stop_in_words),
    "ledger sentence": _decided(lambda ask, ledger: ledger["sentence"]),
    "mechanism": _decided(_mechanism_of),
    "ledger fact": _ledger_fact,
}
