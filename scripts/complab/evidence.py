"""What does a cell leave behind, and is what lies on disk still that?

A cell's folder holds a tidy table (`evidence.csv`), logs, the ledger and `provenance.json`, which is
placed last and hashes the others. Reading verifies; what does not verify is refused.
"""

import csv
import functools
import hashlib
import io
import json
import math
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import jsonschema

from complab import units
from complab.config import PROJECT, Cell, read_yaml
from complab.errors import Unverified

SCHEMA_VERSION = 1
PROVENANCE = "provenance.json"
EVIDENCE = "evidence.csv"
LEDGER = "ledger.json"
TORCH_LOG = "torch.log"
RUN_LOG = "run.log"
TRACE_LOG = "trace.log"
SEALED_CACHE = "cache.tar"
CACHE_MANIFEST = "cache.manifest.json"

FILES = {PROVENANCE, EVIDENCE, LEDGER, TORCH_LOG, RUN_LOG, TRACE_LOG, SEALED_CACHE, CACHE_MANIFEST}

# A measured cell is evidence only with all of these; a failed one keeps its log and its record.
REQUIRED = {"measured": {EVIDENCE, LEDGER, TORCH_LOG, RUN_LOG}, "failed": {RUN_LOG}}


@dataclass(frozen=True)
class Row:
    """One measured fact; ``value`` is a finite number in SI units, text goes to ``detail``.

    ``case`` names what was measured inside the cell, ``call`` its index in a stream or a steady
    window, empty where there is none. A detail keeps no line break and single spaces only.
    """

    experiment: str
    policy: str
    cache: str
    replicate: int
    case: str
    call: int | None
    metric: str
    value: float
    unit: str
    detail: str = ""

    def __post_init__(self):
        if not math.isfinite(self.value):
            raise ValueError(f"{self.metric} of case '{self.case}' is {self.value}; record no value instead")
        if wrong := units.problem(self.metric, self.unit):
            raise ValueError(wrong)
        # A line break inside a field would part a row from its line number, which lineage cites. Here and not
        # in the file only, so that a ledger is filled from the text that it is filled again from.
        object.__setattr__(self, "detail", " ".join(self.detail.split()))


COLUMNS = tuple(field.name for field in fields(Row))


@dataclass(frozen=True)
class Record:
    """A verified cell: its identity, its provenance and, unless it failed, its rows."""

    cell: Cell
    folder: Path
    provenance: dict
    rows: tuple[Row, ...]

    @property
    def failed(self) -> bool:
        return self.provenance["outcome"] == "failed"

    @property
    def verdict(self) -> str:
        """The cache verdict: cold-proven, warm-proven, indeterminate, not-applicable, not-judged."""
        return self.provenance["cache"]["verdict"]

    @property
    def determinate(self) -> bool:
        """Whether the cell may enter a headline number."""
        return not self.failed and self.verdict not in ("indeterminate", "not-judged")


