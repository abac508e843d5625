"""Where do a run's evidence and exhibits lie, and is each file what was written down about it?

A `Tree` is one run: the folder of its evidence, or the bundle that stands for it, and the folder of its
exhibits. Every cell is read and verified once, every table of evidence parsed once; whoever asks again gets
the same. Nothing is written but a bundle's content, to a folder that is removed with the tree.

What is wrong does not end the reading: it becomes a `Finding` with one of five classes.
"""

import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import jsonschema

from complab import attempts, bundle, evidence, torchlog
from complab.config import PROJECT, Cell, read_yaml
from complab.errors import Unverified, UsageProblem, one_line
from complab.evidence import Row
from complab.report import names
from complab.report.classes import MISSING, TAMPERED
from complab.report.gather import Fact

FIGURE = "figure"
# What reading a stranger's values can come to: they may be of any shape.
MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    StopIteration,
    TypeError,
    ValueError,
)
BUNDLE = "bundle.zip"
# Depth of the files that a bundle has beside its cells: attempts, their logs, what it tells of the run.
SHALLOW = 3


@dataclass(frozen=True)
class Finding:
    """What is wrong with a file, in one line: ``kind`` is one of CLASSES."""

    file: str
    kind: str
    told: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.file}: {self.told}"


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


@dataclass
class Read:
    """A cell as found: its record if it can be read at all, its rows if they can, and what is wrong.

    ``texts`` are the contents of its listed text files, by name.
    """

    cell: Cell
    folder: Path
    provenance: dict | None = None
    digest: str = ""
    rows: tuple[Row, ...] = ()
    texts: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether everything it lists is as it was measured."""
        return self.provenance is not None and not self.findings

    @property
    def record(self) -> evidence.Record:
        """The cell as the exhibits take it; only of one that has a provenance record."""
        return evidence.Record(self.cell, self.folder, self.provenance, self.rows)

    @cached_property
    def lines(self) -> list[str]:
        """The lines of its evidence, the header first."""
        return self.texts.get(evidence.EVIDENCE, "").split("\n")

    @cached_property
    def ledgers(self) -> dict:
        """Its filled ledgers by region; Unverified if the file is none."""
        try:
            return json.loads(self.texts[evidence.LEDGER])["regions"]
        except (KeyError, TypeError, ValueError) as error:
            raise Unverified(f"{self.cell}/{evidence.LEDGER}: not a file of ledgers ({error})") from error

    @cached_property
    def log(self) -> list[torchlog.Section]:
        """The sections of its torch log."""
        return torchlog.sections(self.texts.get(evidence.TORCH_LOG, ""))

    @cached_property
    def whole_log(self) -> list[torchlog.Section]:
        """Its torch log as one section, for those that were written without any."""
        text = self.texts.get(evidence.TORCH_LOG, "")
        return [torchlog.Section("timed", "", None, 1, torchlog.parse(text))] if text.strip() else []


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
            self._read[path] = _read(self, known) if known else _nowhere(self, path)
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


# A cell's files.


def _read(tree: Tree, cell: Cell) -> Read:
    """The cell with everything that is wrong with its files; what can be read is read all the same."""
    folder = tree.evidence / cell.path
    found = Read(cell, folder)
    _read_provenance(tree, found)
    if found.provenance is None:
        return found
    listed = found.provenance["files"]
    lacking = evidence.REQUIRED[found.provenance["outcome"]] - set(listed)
    for name in sorted(lacking):
        _find(tree, found, evidence.PROVENANCE, TAMPERED, f"lists no {name}")
    contents = {}
    for name, entry in listed.items():
        if name in ("", ".", "..") or "/" in name:
            _find(tree, found, evidence.PROVENANCE, TAMPERED, f"lists '{name}', which is no file of the cell")
            continue
        content = _content(tree, found, name, entry)
        if content is not None:
            contents[name] = content
    _refuse_strangers(tree, found)
    for name, content in contents.items():
        try:
            found.texts[name] = content.decode("utf-8")
        except UnicodeDecodeError as error:
            _find(tree, found, name, TAMPERED, f"not UTF-8 text ({error})")
    _read_rows(tree, found)
    return found


def _nowhere(tree: Tree, path: str) -> Read:
    """What stands for a cell of which the run has no folder."""
    told = Finding(f"{tree.source}/{path}", MISSING, "no cell of the run")
    return Read(Cell(path, "", "", 0), tree.evidence, findings=[told])


def _find(tree: Tree, found: Read, name: str, kind: str, told: str) -> None:
    found.findings.append(Finding(tree.named(found.folder / name), kind, told))


def _read_provenance(tree: Tree, found: Read) -> None:
    path = found.folder / evidence.PROVENANCE
    try:
        content = tree.content(path)
    except OSError as error:
        _find(tree, found, path.name, TAMPERED, str(error))
        return
    if content is None:
        _find(tree, found, path.name, MISSING, "so the files beside it are no evidence")
        return
    found.digest = hashlib.sha256(content).hexdigest()
    try:
        record = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        _find(tree, found, path.name, TAMPERED, f"cannot be read ({one_line(error, 120)})")
        return
    problem = _schema().problem(record)
    if problem:
        _find(tree, found, path.name, TAMPERED, f"not a provenance record ({problem})")
        return
    told = Cell(**record["cell"])
    if (record["run"], told) != (tree.run, found.cell):
        _find(tree, found, path.name, TAMPERED, f"tells of {record['run']}/{told}")
        return
    found.provenance = record


def _content(tree: Tree, found: Read, name: str, entry: dict) -> bytes | None:
    try:
        content = tree.content(found.folder / name)
    except OSError as error:
        _find(tree, found, name, TAMPERED, str(error))
        return None
    if content is None:
        _find(tree, found, name, MISSING, "though its provenance lists it")
        return None
    if hashlib.sha256(content).hexdigest() != entry["sha256"] or len(content) != entry["bytes"]:
        what = "has another size than" if len(content) != entry["bytes"] else "is not what was"
        _find(tree, found, name, TAMPERED, f"{what} when it was measured")
    return content


def _refuse_strangers(tree: Tree, found: Read) -> None:
    known = {*found.provenance["files"], evidence.PROVENANCE, evidence.SEALED_CACHE}
    for name in tree.files_in(found.folder):
        if name not in known:
            told = "lies in the cell's folder, but its provenance does not list it"
            _find(tree, found, name, TAMPERED, told)


def _read_rows(tree: Tree, found: Read) -> None:
    if found.provenance["outcome"] == "failed" or evidence.EVIDENCE not in found.texts:
        return
    name = tree.named(found.folder / evidence.EVIDENCE)
    try:
        rows = evidence.csv_to_rows(found.texts[evidence.EVIDENCE], name)
    except Unverified as problem:
        told = str(problem).removeprefix(f"{name}: ").removesuffix("; measure the cell again")
        _find(tree, found, evidence.EVIDENCE, TAMPERED, told)
        return
    for line, row in enumerate(rows, start=2):
        if (row.experiment, row.policy, row.cache, row.replicate) != (
            found.cell.experiment,
            found.cell.policy,
            found.cell.cache,
            found.cell.replicate,
        ):
            _find(tree, found, evidence.EVIDENCE, TAMPERED, f"line {line} belongs to another cell")
            return
    found.rows = tuple(rows)


# Keywords of a schema that look inside a value.
_NESTED = {"properties", "additionalProperties", "items", "oneOf"}


class _Schema:
    """The schema of provenance records, asked part by part: cells of a run share most of their parts."""

    def __init__(self):
        path = PROJECT / "workflow" / "schemas" / "provenance.schema.yaml"
        whole = read_yaml(path)
        parts = whole["properties"]
        self._outline = _validator(whole | {"properties": dict.fromkeys(parts, True)})
        self._parts = {name: _validator(part) for name, part in parts.items()}
        # To look such a part up would take longer than to validate it.
        self._plain = {name for name, part in parts.items() if not _NESTED & part.keys()}
        self._sound: set[tuple[str, str]] = set()

    def problem(self, record: object) -> str:
        """One line saying how a record breaks the schema, empty if it does not."""
        if self._outline.is_valid(record) and all(self._fits(*item) for item in record.items()):
            failed = record["outcome"] == "failed"
            return "" if failed == ("failure" in record) else evidence.schema_problem(record)
        return evidence.schema_problem(record)

    def _fits(self, name: str, part: object) -> bool:
        if name in self._plain:
            return self._parts[name].is_valid(part)
        key = (name, json.dumps(part))
        if key not in self._sound and self._parts[name].is_valid(part):
            self._sound.add(key)
        return key in self._sound


def _validator(schema: dict) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema)


@functools.cache
def _schema() -> _Schema:
    return _Schema()
