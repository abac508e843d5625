"""Which evidence does one table cell or one mark of a figure stand on?

Says why there is no number where there is none: the measurement failed, its cache state was not proven,
nothing was recorded, the release does not report it, or the question does not apply.
"""

from dataclasses import dataclass, replace
from operator import attrgetter

from complab import once
from complab.errors import UsageProblem
from complab.evidence import LEDGER, Record
from complab.report import formulas
from complab.report.gather import Fact, Gathered
from complab.report.number import (
    FAILED,
    INDETERMINATE,
    NOT_APPLICABLE,
    NOT_MEASURED,
    NOT_REPORTED,
    Ask,
    Number,
    absent,
)

_BY_LINE = attrgetter("line")
CACHES = {
    "any": ("none", "cold", "warm"),
    "compiled": ("cold", "warm"),
    "cold-or-none": ("none", "cold"),
    "none": ("none",),
    "cold": ("cold",),
    "warm": ("warm",),
}


@dataclass(frozen=True)
class Where:
    """A corner of an experiment's evidence; ``cache`` is a key of CACHES, empty fields do not restrict."""

    policy: str = ""
    cache: str = "any"
    case: str = ""
    call: int | None = None
    capability: str = ""

    def holds(self, record: Record) -> bool:
        """Whether the cell lies in this corner."""
        return self.policy in ("", record.cell.policy) and record.cell.cache in CACHES[self.cache]


def find(gathered: Gathered, ask: Ask, where: Where, whole: Where | None = None) -> Number:
    """The number that answers ``ask`` from the evidence in ``where``.

    ``whole`` is the corner that must have been measured without a failure, so that a row of a table is
    not drawn from those of its cells that happen to be left; it is ``where`` if not given. Every cell must
    have what is asked, but for what `once` names: that the first replicate must have.
    """
    scopes = [
        [record for record in gathered.records if corner.holds(record)] for corner in _corners(ask, where)
    ]
    if not all(scopes) or scopes[0][0].cell.policy == ask.against:
        return absent(ask, NOT_APPLICABLE)
    for scope in scopes:
        _refuse_mixture(ask, scope)
    needed = [record for scope in scopes for record in scope]
    failed = [record for record in gathered.failed if (whole or where).holds(record) or record in needed]
    if failed:
        return absent(ask, FAILED, tuple(record.cell.path for record in failed))
    for scope in scopes:
        if not any(record.determinate for record in scope):
            return absent(ask, INDETERMINATE, tuple(record.cell.path for record in scope))
    usable = [record for record in needed if record.determinate]
    if where.capability and not _reported(usable[0], where.capability):
        return absent(ask, NOT_REPORTED, (f"this torch release has no {where.capability}",))
    found = {record.cell.path: _facts(gathered, record, ask, where) for record in usable}
    facts = [fact for several in found.values() for fact in several]
    asked = _asked(ask, where, facts)
    silent = [record for record in usable if not found[record.cell.path]]
    lacking = [record.cell.path for record in silent if not _may_lack(record, asked)]
    if lacking or not facts:
        told = () if len(lacking) == len(found) else tuple(f"not in {path}" for path in lacking)
        return absent(ask, NOT_MEASURED, told)
    telling = [record for record in usable if record not in silent]
    return formulas.evaluate(ask, facts, gathered.noise, _ledgers(gathered, telling, ask, where))


def _corners(ask: Ask, where: Where) -> list[Where]:
    """Where the formula reads: some compare what is in ``where`` with what is in another corner."""
    if ask.formula in formulas.RELATIVE:
        if not ask.against:
            raise UsageProblem(f"'{ask.formula}' compares policies; name the other one with against")
        return [where, replace(where, policy=ask.against)]
    if ask.formula == formulas.BREAK_EVEN:
        if ask.cache != where.cache or ask.cache not in ("cold", "warm"):
            raise UsageProblem(f"'{ask.formula}' is of one cache state; name cold or warm with cache")
        return [where] if ask.cache == "cold" else [where, replace(where, cache="cold")]
    return [where]


def _refuse_mixture(ask: Ask, scope: list[Record]) -> None:
    """A number is of one policy, and a time of one cache state: a mean over both would be of neither."""
    policies = sorted({record.cell.policy for record in scope})
    caches = sorted({record.cell.cache for record in scope})
    if len(policies) > 1:
        raise UsageProblem(
            f"'{ask.formula}' would mix policies {', '.join(policies)}; name one in the exhibit"
        )
    if ask.formula in formulas.TIMES and len(caches) > 1:
        raise UsageProblem(
            f"'{ask.formula}' of {policies[0]} would mix {' and '.join(caches)} processes; name one state"
        )


def _reported(record: Record, capability: str) -> bool:
    return bool(record.provenance["environment"].get("capabilities", {}).get(capability))


def _asked(ask: Ask, where: Where, facts: list[Fact]) -> set[tuple[str, str]]:
    """Cases and metrics a question is about; one about a ledger is about all that the case has anywhere."""
    if formulas.reads(ask) is formulas.EVERYTHING:
        return {(fact.row.case, fact.row.metric) for fact in facts}
    named = (name.rpartition(".") for name in formulas.named(ask))
    return {(case or where.case, metric) for case, _, metric in named}


def _may_lack(record: Record, asked: set[tuple[str, str]]) -> bool:
    """Whether all that is asked of the cell was to be asked in another replicate only."""
    policy, replicate = record.cell.policy, record.cell.replicate
    return bool(asked) and all(once.may_lack(replicate, policy, case, metric) for case, metric in asked)


def _facts(gathered: Gathered, record: Record, ask: Ask, where: Where) -> list[Fact]:
    by_metric = gathered.facts[record.cell.path]
    wanted = formulas.reads(ask)
    if wanted is formulas.EVERYTHING and where.case and where.call is None:
        return gathered.whole_case(record, where.case)
    names = by_metric if wanted is formulas.EVERYTHING else wanted
    # A metric may bear its own case; then the row's does not apply.
    cases = {name.rpartition(".")[0] for name in (*ask.of, ask.to) if "." in name} or {where.case}
    found = []
    for name in names:
        by_case = by_metric.get(name, {})
        for case in by_case if "" in cases else cases & by_case.keys():
            found += by_case[case]
    if where.call is not None:
        found = [fact for fact in found if fact.row.call == where.call]
    return sorted(found, key=_BY_LINE)


def _ledgers(gathered: Gathered, records: list[Record], ask: Ask, where: Where) -> dict[str, dict]:
    if formulas.reads(ask) is not formulas.EVERYTHING:
        return {}
    regions = {f"{record.cell.path}/{LEDGER}": gathered.ledger(record).get(where.case) for record in records}
    return {} if None in regions.values() else regions
