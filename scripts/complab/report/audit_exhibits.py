"""Do the exhibits of a run say what its evidence says? Draws every table again, by the code that draws it.

What can be drawn again is compared to the last digit: each number with its lineage, each file with its bytes.
What cannot, since the configuration changed or a cell is damaged, is recomputed number by number from the
rows that its lineage names.
"""

import contextlib
import csv
import hashlib
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from complab import bundle, evidence, staleness
from complab.config import Settings
from complab.errors import Unverified, UsageProblem, counted, one_line
from complab.report import chain, drawing, names
from complab.report import numbers as numbers_by_name
from complab.report.classes import MISSING, STALE, TAMPERED, UNPROVEN, Finding
from complab.report.names import JUDGED, LINEAGE
from complab.report.number import ABSENT
from complab.report.redrawing import Redrawing
from complab.report.tree import BUNDLE, FIGURE, Printed, Tree, printed

# Files of the exhibits' folder that its manifest does not list: itself, and what is made of all of it later.
UNLISTED = (names.MANIFEST, BUNDLE, f"{BUNDLE}.sha256")
_DIGEST = re.compile(rb"evidence sha256 ([0-9a-f]{64})")
PICTURES = tuple(f".{kind}" for kind in names.FIGURE_FORMATS)


@dataclass
class Held:
    """What was held against what, by count, and what did not fit."""

    numbers: int = 0
    absent: int = 0
    skipped: int = 0
    files: int = 0
    redrawn: int = 0
    findings: list[Finding] = field(default_factory=list)


# The files as such.


def files(tree: Tree, only: set[str] | None = None) -> Held:
    """Every exhibit file against the manifest, the manifest against what lies there.

    ``only`` restricts the look to the named exhibits.
    """
    held = Held()
    if tree.exhibits is None:
        return held
    name = f"figures/{tree.run}/{names.MANIFEST}"
    if not (tree.exhibits / names.MANIFEST).is_file():
        # Of a part of a run there is none; it is written when everything is drawn.
        kind = MISSING if only is None else UNPROVEN
        held.findings.append(Finding(name, kind, "nothing tells what the exhibits were when they were drawn"))
        return held
    try:
        manifest = tree.manifest
    except Unverified as problem:
        held.findings.append(Finding(name, TAMPERED, str(problem).partition(": ")[2]))
        return held
    text = (tree.exhibits / names.MANIFEST).read_text(encoding="utf-8")
    if text != evidence.json_text(manifest) or not _is_its_own(manifest):
        held.findings.append(Finding(name, TAMPERED, "not as it was written when the exhibits were drawn"))
    later = measured_since(tree)
    for file, entry in manifest["files"].items():
        if only is None or exhibit_of(file) in only:
            held.files += 1
            held.findings += _file(tree, file, entry, exhibit_of(file) in later)
    if only is None:
        held.findings += _strangers(tree, manifest["files"])
    return held


