"""What does a person point at: everything, a run, a bundle, an exhibit's file, a figure alone, or a number?

Finds the numbers that are meant, in whichever runs have them.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from complab import evidence
from complab.errors import Unverified, UsageProblem, one_line
from complab.report import names
from complab.report.audit import Report, Scope, audit, unreadable
from complab.report.audit_exhibits import PICTURES, embedded_digest, exhibit_of
from complab.report.classes import TAMPERED, UNPROVEN, Finding
from complab.report.names import LINEAGE
from complab.report.tree import BUNDLE, FIGURE, Printed, Tree

# So many matches are told with their whole chain; more are listed.
CHAINS = 3
_ENDINGS = (*(f".{kind}" for kind in names.TABLE_FORMATS), *PICTURES, ".json", ".txt")


@dataclass(frozen=True)
class Wanted:
    """What of an exhibit is asked for; empty fields do not restrict."""

    table: str = ""
    row: str = ""
    column: str = ""

    @property
    def any(self) -> bool:
        """Whether anything is asked for."""
        return bool(self.table or self.row or self.column)

    def holds(self, number: Printed) -> bool:
        """Whether a number is meant."""
        pairs = ((self.table, number.table), (self.row, number.row), (self.column, number.column))
        return all(asked in ("", found) for asked, found in pairs)


@dataclass
class Answer:
    """What was found of one run: its report, and the numbers asked for with the tree they are in."""

    tree: Tree
    report: Report
    numbers: list[Printed]


def runs(results: Path, figures: Path) -> list[str]:
    """The names of all runs of which there is evidence or an exhibit."""
    measured = {path.parents[4].name for path in Path(results).glob(f"*/*/*/*/1/{evidence.PROVENANCE}")}
    drawn = {path.parent.name for path in Path(figures).glob(f"*/{names.MANIFEST}")}
    packed = {path.parent.name for path in Path(figures).glob(f"*/{BUNDLE}")}
    return sorted(measured | drawn | packed)


def answers(
    target: str, wanted: Wanted, results: Path, figures: Path, run: str = "", deep: bool = False
) -> Iterator[Answer]:
    """The answers to a target, run by run; each run's tree lives until the next one is asked for.

    UsageProblem if nothing is meant by it.
    """
    path = Path(target) if target else None
    if path is not None and path.suffix == ".zip":
        yield from _bundle(path, deep)
    elif path is not None and path.is_file():
        yield from _file(path, wanted, results, figures)
    elif path is not None and path.is_dir() and (path / names.MANIFEST).is_file():
        yield from _runs([path.absolute().name], results, path.absolute().parent, deep)
    elif path is not None and path.is_dir() and path.absolute().parent == Path(results):
        yield from _runs([path.absolute().name], results, figures, deep)
    elif path is not None and path.suffix in _ENDINGS and not path.exists():
        raise UsageProblem(f"{target}: no such file; name an exhibit's file, a run, a bundle or a number")
    else:
        known = runs(results, figures)
        if not known and not run:
            raise UsageProblem("no run has evidence or exhibits here; measure one with: make evidence")
        if target in known or not target:
            _refuse_parts(wanted)
            chosen = [target] if target else [run] if run else known
            yield from _runs(chosen, results, figures, deep)
        else:
            yield from _number(target, wanted, [run] if run else known, results, figures)


def _refuse_parts(wanted: Wanted) -> None:
    if wanted.any:
        raise UsageProblem("--table, --row and --column are parts of an exhibit; name its file before them")


def _runs(chosen: Iterable[str], results: Path, figures: Path, deep: bool) -> Iterator[Answer]:
    for name in chosen:
        with Tree.open(name, results, figures) as tree:
            yield Answer(tree, audit(tree, deep), [])


def _bundle(path: Path, deep: bool) -> Iterator[Answer]:
    if not path.is_file():
        raise UsageProblem(f"{path}: no such bundle")
    try:
        tree = Tree.of_bundle(path)
    except Unverified as problem:
        yield Answer(Tree("", path, None), unreadable(path, problem), [])
        return
    with tree:
        yield Answer(tree, audit(tree, deep), [])


# An exhibit's file, or a figure that lies anywhere.


def _file(path: Path, wanted: Wanted, results: Path, figures: Path) -> Iterator[Answer]:
    folder = path.absolute().parent
    if folder.parent.name != "figures" and (folder.parent / names.MANIFEST).is_file():
        folder = folder.parent
    at_home = any(folder.glob(f"*{LINEAGE}"))
    if path.suffix in PICTURES and not (at_home and (folder / path.name).samefile(path)):
        yield from _figure(path, wanted, results, figures)
        return
    if not at_home:
        raise UsageProblem(f"{path}: lies beside no lineage, so it is no exhibit's file of a run")
    beside = folder.parent.parent / "results" if folder.parent.name == "figures" else results
    with Tree.open(folder.name, beside, folder.parent) as tree:
        exhibit = exhibit_of(path.relative_to(folder).as_posix() if path.is_absolute() else path.name)
        if exhibit not in tree.lineages:
            raise UsageProblem(f"{path}: no exhibit with numbers; those have a {LINEAGE.lstrip('.')}")
        if path.suffix in PICTURES:
            wanted = Wanted(wanted.table or FIGURE, wanted.row, wanted.column)
        yield _part(tree, exhibit, _of_file(path, exhibit, wanted))


def _of_file(path: Path, exhibit: str, wanted: Wanted) -> Wanted:
    """A table's file means its own table, unless another is named."""
    stem = path.name.rpartition(".")[0]
    if wanted.table or path.name.endswith(LINEAGE) or exhibit == names.JUDGED:
        return wanted
    table = stem.removeprefix(exhibit).lstrip(".") or names.MAIN_TABLE
    return Wanted(stem if stem.startswith("ledger_") else table, wanted.row, wanted.column)


