"""What stands on the evidence page? The run's exhibits, claims and ledgers, each number with its name.

Made of the same tables, judgements and ledgers as the other exhibits; nothing is computed here. A number
that the lineage files on disk do not have, or print otherwise, is refused: its chain could not be told.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from complab.config import Settings
from complab.errors import Unverified
from complab.measure.ledger import LEVELS
from complab.report import (
    chain,
    claims_table,
    figures,
    gather,
    ledgers,
    names,
    numbers,
    register,
    subjects,
    tables,
)
from complab.report.claims import VERDICTS, Finding, Judgement, judge
from complab.report.gather import Gathered
from complab.report.number import ABSENT, Number
from complab.report.numbers import Numbered
from complab.report.tables import Column, Table
from complab.report.tree import FIGURE, Printed, Tree
from complab.staleness import script_of

PASSED = "every level passes"
# What a row of the table of ledgers shows beside the five levels, and under them.
_LEVEL_COLUMNS = tuple(level.lower().replace(" ", "_") for level in LEVELS)
_UNDER = ("verdict", "mechanism", "evidence")
# A text of more characters is set flush left, as prose is.
_SHORT = 14


@dataclass(frozen=True)
class Link:
    """A number as the page prints it; ``name`` tells it apart from all others of the run.

    ``unit`` is empty where the heading of its column tells it.
    """

    name: str
    head: str
    tail: str = ""
    mark: str = ""
    unit: str = ""

    @property
    def absent(self) -> bool:
        """Whether it tells why there is no number."""
        return self.head in ABSENT

    @property
    def words(self) -> bool:
        """Whether it is a text of some length."""
        return len(self.head) > _SHORT and " " in self.head


class Links:
    """The numbers of the run by name; what becomes a link is noted."""

    def __init__(self, tree: Tree, settings: Settings):
        self.tree = tree
        self.numbers: dict[str, Printed] = {}
        self.files: dict[str, str] = {}
        self.linked: set[str] = set()
        self._names: dict[tuple[str, str, str, str], str] = {}
        files = [tree.exhibits / name for name in names.lineages(settings)]
        named = {_place(told): told for told in numbers.collect(tree.exhibits, files).values()}
        for file in files:
            for number in tree.numbers_of(file.name.removesuffix(names.LINEAGE)):
                told = named[_place(number)]
                self.numbers[told.name] = number
                self.files[told.name] = told.file
                self._names[_place(number)] = told.name

    def to(self, exhibit: str, table: str, row: str, column: str, number: Number | None = None) -> Link:
        """The link to a number of the lineage; ``number`` is what was drawn now from the evidence."""
        name = self._names.get((exhibit, table, row, column), "")
        if not name or (number is not None and self.numbers[name].told["text"] != number.text):
            place = ", ".join(filter(None, (table, row, column)))
            raise Unverified(
                f"figures/{self.tree.run}/{exhibit}{names.LINEAGE}: does not tell of {place} as the evidence "
                "does; draw the exhibits again"
            )
        self.linked.add(name)
        told = self.numbers[name].told
        mark = tables.MARK if told.get("flags") else ""
        if number is None:
            return Link(name, told["text"], mark=mark)
        return Link(name, number.head, number.tail, mark)

    @property
    def loose(self) -> list[str]:
        """Numbers of the lineage to which nothing on the page leads."""
        return sorted(self.numbers.keys() - self.linked)


def _place(number: Printed | Numbered) -> tuple[str, str, str, str]:
    return number.exhibit, number.table, number.row, number.column


def parts(settings: Settings, tree: Tree) -> tuple[dict, Links]:
    """Everything that the page's template prints, and the numbers that it links to."""
    if tree.exhibits is None:
        raise Unverified(f"figures/{tree.run}: no exhibits are drawn yet")
    links = Links(tree, settings)
    results = tree.evidence.parent
    gathered = {name: gather.gather(settings, name, results) for name in settings["experiments"]}
    experiments = [_experiment(links, settings, told) for told in gathered.values()]
    listed = register.load()
    judged = judge(listed, gathered)
    told = {
        "run": tree.run,
        "about": about(list(gathered.values())),
        "experiments": experiments,
        "claims": _claims(links, listed, gathered, judged),
        "ledgers": _ledgers(links, settings, list(gathered.values())),
        "noise": _noise(links, list(gathered.values())),
        "subjects": subjects.entries(settings, tree.exhibits),
    }
    return told, links


