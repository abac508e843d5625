"""What several test files share: cells made by hand, and copies of the project that a test may edit."""

import shutil
from pathlib import Path

import pytest
from complab import evidence
from complab.config import PROJECT, Cell

CELL = Cell("e1_opening_failure", "static", "cold", 1)


def _record(cell: Cell, **changes) -> dict:
    """A provenance record that its schema accepts."""
    record = {
        "schema_version": evidence.SCHEMA_VERSION,
        "run": "current",
        "cell": vars(cell),
        "outcome": "measured",
        "argv": ["python", f"scripts/{cell.experiment}.py"],
        "exit_status": 0,
        "started": "2026-01-31T12:00:00+00:00",
        "ended": "2026-01-31T12:00:02+00:00",
        "duration_s": 2.5,
        "attempt": 1,
        "code": {"commit": None, "dirty": None, "digest": "0" * 64, "modules": {}},
        "config": {},
        "fingerprint": {},
        "environment": {},
        "gpu": "no device",
        "variables": {},
        "processes": [],
        "cache": {"verdict": "cold-proven", "reasons": []},
        "files": {},
    }
    return {**record, **changes}


def _rows(cell: Cell) -> list[evidence.Row]:
    """Two facts of a cell."""
    names = (cell.experiment, cell.policy, cell.cache, cell.replicate)
    return [
        evidence.Row(*names, "model", 0, "new_variants", 1, "calls", "new variant"),
        evidence.Row(*names, "model", 0, "compiled_time", 1 / 3, "s"),
    ]


def _place(folder: Path, cell: Cell = CELL, files: dict[str, bytes | str] | None = None, **changes) -> Path:
    """Place a cell's files and its record as a measurement does; ``files`` adds to them or replaces them."""
    record = _record(cell, **changes)
    texts = {evidence.RUN_LOG: "one line\n"}
    if record["outcome"] == "measured":
        texts |= {evidence.EVIDENCE: evidence.rows_to_csv(_rows(cell))}
        texts |= {evidence.LEDGER: "{}\n", evidence.TORCH_LOG: ""}
    folder.parent.mkdir(parents=True, exist_ok=True)
    private = folder.parent / f".{folder.name}.private"
    private.mkdir()
    for name, content in {**texts, **(files or {})}.items():
        (private / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    evidence.place(private, folder, record)
    return folder


@pytest.fixture
def place_cell():
    """``place_cell(folder, cell, files, **changes of the record)`` makes a whole cell; returns the folder."""
    return _place


@pytest.fixture
def project_copy(tmp_path) -> Path:
    """A copy of everything that a run reads, for a test to edit."""
    copy = tmp_path / "project"
    for name in ("scripts", "workflow"):
        shutil.copytree(PROJECT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Snakefile", "config.yaml", "figures/complab.mplstyle", "envs/conda.yaml"):
        (copy / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(PROJECT / name, copy / name)
    return copy
