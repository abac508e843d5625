"""Is everything that a run shows still what was measured? Asks every question, and takes the worst answer.

fresh: everything verifies and is about this checkout. stale: about other code, other settings or another
environment. unproven: whole, but something about it is not shown. missing: something listed is not there.
tampered: something is not what was written down about it.
"""

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from complab.config import Cell, Settings
from complab.errors import Problem, Unverified, counted
from complab.report import audit_evidence, audit_exhibits
from complab.report.audit_evidence import Account
from complab.report.classes import CLASSES, FRESH, MISSING, TAMPERED, Finding
from complab.report.tree import BUNDLE, Printed, Tree

# Findings of one class about one file that a person is shown.
SHOWN = 3
_COUNTS = (
    ("cells", "cell"),
    ("rows", "row"),
    ("attempts", "attempt"),
    ("ledgers", "ledger"),
    ("log_rows", "log count"),
    ("caches", "sealed cache"),
)


@dataclass
class Report:
    """What an audit of one run found. ``counts`` says how much of what was held against what."""

    run: str
    source: str
    account: Account = field(default_factory=Account)
    counts: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """The worst class of all findings."""
        return worst(finding.kind for finding in self.findings)

    def as_dict(self) -> dict:
        """The report as JSON values."""
        return {
            "run": self.run,
            "evidence": self.source,
            "class": self.verdict,
            "account": vars(self.account) | {"whole": self.account.whole},
            "counts": self.counts,
            "findings": [
                {"file": finding.file, "class": finding.kind, "told": finding.told}
                for finding in self.findings
            ],
        }


def worst(kinds: Iterable[str]) -> str:
    """The worst of some classes, fresh if there is none."""
    return max(kinds, key=CLASSES.index, default=FRESH)


@dataclass(frozen=True)
class Scope:
    """What an audit is restricted to: exhibits, cells and numbers, None for all of them.

    Only what is about whole exhibits is drawn again; of ``numbers`` each is recomputed.
    """

    exhibits: frozenset[str] | None = None
    cells: frozenset[str] | None = None
    numbers: tuple[Printed, ...] | None = None

    @classmethod
    def of(cls, numbers: Iterable[Printed]) -> "Scope":
        """The scope of a few numbers: their exhibits, and the cells they come from."""
        numbers = tuple(numbers)
        cells = frozenset(file.rpartition("/")[0] for number in numbers for file in number.files)
        return cls(frozenset(number.exhibit for number in numbers), cells, numbers)

    @property
    def whole(self) -> bool:
        """Whether it is no restriction."""
        return self.exhibits is None and self.cells is None


def audit(
    tree: Tree, deep: bool = False, scope: Scope | None = None, settings: Settings | None = None
) -> Report:
    """Everything that can be asked of a run's evidence and exhibits; nothing is written beside them.

    ``deep`` also opens the sealed caches, and draws every exhibit again, figures too. ``settings`` are
    this checkout's under what the run laid over them, if not given.
    """
    scope = scope or Scope()
    report = Report(tree.run, tree.source)
    if settings is None:
        settings, problems = audit_evidence.settings_or_finding(tree)
        report.findings += problems
    _evidence(tree, settings, scope, report)
    _exhibits(tree, settings, scope, report)
    if scope.whole:
        _beside(tree, report)
        if deep:
            _deep(tree, settings, report)
    report.findings = list(dict.fromkeys(report.findings))
    return report


def _evidence(tree: Tree, settings: Settings | None, scope: Scope, report: Report) -> None:
    paths = [path for path in tree.cells if scope.cells is None or path in scope.cells]
    planned = _planned(settings, scope)
    if settings is not None:
        report.account, findings = audit_evidence.account(tree, settings, planned)
        report.findings += findings
        if scope.whole:
            report.findings += audit_evidence.strangers(tree, planned)
            report.findings += audit_evidence.accounts(tree, settings)
    report.findings += audit_evidence.files(tree, paths)
    if settings is not None:
        report.findings += audit_evidence.stale(tree, settings, paths)
    ledgers, findings = audit_evidence.ledgers(tree, paths)
    held, more = audit_evidence.logs(tree, paths)
    made, still_more = audit_evidence.attempts_made(tree, paths, scope.whole)
    report.findings += [*findings, *more, *still_more]
    report.counts |= {
        "cells": len(paths),
        "rows": sum(len(tree.cell(path).rows) for path in paths),
        "ledgers": ledgers,
        "log_rows": held,
        "attempts": made,
    }


def _planned(settings: Settings | None, scope: Scope) -> list[Cell]:
    cells = [] if settings is None else settings.cells()
    return [cell for cell in cells if scope.cells is None or cell.path in scope.cells]


