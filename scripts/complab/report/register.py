"""What does the chapter say that a measurement can judge, and from which evidence?

Reads `workflow/claims.yaml` into questions for the evidence (`Ask`, `Where`) with what each claim
expects of the answer. A claim that names something unknown is refused with its name.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import yaml

from complab import config
from complab.errors import UsageProblem
from complab.report import formulas
from complab.report.number import Ask
from complab.report.selection import Where

CLAIMS_FILE = config.PROJECT / "workflow" / "claims.yaml"
SCHEMA_FILE = config.PROJECT / "workflow" / "schemas" / "claims.schema.yaml"

STRUCTURAL, ORDINAL, TIMING = CLASSES = ("structural", "ordinal", "timing")
OPERATORS = {
    STRUCTURAL: ("equals", "at least", "at most", "is", "contains", "equals other", "more than other"),
    ORDINAL: ("ratio", "below other", "above other", "same as other"),
    TIMING: ("about",),
}
_COUNTS = ("count", "maximum")
_TEXTS = ("flag", "fate", "text", "place", "reason", *formulas.LEDGER_FORMULAS)
_TIMES = ("total", "total ratio", "median", "ratio")
# Formulas whose answers an operator can judge; any, where it is not listed.
JUDGES = {
    "equals": _COUNTS,
    "at least": _COUNTS,
    "at most": _COUNTS,
    "more than other": _COUNTS,
    "is": _TEXTS,
    "contains": _TEXTS,
    "ratio": ("ratio", "total ratio", "relative ratio"),
    "below other": _TIMES,
    "above other": _TIMES,
    "same as other": _TIMES,
    "about": (*_TIMES, "maximum"),
}


@dataclass(frozen=True)
class Check:
    """One question, and what the claim expects of the answer: ``operator`` with what it is ``wanted``.

    ``other`` is the second question where two answers are compared.
    """

    ask: Ask
    where: Where
    operator: str
    wanted: float | str = ""
    other: tuple[Ask, Where] | None = None

    @property
    def kind(self) -> str:
        """The class of statement that the operator judges."""
        return next(kind for kind, operators in OPERATORS.items() if self.operator in operators)

    @property
    def questions(self) -> list[tuple[Ask, Where]]:
        """Both questions, or the one."""
        return [(self.ask, self.where), *([self.other] if self.other else [])]


@dataclass(frozen=True)
class Claim:
    """One statement of the chapter; ``says`` is in our words, ``chapter`` is the chapter's value."""

    id: str
    experiment: str
    kind: str
    says: str
    chapter: str
    checks: tuple[Check, ...]
    needs: dict
    differs_since: tuple[str, str] | None


@dataclass(frozen=True)
class Register:
    """All claims, with the chapter's machine and the names that claims may use."""

    chapter: dict
    rules: dict
    vocabulary: dict
    claims: tuple[Claim, ...]

    def sizes(self, experiment: str) -> dict[str, dict[str, int]]:
        """What an experiment's times depend on: the `settings` and, where it matters, the `workload`."""
        entry = self.vocabulary["experiments"][experiment]
        sizes = {"settings": entry.get("settings", {})}
        return sizes | ({"workload": self.chapter["workload"]} if entry.get("workload", True) else {})


class _UniqueKeys(config.LOADER):
    """A second entry of the same key would silently replace the first and its claims."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise yaml.YAMLError(f"'{twice[0]}' stands twice in one place, near line {node.start_mark.line}")
        return super().construct_mapping(node, deep)


def load(path: Path = CLAIMS_FILE) -> Register:
    """The register in a file; UsageProblem, one line naming file and claim, for anything invalid."""
    try:
        given = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageProblem(f"{path}: cannot be read as YAML: {' '.join(str(error).split())}") from error
    return resolve(given, path.name)


def resolve(given: object, where: str = CLAIMS_FILE.name) -> Register:
    """The register of a claims file's values."""
    schema = config.read_yaml(SCHEMA_FILE)
    if not jsonschema.Draft202012Validator(schema).is_valid(given):
        of_claim = {"$ref": "#/$defs/claim", "$defs": schema["$defs"]}
        for place, entry in _entries(given):
            config.validate(entry, of_claim, f"{where}: {place}")
        config.validate(given, schema, where)
    claims = []
    for experiment, entries in given["claims"].items():
        _known(where, "experiment", experiment, given["vocabulary"]["experiments"])
        claims += [_claim(given, experiment, entry, f"{where}: {entry['id']}") for entry in entries]
    ids = [claim.id for claim in claims]
    if twice := [name for name in ids if ids.count(name) > 1]:
        raise UsageProblem(f"{where}: {twice[0]}: two claims have this id; give one of them another")
    return Register(given["chapter"], given["rules"], given["vocabulary"], tuple(claims))


