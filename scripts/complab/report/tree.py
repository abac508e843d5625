"""Where do a run's evidence and exhibits lie, and what numbers do they print?

A `Tree` is one run: the folder of its evidence, or the bundle that stands for it, and the folder of its
exhibits. Every cell is read and verified once, every table of evidence parsed once; whoever asks again gets
the same. Nothing is written but a bundle's content, to a folder that is removed with the tree.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from complab import attempts, bundle, evidence
from complab.config import Cell
from complab.errors import Unverified, UsageProblem, one_line
from complab.report import names, reading
from complab.report.gather import Fact
from complab.report.reading import MALFORMED, Read

FIGURE = "figure"
BUNDLE = "bundle.zip"
# Depth of the files that a bundle has beside its cells: attempts, their logs, what it tells of the run.
SHALLOW = 3


@dataclass(frozen=True)
class Printed:
    """A number as an exhibit prints it: where it stands, and what its lineage tells of it.

    ``table`` is "figure" for a mark of the figure, whose name is the row. Of the claims the table is the
    claim's id, the row the number of the check, and the column number, other or word.
    """

    exhibit: str
    table: str
    row: str
    column: str
    told: dict
    noise: dict

    @property
    def place(self) -> str:
        """Where it stands, in words."""
        if self.table == FIGURE:
            return f"{self.exhibit}, figure, mark {self.row}"
        if self.exhibit == names.JUDGED:
            return f"{self.exhibit}, {self.table}, check {self.row}, {self.column}"
        return f"{self.exhibit}, table {self.table}, row {self.row}, column {self.column}"

    @property
    def files(self) -> list[str]:
        """The tables of evidence it comes from, below the run's folder."""
        return list(self.told["rows"])