def _exhibits(tree: Tree, settings: Settings | None, scope: Scope, report: Report) -> None:
    if tree.exhibits is None:
        if scope.whole and tree.source.startswith("results/"):
            told = "no exhibits of this run; draw them"
            report.findings.append(Finding(f"figures/{tree.run}", MISSING, told))
        return
    only = None if scope.exhibits is None else set(scope.exhibits)
    files = audit_exhibits.files(tree, only)
    if scope.numbers is None:
        numbers = audit_exhibits.numbers(tree, settings, only)
    else:
        numbers = audit_exhibits.some_numbers(tree, settings, scope.numbers)
    report.findings += [*files.findings, *numbers.findings]
    if scope.whole and settings is not None and settings["subjects"]:
        # What draws is loaded only where there is something to draw.
        from complab.report import subjects

        report.findings += subjects.findings(tree, settings)
    try:
        pictures = audit_exhibits.pictures(tree, only)
        report.findings += pictures.findings
    except Unverified:
        # The lineage that cannot be read is a finding already.
        pictures = audit_exhibits.Held()
    report.counts |= {
        "numbers": numbers.numbers,
        "without_number": numbers.absent,
        "numbers_not_recomputed": numbers.skipped,
        "exhibits_redrawn": numbers.redrawn,
        "files": files.files,
        "figures": pictures.files,
    }


def _beside(tree: Tree, report: Report) -> None:
    """A bundle that lies beside evidence is read as well, and held against it."""
    path = None if tree.exhibits is None else tree.exhibits / BUNDLE
    if path is None or not path.is_file() or not tree.source.startswith("results/"):
        return
    try:
        report.findings += audit_exhibits.bundle_beside(tree, path)
    except Unverified as problem:
        report.findings.append(Finding(f"figures/{tree.run}/{BUNDLE}", TAMPERED, _without_file(problem)))


def _without_file(problem: Problem) -> str:
    return str(problem).partition(": ")[2] or str(problem)


def _deep(tree: Tree, settings: Settings | None, report: Report) -> None:
    tree.unpack()
    with tempfile.TemporaryDirectory(prefix="complab-audit-") as folder:
        count, findings = audit_evidence.sealed_caches(tree, tree.cells, Path(folder))
        report.counts["caches"] = count
        report.findings += findings
        if settings is not None and tree.exhibits is not None:
            drawn = audit_exhibits.deep(tree, settings, Path(folder))
            report.counts["files_redrawn"] = drawn.files
            report.findings += drawn.findings


def unreadable(path: Path, problem: Problem) -> Report:
    """The report on a bundle that is none."""
    told = _without_file(problem)
    return Report("", path.name, findings=[Finding(path.name, TAMPERED, told)])


# For a person.


def text_of(report: Report) -> str:
    """What was held, what does not hold, and the verdict, in this order."""
    counts = report.counts
    lines = [f"run {report.run or '?'}, evidence in {report.source}"]
    if report.account.planned:
        lines.append(f"  {report.account}")
    held = [counted(counts[key], noun) for key, noun in _COUNTS if counts.get(key)]
    lines += [f"  {', '.join(held)} verified"] if held else []
    if "numbers" in counts:
        told = f"{counted(counts['numbers'], 'number')} recomputed from rows"
        rest = counts["without_number"]
        told += f", {rest} places say why they have none" if rest else ""
        skipped = counts["numbers_not_recomputed"]
        told += f", {skipped} not, since their cells are damaged or newer" if skipped else ""
        lines.append(f"  {told}")
        lines.append(
            f"  {counted(counts['files'], 'exhibit file')} as drawn, "
            f"{counted(counts['exhibits_redrawn'], 'exhibit')} drawn again"
        )
    lines += _findings(report.findings)
    lines.append(f"{report.verdict}{'' if report.verdict == FRESH else f' ({_tally(report.findings)})'}")
    return "\n".join(lines) + "\n"


def _findings(findings: list[Finding]) -> list[str]:
    """The findings, worst first; what is said of several files, or several times of one, is told once."""
    of_what: dict[tuple[str, str], list[str]] = {}
    for finding in sorted(findings, key=lambda finding: -CLASSES.index(finding.kind)):
        of_what.setdefault((finding.kind, finding.told), []).append(finding.file)
    lines: dict[tuple[str, str], list[str]] = {}
    for (kind, told), files in of_what.items():
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        lines.setdefault((kind, files[0]), []).append(f"{kind}: {files[0]}{more}: {told}")
    found = []
    for (kind, file), several in lines.items():
        found += several[:SHOWN]
        if len(several) > SHOWN:
            found.append(f"{kind}: {file}: and {len(several) - SHOWN} more (--json has them all)")
    return found


def _tally(findings: list[Finding]) -> str:
    tally = {kind: sum(finding.kind == kind for finding in findings) for kind in reversed(CLASSES)}
    return ", ".join(f"{count} {kind}" for kind, count in tally.items() if count)