def about(gathered: list[Gathered]) -> dict:
    """The run in a few facts: what was measured, on what, when, and what became of its cells."""
    records = [record for told in gathered for record in told.records]
    first = records[0].provenance
    fingerprint = first["fingerprint"]
    found = Counter("failed" if record.failed else record.verdict for record in records)
    order = ("cold-proven", "warm-proven", "not-applicable", "indeterminate", "failed")
    codes = dict.fromkeys(chain.code_of(record.provenance["code"]) for record in records)
    known = {
        key: str(value)
        for key in ("python", "triton", "compiler", "machine", "driver")
        if (value := fingerprint.get(key)) is not None
    }
    return {
        "torch": gathered[0].torch,
        "device": gathered[0].device,
        "facts": known,
        "verdicts": [
            (verdict, found[verdict])
            for verdict in [*order, *sorted(found.keys() - set(order))]
            if found[verdict] or verdict in ("indeterminate", "failed")
        ],
        "cells": len(records),
        "rows": sum(len(record.rows) for record in records),
        "began": min(record.provenance["started"] for record in records)[:10],
        "ended": max(record.provenance["ended"] for record in records)[:10],
        "codes": list(codes),
    }


# Exhibits.


def _experiment(links: Links, settings: Settings, gathered: Gathered) -> dict:
    name = gathered.experiment
    exhibit = settings.experiment(name)["exhibit"]
    number = name.partition("_")[0].removeprefix("e")
    several = len(exhibit["tables"]) > 1
    shown = []
    for at, table in enumerate(exhibit["tables"], start=1):
        built = tables.build(gathered, settings, table)
        label = f"Table {number}.{at}" if several else f"Table {number}"
        shown.append(_table(links, gathered, built, name, label))
    return {
        "name": name,
        "number": number,
        "title": gathered.title,
        "question": question(name),
        "counts": tables.counts(gathered),
        "failures": tables.failures(gathered),
        "digest": gathered.digest[:16],
        "tables": shown,
        "figure": _figure(links, gathered, f"Figure {number}") if "figure" in exhibit else None,
        "pages": names.pages_index(name) if exhibit["trace"] else "",
        "files": [file for file in names.outputs(settings, name) if "/" not in file],
    }


def question(experiment: str) -> str:
    """The question that the experiment answers: the first line of its script."""
    path = script_of(experiment)
    told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) if path.is_file() else None
    return (told or "").partition("\n\n")[0].replace("\n", " ")


def _table(links: Links, gathered: Gathered, table: Table, exhibit: str, label: str) -> dict:
    cells = {
        key: {
            column.name: links.to(exhibit, table.name, key, column.name, row[column.name])
            for column in table.columns
        }
        for key, row in table.cells.items()
    }
    columns = table.shown
    if table.spec["transposed"]:
        header = ["", *table.cells]
        lines = [[column.label, *(row[column.name] for row in cells.values())] for column in columns]
        prose = [False] * len(header)
    else:
        header = [table.spec["rows"], *(column.label for column in columns)]
        lines = [[key, *(row[column.name] for column in columns)] for key, row in cells.items()]
        prose = [True, *(any(row[column.name].words for row in cells.values()) for column in columns)]
    return {
        "label": label,
        "caption": table.spec["caption"] or gathered.title,
        "header": header,
        "prose": prose,
        "transposed": table.spec["transposed"],
        "lines": lines,
        "of": [],
        "texts": _texts(table.columns, cells),
        "notes": tables.remarks(gathered, table),
    }


def _texts(columns: Iterable[Column], cells: Mapping[str, Mapping[str, Link]]) -> list[dict]:
    """What is too long for the table: by column each different text, with a link for each row it is of."""
    found = []
    for column in (column for column in columns if column.is_note):
        rows: dict[str, list[Link]] = {}
        for key, row in cells.items():
            link = row[column.name]
            rows.setdefault(link.head, []).append(Link(link.name, key, mark=link.mark))
        found.append({"label": column.label, "texts": list(rows.items())})
    return found


def _figure(links: Links, gathered: Gathered, label: str) -> dict:
    name = gathered.experiment
    marks = [
        Link(link.name, link.head, mark=number.row)
        for number in links.tree.numbers_of(name)
        if number.table == FIGURE
        for link in [links.to(name, FIGURE, number.row, "")]
    ]
    path = links.tree.exhibits / f"{name}.svg"
    if not path.is_file():
        raise Unverified(f"{links.tree.named(path)}: missing; draw the exhibits again")
    return {
        "label": label,
        **figures.embedded(path.read_bytes()),
        "alternative": f"{gathered.title}. {question(name)} The numbers of its marks are listed below it.",
        "marks": marks,
    }