def _is_its_own(manifest: dict) -> bool:
    """Whether a manifest has the hash that it tells of itself; those of old tell none."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    if not {"sha256", "drawn_by", "overrides"} & manifest.keys():
        return True
    return manifest.get("sha256") == staleness.digest_of(rest)


def exhibit_of(file: str) -> str:
    """The exhibit that a file belongs to, by its name: that of an experiment, ledgers, noise or claims."""
    stem = file.partition("/")[0].partition(".")[0]
    return names.LEDGERS if stem.startswith("ledger_") else stem


def measured_since(tree: Tree) -> set[str]:
    """The experiments of which a cell was measured after the manifest was written, as the attempts tell."""
    told = tree.manifest.get("attempts")
    if not isinstance(told, dict) or drawing.attempts_so_far(tree.evidence, told.get("lines")) != told:
        return set()
    with contextlib.suppress(Unverified):
        return {str(event.get("cell")).partition("/")[0] for event in tree.attempts[told["lines"] :]}
    return set()


def _file(tree: Tree, file: str, entry: dict, later: bool) -> Iterator[Finding]:
    path = tree.exhibits / file
    name = f"figures/{tree.run}/{file}"
    if not path.resolve().is_relative_to(tree.exhibits.resolve()) or path.is_symlink():
        yield Finding(name, TAMPERED, "not a plain file of the exhibits' folder")
    elif not path.is_file():
        yield Finding(name, MISSING, "though the manifest lists it")
    elif evidence.file_entry(path) != entry:
        if later:
            told = "evidence: measured and drawn again since the manifest was written; finish the run"
            yield Finding(name, STALE, told)
        else:
            yield Finding(name, TAMPERED, "is not what was drawn, as the manifest tells")


def _strangers(tree: Tree, listed: Iterable[str]) -> Iterator[Finding]:
    known = {*listed, *UNLISTED}
    for path in sorted(tree.exhibits.rglob("*")):
        file = path.relative_to(tree.exhibits).as_posix()
        if not path.is_dir() and file not in known:
            yield Finding(
                f"figures/{tree.run}/{file}", TAMPERED, "lies among the exhibits, but no manifest lists it"
            )


def pictures(tree: Tree, only: set[str] | None = None) -> Held:
    """The digest that each figure bears against that of the evidence beside it."""
    held = Held()
    for exhibit, document in tree.lineages.items():
        if only is not None and exhibit not in only:
            continue
        for kind in PICTURES:
            path = tree.exhibits / f"{exhibit}{kind}"
            if not path.is_file():
                continue
            held.files += 1
            if embedded_digest(path.read_bytes()) != document.get("evidence_digest"):
                told = "bears the digest of other evidence than its lineage"
                held.findings.append(Finding(f"figures/{tree.run}/{path.name}", TAMPERED, told))
    return held


def embedded_digest(content: bytes) -> str:
    """The digest of the evidence that a figure was drawn from, empty if it bears none."""
    found = _DIGEST.search(content)
    return found[1].decode() if found else ""


# The numbers, and the tables they stand in.


def numbers(tree: Tree, settings: Settings | None, only: set[str] | None = None) -> Held:
    """Compute every number of the exhibits again, and draw every table again, as far as that is possible."""
    held = Held()
    try:
        wanted = [exhibit for exhibit in tree.lineages if only is None or exhibit in only]
    except Unverified as problem:
        file, _, told = str(problem).partition(": ")
        held.findings.append(Finding(file, TAMPERED, told))
        return held
    redrawing = Redrawing(tree, settings)
    if redrawing.changed:
        what = "under another configuration" if redrawing.changed == "config" else "by other code"
        told = f"{redrawing.changed}: the exhibits were drawn {what} than today's; draw them again"
        held.findings.append(Finding(f"figures/{tree.run}/{names.MANIFEST}", STALE, told))
    for exhibit in wanted:
        try:
            _hold(tree, exhibit, redrawing, held)
        except Unverified as problem:
            file, _, told = str(problem).partition(": ")
            held.findings.append(Finding(file, TAMPERED, told))
    if only is None and settings is not None and tree.exhibits is not None:
        listed = {*tree.manifest.get("files", {}), *(f"{exhibit}{LINEAGE}" for exhibit in tree.lineages)}
        for file in names.every_output(settings):
            if file.endswith(LINEAGE) and file not in listed:
                told = "config: an exhibit that the configuration asks for was not drawn"
                held.findings.append(Finding(f"figures/{tree.run}/{file}", STALE, told))
    return held


def some_numbers(tree: Tree, settings: Settings | None, several: Iterable[Printed]) -> Held:
    """Recompute a few numbers from the rows that their lineage names, and look for them in their tables."""
    held, redrawing = Held(), Redrawing(tree, settings)
    by_exhibit: dict[str, list[Printed]] = {}
    for number in several:
        by_exhibit.setdefault(number.exhibit, []).append(number)
        if all(tree.cell(file.rpartition("/")[0]).sound for file in number.files):
            name = f"figures/{tree.run}/{number.exhibit}{LINEAGE}"
            held.findings += _number(tree, name, number, {}, redrawing, held)
        else:
            held.skipped += 1
            held.findings += _cited(tree, f"figures/{tree.run}/{number.exhibit}{LINEAGE}", number)
    for exhibit, numbers_ in by_exhibit.items():
        held.findings += _printed_texts(tree, exhibit, numbers_)
    return held


def _hold(tree: Tree, exhibit: str, redrawing: Redrawing, held: Held) -> None:
    """Hold an exhibit's lineage and its files against what today's code makes of the evidence."""
    numbers_ = tree.numbers_of(exhibit)
    redrawn = redrawing.of(exhibit) if redrawing.settings is not None else None
    again = {} if redrawn is None else {key_of(each): each.told for each in printed(exhibit, redrawn.content)}
    name = f"figures/{tree.run}/{exhibit}{LINEAGE}"
    outdated = _outdated(tree, tree.lineages[exhibit])
    if outdated:
        told = f"evidence: drawn before {min(outdated).rpartition('/')[0]} was measured again; draw it again"
        held.findings.append(Finding(name, STALE, told))
    whole = not outdated
    for number in numbers_:
        if again.get(key_of(number)) == number.told:
            held.numbers += bool(number.told["rows"])
            held.absent += not number.told["rows"]
        elif outdated and (not number.files or outdated & set(number.files)):
            held.skipped += 1
        elif all(tree.cell(file.rpartition("/")[0]).sound for file in number.files):
            whole = whole and number.table == FIGURE
            held.findings += _number(tree, name, number, again, redrawing, held)
        else:
            whole = False
            held.skipped += 1
            held.findings += _cited(tree, name, number)
    if redrawn is not None:
        held.redrawn += 1
        if not outdated:
            held.findings += _rest_of_lineage(name, tree.lineages[exhibit], redrawn.content, redrawing)
        for file, text in redrawn.files.items():
            held.findings += _table_file(tree, file, text, whole, redrawing)
    elif not held.skipped:
        held.findings += _printed_texts(tree, exhibit, numbers_)


def _outdated(tree: Tree, document: dict) -> set[str]:
    """The tables of evidence that are sound, but others than those that an exhibit was drawn from."""
    several = document.get("experiments", {"": document})
    found = set()
    for told in several.values() if isinstance(several, dict) else ():
        hashes = told.get("evidence") if isinstance(told, dict) else None
        for file, digest in hashes.items() if isinstance(hashes, dict) else ():
            cell, _, name = file.rpartition("/")
            if cell in tree.cells and tree.cell(cell).sound:
                listed = tree.cell(cell).provenance["files"]
                # One that failed since has none.
                found |= {file} if listed.get(name, {"sha256": ""})["sha256"] != digest else set()
    return found


def _cited(tree: Tree, name: str, number: Printed) -> Iterator[Finding]:
    """The cells that a lineage names and the run does not have."""
    for file in number.files:
        cell = file.rpartition("/")[0]
        if cell not in tree.cells:
            yield Finding(name, MISSING, f"cites {cell}, of which there is no evidence")


def key_of(number: Printed) -> tuple[str, str, str]:
    """Where in its exhibit a number stands."""
    return number.table, number.row, number.column


def _number(
    tree: Tree, name: str, number: Printed, again: dict, redrawing: Redrawing, held: Held
) -> Iterator[Finding]:
    """A number that was not drawn again just so: do at least the rows that its lineage names give it?"""
    place = number.place.partition(", ")[2]
    if number.told["rows"]:
        held.numbers += 1
        problem = chain.compare(tree, number)
        problem = "" if problem == chain.SAME else problem
    else:
        held.absent += 1
        problem = "" if number.told["text"] in ABSENT else "printed without a row behind it"
    if problem:
        # A remark is worded by the code that draws; without a word on which did, it accuses nobody.
        reworded = redrawing.changed is None and problem.startswith("flags is ")
        kind = STALE if reworded else redrawing.kind
        yield Finding(name, kind, f"{redrawing.why(kind)}{place}: {problem}")
    elif key_of(number) in again:
        told = chain.difference(number.told, again[key_of(number)]) or "is asked otherwise than it was"
        told = told.replace("its rows give", "the evidence gives")
        # Without a word on what drew it, a table drawn by other code looks like this as well.
        kind = TAMPERED if redrawing.changed == "" else STALE
        yield Finding(name, kind, f"{redrawing.why(kind)}{place}: {told}")
    elif number.table != FIGURE and again:
        yield Finding(name, STALE, f"config: {place}: no number of the exhibit any more")


def _rest_of_lineage(name: str, document: dict, content: dict, redrawing: Redrawing) -> Iterator[Finding]:
    """What a lineage holds besides its numbers: digests, counts, verdicts."""
    for key in document.keys() | content.keys():
        told, again = document.get(key), content.get(key)
        if key == FIGURE or told == again:
            continue
        kind = TAMPERED if redrawing.changed == "" else STALE
        if key == "tables":
            lacking = [f"{table}" for table in again if table not in (told or {})]
            if lacking:
                yield Finding(name, STALE, f"config: has no table {', '.join(lacking)}")
        elif key == "claims":
            yield from _verdicts(name, told, again, kind, redrawing.why(kind))
        else:
            told = f"{redrawing.why(kind)}{key} is not what the evidence and the configuration give"
            yield Finding(name, kind, told)


def _verdicts(name: str, told: dict, again: dict, kind: str, why: str) -> Iterator[Finding]:
    for claim in sorted(told.keys() | again.keys()):
        if claim not in told or claim not in again:
            yield Finding(name, STALE, f"config: claim {claim} is in only one of register and exhibit")
            continue
        for key in ("class", "verdict", "reason"):
            if told[claim].get(key) != again[claim].get(key):
                one, other = (one_line(each[claim].get(key), 60) for each in (told, again))
                yield Finding(name, kind, f"{why}claim {claim}: {key} is {one!r}, judged again {other!r}")


# The files of tables.


def _table_file(tree: Tree, file: str, text: str, whole: bool, redrawing: Redrawing) -> Iterator[Finding]:
    """A table's file against the text that it is when drawn again, if ``whole``: if all its numbers are."""
    path = tree.exhibits / file
    found = path.read_bytes().decode("utf-8", errors="replace") if path.is_file() else text
    if found == text or not whole:
        return
    name = f"figures/{tree.run}/{file}"
    cell = _first_cell(file, found, text)
    if cell:
        yield Finding(name, TAMPERED, cell)
        return
    pairs = zip(found.split("\n"), text.split("\n"), strict=False)
    line = next((at for at, (one, other) in enumerate(pairs, start=1) if one != other), found.count("\n") + 1)
    kind = TAMPERED if redrawing.changed == "" else STALE
    yield Finding(name, kind, f"{redrawing.why(kind)}line {line} reads otherwise when it is drawn again")