def rows_to_csv(rows: list[Row]) -> str:
    """The rows as CSV text with a header; counts without a decimal point, floats as repr."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        fields_of_row = asdict(row)
        fields_of_row["call"] = "" if row.call is None else row.call
        fields_of_row["value"] = _number_text(row.value)
        writer.writerow(fields_of_row.values())
    return text.getvalue()


def _number_text(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))


def csv_to_rows(text: str, where: object) -> list[Row]:
    """Rows of evidence CSV text; Unverified names the line that is truncated or malformed."""
    if not text.endswith("\n"):
        raise Unverified(f"{where}: the last line is cut off; measure the cell again")
    if "\r" in text:
        number = text.count("\n", 0, text.index("\r")) + 1
        raise Unverified(f"{where}: line {number} has a carriage return; measure the cell again")
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    reader = csv.reader(io.StringIO(text, newline=""))
    header = tuple(next(reader, ()))
    if header != COLUMNS:
        raise Unverified(
            f"{where}: columns are {','.join(header)!r}, not {','.join(COLUMNS)!r}; measure the cell again"
        )
    rows = []
    for number, parts in enumerate(reader, start=2):
        try:
            experiment, policy, cache, replicate, case, call, metric, value, unit, detail = parts
            index = int(call) if call else None
            rows.append(
                Row(
                    experiment, policy, cache, int(replicate), case, index, metric, float(value), unit, detail
                )
            )
        except ValueError as error:
            raise Unverified(
                f"{where}: line {number} is no evidence row ({error}); measure the cell again"
            ) from error
    return rows


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def file_entry(path: Path) -> dict:
    """``{"sha256": ..., "bytes": ...}`` of a file."""
    return {"sha256": sha256_of(path), "bytes": path.stat().st_size}


def write_atomically(path: Path, text: str) -> None:
    """Write text so that ``path`` holds either the old content or all of the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    private = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(private, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(private, path)
    finally:
        private.unlink(missing_ok=True)


def json_text(value: object) -> str:
    """Stable JSON text: sorted keys, no NaN, final line break."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def place(private: Path, folder: Path, provenance: dict) -> None:
    """Move a finished cell from its private folder into place, provenance last.

    ``private`` must lie on the same file system. The old record is withdrawn first, so that at no
    moment does a provenance record stand beside files it does not describe.
    """
    names = sorted(path.name for path in private.iterdir())
    hashed = [name for name in names if name != SEALED_CACHE]
    provenance["files"] = {name: file_entry(private / name) for name in hashed}
    problem = schema_problem(provenance)
    if problem:
        raise ValueError(f"provenance of {folder}: {problem}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PROVENANCE).unlink(missing_ok=True)
    for old in FILES - set(names):
        (folder / old).unlink(missing_ok=True)
    for name in names:
        _sync(private / name)
        os.replace(private / name, folder / name)
    write_atomically(folder / PROVENANCE, json_text(provenance))
    private.rmdir()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_SCHEMA: dict = {}


def schema_problem(provenance: object) -> str:
    """One line saying how a provenance record breaks its schema, empty if it does not."""
    if not _SCHEMA:
        path = PROJECT / "workflow" / "schemas" / "provenance.schema.yaml"
        _SCHEMA.update(read_yaml(path))
    error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(_SCHEMA).iter_errors(provenance))
    if error is not None:
        place_in_record = ".".join(str(part) for part in error.absolute_path) or "top level"
        return f"{place_in_record}: {' '.join(error.message.split())[:200]}"
    if (provenance["outcome"] == "failed") != ("failure" in provenance):
        return "failure: present exactly when the outcome is failed"
    return ""


def read_provenance(folder: Path) -> dict:
    """The provenance record of a cell's folder, checked against its schema only."""
    path = Path(folder) / PROVENANCE
    try:
        provenance = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Unverified(
            f"{path}: missing, so the files beside it are no evidence; measure the cell"
        ) from None
    except (OSError, ValueError) as error:
        raise Unverified(f"{path}: unreadable ({error}); measure the cell again") from error
    problem = schema_problem(provenance)
    if problem:
        raise Unverified(
            f"{path}: not a provenance record of version {SCHEMA_VERSION} ({problem}); measure the cell again"
        )
    return provenance


def overrides_of(provenance: dict) -> dict:
    """What the command line laid over the configuration when a cell was measured; not its interpreter."""
    argv = provenance["argv"]
    found = {}
    if "--overrides" in argv[:-1]:
        try:
            found = json.loads(argv[argv.index("--overrides") + 1])
        except ValueError:
            found = {}
    found = dict(found) if isinstance(found, dict) else {}
    for flag in ("--scale", "--run", "--device"):
        if flag in argv[:-1]:
            found[flag.removeprefix("--")] = argv[argv.index(flag) + 1]
    found.pop("python", None)
    return found


def verify(folder: Path, run: str, cell: Cell) -> Record:
    """The record of a cell, after every file it lists was found unaltered and its own.

    Raises Unverified, naming the file, when the record is missing or foreign, when a listed file is
    missing or differs, or when the rows do not belong to the cell.
    """
    folder = Path(folder)
    provenance = read_provenance(folder)
    told = Cell(**provenance["cell"])
    if (provenance["run"], told) != (run, cell):
        raise Unverified(
            f"{folder / PROVENANCE}: tells of {provenance['run']}/{told}, not of {run}/{cell}; "
            "evidence may not be moved between cells"
        )
    missing = REQUIRED[provenance["outcome"]] - set(provenance["files"])
    if missing:
        raise Unverified(f"{folder / PROVENANCE}: lists no {min(missing)}; measure the cell again")
    for name, entry in provenance["files"].items():
        if name in ("", ".", "..") or "/" in name:
            raise Unverified(
                f"{folder / PROVENANCE}: lists '{name}', which is no file of the cell; measure it again"
            )
        _verify_file(folder / name, entry)
    if provenance["outcome"] == "failed":
        return Record(cell, folder, provenance, ())
    path = folder / EVIDENCE
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unverified(f"{path}: not UTF-8 text ({error}); measure the cell again") from error
    rows = csv_to_rows(text, path)
    for number, row in enumerate(rows, start=2):
        if Cell(row.experiment, row.policy, row.cache, row.replicate) != cell:
            raise Unverified(f"{path}: line {number} belongs to another cell; measure the cell again")
    return Record(cell, folder, provenance, tuple(rows))


def _verify_file(path: Path, entry: dict) -> None:
    if path.is_symlink():
        raise Unverified(f"{path}: not a plain file of the cell; measure the cell again")
    try:
        found = file_entry(path)
    except OSError:
        raise Unverified(f"{path}: missing, though its provenance lists it; measure the cell again") from None
    if found != entry:
        what = "has another size" if found["bytes"] != entry["bytes"] else "was altered"
        raise Unverified(f"{path}: {what} since it was measured; measure the cell again")


def cell_of(folder: Path) -> Cell:
    """The cell a folder's place says it belongs to; Unverified if the place is none of a cell."""
    parts = Path(folder).parts[-4:]
    if len(parts) < 4 or not parts[-1].isdecimal():
        raise Unverified(
            f"{folder}: not the folder of a cell; give results/RUN/EXPERIMENT/POLICY/CACHE/REPLICATE"
        )
    experiment, policy, cache, replicate = parts
    return Cell(experiment, policy, cache, int(replicate))


def peek(folder: Path) -> dict | None:
    """The provenance of a folder if it can be read at all, unverified: for planning, never for numbers."""
    path = Path(folder) / PROVENANCE
    try:
        stat = path.stat()
        return _peeked(path, stat.st_mtime_ns, stat.st_size)
    except (OSError, ValueError):
        return None


@functools.lru_cache(maxsize=4096)
def _peeked(path: Path, _mtime_ns: int, _size: int) -> dict | None:
    found = json.loads(path.read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else None
