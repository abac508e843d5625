"""Does a text still say what the evidence says? Holds each of its numbers against the run's.

A number is bound to a source by its name: `\\complab{NAME}` prints it, `<!-- complab: NAME -->` behind it in
Markdown and `% complab: NAME` at the end of its line in LaTeX annotate it.
"""

import difflib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

from complab.errors import UsageProblem, counted
from complab.report import numbers, prose
from complab.report.classes import EXIT, MISSING, STALE, UNPROVEN
from complab.report.numbers import Numbered
from complab.report.prose import Note, Prose, Statement, Written

# What became of a number, and the exit status it asks for; the highest one decides.
RIGHT, VOUCHED, UNBOUND = "right", "vouched for", "unbound"
CODES = {RIGHT: 0, VOUCHED: 0, UNBOUND: 0} | {kind: EXIT[kind] for kind in (STALE, UNPROVEN, MISSING)}
KINDS = {".md": prose.MARKDOWN, ".markdown": prose.MARKDOWN, ".tex": prose.LATEX, ".ltx": prose.LATEX}
STATUS = "exit 5 if a number says otherwise than its source, 6 if it has none, 7 if its source is not there"
FEW = 3

HELP = """How a number of a text is bound to a number of the run (figures/RUN/numbers.json lists the names):
  \\complab{NAME}             LaTeX, with \\input{figures/RUN/numbers.tex}: the number is never typed at all
  6.24 ms <!-- complab: NAME -->      Markdown: the last number before it; several names, as many numbers
  6.24 ms  % complab: NAME            LaTeX: the last number of the line
  NAME:low and NAME:high name the ends of its interval; "0.92 [0.89, 0.96]" is one number.
  complab: none              the author vouches for every other number of the line

A bound number is right if it is its source rounded as the text rounds it, in the unit the text names (s, ms,
%, x) or else the source's own; after "about" its last zeros are left open. An unbound one is looked up as
printed. Never taken for measured:
""" + "".join(f"  - {rule}\n" for rule in prose.SKIPPED)


@dataclass(frozen=True)
class Finding:
    """What became of one number of the text. ``sources`` are names; ``now`` is what the source says."""

    line: int
    column: int
    text: str
    kind: str
    told: str
    sources: tuple[str, ...] = ()
    now: str = ""

    @property
    def code(self) -> int:
        """The exit status it asks for."""
        return CODES[self.kind]


def check(path: Path, folder: Path) -> list[Finding]:
    """What became of every number of a text, held against the exhibits of a run in ``folder``; in order.

    Raises UsageProblem if the text cannot be read, is neither Markdown nor LaTeX, or the run has no numbers.
    """
    path = Path(path)
    if path.suffix.lower() not in KINDS:
        raise UsageProblem(f"{path}: is neither Markdown nor LaTeX by its name ({', '.join(KINDS)})")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageProblem(f"{path}: cannot be read as UTF-8 ({error})") from error
    return compare(prose.read(text, KINDS[path.suffix.lower()]), numbers.collect(folder))


def compare(read: Prose, known: dict[str, Numbered]) -> list[Finding]:
    """What became of every number of a text that is read, in order of their places."""
    bound, astray = _bindings(read)
    vouched = {read.place(note.start)[0] for note in read.notes if note.vouches}
    printed = _printed(known)
    found = [_macro(read, macro, known) for macro in read.macros]
    found += [_astray(read, note, name, known) for note, name in astray]
    for at, statement in enumerate(read.statements):
        line = read.place(statement.start)[0]
        if at in bound:
            kind, *told = _bound(statement, bound[at], known)
        elif line in vouched:
            kind, told = VOUCHED, ["the author vouches for it"]
        else:
            kind, *told = _unbound(statement, printed)
        found.append(_finding(read, statement.start, statement.text, kind, *told))
    return sorted(found, key=lambda finding: (finding.line, finding.column))


def _finding(
    read: Prose, at: int, text: str, kind: str, told: str, sources: Iterable[str] = (), now: str = ""
) -> Finding:
    return Finding(*read.place(at), text, kind, told, tuple(sources), now)


# Which number belongs to which name.


def _bindings(read: Prose) -> tuple[dict[int, str], list[tuple[Note, str]]]:
    """Names by the index of the number they bind, and names that have no number before them."""
    bound: dict[int, str] = {}
    astray: list[tuple[Note, str]] = []
    after = 0
    for note in read.notes:
        start = max(after, _stretch(read, note))
        before = [at for at, told in enumerate(read.statements) if start <= told.start < note.start]
        taken = before[-len(note.names) :] if note.names else []
        lacking = len(note.names) - len(taken)
        astray += [(note, name) for name in note.names[:lacking]]
        bound |= dict(zip(taken, note.names[lacking:], strict=True))
        after = note.end
    return bound, astray


