"""What evidence is there for one exhibit, and may it be put side by side?

Every cell the configuration plans is read and verified. A missing, altered or foreign one is refused,
and so are cells that were measured in different environments, by different code or with different
settings. A failed cell comes back as failed and an indeterminate one as indeterminate, so that a table
can say so; neither gives a number.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path

from complab import evidence
from complab.config import Settings
from complab.errors import Unverified
from complab.evidence import Record, Row
from complab.measure.cache import root_hash


@dataclass(frozen=True)
class Fact:
    """One evidence row and where it stands: file below the run's folder, line counted from 1."""

    row: Row
    file: str
    line: int


@dataclass(frozen=True)
class Gathered:
    """The verified cells of one experiment, all from one environment, code and configuration."""

    run: str
    experiment: str
    title: str
    noise: dict
    records: tuple[Record, ...]

    @cached_property
    def failed(self) -> tuple[Record, ...]:
        """Cells whose measurement failed."""
        return tuple(record for record in self.records if record.failed)

    @cached_property
    def indeterminate(self) -> tuple[Record, ...]:
        """Cells that were measured but could not prove their cache state."""
        return tuple(record for record in self.records if not record.failed and not record.determinate)

    @cached_property
    def determinate(self) -> tuple[Record, ...]:
        """Cells that numbers may come from."""
        return tuple(record for record in self.records if record.determinate)

    @cached_property
    def facts(self) -> dict[str, dict[str, dict[str, list[Fact]]]]:
        """The rows of every determinate cell, by the cell's path, by metric and by case."""
        found: dict[str, dict[str, dict[str, list[Fact]]]] = {}
        for record in self.determinate:
            by_metric = found.setdefault(record.cell.path, {})
            for fact in facts_of(record):
                by_metric.setdefault(fact.row.metric, {}).setdefault(fact.row.case, []).append(fact)
        return found

    def whole_case(self, record: Record, case: str) -> list[Fact]:
        """Every row of a case in a determinate cell, in the order of the file."""
        key = (record.cell.path, case)
        if key not in self._whole_cases:
            by_metric = self.facts[record.cell.path].values()
            found = [fact for by_case in by_metric for fact in by_case.get(case, ())]
            self._whole_cases[key] = sorted(found, key=attrgetter("line"))
        return self._whole_cases[key]

    @cached_property
    def _whole_cases(self) -> dict[tuple[str, str], list[Fact]]:
        return {}

    @cached_property
    def cases(self) -> dict[tuple[str, str], tuple[dict[str, bool], set[str]]]:
        """By policy and case the cache states and the metrics that its determinate cells have."""
        found: dict[tuple[str, str], tuple[dict[str, bool], set[str]]] = {}
        for record in self.determinate:
            for row in record.rows:
                if row.case not in ("", "process"):
                    caches, metrics = found.setdefault((record.cell.policy, row.case), ({}, set()))
                    caches[record.cell.cache] = True
                    metrics.add(row.metric)
        return found

    @cached_property
    def vocabulary(self) -> tuple[set[str], set[str]]:
        """The metrics and the cases that any row names."""
        rows = [row for record in self.records for row in record.rows]
        return {row.metric for row in rows}, {row.case for row in rows}

    @cached_property
    def correct(self) -> bool:
        """Whether every compiled output was within the tolerance."""
        rows = (row for record in self.records for row in record.rows)
        return all(row.value for row in rows if row.metric == "within_tolerance")

    @property
    def provenance(self) -> dict:
        """What all cells share: take only fingerprint, config and code from it."""
        return self.records[0].provenance

    @property
    def torch(self) -> str:
        """The torch release, with its build."""
        return str(self.provenance["fingerprint"]["torch"])

    @property
    def device(self) -> str:
        """Device and the name of the processor or GPU it is."""
        device = self.provenance["config"]["device"]
        gpus = self.provenance["gpu"]
        if device == "cuda" and isinstance(gpus, list):
            return f"{device}, {gpus[0].get('name', 'unnamed GPU')}"
        return f"{device}, {self.provenance['fingerprint']['cpu']}"

    @cached_property
    def hashes(self) -> dict[str, str]:
        """SHA-256 of each evidence table that numbers come from, by its path below the run's folder."""
        return {
            f"{record.cell.path}/{evidence.EVIDENCE}": record.provenance["files"][evidence.EVIDENCE]["sha256"]
            for record in self.records
            if not record.failed
        }

    @cached_property
    def digest(self) -> str:
        """One SHA-256 over the evidence: every cell's path with the hash of its table, in order.

        A failed cell counts with the hash of its failure, so that its notice has a digest of its own.
        """
        lines = []
        for record in sorted(self.records, key=lambda record: record.cell.path):
            files = record.provenance["files"]
            told = files.get(evidence.EVIDENCE) if not record.failed else files[evidence.RUN_LOG]
            lines.append(f"{record.cell.path} {told['sha256']}\n")
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def ledger(self, record: Record) -> dict:
        """The filled ledgers of a cell by region; the file was verified with the rest of the cell."""
        path = record.folder / evidence.LEDGER
        if path not in self._ledgers:
            self._ledgers[path] = json.loads(path.read_text(encoding="utf-8"))["regions"]
        return self._ledgers[path]

    def know_ledger(self, record: Record, regions: dict) -> None:
        """Take a cell's filled ledgers from who has read them already."""
        self._ledgers[record.folder / evidence.LEDGER] = regions

    @cached_property
    def _ledgers(self) -> dict[Path, dict]:
        return {}


