"""What is each number of a run called, so that prose can take it by name instead of copying it?

Read from the lineage files of the run's exhibits and nothing else. Written twice: `numbers.json` for
programs, `numbers.tex` for LaTeX, where `\\complab{NAME}` prints a number.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from complab.config import Settings
from complab.errors import Unverified, UsageProblem
from complab.report import names, placing
from complab.report.escaping import latex
from complab.report.number import NOT_APPLICABLE

VERSION = 1
FIGURE, CELLS, NOISE_RULE, COUNT = "figure", "cells", "noise", "count"
RUN = "run"
_HEAD = re.compile(r"(?P<head>.+?)(?: (?P<tail>\[(?P<low>[^,\]]+), (?P<high>[^\]]+)\]|\(n = \d+\)))?")
_BETWEEN = re.compile(rf"(\d+(?:\.\d+)?){NOT_APPLICABLE}(\d+(?:\.\d+)?)")
# How the exhibits tell a fraction of the evidence rules: in percent.
_PERCENT = ("confidence", "practical_threshold", "spread_warning")


@dataclass(frozen=True)
class Numbered:
    """A number of the run under its name.

    ``text`` is what the exhibit prints, its uncertainty included; ``head`` the number alone, ``tail`` its
    interval or count of processes. ``value``, ``low`` and ``high`` are unrounded and in ``unit``; ``value``
    is None where there is none, ``text`` then says why, and it is a text where the fact is one. ``n`` counts
    the processes. ``table``, ``row`` and ``column`` tell where it stands in ``exhibit``; a mark of the figure
    is a row of the table "figure". ``file`` is what a reader would open. ``entry`` is its lineage; what is
    counted from the exhibit itself, like the cells, has none.
    """

    name: str
    exhibit: str
    table: str
    row: str
    column: str
    file: str
    text: str
    value: float | int | str | None
    unit: str = ""
    low: float | None = None
    high: float | None = None
    n: int = 0
    digest: str = ""
    entry: dict | None = field(default=None, compare=False, repr=False)

    @property
    def is_number(self) -> bool:
        """Whether its value can be computed with."""
        return isinstance(self.value, int | float)

    @property
    def head(self) -> str:
        """The number as printed, without its uncertainty."""
        return self._parts("head") if self.is_number else self.text

    @property
    def tail(self) -> str:
        """Its interval, or the number of processes where they are too few for one."""
        return self._parts("tail") if self.is_number else ""

    @property
    def printed_ends(self) -> tuple[str, str]:
        """The ends of its interval as printed, empty if it has none."""
        if not self.is_number:
            found = _BETWEEN.fullmatch(self.text)
            return found.groups() if found else ("", "")
        return self._parts("low"), self._parts("high")

    @property
    def place(self) -> str:
        """Where it stands, for a reader."""
        if self.table == FIGURE:
            return f"{self.file}, mark {self.row}"
        where = [self.file] + ([] if self.table in (names.MAIN_TABLE, self.row) else [self.table])
        return ", ".join([*where, f"row {self.row}", *([f"column {self.column}"] if self.column else [])])

    def _parts(self, part: str) -> str:
        return _HEAD.fullmatch(self.text).group(part) or ""


def name_of(*parts: str) -> str:
    """The name of a number that stands where ``parts`` say: letters, digits and ``_ - /``, joined by dots."""
    return ".".join(re.sub(r"[^A-Za-z0-9_/-]+", "-", part).strip("-") or "-" for part in parts)


def lineage_files(folder: Path) -> list[Path]:
    """The lineage files of a run's exhibits: experiments by number, then what is about all of them."""

    def order(path: Path) -> tuple:
        stem = path.name.removesuffix(names.LINEAGE)
        together = [names.LEDGERS, names.NOISE, names.JUDGED]
        digits = re.findall(r"\d+", stem)
        return (together.index(stem) if stem in together else -1, int(digits[0]) if digits else 0, stem)

    return sorted(Path(folder).glob(f"*{names.LINEAGE}"), key=order)


