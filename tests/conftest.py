"""What several test files share: cells made by hand, placed and published as a measurement does it."""

import contextlib
import signal
from pathlib import Path

import pytest

from complab import cell as measuring
from complab import evidence
from complab.config import Cell
from complab.measure import isolation
from complab.staleness import Plan
from faults import pytest_addoption, pytest_collection_modifyitems, pytest_configure  # noqa: F401 (hooks)

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


def _publish(plan: Plan, cell: Cell, out: Path) -> dict:
    """Publish a cell of a plan as if its process had found two facts; returns the provenance record."""
    job = measuring.Job(plan, cell, plan.attempt(cell))
    with contextlib.ExitStack() as stack:
        job.place = stack.enter_context(isolation.workplace(plan.settings["scratch"]))
        timed = {
            "name": "timed",
            "argv": [plan.settings.python],
            "seconds": 1.5,
            "exit_status": 0,
            "instrument": {},
            "variables": isolation.child_environment(job.place, plan.settings["threads"], plan.device),
            "facts": {"torch": plan.fingerprint["torch"]},
        }
        verdict = {"verdict": f"{cell.cache}-proven", "reasons": []}
        outcome = measuring.Outcome(_rows(cell), {"regions": {}}, [timed], verdict, "no device", {})
        measuring.publish(job, outcome, out, stack)
    return evidence.read_provenance(out)


@pytest.fixture(scope="session")
def place_cell():
    """``place_cell(folder, cell, files, **changes of the record)`` makes a whole cell; returns the folder."""
    return _place


@pytest.fixture(scope="session")
def publish_cell():
    """``publish_cell(plan, cell, folder)`` makes a cell that is about the plan; returns its record."""
    return _publish


@pytest.fixture
def interruptible():
    """Where tests run in the background SIGINT is ignored, and so it would be by all that they start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