def _part(tree: Tree, exhibit: str, wanted: Wanted) -> Answer:
    """An exhibit as a whole, or the numbers of it that are asked for."""
    everything = tree.numbers_of(exhibit)
    meant = [number for number in everything if wanted.holds(number)]
    if not (wanted.row or wanted.column):
        cells = frozenset(file.rpartition("/")[0] for number in everything for file in number.files)
        experiment = [path for path in tree.cells if path.partition("/")[0] == exhibit]
        scope = Scope(frozenset((exhibit,)), cells | frozenset(experiment))
        return Answer(tree, audit(tree, scope=scope), meant)
    if not meant:
        raise UsageProblem(_nothing(exhibit, everything, wanted))
    return Answer(tree, audit(tree, scope=Scope.of(meant)), meant)


def _nothing(exhibit: str, numbers: list[Printed], wanted: Wanted) -> str:
    """Which part of what was asked for the exhibit does not have, and what it has."""
    for what in ("table", "row", "column"):
        asked = getattr(wanted, what)
        known = dict.fromkeys(getattr(number, what) for number in numbers)
        if asked and asked not in known:
            return (
                f"{exhibit} has no {what} '{asked}'; it has {one_line(', '.join(filter(None, known)), 300)}"
            )
        if asked:
            numbers = [number for number in numbers if getattr(number, what) == asked]
    return f"{exhibit} has no such number"


def _figure(path: Path, wanted: Wanted, results: Path, figures: Path) -> Iterator[Answer]:
    """A figure that came from anywhere: the exhibit whose evidence it says it was drawn from."""
    content = path.read_bytes()
    digest = embedded_digest(content)
    if not digest:
        raise UsageProblem(f"{path}: bears no digest of evidence, so complab did not draw it")
    found = False
    for name in runs(results, figures):
        with Tree.open(name, results, figures) as tree:
            for exhibit, document in tree.lineages.items():
                if document.get("evidence_digest") == digest:
                    found = True
                    answer = _part(tree, exhibit, Wanted(FIGURE, wanted.row, wanted.column))
                    answer.report.findings += _as_drawn(tree, exhibit, path)
                    yield answer
    if not found:
        told = f"drawn from evidence {digest[:16]}, of which there is no run here"
        yield Answer(
            Tree("", path, None), Report("", str(path), findings=[Finding(str(path), UNPROVEN, told)]), []
        )


def _as_drawn(tree: Tree, exhibit: str, path: Path) -> list[Finding]:
    listed = tree.manifest.get("files", {}).get(f"{exhibit}{path.suffix}")
    if listed is None or evidence.file_entry(path) == listed:
        return []
    return [
        Finding(str(path), TAMPERED, f"is not the {exhibit}{path.suffix} that was drawn from that evidence")
    ]


# A number as printed.


def _number(target: str, wanted: Wanted, known: list[str], results: Path, figures: Path) -> Iterator[Answer]:
    """Every number of the runs that reads like the target; whole words first, parts if there is none."""
    found = False
    for exact in (True, False):
        for name in known:
            with Tree.open(name, results, figures) as tree:
                meant = [
                    number
                    for number in tree.numbers
                    if _reads(number, target, exact) and wanted.holds(number)
                ]
                if meant:
                    found = True
                    yield Answer(tree, audit(tree, scope=Scope.of(meant)), meant)
        if found:
            return
    told = f"'{target}': no run here, no file, and no number that reads like it in {', '.join(known)}"
    raise UsageProblem(told)


def _reads(number: Printed, target: str, exact: bool) -> bool:
    told = number.told
    texts = [
        told["text"],
        *(repr(told[key]) for key in ("value", "low", "high") if isinstance(told.get(key), float)),
    ]
    if not exact:
        return any(target in text for text in texts)
    # Not inside a longer number: 1.3 is neither 11.3 nor 1.32.
    pattern = rf"(?<![\w.]){re.escape(target)}(?![\w]|\.\d)"
    return any(re.search(pattern, text) for text in texts)


@contextlib.contextmanager
def closing(found: Iterator[Answer]) -> Iterator[Iterator[Answer]]:
    """The answers; the tree of the last one is closed in the end."""
    try:
        yield found
    finally:
        found.close()