def _first_cell(file: str, found: str, text: str) -> str:
    """The first cell of a table that is not the lineage's, empty if none or the table has another shape."""
    told, again = (table_cells(file, each) for each in (found, text))
    if [len(line) for line in told] != [len(line) for line in again]:
        return ""
    for one, other in zip(told, again, strict=True):
        for at, (read, computed) in enumerate(zip(one, other, strict=True)):
            if read != computed:
                where = f"row {one[0]}, column {again[0][at] if again[0] is not other else at + 1}"
                return f"{where} reads {one_line(read, 60)!r}, its lineage {one_line(computed, 60)!r}"
    return ""


def table_cells(file: str, text: str) -> list[list[str]]:
    """The cells of a table's file by line, the header among them; texts around the table are left out."""
    if file.endswith(".csv"):
        return list(csv.reader(io.StringIO(text)))
    if file.endswith(".md"):
        lines = [line for line in text.split("\n") if line.startswith("|") and not line.startswith("|-")]
        return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    lines = [line for line in text.split("\n") if line.rstrip().endswith(r"\\") and " & " in line]
    return [[cell.strip() for cell in line.rstrip()[:-2].split(" & ")] for line in lines]


def _printed_texts(tree: Tree, exhibit: str, printed: list[Printed]) -> Iterator[Finding]:
    """Where a table cannot be laid out again: does its csv hold what the lineage has, cell by cell?"""
    by_table: dict[str, list[Printed]] = {}
    for number in printed:
        by_table.setdefault(number.table, []).append(number)
    for table, several in by_table.items():
        path = tree.exhibits / f"{names.table_stem(exhibit, table)}.csv"
        if table == FIGURE or exhibit == JUDGED or not path.is_file():
            continue
        header, *lines = csv.reader(io.StringIO(path.read_text(encoding="utf-8", errors="replace"))) or [[]]
        cells = {
            (line[0], column): cell for line in lines for column, cell in zip(header, line, strict=False)
        }
        for number in several:
            told = cells.get((number.row, number.column))
            wanted = _raw(number.told)
            if told != wanted:
                where = f"row {number.row}, column {number.column}"
                words = f"{where} reads {told!r}, its lineage {one_line(wanted, 60)!r}"
                yield Finding(f"figures/{tree.run}/{path.name}", TAMPERED, words)
                break