def _stretch(read: Prose, note: Note) -> int:
    """Where the numbers that a note may be about begin: with its line in LaTeX, with its paragraph else."""
    before = read.text.rfind("\n" if read.kind == prose.LATEX else "\n\n", 0, note.start)
    return before + 1


def _split(name: str) -> tuple[str, str]:
    """A name and the end of the interval that is meant, if one is."""
    whole, colon, end = name.rpartition(":")
    return (whole, end) if colon and end in ("low", "high") else (name, "")


def _astray(read: Prose, note: Note, name: str, known: dict[str, Numbered]) -> Finding:
    if _split(name)[0] not in known:
        return _finding(read, note.start, name, MISSING, *_unknown(name, known))
    return _finding(read, note.start, name, UNPROVEN, "binds no number: none is left before it")


# Numbers that say where they come from.


def _macro(read: Prose, macro: prose.Macro, known: dict[str, Numbered]) -> Finding:
    source = known.get(macro.name)
    if source is None:
        return _finding(read, macro.start, macro.text, MISSING, *_unknown(macro.name, known))
    if not numbers.fields_of(source).get(macro.field):
        told = f"{macro.name} has no '{macro.field}'"
        return _finding(read, macro.start, macro.text, MISSING, told, [macro.name], _now(source))
    return _finding(read, macro.start, macro.text, RIGHT, "printed by its name", [macro.name], _now(source))


def _unknown(name: str, known: dict[str, Numbered]) -> tuple[str]:
    close = difflib.get_close_matches(name, known, 1, 0.8)
    return (f"the run has no number {name}" + (f"; is it {close[0]}?" if close else ""),)


def _bound(statement: Statement, name: str, known: dict[str, Numbered]) -> tuple:
    whole, end = _split(name)
    source = known.get(whole)
    if source is None:
        return MISSING, *_unknown(whole, known)
    worth = {"low": source.low, "high": source.high}[end] if end else source.value
    parts = [(statement.head, worth)]
    if statement.low is not None:
        parts = [(statement.head, worth)] if statement.head else []
        parts += [(statement.low, source.low), (statement.high, source.high)]
    wrong = next((why for written, value in parts if (why := _disagreement(written, value, source.unit))), "")
    if not wrong and statement.n is not None and statement.n != source.n:
        wrong = f"n is {source.n}"
    kind = STALE if wrong else RIGHT
    return kind, wrong or "as its source says", [name], _now(source)


def _disagreement(written: Written, value: float | int | str | None, unit: str) -> str:
    """What is wrong with a number whose source has a value, empty if nothing is."""
    if not isinstance(value, int | float):
        return "the source has no such number"
    told = converted(Decimal(repr(value)), unit, written.unit)
    if told is None:
        return f"the source is {f'in {unit}, ' if unit else ''}not in {written.unit}"
    return "" if agrees(written, told) else "the source says otherwise"


def converted(value: Decimal, unit: str, wanted: str) -> Decimal | None:
    """A source's value in the unit that a text names, None if it cannot be; without one it stays as it is."""
    if not wanted or wanted == unit:
        return value
    dimension, size = prose.UNITS[wanted]
    if unit:
        return value * prose.UNITS[unit][1] / size if dimension == prose.UNITS[unit][0] else None
    return value / size if dimension != "time" else None


def agrees(written: Written, value: Decimal) -> bool:
    """Whether a value, rounded as the text rounds, is the text's number; a tie may have gone either way."""
    return abs(written.number - value) * 2 <= written.last


# Numbers that do not.


@dataclass(frozen=True)
class _Printed:
    """A number of the run as its exhibit prints it; the ends of its interval are numbers of their own."""

    name: str
    number: Written
    low: Written | None
    high: Written | None
    unit: str
    source: Numbered


def _printed(known: dict[str, Numbered]) -> list[_Printed]:
    found = []
    for name, source in known.items():
        head, ends = _as_printed(source.head, source.unit), source.printed_ends
        low, high = (_as_printed(end, head.unit if head else source.unit) for end in ends)
        if head and source.is_number:
            found.append(_Printed(name, head, low, high, source.unit, source))
        for end, told in (("low", low), ("high", high)):
            if told:
                found.append(_Printed(f"{name}:{end}", told, None, None, source.unit, source))
    return found


