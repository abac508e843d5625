"""What is known about a cell while it is being measured?"""

import datetime
import time
from dataclasses import dataclass, field
from pathlib import Path

from complab import evidence
from complab.config import Cell
from complab.measure import isolation
from complab.staleness import Plan


@dataclass
class Job:
    """One cell to measure and what is known about it so far."""

    plan: Plan
    cell: Cell
    attempt: int
    cold: Path | None = None
    started: str = ""
    clock: float = 0.0
    wall: float = 0.0
    lines: list[str] = field(default_factory=list)
    log: str = ""
    stage: str = "preparing"
    place: isolation.Workplace | None = None
    vector_isa_known: bool = False

    @property
    def settings(self) -> dict:
        """The cell's slice of the configuration."""
        return self.plan.settings.measured_slice(self.cell.experiment, self.plan.device)

    @property
    def timeout(self) -> int:
        return self.plan.settings["cell_timeout"]

    @property
    def python(self) -> str:
        return self.plan.settings.python

    def start(self) -> None:
        """Note the start; waiting for another measurement to end is no part of the cell's duration."""
        self.started, self.clock, self.wall = now(), time.perf_counter(), time.time()

    def durations(self) -> dict:
        """Monotonic seconds since the start, and by how many the wall clock differs from them."""
        monotonic, wall = time.perf_counter() - self.clock, time.time() - self.wall
        return {"duration_s": round(monotonic, 3), "clock_step_s": round(wall - monotonic, 3)}

    def say(self, line: str) -> None:
        """Show a line and keep it for run.log."""
        print(line, flush=True)
        self.lines.append(line)

    def clean(self, text: str) -> str:
        """The text without this machine's folders, as it may be hashed and published."""
        return isolation.replace_paths(text, self.place, self.python)


@dataclass
class Outcome:
    """What a measured cell found, before it is written."""

    rows: list[evidence.Row]
    ledger: dict
    processes: list[dict]
    cache: dict
    gpus: list[dict] | str
    load: dict


def now() -> str:
    """The wall clock in UTC: a label, never the source of a duration."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