def _raw(told: dict) -> str:
    value = told["value"]
    if value is None or isinstance(value, str):
        return "not applicable" if told["text"] == ABSENT[-1] else told["text"]
    return repr(value)


# The bundle beside the evidence.


def bundle_beside(tree: Tree, path: Path) -> Iterator[Finding]:
    """The bundle of a run against the evidence it was packed from; Unverified if it is none."""
    name = f"figures/{tree.run}/{path.name}"
    run, archive, members = bundle.examine(path)
    if run != tree.run:
        yield Finding(name, TAMPERED, f"is a bundle of run {run}")
        return
    contents = {member.filename: archive.read(member) for member in members}
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    there = {
        file.removeprefix(f"{run}/").removesuffix(f"/{evidence.PROVENANCE}")
        for file in hashes
        if file.endswith(f"/{evidence.PROVENANCE}")
    }
    others = there ^ set(tree.cells)
    for cell in sorted(there & set(tree.cells)):
        read = tree.cell(cell)
        if hashes[f"{run}/{cell}/{evidence.PROVENANCE}"] != read.digest:
            others.add(cell)
            continue
        for file, entry in (read.provenance or {"files": {}})["files"].items():
            if hashes.get(f"{run}/{cell}/{file}") != entry["sha256"]:
                yield Finding(name, TAMPERED, f"its {cell}/{file} is not what was measured")
    if others:
        told = f"{counted(len(others), 'cell')} not as in {tree.source} ({min(others)}); bundle it again"
        yield Finding(name, STALE, told)


