"""What is one printed fact, and where does it come from?

Tables and figures take nothing but `Number`s, and a `Number` with a value cannot be made without the
evidence rows behind it. So no code path prints a number that has no lineage.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from complab.report.gather import Fact

FAILED, INDETERMINATE = "failed", "indeterminate"
NOT_MEASURED, NOT_REPORTED = "not measured", "not reported"
NOT_APPLICABLE = "\N{EN DASH}"
ABSENT = (FAILED, INDETERMINATE, NOT_MEASURED, NOT_REPORTED, NOT_APPLICABLE)

DIFFER = "processes do not agree"

FACTORS = {"": 1, "s": 1, "ms": 1000}
_ROUNDING = re.compile(r"^(\d) (decimals|significant|scientific)$")


@dataclass(frozen=True)
class Ask:
    """What is asked of the evidence: a formula of the closed set, the metrics it reads, how to print it.

    A metric may bear its case, as in `with_break.steady_compiled`. Some formulas read further metrics
    as well, `formulas.reads` tells which. ``against`` is the policy that a relative formula compares with,
    ``cache`` the state of the processes that a break even takes its cost from.
    """

    formula: str
    of: tuple[str, ...] = ()
    to: str = ""
    unit: str = ""
    rounding: str = "0 decimals"
    against: str = ""
    cache: str = ""


@dataclass(frozen=True)
class Number:
    """A fact as printed: ``head`` with its uncertainty ``tail``, and everything it was made from.

    ``value``, ``low``, ``high`` and ``samples`` (one per process, in order of the cells) are in ``unit``
    and unrounded. ``value`` is None where there is no number to tell; ``head`` then says why, and
    ``because`` names the cells or facts to blame. ``flags`` are remarks for the reader, each a rule and
    how it was broken. ``ledgers`` names ledger files that were read besides the rows.
    """

    ask: Ask
    head: str
    value: float | int | str | None = None
    tail: str = ""
    low: float | None = None
    high: float | None = None
    facts: tuple[Fact, ...] = ()
    samples: tuple[float, ...] = ()
    flags: tuple[tuple[str, str], ...] = ()
    ledgers: tuple[str, ...] = ()
    estimator: str = ""
    because: tuple[str, ...] = ()

    def __post_init__(self):
        if not self.facts and self.head not in ABSENT:
            raise ValueError(f"{self.head!r} is to be printed but has no evidence row behind it")

    @property
    def text(self) -> str:
        """The whole text, uncertainty included."""
        return f"{self.head} {self.tail}" if self.tail else self.head

    @property
    def processes(self) -> int:
        """Measured processes it comes from."""
        return len({fact.file for fact in self.facts})


def absent(ask: Ask, why: str, because: tuple[str, ...] = ()) -> Number:
    """What stands where there is no number: one of ABSENT, with the cells or facts that are to blame."""
    return Number(ask, why, because=because)


def agreed(ask: Ask, told: Iterable[str], facts: tuple[Fact, ...]) -> Number:
    """What calls or processes tell alike, as text; flagged, with all that is told, where they differ."""
    texts = list(dict.fromkeys(text.replace("$PROJECT/", "") for text in told))
    flags = ((DIFFER, ""),) if len(texts) > 1 else ()
    text = " / ".join(texts)
    return Number(ask, text, text, facts=facts, flags=flags)


def rounded(value: float, rounding: str) -> str:
    """The value as printed under a rounding: "2 decimals", "3 significant" or "2 scientific".

    Significant digits never become an exponent, and no digit before the point is dropped.
    """
    digits, kind = _ROUNDING.match(rounding).groups()
    if kind == "decimals":
        return f"{value:.{digits}f}"
    if kind == "scientific":
        return f"{value:.{digits}e}"
    if value == 0:
        return "0"
    magnitude = int(f"{abs(value):.{int(digits) - 1}e}".split("e")[1])
    return f"{value:.{max(0, int(digits) - 1 - magnitude)}f}"