def collect(folder: Path, files: Iterable[Path] | None = None) -> dict[str, Numbered]:
    """Every number of the exhibits in ``folder`` by name, in order of the exhibits.

    ``files`` are the lineage files to read, by default all in the folder. Raises UsageProblem if there are
    none or two numbers would bear one name, Unverified if a file is none.
    """
    found: dict[str, Numbered] = {}
    for path in lineage_files(folder) if files is None else files:
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            listed = list(_claims(told) if "claims" in told else _exhibit(told))
        except FileNotFoundError as error:
            raise UsageProblem(f"{path}: is missing; draw the exhibits first") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unverified(f"{path}: not a lineage file ({error!r}); draw the exhibits again") from error
        for number in listed:
            other = found.setdefault(number.name, number)
            if other is not number:
                raise UsageProblem(
                    f"{number.name}: two numbers would have this name ({other.place}; {number.place}); "
                    "rename a row or a column"
                )
    if not found:
        raise UsageProblem(f"{folder}: has no numbers; draw the exhibits first")
    return found


def _exhibit(told: dict) -> Iterator[Numbered]:
    exhibit, digest = told["experiment"], told["evidence_digest"]
    together = exhibit in (names.LEDGERS, names.NOISE)
    for table, rows in told["tables"].items():
        # Of the tables about all experiments the region is name enough.
        front = [exhibit] if together and table == names.MAIN_TABLE else [exhibit, table]
        file = f"{table}.txt" if together and table != names.MAIN_TABLE else _table_file(exhibit, table)
        for row, cells in rows.items():
            for column, entry in cells.items():
                place = (exhibit, table, row, column, file)
                yield _numbered(name_of(*front, row, column), place, entry, digest)
    for mark, entry in told["figure"].items():
        place = (exhibit, FIGURE, mark, "", f"{exhibit}.png")
        yield _numbered(name_of(exhibit, FIGURE, mark), place, entry, digest)
    if exhibit != names.NOISE:
        yield from _cells(told)
    else:
        yield from _noise(told)


def _table_file(exhibit: str, table: str) -> str:
    return f"{names.table_stem(exhibit, table)}.csv"


def _cells(told: dict) -> Iterator[Numbered]:
    """How many processes the exhibit stands on; the ledgers stand on all of the run."""
    exhibit = told["experiment"]
    front = RUN if exhibit == names.LEDGERS else exhibit
    for key, cells in told["cells"].items():
        count = cells if isinstance(cells, int) else len(cells)
        place = (exhibit, CELLS, key, "", f"{exhibit}{names.LINEAGE}")
        yield Numbered(name_of(front, CELLS, key), *place, str(count), count, digest=told["evidence_digest"])


def _noise(told: dict) -> Iterator[Numbered]:
    """By which rules an interval was made and a difference resolved."""
    exhibit = told["experiment"]
    for key, value in told["noise"].items():
        text = f"{value * 100:g} %" if key in _PERCENT else f"{value:g}"
        place = (exhibit, NOISE_RULE, key, "", f"{exhibit}{names.LINEAGE}")
        yield Numbered(name_of(RUN, NOISE_RULE, key), *place, text, value, digest=told["evidence_digest"])


def _claims(told: dict) -> Iterator[Numbered]:
    digests = {name: about["evidence_digest"] for name, about in told["experiments"].items()}
    for claim, judged in told["claims"].items():
        for at, check in enumerate(judged["checks"], 1):
            # A claim that gets a second check keeps the name of its first number.
            front = [names.JUDGED, claim, *([str(at)] if at > 1 else [])]
            for column in (key for key in ("number", "other", "word") if key in check):
                entry = check[column]
                experiment = next(iter(entry["rows"]), "").partition("/")[0]
                name = name_of(*front, *([column] if column != "number" else []))
                place = (names.JUDGED, claim, str(at), column, f"{names.JUDGED}.csv")
                yield _numbered(name, place, entry, digests.get(experiment, ""))
    yield from _verdicts(told["claims"])


def _verdicts(claims: dict) -> Iterator[Numbered]:
    """How many claims there are, of each verdict, and of each class and verdict."""
    counts = Counter({(): len(claims)})
    for judged in claims.values():
        counts.update([(judged["verdict"],), (judged["class"],), (judged["class"], judged["verdict"])])
    for key, count in sorted(counts.items(), key=lambda item: (len(item[0]), item[0])):
        place = (names.JUDGED, COUNT, " ".join(key) or "all", "", f"{names.JUDGED}.csv")
        yield Numbered(name_of(names.JUDGED, COUNT, *(key or ("all",))), *place, str(count), count)


