"""Which rows and which formula made this number? And do they still make it?

Every table cell and every mark of a figure has an entry: its formula with what the formula was asked,
the evidence rows by file and line, and the result. `recompute` needs nothing else.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from complab import evidence
from complab.errors import Unverified
from complab.report import formulas
from complab.report.gather import Fact, Gathered
from complab.report.number import Ask, Number

VERSION = 1

# The numbers of a table by row key and column.
Cells = dict[str, dict[str, Number]]


def ranges(lines: Iterable[int]) -> list[str]:
    """Line numbers as text, runs drawn together: 2, 3, 4, 9 become "2-4", "9"."""
    found: list[str] = []
    first = last = 0
    for line in [*sorted(set(lines)), -1]:
        if line != last + 1:
            if first:
                found.append(str(first) if first == last else f"{first}-{last}")
            first = line
        last = line
    return found


def lines_of(texts: Iterable[str]) -> list[int]:
    """The line numbers that `ranges` wrote."""
    found: list[int] = []
    for text in texts:
        first, _, last = text.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def entry(number: Number) -> dict:
    """One number's lineage as JSON values."""
    by_file: dict[str, list[int]] = {}
    for file, facts in groupby(number.facts, attrgetter("file")):
        by_file.setdefault(file, []).extend(fact.line for fact in facts)
    told = {
        "value": number.value,
        "text": number.text,
        "formula": number.ask.formula,
        "of": list(number.ask.of),
        "to": number.ask.to,
        "unit": number.ask.unit,
        "rounding": number.ask.rounding,
        "rows": {file: ranges(lines) for file, lines in by_file.items()},
        "n_processes": number.processes,
    }
    further = {
        "against": number.ask.against,
        "cache": number.ask.cache,
        "low": number.low,
        "high": number.high,
        "per_process": list(number.samples),
        "estimator": number.estimator,
        "ledgers": list(number.ledgers),
        "flags": [": ".join(filter(None, flag)) for flag in number.flags],
        "because": list(number.because),
    }
    return told | {key: value for key, value in further.items() if value not in (None, [], "")}


def document(gathered: Gathered, tables: dict[str, Cells], marks: dict[str, Number]) -> str:
    """The lineage file of one exhibit, as JSON text; ``tables`` holds the cells of each by name.

    Rows and columns stand in the order of the table, so keys are not sorted.
    """
    return json_text(content(gathered, tables, marks))


def content(gathered: Gathered, tables: dict[str, Cells], marks: dict[str, Number]) -> dict:
    """What the lineage file of one exhibit holds."""
    return {
        "lineage_version": VERSION,
        "run": gathered.run,
        "experiment": gathered.experiment,
        "title": gathered.title,
        "evidence_digest": gathered.digest,
        "evidence": gathered.hashes,
        "environment": gathered.provenance["fingerprint"],
        "code_digest": gathered.provenance["code"]["digest"],
        "noise": gathered.noise,
        "cells": {
            "planned": len(gathered.records),
            "measured": len(gathered.determinate),
            "failed": [record.cell.path for record in gathered.failed],
            "indeterminate": [record.cell.path for record in gathered.indeterminate],
        },
        "tables": {name: {key: _entries(row) for key, row in rows.items()} for name, rows in tables.items()},
        "figure": _entries(marks),
    }


def json_text(value: object) -> str:
    """JSON as lineage files have it, keys in the order given."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _entries(numbers: dict[str, Number]) -> dict[str, dict]:
    return {name: entry(number) for name, number in numbers.items()}


def recompute(told: dict, noise: dict, results: Path) -> Number:
    """The number of a lineage entry, from the rows it names below ``results`` and nothing else.

    An entry without rows (failed, not measured, ...) has nothing to compute and comes back as absent.
    """

    def facts(file: str) -> list[Fact]:
        path = Path(results) / file
        rows = evidence.csv_to_rows(path.read_text(encoding="utf-8"), path)
        return [Fact(row, file, line) for line, row in enumerate(rows, start=2)]

    def regions(file: str) -> dict:
        return json.loads((Path(results) / file).read_text(encoding="utf-8"))["regions"]

    return recomputed(told, noise, facts, regions)


def ask_of(told: dict) -> Ask:
    """What the number of a lineage entry was asked."""
    return Ask(
        told["formula"],
        tuple(told["of"]),
        told["to"],
        told["unit"],
        told["rounding"],
        told.get("against", ""),
        told.get("cache", ""),
    )


def recomputed(
    told: dict, noise: dict, facts: Callable[[str], Sequence[Fact]], regions: Callable[[str], dict]
) -> Number:
    """The number of a lineage entry, from all facts of a file and all ledgers of one, by the file's name.

    Unverified if a row it names is not there.
    """
    used = [fact for file, lines in told["rows"].items() for fact in _named(facts(file), file, lines)]
    case = used[0].row.case if used else ""
    ledgers = {file: regions(file)[case] for file in told.get("ledgers", [])}
    return formulas.evaluate(ask_of(told), used, noise, ledgers)


def _named(facts: Sequence[Fact], file: str, lines: list[str]) -> list[Fact]:
    """The facts on the lines that `ranges` wrote; the header is line 1."""
    found: list[Fact] = []
    for text in lines:
        first, _, last = text.partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal() and 2 <= int(first) <= int(last) < len(facts) + 2):
            raise Unverified(f"{file}: has no row on line {text}")
        found += facts[int(first) - 2 : int(last) - 1]
    return found