def _as_printed(text: str, unit: str) -> Written | None:
    percent = text.endswith(" %")
    try:
        return prose.written(text.removesuffix(" %"), "%" if percent else unit)
    except (InvalidOperation, ValueError):
        return None


def _unbound(statement: Statement, printed: Sequence[_Printed]) -> tuple:
    exact = [candidate for candidate in printed if _is_printed(statement, candidate)]
    if exact:
        # Before those of another unit, which only after a conversion say the same.
        exact.sort(key=lambda candidate: candidate.number.unit != _unit(statement))
        named = [candidate.name for candidate in exact]
        return UNBOUND, _counted(named, "candidate"), named, _now(exact[0].source)
    near = [candidate for candidate in printed if _would_agree(statement, candidate)]
    told = "has no source: no number of the run is printed so"
    if near:
        named = [candidate.name for candidate in near]
        told += f"; rounded, it could be {_counted(named, 'number')}; bind it"
        return UNPROVEN, told, named, _now(near[0].source)
    return UNPROVEN, told


def _unit(statement: Statement) -> str:
    return (statement.head or statement.low).unit


def _counted(named: Sequence[str], noun: str) -> str:
    further = f" and {len(named) - FEW} more" if len(named) > FEW else ""
    return f"{counted(len(named), noun)} ({', '.join(named[:FEW])}{further})"


def _is_printed(statement: Statement, candidate: _Printed) -> bool:
    """Whether the text says what the exhibit prints, its interval included where the text has one."""
    pairs = [(statement.head, candidate.number)] if statement.head else []
    if statement.low is not None:
        pairs += [(statement.low, candidate.low), (statement.high, candidate.high)]
    return all(told is not None and _same(written, told) for written, told in pairs)


def _same(written: Written, told: Written) -> bool:
    unit = "" if told.unit == "%" else told.unit
    worth = told.number * prose.UNITS["%"][1] if told.unit == "%" else told.number
    if told.unit == "%" and not written.unit:
        return False
    return converted(worth, unit, written.unit) == written.number


def _would_agree(statement: Statement, candidate: _Printed) -> bool:
    if statement.head is None or statement.low is not None or ":" in candidate.name:
        return False
    return not _disagreement(statement.head, candidate.source.value, candidate.unit)


def _now(source: Numbered) -> str:
    """What a source says now, and where."""
    value = f", unrounded {source.value:.7g}" if isinstance(source.value, float) else ""
    text = f"{source.head} {source.unit}".strip() + (f" {source.tail}" if source.tail else "")
    return f"{text}{value} ({source.place})"


# Telling it.


def lines(path: Path, found: Iterable[Finding], verbose: bool = False) -> Iterator[str]:
    """The findings one per line: what is wrong and what is unbound; ``verbose`` adds all others."""
    for finding in found:
        if verbose or finding.kind not in (RIGHT, VOUCHED):
            now = f"; source now: {finding.now}" if finding.now else ""
            named = f" {', '.join(finding.sources)}:" if finding.kind in (RIGHT, STALE) else ""
            place = f"{path}:{finding.line}:{finding.column}"
            yield f"{place}: {finding.text}: {finding.kind}:{named} {finding.told}{now}"


def summary(path: Path, run: str, found: Sequence[Finding]) -> str:
    """How many numbers there are, and what became of them."""
    counts = Counter(finding.kind for finding in found)
    told = {
        RIGHT: "bound and right",
        STALE: "say otherwise than their source",
        MISSING: "name a source that is not there",
        UNPROVEN: "have no source",
        UNBOUND: "unbound, printed so in the run",
        VOUCHED: "vouched for by the author",
    }
    shown = ", ".join(f"{counts[kind]} {words}" for kind, words in told.items() if counts[kind])
    return f"{path}: {counted(len(found), 'number')} held against run {run}" + (f": {shown}" if shown else "")


def audit(path: Path, run: str, folder: Path, as_json: bool = False, verbose: bool = False) -> int:
    """Print what became of every number of a text; the exit status is that of the worst."""
    found = check(path, folder)
    code = max((finding.code for finding in found), default=0)
    if as_json:
        told = {
            "file": str(path),
            "run": run,
            "exit_code": code,
            "findings": [asdict(each) for each in found],
        }
        print(json.dumps(told, indent=1, ensure_ascii=False))
        return code
    for line in lines(path, found, verbose):
        print(line)
    print(summary(path, run, found))
    return code
