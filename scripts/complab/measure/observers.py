"""Which instruments are held against a process that has none, and what of it do they change?

Each looks at the same program in a process of its own, on its own copy of one cold cache, so that all
start alike. `control` is the process without an instrument.
"""

from pathlib import Path

POLICY = "observers"
CONTROL = "control"
# What is compared, counted at the end of the process: what was captured, and what the disk gave.
COUNTS = ("frames_tried", "frames_compiled", "graphs_captured")
HITS = ("fxgraph_hits", "fxgraph_misses", "autograd_hits", "autograd_misses")
_PREFIX = "observer-"
NAMES = (CONTROL, "graph_breaks", "recompiles", "guards", "trace", "debug", "explain", "profiler")


def process_of(observer: str) -> str:
    """Name of the observer's process."""
    return _PREFIX + observer


def observer_of(process: str) -> str:
    """The observer of a process, empty for a process of another kind."""
    return process.removeprefix(_PREFIX) if process.startswith(_PREFIX) else ""


def observed(policy: str, case: str) -> bool:
    """Whether a row is of an observer's process, which keeps no log and so fills no ledger."""
    return policy == POLICY and case in NAMES


def wanted(policy: str, cache: str, settings: dict) -> list[str]:
    """The observers a cell runs: those of its experiment, where it is the cold cell of their policy."""
    return settings["observers"] if (policy, cache) == (POLICY, "cold") else []


def variables(observer: str, folder: Path) -> dict[str, str]:
    """What the observer's process has in its environment besides; what it writes goes below ``folder``."""
    return {
        "graph_breaks": {"TORCH_LOGS": "graph_breaks"},
        "recompiles": {"TORCH_LOGS": "recompiles"},
        "guards": {"TORCH_LOGS": "guards"},
        "trace": {"TORCH_TRACE": str(folder / "trace")},
        "debug": {"TORCH_COMPILE_DEBUG": "1", "TORCH_COMPILE_DEBUG_DIR": str(folder / "debug")},
    }.get(observer, {})


def differences(rows: list[dict]) -> list[dict]:
    """Rows that say whether an observer counts something else than the control, and what."""
    told = {(row["case"], row["metric"]): row["value"] for row in rows if row["metric"] in (*COUNTS, *HITS)}
    found = []
    for observer in dict.fromkeys(case for case, _ in told if case != CONTROL):
        for name, metrics in (("changes_counts", COUNTS), ("changes_hits", HITS)):
            pairs = {
                metric: (told.get((CONTROL, metric)), told.get((observer, metric))) for metric in metrics
            }
            changed = [
                f"{metric} {_plain(before)} without, {_plain(after)} with"
                for metric, (before, after) in pairs.items()
                if before != after
            ]
            found.append(
                {
                    "case": observer,
                    "call": None,
                    "metric": name,
                    "value": float(bool(changed)),
                    "unit": "1",
                    "detail": "; ".join(changed),
                }
            )
    return found


def _plain(value: float | None) -> str:
    return "not told" if value is None else f"{value:g}"