def facts_of(record: Record) -> list[Fact]:
    """The rows of a cell with their line numbers; the header is line 1."""
    file = f"{record.cell.path}/{evidence.EVIDENCE}"
    return [Fact(row, file, line) for line, row in enumerate(record.rows, start=2)]


def gather(settings: Settings, experiment: str, results: Path) -> Gathered:
    """The verified evidence of every planned cell of the experiment, in the run's folder below ``results``.

    Raises Unverified, naming the file, for whatever may not enter an exhibit.
    """
    folder = Path(results) / settings.run
    records = tuple(
        evidence.verify(folder / cell.path, settings.run, cell) for cell in settings.cells(experiment)
    )
    refuse_strange_pairs(records)
    return assembled(settings, experiment, records)


def assembled(settings: Settings, experiment: str, records: Iterable[Record]) -> Gathered:
    """The records of an experiment's planned cells as one evidence; Unverified if they may not be mixed."""
    records = tuple(records)
    _refuse_mixed(records, "environments", lambda record: record.provenance["fingerprint"])
    _refuse_mixed(records, "configurations", lambda record: record.provenance["config"])
    _refuse_mixed(records, "measuring code", lambda record: record.provenance["code"]["modules"])
    entry = settings.experiment(experiment)
    return Gathered(settings.run, experiment, entry["title"], settings["noise"], records)


def account(records: Iterable[Record]) -> dict[str, int]:
    """How many cells were planned, measured, failed, and could not prove their cache state."""
    records = list(records)
    doubtful = sum(not record.failed and not record.determinate for record in records)
    return {
        "planned": len(records),
        "measured": sum(record.determinate for record in records),
        "indeterminate": doubtful,
        "failed": sum(record.failed for record in records),
    }


def together(several: Iterable[Gathered], name: str, title: str) -> Gathered:
    """The cells of several experiments as those of one exhibit; all must be from one environment."""
    several = list(several)
    records = tuple(record for gathered in several for record in gathered.records)
    _refuse_mixed(records, "environments", lambda record: record.provenance["fingerprint"])
    return Gathered(several[0].run, name, title, several[0].noise, records)


def refuse_strange_pairs(records: Iterable[Record]) -> None:
    """Unverified if a warm cell did not start from the cold cell beside it, or a seal is not that cell's.

    Cold measured again without its warm cell, or cells put together by hand, would otherwise pass.
    """
    measured = {record.cell: record for record in records if not record.failed}
    for cell, record in measured.items():
        seal = record.folder / evidence.CACHE_MANIFEST
        if cell.cache == "cold" and seal.exists():
            listed = json.loads(seal.read_text(encoding="utf-8"))
            if root_hash(listed) != record.provenance["cache"]["after"]["root"]:
                raise Unverified(f"{seal}: is not the manifest of its cell's cache; measure the cell again")
        cold = measured.get(replace(cell, cache="cold")) if cell.cache == "warm" else None
        if cold and record.provenance["cache"]["before"] != cold.provenance["cache"]["after"]:
            raise Unverified(
                f"{record.folder / evidence.PROVENANCE}: did not start from the cache of the cold cell "
                "beside it; measure the warm cell again"
            )


def _refuse_mixed(records: tuple[Record, ...], what: str, told: Callable[[Record], dict]) -> None:
    first = records[0]
    for other in records[1:]:
        if told(other) == told(first):
            continue
        old, new = told(first), told(other)
        key = min(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        raise Unverified(
            f"{other.folder / evidence.PROVENANCE}: differs from {first.cell} in {what} ('{key}'), "
            "and one exhibit may not mix them; measure the stale cells again"
        )
