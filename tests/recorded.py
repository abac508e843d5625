"""Recorded evidence for tests: where it lies, which settings it belongs to, and how to alter a copy."""

import copy
import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from complab import attempts, config, evidence, facts, staleness, torchlog
from complab.config import Cell, Settings
from complab.measure import ledger
from complab.report import claims_table, exhibits, ledgers, numbers, page

ROOT = Path(__file__).parent / "data" / "evidence"
# What somebody's source could contain, who meant harm: it ends up in reasons and in the log.
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"'{{ 7 * 7 }}"
RUN = next(path.name for path in sorted(ROOT.iterdir()) if path.is_dir())


def settings(results: Path = ROOT, **noise) -> Settings:
    """The project's settings with the policies, cache states and replicates that lie in ``results``."""
    loaded = config.load(overrides={"scale": "quick", "run": RUN})
    values = copy.deepcopy(loaded.values)
    values["noise"] |= noise
    values["subjects"] = {}
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


def draw(results: Path, figures: Path) -> Path:
    """Draw every exhibit of the recorded evidence, the page last; returns the run's folder of them."""
    chosen = settings(results)
    for name in chosen["experiments"]:
        exhibits.draw(chosen, name, results, figures)
    ledgers.draw(chosen, results, figures)
    claims_table.draw(chosen, results, figures)
    numbers.write(chosen, figures)
    page.draw(chosen, results, figures)
    return figures / RUN


def edit_file(results: Path, cell: str, name: str, change: Callable[[str], str]) -> None:
    """Change a text file of a cell, as if it had been written so: its record tells the new hash."""
    path = folder_of(results, cell) / name
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")
    edit_record(results, cell, lambda record: record["files"].update({name: evidence.file_entry(path)}))


def hostile(results: Path) -> Path:
    """Put a text that tries to become markup where a probe and the log quote sources."""

    def row(told: evidence.Row) -> evidence.Row:
        asked = told.metric == "explain_breaks"
        return evidence.Row(**(vars(told) | {"detail": HOSTILE})) if asked else told

    def log(text: str) -> str:
        return text.replace("debug context:", f"debug context: {HOSTILE}")

    for cell in cells_in(results, "e3_graph_breaks"):
        edit_rows(results, cell.path, row)
        edit_file(results, cell.path, evidence.TORCH_LOG, log)
    return results


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


def as_if_measured_today(results: Path) -> Settings:
    """Make recorded cells those of today's code and configuration, as a run of now would leave them.

    Their logs get sections, their ledgers are filled again, and the run gets its list of attempts. Returns
    the settings that they are about.
    """
    told = settings(results)
    child = staleness.SCRIPTS / "complab" / "measure" / "child.py"
    for cell in told.cells():
        folder = folder_of(results, str(cell))
        record = json.loads((folder / evidence.PROVENANCE).read_text(encoding="utf-8"))
        modules = staleness.code_digests(staleness.script_of(cell.experiment), child)
        record["code"] |= {"modules": modules, "digest": staleness.digest_of(modules)}
        record["config"] = told.measured_slice(cell.experiment, "cpu")
        record["fingerprint"] = facts.collect_fingerprint()
        record["attempt"] = 1
        _with_sections(folder)
        rows = evidence.csv_to_rows((folder / evidence.EVIDENCE).read_text(encoding="utf-8"), folder)
        filled = ledger.fill(rows, record["config"]["tolerance"], record["config"]["recompile_limit"])
        (folder / evidence.LEDGER).write_text(evidence.json_text(filled), encoding="utf-8")
        measure_again(results, str(cell), record)
    return told


def measure_again(results: Path, cell: str, record: dict) -> None:
    """Write a cell's record for the files that are there, and list the attempt that left it."""
    folder = folder_of(results, cell)
    record["files"] = {name: evidence.file_entry(folder / name) for name in record["files"]}
    path = folder / evidence.PROVENANCE
    told = {"cell": cell, "attempt": record["attempt"], "time": record["started"]}
    attempts.append(results / RUN, told | {"event": attempts.STARTED})
    path.write_text(evidence.json_text(record), encoding="utf-8")
    left = {"event": attempts.MEASURED, "provenance": evidence.sha256_of(path)}
    attempts.append(results / RUN, told | left)


def _with_sections(folder: Path) -> None:
    """Part the log of the timed process by the cases and calls that its rows count messages of."""
    rows = evidence.csv_to_rows((folder / evidence.EVIDENCE).read_text(encoding="utf-8"), folder)
    whole = (folder / evidence.TORCH_LOG).read_text(encoding="utf-8")
    _, timed, *others = whole.split("# process ")
    lines = timed.split("\n")
    found = torchlog.parse(timed)
    starts = sorted(each.line - 1 for each in (*found.breaks, *found.recompiles, *found.limits))
    messages = ["\n".join(lines[at:end]).rstrip("\n") for at, end in pairwise([*starts, len(lines)])]
    text = ["# process timed\n"]
    for case in dict.fromkeys(row.case for row in rows if row.metric == "log_breaks"):
        mine = [row for row in rows if row.case == case]
        calls = [row.call for row in mine if row.metric in ("recompiles", "limit_hit")]
        total = sum(row.value for row in mine if row.metric in ("log_break_messages", "log_recompiles"))
        total += sum(row.metric == "limit_hit" for row in mine)
        taken = [messages.pop(0) for _ in range(int(total))]
        text.append(torchlog.begin(case))
        for call in dict.fromkeys(row.call for row in mine if row.metric == "sequence_length"):
            logged = [taken.pop(0) + "\n" for _ in range(calls.count(call))]
            text += [torchlog.begin(case, call), *logged, torchlog.end(case, call)]
        text += [*(message + "\n" for message in taken), torchlog.end(case)]
    assert not messages, f"{folder}: messages that no row counts"
    text += [f"# process {other}" for other in others]
    (folder / evidence.TORCH_LOG).write_text("".join(text), encoding="utf-8")
    _count_hits(folder, rows)


def _count_hits(folder: Path, rows: list[evidence.Row]) -> None:
    """Old evidence has no row for how often a case hit the limit."""
    if any(row.metric == "limit_hits" for row in rows):
        return
    counted = [row for row in rows if row.metric == "log_recompiles"]
    for row in counted:
        hits = [each for each in rows if each.case == row.case and each.metric == "limit_hit"]
        told = {"metric": "limit_hits", "value": len(hits), "unit": "hits"}
        rows.append(evidence.Row(**{**vars(row), **told, "detail": "; ".join(hit.detail for hit in hits)}))
    (folder / evidence.EVIDENCE).write_text(evidence.rows_to_csv(rows), encoding="utf-8", newline="\n")