def deep(tree: Tree, settings: Settings, scratch: Path) -> Held:
    """Every exhibit drawn again into a folder of its own, figures and pages too, and compared to the byte."""
    from complab.report import exhibits, page

    held, redrawing = Held(), Redrawing(tree, settings)
    drawn: dict[str, bytes] = {}
    for experiment in settings["experiments"]:
        with contextlib.suppress(Unverified, UsageProblem):
            paths = exhibits.draw(settings, experiment, tree.evidence.parent, scratch)
            below = scratch / settings.run
            drawn |= {path.relative_to(below).as_posix(): path.read_bytes() for path in paths}
    # A lineage that is missing or none is a finding already.
    with contextlib.suppress(Unverified, UsageProblem):
        texts = numbers_by_name.texts(settings, tree.exhibits)
        drawn |= {file: text.encode("utf-8") for file, text in texts.items()}
    if (tree.exhibits / names.PAGE).is_file():
        with contextlib.suppress(Unverified, UsageProblem):
            drawn[names.PAGE] = page.page(settings, tree).encode("utf-8")
    for file, content in drawn.items():
        held.files += 1
        beside = tree.exhibits / file
        if beside.is_file() and beside.read_bytes() != content:
            kind = TAMPERED if redrawing.changed == "" else STALE
            told = f"{redrawing.why(kind)}is another file when it is drawn again"
            held.findings.append(Finding(f"figures/{tree.run}/{file}", kind, told))
    return held
