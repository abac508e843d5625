"""Recorded evidence for tests: where it lies, which settings it belongs to, and how to alter a copy."""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from complab import config, evidence
from complab.config import Cell, Settings

ROOT = Path(__file__).parent / "data" / "evidence"
RUN = next(path.name for path in sorted(ROOT.iterdir()) if path.is_dir())


def settings(results: Path = ROOT, **noise) -> Settings:
    """The project's settings with the policies, cache states and replicates that lie in ``results``."""
    loaded = config.load(overrides={"scale": "quick", "run": RUN})
    values = copy.deepcopy(loaded.values)
    values["noise"] |= noise
    for name, entry in list(values["experiments"].items()):
        cells = cells_in(results, name)
        if not cells:
            del values["experiments"][name]
            continue
        caches: dict[str, set[str]] = {}
        for cell in cells:
            caches.setdefault(cell.policy, set()).add(cell.cache)
        # In the order of config.yaml, as tables have it.
        entry["policies"] = {
            policy: sorted(caches[policy]) for policy in entry["policies"] if policy in caches
        }
        entry["replicates"] = max(cell.replicate for cell in cells)
    return Settings(values)


def cells_in(results: Path, experiment: str) -> list[Cell]:
    """The cells of an experiment that lie in a results folder."""
    folders = sorted((results / RUN / experiment).glob("*/*/*/"))
    return [Cell(experiment, *folder.parts[-3:-1], int(folder.name)) for folder in folders]


def copied(target: Path) -> Path:
    """A copy of the recorded results that a test may alter."""
    return Path(shutil.copytree(ROOT, target / "results"))


def folder_of(results: Path, cell: str) -> Path:
    """A cell's folder."""
    return results / RUN / cell


def edit_record(results: Path, cell: str, change: Callable[[dict], object]) -> None:
    """Change the provenance of a cell, as if it had been measured so."""
    path = folder_of(results, cell) / evidence.PROVENANCE
    record = json.loads(path.read_text(encoding="utf-8"))
    change(record)
    path.write_text(evidence.json_text(record), encoding="utf-8")


def edit_rows(results: Path, cell: str, change: Callable[[evidence.Row], evidence.Row | None]) -> None:
    """Change or drop rows of a cell, as if it had been measured so: its record tells the new hash."""
    path = folder_of(results, cell) / evidence.EVIDENCE
    rows = evidence.csv_to_rows(path.read_text(encoding="utf-8"), path)
    kept = [new for row in rows if (new := change(row)) is not None]
    path.write_text(evidence.rows_to_csv(kept), encoding="utf-8", newline="\n")
    edit_record(results, cell, lambda record: record["files"].update({path.name: evidence.file_entry(path)}))


def fail(results: Path, cell: str, message: str = "process 'timed' was killed by SIGKILL: no output") -> None:
    """Turn a cell into a failed one."""
    folder = folder_of(results, cell)
    for path in folder.iterdir():
        if path.name not in (evidence.PROVENANCE, evidence.RUN_LOG):
            path.unlink()

    def change(record: dict) -> None:
        record["files"] = {evidence.RUN_LOG: evidence.file_entry(folder / evidence.RUN_LOG)}
        record |= {"outcome": "failed", "exit_status": 1, "failure": {"stage": "timed", "message": message}}
        record["cache"] = {"verdict": "not-judged", "reasons": []}

    edit_record(results, cell, change)


def unproven(results: Path, cell: str, reason: str = "a test says so") -> None:
    """Turn a cell into an indeterminate one."""
    verdict = {"verdict": "indeterminate", "reasons": [reason]}
    edit_record(results, cell, lambda record: record["cache"].update(verdict))