# Claims.


def _claims(
    links: Links, listed: register.Register, gathered: Mapping[str, Gathered], judged: list[Judgement]
) -> dict:
    groups: dict[str, list[dict]] = {}
    for judgement in judged:
        groups.setdefault(judgement.claim.experiment, []).append(_claim(links, judgement))
    return {
        "chapter": listed.chapter["machine"],
        "verdicts": VERDICTS,
        "counts": claims_table.counts(judged),
        "groups": list(groups.items()),
        "notes": claims_table.notes(listed, gathered),
        "total": len(judged),
    }


def _claim(links: Links, judgement: Judgement) -> dict:
    claim = judgement.claim
    return {
        "id": claim.id,
        "experiment": claim.experiment,
        "kind": claim.kind,
        "says": claim.says,
        "chapter": claim.chapter,
        "verdict": judgement.verdict,
        "reason": judgement.reason,
        "design": bool(judgement.design),
        "checks": [
            _check(links, claim.id, str(at), finding) for at, finding in enumerate(judgement.findings, 1)
        ],
    }


def _check(links: Links, claim: str, at: str, finding: Finding) -> dict:
    told = dict(zip(("number", "other"), finding.numbers, strict=False))
    shown = [
        replace(link, unit="" if link.absent else number.ask.unit)
        for column, number in told.items()
        for link in [links.to(names.JUDGED, claim, at, column, number)]
    ]
    word = links.to(names.JUDGED, claim, at, "word", finding.word) if finding.word else None
    return {"numbers": shown, "word": word}


# Ledgers and noise.


def _ledgers(links: Links, settings: Settings, gathered: list[Gathered]) -> dict:
    table = ledgers.ledger_table(gathered)
    whole = gather.together(gathered, names.LEDGERS, "Compilation ledgers")
    told = _table(links, whole, table, names.LEDGERS, "Table L")
    columns = [column for column in table.columns if column.name not in _UNDER]
    groups: dict[str, list[dict]] = {}
    for key, cells in table.cells.items():
        experiment, _, region = key.partition("/")
        linked = {
            name: links.to(names.LEDGERS, table.name, key, name, number) for name, number in cells.items()
        }
        row = {
            "region": region or key,
            "stops": stops_at([linked[level].head for level in _LEVEL_COLUMNS]),
            "cells": [(column.name in _LEVEL_COLUMNS, linked[column.name]) for column in columns],
            "verdict": linked["verdict"],
            "mechanism": linked["mechanism"],
            "evidence": _without(linked["evidence"], linked["verdict"]),
        }
        groups.setdefault(experiment, []).append(row)
    written = [_written(links, name, entry) for name, entry in names.ledger_texts(settings).items()]
    return told | {
        "columns": [(column.name in _LEVEL_COLUMNS, column.label) for column in columns],
        "levels": LEVELS,
        "passed": PASSED,
        "groups": list(groups.items()),
        "written": written,
    }


def _without(sentence: Link, verdict: Link) -> Link:
    """The sentence without the verdict that it begins with and that stands before it."""
    return replace(sentence, head=sentence.head.removeprefix(f"{verdict.head}: "))


def stops_at(levels: list[str]) -> str:
    """The first level that does not pass, or PASSED; a level without evidence stops there too."""
    return next((name for name, told in zip(LEVELS, levels, strict=True) if told != "pass"), PASSED)


def _written(links: Links, name: str, told: dict) -> dict:
    """A ledger written out: its sections, each a list of what is told and the number."""
    table = f"ledger_{name}"
    sections: dict[str, list[tuple[str, Link]]] = {}
    for number in links.tree.numbers_of(names.LEDGERS):
        if number.table == table:
            link = links.to(names.LEDGERS, table, number.row, number.column)
            sections.setdefault(number.row, []).append((number.column, link))
    where = {key: told[key] for key in ("experiment", "policy", "case")}
    return {"title": told["title"], "file": f"{table}.txt", "sections": list(sections.items()), **where}


def _noise(links: Links, gathered: list[Gathered]) -> dict:
    whole = gather.together(gathered, names.NOISE, "Noise")
    table = ledgers.noise_table(gathered)
    told = _table(links, whole, table, names.NOISE, "Table N")
    return told | {"of": [key.partition("/")[0] for key in table.cells]}