def _numbered(name: str, place: tuple, entry: dict, digest: str) -> Numbered:
    text, value, low, high = entry["text"], entry["value"], entry.get("low"), entry.get("high")
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value):
        value = int(value)
    between = _BETWEEN.fullmatch(text) if value is None else None
    if between:
        low, high = (float(end) if "." in end else int(end) for end in between.groups())
    n = len(entry.get("per_process", ())) or entry["n_processes"]
    return Numbered(name, *place, text, value, entry["unit"], low, high, n, digest, entry)


def to_json(run: str, numbers: dict[str, Numbered]) -> str:
    """The numbers as JSON text, one per line."""
    lines = [
        f"  {json.dumps(name)}: {json.dumps(_told(number), ensure_ascii=False, allow_nan=False)}"
        for name, number in numbers.items()
    ]
    return (
        f'{{\n "numbers_version": {VERSION},\n "run": {json.dumps(run)},\n "numbers": {{\n'
        + ",\n".join(lines)
        + "\n }\n}\n"
    )


def _told(number: Numbered) -> dict:
    told = {
        "text": number.text,
        "value": number.value,
        "unit": number.unit,
        "low": number.low,
        "high": number.high,
        "n": number.n,
        "exhibit": number.file,
        "table": number.table,
        "row": number.row,
        "column": number.column,
        "evidence_digest": number.digest,
    }
    return {key: value for key, value in told.items() if value is not None or key == "value"}


# A name is looked up as it was typed, whatever a package made of its characters. One that is not there
# stops a careful run of LaTeX, and stands out on the page of a careless one.
_MACROS = r"""% Numbers of run @RUN@, made from the lineage of its exhibits: do not edit, draw them again.
%   \complab{NAME}            the number as its exhibit prints it
%   \complab[FIELD]{NAME}     FIELD: text (with its uncertainty), interval, low, high, unit, n
\makeatletter
\DeclareRobustCommand{\complab}[2][number]{%
  \ifcsname complab@#1@\detokenize{#2}\endcsname
    \csname complab@#1@\detokenize{#2}\endcsname
  \else
    \PackageError{complab}{No '#1' of a number '\detokenize{#2}' in run @RUN@}{See numbers.json.}%
    \textbf{??\texttt{\detokenize{#2}}??}%
  \fi}
\def\complab@field#1#2#3{%
  \if\relax\detokenize{#3}\relax\else\expandafter\gdef\csname complab@#1@\detokenize{#2}\endcsname{#3}\fi}
% \complab@set{name}{number}{text}{interval}{low}{high}{unit}{n}
\def\complab@set#1#2#3#4#5#6#7#8{%
  \complab@field{number}{#1}{#2}\complab@field{text}{#1}{#3}\complab@field{interval}{#1}{#4}%
  \complab@field{low}{#1}{#5}\complab@field{high}{#1}{#6}\complab@field{unit}{#1}{#7}%
  \complab@field{n}{#1}{#8}}
"""
FIELDS = ("number", "text", "interval", "low", "high", "unit", "n")


def to_tex(run: str, numbers: dict[str, Numbered]) -> str:
    """The numbers as LaTeX macros that need no package."""
    lines = []
    for name, number in numbers.items():
        fields = [latex(" ".join(text.split())) for text in fields_of(number).values()]
        lines.append(f"\\complab@set{{{name}}}" + "".join(f"{{{text}}}" for text in fields))
    return _MACROS.replace("@RUN@", run) + "\n".join(lines) + "\n\\makeatother\n"


def fields_of(number: Numbered) -> dict[str, str]:
    """What `\\complab[FIELD]{NAME}` prints, by field of FIELDS; empty what the number does not have."""
    low, high = number.printed_ends
    interval = number.tail if low and number.is_number else ""
    n = str(number.n) if number.n else ""
    fields = (number.head, number.text, interval, low, high, number.unit, n)
    return dict(zip(FIELDS, fields, strict=True))


def write(settings: Settings, figures: Path) -> list[Path]:
    """Name the numbers of every exhibit of the settings' run, in its folder below ``figures``."""
    folder = Path(figures) / settings.run
    return placing.place(texts(settings, folder), folder)


def texts(settings: Settings, folder: Path) -> dict[str, str]:
    """The files that name the numbers of the exhibits in ``folder``."""
    found = collect(folder, [folder / name for name in names.lineages(settings)])
    return dict(zip(names.NUMBERS, (to_json(settings.run, found), to_tex(settings.run, found)), strict=True))