class Tree:
    """One run's evidence and exhibits; use it in a `with` block, which removes what a bundle left."""

    def __init__(self, run: str, evidence_folder: Path, exhibits: Path | None, source: str = ""):
        self.run = run
        self.evidence = Path(evidence_folder)
        self.exhibits = None if exhibits is None else Path(exhibits)
        # How the folder of evidence is called in findings.
        self.source = source or f"results/{run}"
        # What a bundle tells of the run beside its cells, nothing of a folder of results.
        self.facts_of_bundle: dict = {}
        # A bundle's files by where they would be unpacked, None for a folder of results.
        self._packed: dict[Path, bytes] | None = None
        self._temporary: tempfile.TemporaryDirectory | None = None
        self._read: dict[str, Read] = {}
        self._facts: dict[str, list[Fact]] = {}

    @classmethod
    def open(cls, run: str, results: Path, figures: Path) -> "Tree":
        """The run's evidence below ``results``, or else its bundle below ``figures``, and its exhibits.

        UsageProblem if there is neither.
        """
        exhibits = Path(figures) / run
        kept = exhibits if exhibits.is_dir() else None
        if (Path(results) / run).is_dir():
            return cls(run, Path(results) / run, kept)
        if (exhibits / BUNDLE).is_file():
            return cls.of_bundle(exhibits / BUNDLE)
        if kept is not None:
            return cls(run, Path(results) / run, kept)
        raise UsageProblem(
            f"run '{run}' has neither evidence nor exhibits; measure it, or name another with --run"
        )

    @classmethod
    def of_bundle(cls, path: Path) -> "Tree":
        """The run in a bundle, with the exhibits beside it if they are its own; Unverified if it is none."""
        path = Path(path)
        run, archive, members = bundle.examine(path)
        beside = path.absolute().parent
        exhibits = beside if beside.name == run and (beside / names.MANIFEST).is_file() else None
        temporary = tempfile.TemporaryDirectory(prefix="complab-bundle-")
        folder = Path(temporary.name)
        tree = cls(run, folder / run, exhibits, f"{path.name}:{run}")
        tree._temporary = temporary
        tree._packed = {folder / member.filename: archive.read(member) for member in members}
        for file in tree._packed:
            if file.name == evidence.CACHE_MANIFEST or len(file.relative_to(folder).parts) <= SHALLOW:
                tree._unpack(file)
        tree.facts_of_bundle = bundle.facts(folder) or {}
        return tree

    def unpack(self) -> None:
        """Write out all that a bundle holds: what draws figures and pages reads files."""
        for file in self._packed or ():
            self._unpack(file)

    def _unpack(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(self._packed[file])

    @cached_property
    def _folders(self) -> dict[Path, list[str]]:
        """The names of a bundle's files by folder."""
        found: dict[Path, list[str]] = {}
        for file in self._packed or ():
            found.setdefault(file.parent, []).append(file.name)
        return found

    def content(self, path: Path) -> bytes | None:
        """The bytes of a file of evidence, None if there is none; OSError if it is no plain file."""
        if self._packed is not None:
            return self._packed.get(path)
        if path.is_symlink():
            raise OSError("not a plain file of the cell")
        return path.read_bytes() if path.is_file() else None

    def files_in(self, folder: Path) -> list[str]:
        """The names of what lies in a cell's folder."""
        if self._packed is not None:
            return sorted(self._folders.get(folder, ()))
        return sorted(os.listdir(folder))

    def __enter__(self) -> "Tree":
        return self

    def __exit__(self, *_raised) -> None:
        self.close()

    def close(self) -> None:
        """Remove what was unpacked."""
        if self._temporary is not None:
            self._temporary.cleanup()

    def named(self, path: Path) -> str:
        """A file as findings call it."""
        if path.is_relative_to(self.evidence):
            return f"{self.source}/{path.relative_to(self.evidence).as_posix()}"
        if self.exhibits is not None and path.is_relative_to(self.exhibits):
            return f"figures/{self.run}/{path.relative_to(self.exhibits).as_posix()}"
        return str(path)

    # Evidence.

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """Every cell of which the run has a folder, by its path, in order."""
        found = {}
        if self._packed is not None:
            folders = {folder for folder in self._folders if folder.is_relative_to(self.evidence)}
        else:
            folders = {folder for folder in self.evidence.glob("*/*/*/*") if folder.is_dir()}
        for folder in sorted(folders):
            if folder.name.isdecimal() and folder.parent.name in ("none", "cold", "warm"):
                cell = evidence.cell_of(folder)
                found[cell.path] = cell
        return found

    def cell(self, path: str) -> Read:
        """The cell at a path below the run's folder, read and verified once."""
        if path not in self._read:
            # A lineage may name any path; nothing but the run's own cells is looked at.
            known = self.cells.get(path)
            self._read[path] = reading.read(self, known) if known else reading.nowhere(self, path)
        return self._read[path]

    def facts(self, file: str) -> list[Fact]:
        """The rows of a table of evidence with their places, one object each; empty if it cannot be read."""
        if file not in self._facts:
            rows = self.cell(file.rpartition("/")[0]).rows
            self._facts[file] = [Fact(row, file, line) for line, row in enumerate(rows, start=2)]
        return self._facts[file]

    @cached_property
    def attempts(self) -> list[dict]:
        """The events of the run's list of attempts; Unverified if it was altered."""
        return attempts.read(self.evidence)

    # Exhibits.

    @cached_property
    def manifest(self) -> dict:
        """What the exhibits' manifest holds, nothing if there is none; Unverified if it cannot be read."""
        path = None if self.exhibits is None else self.exhibits / names.MANIFEST
        if path is None or not path.is_file():
            return {}
        found = read_json(path, self.named(path))
        if not isinstance(found, dict) or not isinstance(found.get("files"), dict):
            raise Unverified(f"{self.named(path)}: not a manifest; draw the exhibits again")
        return found

    @cached_property
    def lineages(self) -> dict[str, dict]:
        """The lineage files by exhibit; Unverified if one cannot be read."""
        if self.exhibits is None:
            return {}
        found = {}
        for path in sorted(self.exhibits.glob(f"*{names.LINEAGE}"), key=_by_number):
            document = read_json(path, self.named(path))
            if not isinstance(document, dict):
                raise Unverified(f"{self.named(path)}: not a lineage; draw the exhibits again")
            found[path.name.removesuffix(names.LINEAGE)] = document
        return found

    @cached_property
    def numbers(self) -> list[Printed]:
        """Every number that an exhibit prints, in the order of the files."""
        return [number for exhibit in self.lineages for number in self.numbers_of(exhibit)]

    def numbers_of(self, exhibit: str) -> list[Printed]:
        """The numbers of one exhibit."""
        try:
            found = list(printed(exhibit, self.lineages[exhibit]))
            _require_entries(found)
            return found
        except MALFORMED as error:
            name = f"figures/{self.run}/{exhibit}{names.LINEAGE}"
            told = one_line(f"{type(error).__name__}: {error}", 120)
            raise Unverified(f"{name}: not a lineage ({told}); draw the exhibits again") from error


def _require_entries(numbers: list[Printed]) -> None:
    """ValueError if an entry is not of the shape that all others read."""
    for number in numbers:
        told = number.told
        texts = all(isinstance(told[key], str) for key in ("text", "formula", "to", "unit", "rounding"))
        named = isinstance(told["of"], list) and isinstance(told["rows"], dict)
        listed = all(isinstance(line, str) for lines in told["rows"].values() for line in lines or [None])
        if not (texts and named and listed and "value" in told and isinstance(number.noise, dict)):
            raise ValueError(f"{number.place}: not an entry")


def _by_number(path: Path) -> tuple[int, str]:
    """Experiments in their order, what is about all of them last."""
    number = path.name.partition("_")[0].removeprefix("e")
    return (int(number) if number.isdecimal() else 10**6, path.name)


def read_json(path: Path, name: str) -> object:
    """The value in a JSON file; Unverified, with ``name`` for the file, if it is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Unverified(f"{name}: cannot be read as JSON ({one_line(error, 120)})") from error


def printed(exhibit: str, document: dict) -> Iterator[Printed]:
    """The numbers in an exhibit's lineage, in its order."""
    noise = document["noise"]
    if exhibit == names.JUDGED:
        for claim, told in document["claims"].items():
            for number, check in enumerate(told["checks"], start=1):
                for column in ("number", "other", "word"):
                    if column in check:
                        yield Printed(exhibit, claim, str(number), column, check[column], noise)
        return
    for table, rows in document["tables"].items():
        for row, cells in rows.items():
            for column, told in cells.items():
                yield Printed(exhibit, table, row, column, told, noise)
    for mark, told in document["figure"].items():
        yield Printed(exhibit, FIGURE, mark, "", told, noise)
