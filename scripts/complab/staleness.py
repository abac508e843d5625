"""Is a cell's evidence still about this code, this configuration and this environment?

One dict of three digests decides: the measuring code a script imports (comments and docstrings do
not count), the cell's slice of the configuration, and the fingerprint of its environment.
"""

import ast
import contextlib
import datetime
import functools
import hashlib
import json
import sys
from pathlib import Path

from complab import evidence, facts
from complab.config import PROJECT, Cell, Settings

SCRIPTS = PROJECT / "scripts"


def digest_of(value: object) -> str:
    """Hex SHA-256 of a JSON value, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()


def code_digests(*entries: Path) -> dict[str, str]:
    """Digest of each module reached from ``entries``, by its path below ``scripts/``.

    Imports are followed inside ``scripts/`` only, wherever in a file they stand.
    """
    found: dict[str, str] = {}
    waiting = [Path(entry).resolve() for entry in entries]
    while waiting:
        path = waiting.pop()
        name = path.relative_to(SCRIPTS).as_posix()
        if name not in found:
            found[name], imported = _module(path.read_text(encoding="utf-8"), path)
            waiting.extend(file for module in imported for file in _files_of(module))
    _keep_known_modules()
    return dict(sorted(found.items()))


def _module(text: str, path: Path) -> list:
    """Digest of a module's code and the names it imports, read again only when the text is a new one."""
    known = _known_modules()
    key = hashlib.sha256(f"{sys.version} {text}".encode()).hexdigest()
    if key not in known:
        tree = ast.parse(text, filename=str(path))
        code = _canonical(_without_docstrings(tree))
        known[key] = [hashlib.sha256(code.encode()).hexdigest(), sorted(set(_imported(tree)))]
    return known[key]


# Parsing every module costs more than all the rest of finding out that there is nothing to do.
KNOWN_MODULES = PROJECT / ".snakemake" / "complab-modules.json"


@functools.cache
def _known_modules() -> dict[str, list]:
    """What was found out about module texts before, by the hash of the text and of this Python."""
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(KNOWN_MODULES.read_text(encoding="utf-8"))
        if isinstance(known, dict):
            return known
    return {}