def _entries(given: object) -> Iterable[tuple[str, dict]]:
    """The claims that can be told apart before the file as a whole is known to be sound."""
    groups = given.get("claims") if isinstance(given, dict) else None
    for experiment, entries in groups.items() if isinstance(groups, dict) else ():
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            named = isinstance(entry, dict) and isinstance(entry.get("id"), str)
            yield entry["id"] if named else f"claims.{experiment}[{index}]", entry


def _claim(given: dict, experiment: str, entry: dict, place: str) -> Claim:
    further = [{**entry["judged"], **each} for each in entry.get("also", [])]
    first = {**entry["judged"], "expect": entry["expect"]}
    checks = tuple(_check(given, experiment, each, place) for each in (first, *further))
    if not entry["id"].startswith(f"{experiment.partition('_')[0]}-"):
        raise UsageProblem(f"{place}: stands under {experiment}; its id must begin with that number")
    softest = max((check.kind for check in checks), key=CLASSES.index)
    if softest != entry["class"]:
        told = f"is called {entry['class']}, but its operators judge what is {softest}"
        raise UsageProblem(f"{place}: {told}")
    stream = entry.get("needs", {}).get("stream")
    if stream is not None:
        _known(place, "stream", stream, given["chapter"]["streams"])
    since = entry.get("differs_since")
    return Claim(
        entry["id"],
        experiment,
        entry["class"],
        entry["says"],
        entry["chapter"],
        checks,
        entry.get("needs", {}),
        (since["torch"], since["why"]) if since else None,
    )


def _check(given: dict, experiment: str, entry: dict, place: str) -> Check:
    (operator, wanted), *_ = entry["expect"].items()
    ask, where = _question(given, experiment, entry, place)
    compared = isinstance(wanted, dict)
    other = _question(given, experiment, {**entry, **wanted}, place) if compared else None
    check = Check(ask, where, operator, "" if compared else wanted, other)
    for formula in (ask.formula for ask, _ in check.questions):
        if formula not in JUDGES.get(operator, (formula,)):
            raise UsageProblem(f"{place}: '{operator}' judges {', '.join(JUDGES[operator])}, not '{formula}'")
    return check


def _question(given: dict, experiment: str, entry: dict, place: str) -> tuple[Ask, Where]:
    """What a claim asks and where; every name it uses must be known."""
    vocabulary, formula = given["vocabulary"], entry["formula"]
    names = vocabulary["experiments"][experiment]
    of = [entry["of"]] if isinstance(entry.get("of"), str) else entry.get("of", [])
    to = entry.get("to", "")
    _known(place, "formula", formula, formulas.FORMULAS)
    if formula in formulas.LEDGER_FORMULAS and (of or to):
        raise UsageProblem(f"{place}: '{formula}' reads a whole case and no metric")
    if formula not in formulas.LEDGER_FORMULAS and not of:
        raise UsageProblem(f"{place}: '{formula}' needs a metric; add of")
    if (formula in formulas.COMPARING) != bool(to):
        raise UsageProblem(f"{place}: '{formula}' {'takes no' if to else 'needs a'} metric to compare with")
    for name in (*of, *([to] if to else [])):
        case, _, metric = name.rpartition(".")
        _known(place, "metric", metric, vocabulary["metrics"])
        if case:
            _known(place, "case", case, names["cases"])
    if entry.get("case"):
        _known(place, "case", entry["case"], names["cases"])
    against = entry.get("against", "")
    if (formula in formulas.RELATIVE) != bool(against):
        told = "takes no" if against else "needs another"
        raise UsageProblem(f"{place}: '{formula}' {told} policy to compare with (against)")
    if against:
        _known(place, "policy", against, names["policies"])
    policy = entry.get("policy", names["policies"][0] if len(names["policies"]) == 1 else "")
    _known(place, "policy", policy, names["policies"])
    rounding = entry.get("rounding") or formulas.ROUNDINGS.get(formula, "0 decimals")
    ask = Ask(formula, tuple(of), to, entry.get("unit", ""), rounding, against)
    return ask, Where(policy, entry.get("cache", "any"), entry.get("case", ""), entry.get("call"))


def _known(place: str, what: str, name: str, names: Iterable[str]) -> None:
    names = list(names)
    if name in names:
        return
    guess = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean '{guess[0]}'?" if guess else f"known: {', '.join(names)}"
    raise UsageProblem(f"{place}: unknown {what} '{name}'; {hint}")
