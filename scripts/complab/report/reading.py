"""What does a cell's folder hold, and is each file what was written down about it?

What is wrong does not end the reading: it becomes a `Finding` with one of five classes.
"""

import functools
import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import jsonschema

from complab import evidence, torchlog
from complab.config import PROJECT, Cell, read_yaml
from complab.errors import Unverified, one_line
from complab.evidence import Row
from complab.report.classes import MISSING, TAMPERED, Finding

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


class Place(Protocol):
    """Where a run's evidence lies: a folder, or a bundle that stands for one."""

    run: str
    evidence: Path
    source: str

    def content(self, path: Path) -> bytes | None: ...

    def files_in(self, folder: Path) -> list[str]: ...

    def named(self, path: Path) -> str: ...


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


def read(tree: Place, cell: Cell) -> Read:
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


def nowhere(tree: Place, path: str) -> Read:
    """What stands for a cell of which the run has no folder."""
    told = Finding(f"{tree.source}/{path}", MISSING, "no cell of the run")
    return Read(Cell(path, "", "", 0), tree.evidence, findings=[told])


def _find(tree: Place, found: Read, name: str, kind: str, told: str) -> None:
    found.findings.append(Finding(tree.named(found.folder / name), kind, told))


def _read_provenance(tree: Place, found: Read) -> None:
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


def _content(tree: Place, found: Read, name: str, entry: dict) -> bytes | None:
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


def _refuse_strangers(tree: Place, found: Read) -> None:
    known = {*found.provenance["files"], evidence.PROVENANCE, evidence.SEALED_CACHE}
    for name in tree.files_in(found.folder):
        if name not in known:
            told = "lies in the cell's folder, but its provenance does not list it"
            _find(tree, found, name, TAMPERED, told)


def _read_rows(tree: Place, found: Read) -> None:
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