def _keep_known_modules() -> None:
    text = json.dumps(_known_modules())
    with contextlib.suppress(OSError):
        if not KNOWN_MODULES.exists() or KNOWN_MODULES.stat().st_size != len(text):
            evidence.write_atomically(KNOWN_MODULES, text)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            value = first.value if isinstance(first, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                node.body = node.body[1:]
    return tree


def _canonical(node: object) -> str:
    """Text of a syntax tree that skips empty fields, so that Python releases which add some agree."""
    if isinstance(node, list):
        return "[" + ",".join(_canonical(item) for item in node) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = [
        f"{name}={_canonical(value)}"
        for name, value in ast.iter_fields(node)
        if value is not None and value != [] and name not in ("kind", "type_comment")
    ]
    # A literal None is a field value of its own, not an absent one.
    if isinstance(node, ast.Constant) and node.value is None:
        parts.append("value=None")
    return f"{type(node).__name__}({','.join(parts)})"


def _imported(tree: ast.Module):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from names


def _files_of(module: str):
    """The file of a module below scripts/ and the packages above it, which import runs too."""
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        base = SCRIPTS.joinpath(*parts[:depth])
        for path in (base / "__init__.py", base.with_suffix(".py")):
            if path.is_file():
                yield path


def script_of(experiment: str) -> Path:
    """The experiment's script."""
    return SCRIPTS / f"{experiment}.py"


def diagnosing_code() -> str:
    """Digest of the code that diagnoses a subject, measuring and judging."""
    modules = ("diagnose/command.py", "measure/child.py", "measure/runs.py")
    return digest_of(code_digests(*(SCRIPTS / "complab" / name for name in modules)))


def file_digest(subject: str) -> str | None:
    """Hex SHA-256 of a subject's file; None of what is a module's name or not there."""
    path = Path(subject)
    if not subject.endswith(".py") or not path.is_file():
        return None
    return evidence.sha256_of(path)


class Plan:
    """The cells of a configuration with what each one's evidence must be about.

    The environment is told once, so that all cells are held against the same facts.
    """

    def __init__(self, settings: Settings):
        self.settings = settings
        self._about: dict[str, dict] = {}
        self._records: dict[Cell, tuple[dict | None, str]] = {}
        self.fingerprint = facts.collect_fingerprint(settings.python)
        self.device = facts.resolve_device(settings["device"], self.fingerprint)

    @property
    def conditions(self) -> dict:
        """The environment with the device and the number of threads: what compiled code depends on."""
        return {**self.fingerprint, "device": self.device, "threads": self.settings["threads"]}

    @functools.cached_property
    def diagnosing_code(self) -> str:
        """Digest of the code that diagnoses a subject, read once for all subjects."""
        return diagnosing_code()

    def folder(self, cell: Cell) -> Path:
        """Where the cell's evidence lies."""
        return PROJECT / "results" / self.settings.run / cell.path

    def code(self, experiment: str) -> dict[str, str]:
        """Digest of each module the experiment's cells use."""
        return self._parts(experiment)["code"]

    def config(self, experiment: str) -> dict:
        """The slice of the configuration that the experiment's cells measure under."""
        return self._parts(experiment)["config"]

    def _parts(self, experiment: str) -> dict:
        if experiment not in self._about:
            self._about[experiment] = {
                "code": code_digests(script_of(experiment), SCRIPTS / "complab" / "measure" / "child.py"),
                "config": self.settings.measured_slice(experiment, self.device),
                "environment": self.fingerprint,
            }
        return self._about[experiment]

    def about(self, cell: Cell) -> dict:
        """What the cell's evidence must be about: three digests, all of them as one, and the attempt."""
        digests = {name: digest_of(part) for name, part in self._parts(cell.experiment).items()}
        return {**digests, "all": digest_of(digests), "attempt": self.attempt(cell)}

    def diagnosed_from(self, name: str) -> dict:
        """What the diagnosis of a subject is about: code, configuration, environment, the subject's file."""
        told = self.settings["subjects"][name]
        return {
            "code": self.diagnosing_code,
            "config": [told, self.settings["threads"], self.device],
            "environment": digest_of(self.fingerprint),
            "subject": file_digest(str(PROJECT / told["subject"])),
        }

    def drawn_from(self, experiment: str) -> dict:
        """What an exhibit is drawn with beside its evidence: drawing code, declaration and style."""
        entry = self.settings.experiment(experiment)
        declared = {key: entry.get(key) for key in ("title", "exhibit", "policies", "replicates", "once")}
        style = hashlib.sha256((PROJECT / "figures" / "complab.mplstyle").read_bytes()).hexdigest()
        return {
            "code": digest_of(code_digests(SCRIPTS / "complab" / "report" / "exhibits.py")),
            "exhibit": digest_of([declared, self.settings["noise"], style]),
        }

    def ledgers_from(self) -> dict:
        """What the ledgers and the noise of the run are drawn with beside the evidence of every cell."""
        told = {key: self.settings[key] for key in ("ledgers", "noise")}
        keys = ("title", "policies", "replicates", "once")
        declared = [
            [name, *(entry[key] for key in keys)] for name, entry in self.settings["experiments"].items()
        ]
        code = digest_of(code_digests(SCRIPTS / "complab" / "report" / "ledgers.py"))
        return {"code": code, "exhibit": digest_of([told, declared])}

    def judged_from(self) -> dict:
        """What the claims are judged with beside the evidence: code, register and thresholds."""
        workflow = PROJECT / "workflow"
        files = [workflow / "claims.yaml", workflow / "schemas" / "claims.schema.yaml"]
        texts = [file.read_text(encoding="utf-8") for file in files]
        return {
            "code": digest_of(code_digests(SCRIPTS / "complab" / "report" / "claims_table.py")),
            "register": digest_of([*texts, self.settings["noise"]]),
        }

    def attempt(self, cell: Cell) -> int:
        """Number of the attempt whose evidence would be in place when the cell is up to date.

        It grows when the record in place tells of a failure or lacks one of its files. So a rule
        that has it among its parameters runs such a cell again, and leaves a whole one alone.
        """
        record, problem = self._record(cell)
        if record is None:
            return 1
        if problem:
            return 1 + (record["attempt"] if isinstance(record.get("attempt"), int) else 0)
        whole = record["outcome"] == "measured" and not self._damage(cell, record)
        return record["attempt"] + (not whole)

    def _record(self, cell: Cell) -> tuple[dict | None, str]:
        """The record in place, unverified, and how it breaks its schema; checked once per writing."""
        record = evidence.peek(self.folder(cell))
        if cell not in self._records or self._records[cell][0] is not record:
            self._records[cell] = (record, evidence.schema_problem(record) if record is not None else "")
        return self._records[cell]

    def _damage(self, cell: Cell, record: dict) -> str:
        folder = self.folder(cell)
        for name, entry in record.get("files", {}).items():
            try:
                if (folder / name).stat().st_size != entry["bytes"]:
                    return f"{name} has another size"
            except OSError:
                return f"{name} is missing"
        if self._needs_cache(cell) and not (folder / evidence.SEALED_CACHE).exists():
            return f"{evidence.SEALED_CACHE} is missing"
        return ""

    def _needs_cache(self, cell: Cell) -> bool:
        """A cold cell's sealed cache is needed until its warm cell has used it, or always if kept."""
        if cell.cache != "cold":
            return False
        if "warm" not in self.settings.experiment(cell.experiment)["policies"][cell.policy]:
            return False
        warm = Cell(cell.experiment, cell.policy, "warm", cell.replicate)
        return self.settings["keep_caches"] or bool(self.why_stale(warm))

    def why_stale(self, cell: Cell) -> str:
        """One line saying why the cell must be measured (again), empty if its evidence stands."""
        record, problem = self._record(cell)
        if record is None:
            return "not measured yet"
        if problem:
            return f"its record is none: {problem}"
        if (record["run"], record["cell"]) != (self.settings.run, vars(cell)):
            return "its record tells of another cell"
        if record.get("outcome") != "measured":
            return f"the last attempt failed: {record.get('failure', {}).get('message', 'no message')}"
        reasons = [
            *differences("environment", record.get("fingerprint"), self.fingerprint),
            *differences("config", record.get("config"), self.config(cell.experiment)),
            *differences(
                "code", record.get("code", {}).get("modules"), self.code(cell.experiment), hide=True
            ),
        ]
        damage = self._damage(cell, record)
        return "; ".join([*reasons, *([damage] if damage else [])])

    def remaining(self, *, besides: Cell | None = None) -> list[Cell]:
        """Cells that still have to be measured, ``besides`` left out."""
        return [cell for cell in self.settings.cells() if cell != besides and self.why_stale(cell)]


def differences(what: str, old: object, new: dict, hide: bool = False) -> list[str]:
    """One line per key whose values differ, or one line with all such keys to ``hide`` the values."""
    old = old if isinstance(old, dict) else {}
    keys = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    if hide:
        return [f"{what} changed: {', '.join(keys)}"] if keys else []
    return [f"{what}: {key} was {_short(old.get(key))}, is {_short(new.get(key))}" for key in keys]


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def summarise(stale: dict[Cell, str]) -> list[str]:
    """One line per reason with the number of cells it holds for, most cells first."""
    groups: dict[str, list[Cell]] = {}
    for cell, reason in stale.items():
        groups.setdefault(reason, []).append(cell)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return [f"{_counted(group)}: {reason}" for reason, group in ordered]


def _counted(group: list[Cell]) -> str:
    if len(group) == 1:
        return f"1 cell to measure ({group[0]})"
    return f"{len(group)} cells to measure ({group[0]}, ...)"


def write_plan(path: Path, stale: dict[Cell, str]) -> None:
    """Write down the cells to measure and why; each writing differs, by its time, from the one before.

    Where the folder cannot be written nothing can be measured either; looking is still possible.
    """
    lines = [
        f"# {datetime.datetime.now(datetime.UTC).isoformat()}",
        *(f"{cell}: {why}" for cell, why in stale.items()),
    ]
    with contextlib.suppress(OSError):
        evidence.write_atomically(path, "\n".join(lines) + "\n")
