"""Is the evidence of a run whole, as it was measured, and about what this checkout would measure?

Each question is a function of a tree that yields findings. None of them decides anything: the class of a
finding says how bad it is, and `audit` takes the worst.
"""

import functools
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from complab import attempts, config, evidence, facts, staleness
from complab.config import Cell, Settings
from complab.errors import EnvironmentProblem, Unverified, UsageProblem, counted, one_line
from complab.measure import cache, ledger
from complab.report import drawing, gather
from complab.report.classes import MISSING, STALE, TAMPERED, UNPROVEN, Finding
from complab.report.reading import MALFORMED, Read
from complab.report.tree import Tree

# What a bundle lays over the configuration is a stranger's word: no plan may fill the memory.
MOST_REPLICATES = 10_000
# Rows that the log is the source of, by whether they are of one call.
OF_CASE = ("log_breaks", "log_break_messages", "log_recompiles", "limit_hits")
OF_CALL = ("recompiles", "limit_hit")
# Modules below scripts/ that fill a ledger from rows, and that read a log.
LEDGER_CODE = (
    "complab/measure/ledger.py",
    "complab/measure/observers.py",
    "complab/guards.py",
    "complab/mechanisms.py",
    "complab/diagnose/judgement.py",
)
LOG_CODE = ("complab/torchlog.py", "complab/guards.py")


def settings_of(tree: Tree) -> Settings:
    """The settings the run was made under: this checkout's configuration, and what was laid over it then.

    UsageProblem if the configuration of today does not allow that any more.
    """
    told = tree.manifest.get("overrides", tree.facts_of_bundle.get("overrides"))
    if not isinstance(told, dict):
        records = (tree.cell(path).provenance for path in tree.cells)
        told = evidence.overrides_of(next((record for record in records if record is not None), {"argv": []}))
    scale = tree.run.removeprefix("current-")
    guessed = {"scale": scale} if scale != tree.run and "scale" not in told else {}
    wanted = {key: value for key, value in told.items() if key not in drawing.NO_CHOICE}
    settings = config.load(overrides={**guessed, **wanted, "run": tree.run})
    if sum(entry["replicates"] for entry in settings["experiments"].values()) > MOST_REPLICATES:
        raise UsageProblem(f"config.yaml: more than {MOST_REPLICATES} replicates in all; no run has as many")
    return settings


@dataclass
class Account:
    """What became of each planned cell; ``excluded`` ones cannot be measured on this machine."""

    planned: int = 0
    measured: int = 0
    indeterminate: int = 0
    failed: int = 0
    excluded: int = 0
    missing: int = 0

    @property
    def whole(self) -> bool:
        """Whether planned = measured + failed + excluded."""
        return self.planned == self.measured + self.failed + self.excluded

    def __str__(self) -> str:
        sum_ = f"{self.planned} planned {'=' if self.whole else '!='} {self.measured} measured"
        doubtful = f" ({self.indeterminate} of them indeterminate)" if self.indeterminate else ""
        lacking = f", {self.missing} missing" if self.missing else ""
        return f"{sum_}{doubtful} + {self.failed} failed + {self.excluded} excluded{lacking}"


def account(tree: Tree, settings: Settings, cells: Iterable[Cell]) -> tuple[Account, list[Finding]]:
    """The planned cells counted by what became of them, with a finding for each that is no evidence."""
    told, findings = Account(), []
    cells = list(cells)
    excluded = _excluded(tree, settings)
    for cell in cells:
        told.planned += 1
        read = tree.cell(cell.path) if cell.path in tree.cells else None
        if read is None or read.provenance is None:
            if read is None and excluded:
                told.excluded += 1
                findings.append(Finding(f"{tree.source}/{cell.path}", UNPROVEN, f"excluded: {excluded}"))
            else:
                told.missing += 1
            if read is None and not excluded:
                findings.append(Finding(f"{tree.source}/{cell.path}", MISSING, "planned, but not measured"))
            continue
        told.failed += read.record.failed
        told.measured += not read.record.failed
        told.indeterminate += not read.record.failed and not read.record.determinate
        findings += _no_evidence(tree, read)
    return told, findings


def _excluded(tree: Tree, settings: Settings) -> str:
    """Why no cell of the configuration can be measured on this machine, empty if it can."""
    if settings["device"] != "cuda" or not tree.run.startswith("current"):
        return ""
    try:
        facts.resolve_device(settings["device"], facts.collect_fingerprint())
    except EnvironmentProblem as problem:
        return str(problem)
    return ""


def _no_evidence(tree: Tree, read: Read) -> Iterator[Finding]:
    name = tree.named(read.folder / evidence.PROVENANCE)
    record = read.record
    if record.failed:
        told = record.provenance["failure"]
        yield Finding(name, UNPROVEN, f"failed while {told['stage']}: {one_line(told['message'], 200)}")
    elif not record.determinate:
        reasons = "; ".join(record.provenance["cache"]["reasons"]) or record.verdict
        yield Finding(name, UNPROVEN, f"{record.verdict}: {one_line(reasons, 200)}")


def strangers(tree: Tree, cells: Iterable[Cell]) -> Iterator[Finding]:
    """Cells of which there is evidence, though the configuration plans them no more."""
    planned = {cell.path for cell in cells}
    for path in tree.cells:
        if path not in planned:
            yield Finding(f"{tree.source}/{path}", STALE, "config: no cell of the configuration any more")


def files(tree: Tree, paths: Iterable[str]) -> Iterator[Finding]:
    """What is wrong with the files of the cells, and with the pairs of cold and warm ones."""
    pairs: dict[tuple, list] = {}
    for path in paths:
        read = tree.cell(path)
        yield from read.findings
        if read.provenance is None:
            continue
        code = read.provenance["code"]
        if code["digest"] != staleness.digest_of(code["modules"]):
            name = tree.named(read.folder / evidence.PROVENANCE)
            yield Finding(name, TAMPERED, "its digest of the code is not that of the modules it lists")
        if not read.findings:
            pairs.setdefault((read.cell.experiment, read.cell.policy, read.cell.replicate), []).append(read)
    for pair in pairs.values():
        try:
            gather.refuse_strange_pairs(read.record for read in pair)
        except MALFORMED as error:
            name = tree.named(pair[0].folder / evidence.PROVENANCE)
            yield Finding(name, TAMPERED, f"its cache cannot be read ({one_line(error, 80)})")
        except Unverified as problem:
            file, _, told = str(problem).partition(": ")
            kind = UNPROVEN if file.endswith(evidence.PROVENANCE) else TAMPERED
            yield Finding(tree.named(Path(file)), kind, told.partition(";")[0])


# Is it about what this checkout would measure?


def stale(tree: Tree, settings: Settings, paths: Iterable[str]) -> Iterator[Finding]:
    """Cells measured by other code, under other settings or, for a run of this machine, elsewhere.

    Another environment is no finding for a run with a name of its own: an auditor need not have its machine.
    """
    fingerprint = facts.collect_fingerprint() if tree.run.startswith("current") else None
    planned = {cell.path for cell in settings.cells()}
    slices: dict[tuple[str, str], dict] = {}
    for path in paths:
        read = tree.cell(path)
        record = read.provenance
        if record is None or path not in planned:
            continue
        reasons = _code_changes(read)
        if isinstance(record["config"].get("device"), str):
            key = (read.cell.experiment, record["config"]["device"])
            if key not in slices:
                slices[key] = settings.measured_slice(*key)
            reasons += staleness.differences("config", record["config"], slices[key])
        if fingerprint is not None:
            reasons += staleness.differences("environment", record["fingerprint"], fingerprint)
        name = tree.named(read.folder / evidence.PROVENANCE)
        yield from (Finding(name, STALE, reason) for reason in reasons)


@functools.cache
def measuring_code() -> dict[str, str]:
    """Digest of each module that any experiment's cells use today."""
    scripts = sorted(staleness.SCRIPTS.glob("e[0-9]*_*.py"))
    return staleness.code_digests(*scripts, staleness.SCRIPTS / "complab" / "measure" / "child.py")


def _code_changes(read: Read) -> list[str]:
    """Which modules of a cell are others today; one that is new comes with a change of what imports it."""
    today = measuring_code()
    changed = [
        name for name, digest in read.provenance["code"]["modules"].items() if today.get(name) != digest
    ]
    if not changed:
        return []
    shown = ", ".join(changed[:4]) + (f" and {len(changed) - 4} more" if len(changed) > 4 else "")
    return [f"code: {shown} changed since"]


def _unchanged(read: Read, modules: Iterable[str]) -> bool:
    """Whether the modules are today what they were when the cell was measured."""
    then, today = read.provenance["code"]["modules"], measuring_code()
    return all(then.get(name) == today.get(name) for name in modules)


# Do ledger and log say what the rows say?


def ledgers(tree: Tree, paths: Iterable[str]) -> tuple[int, list[Finding]]:
    """Fill each sound cell's ledger again from its rows; how many were filled, and those that differ.

    One that other code filled is stale, and cannot be held against today's.
    """
    filled, findings = 0, []
    for path in paths:
        read = tree.cell(path)
        if not read.sound or read.record.failed or not _unchanged(read, LEDGER_CODE):
            continue
        told = read.provenance["config"]
        try:
            again = ledger.fill(list(read.rows), told["tolerance"], told["recompile_limit"])
        except MALFORMED as error:
            again = {"error": str(error)}
        filled += 1
        if json.dumps(again, sort_keys=True) != _plain(read.texts[evidence.LEDGER]):
            name = tree.named(read.folder / evidence.LEDGER)
            findings.append(Finding(name, TAMPERED, f"is not what its rows make of it{_region(read, again)}"))
    return filled, findings


def _plain(text: str) -> str:
    """JSON text without its layout, or the text itself if it is none."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        return text


def _region(read: Read, again: dict) -> str:
    """Which entry of which region differs, in words."""
    try:
        told, filled = read.ledgers, again["regions"]
        for case in told.keys() | filled.keys():
            for part in told[case].keys() | filled[case].keys():
                if told[case].get(part) != filled[case].get(part):
                    return f": {part} of region {case}"
    except (Unverified, *MALFORMED):
        pass
    return ""


def logs(tree: Tree, paths: Iterable[str]) -> tuple[int, list[Finding]]:
    """Read each sound cell's log again and hold it against the rows that tell of it.

    Returns how many rows were held against it. Logs without sections cannot be counted case by case.
    """
    held, findings, without = 0, [], []
    for path in paths:
        read = tree.cell(path)
        if not read.sound or read.record.failed or not _unchanged(read, LOG_CODE):
            continue
        rows = [row for row in read.rows if row.metric in (*OF_CASE, *OF_CALL)]
        if not read.log:
            without += [path] if rows else []
            continue
        told = [(row.case, row.call, row.metric, row.value, row.unit, row.detail) for row in rows]
        again = _counted(read)
        held += len(told)
        difference = _first_difference(told, again)
        if difference:
            findings.append(Finding(tree.named(read.folder / evidence.TORCH_LOG), TAMPERED, difference))
    if without:
        told = f"{counted(len(without), 'log')} without sections, so counts cannot be held against them"
        findings.append(Finding(f"{tree.source}/{without[0]}/{evidence.TORCH_LOG}", UNPROVEN, told))
    return held, findings


def _counted(read: Read) -> list[tuple]:
    """The rows that the sections of a cell's log give, as the measuring code counts them.

    Of a call that is none of a stream, which has its variants counted, nothing is counted in the log.
    """
    streamed = {(row.case, row.call) for row in read.rows if row.metric == "variants"}
    found = []
    for section in read.log:
        if section.call is not None and (section.case, section.call) not in streamed:
            continue
        counts = section.log.of_case() if section.call is None else section.log.of_call()
        for each in counts:
            detail = " ".join(each.detail.split())
            found.append((section.case, section.call, each.metric, each.value, each.unit, detail))
    return found


def _first_difference(told: list[tuple], again: list[tuple]) -> str:
    """How rows and log differ, whatever their order, empty if they do not."""
    for one, other, words in ((told, again, "the rows say"), (again, told, "the log says")):
        left = list(other)
        for each in one:
            if each in left:
                left.remove(each)
                continue
            case, call, metric, value, _, detail = each
            where = case if call is None else f"{case}, call {call}"
            opposite = "the log does not" if words == "the rows say" else "the rows do not"
            about = f" ({one_line(detail, 60)})" if detail else ""
            return f"{words} {value:g} {metric} of case {where}{about}, {opposite}"
    return ""


# The list of attempts.


def attempts_made(tree: Tree, paths: Iterable[str], whole: bool) -> tuple[int, list[Finding]]:
    """Hold the list of attempts against the cells, the logs it names and the exhibits' manifest.

    Returns the number of attempts. ``whole``: look at what is not of a single cell too.
    """
    name = f"{tree.source}/{attempts.FILE}"
    if not (tree.evidence / attempts.FILE).is_file():
        told = "no list of attempts: nothing tells which were made, and that these are the last"
        listed = tree.manifest.get("attempts")
        missing = isinstance(listed, dict) and listed.get("lines")
        return 0, [Finding(name, MISSING if missing else UNPROVEN, told)]
    try:
        events = tree.attempts
    except Unverified as problem:
        return 0, [Finding(name, TAMPERED, str(problem).partition(": ")[2])]
    by_cell: dict[str, list[dict]] = {}
    for event in events:
        by_cell.setdefault(str(event.get("cell")), []).append(event)
    findings = []
    for path in paths:
        findings += _last_attempt(tree, tree.cell(path), by_cell.get(path, []))
    if whole:
        findings += _beginning(tree, name)
        findings += _kept_logs(tree, events)
    return sum(event.get("event") == attempts.STARTED for event in events), findings


def _last_attempt(tree: Tree, read: Read, events: list[dict]) -> Iterator[Finding]:
    if read.provenance is None:
        return
    name = tree.named(read.folder / evidence.PROVENANCE)
    ended = [event.get("provenance") for event in events if event.get("event") != attempts.STARTED]
    if not events:
        yield Finding(name, UNPROVEN, "the list of attempts knows of no attempt at this cell")
    elif events[-1].get("event") == attempts.STARTED:
        what = "an earlier one left this" if read.digest in ended else "nothing tells where this comes from"
        yield Finding(name, UNPROVEN, f"the last attempt was interrupted; {what}")
    elif read.digest == ended[-1]:
        return
    elif read.digest in ended:
        yield Finding(name, UNPROVEN, "left by an earlier attempt than the last one")
    else:
        yield Finding(name, TAMPERED, "not the record that any attempt left, as their list tells")


def _beginning(tree: Tree, name: str) -> Iterator[Finding]:
    """The list may have grown since the exhibits were drawn; what it had then must still be there."""
    told = tree.manifest.get("attempts")
    if (
        isinstance(told, dict)
        and isinstance(told.get("lines"), int)
        and drawing.attempts_so_far(tree.evidence, told.get("lines")) != told
    ):
        yield Finding(name, TAMPERED, "does not begin with the list that the exhibits were drawn under")


def _kept_logs(tree: Tree, events: list[dict]) -> Iterator[Finding]:
    """The logs of failed attempts lie beside the list under the hash of their content."""
    folder = tree.evidence / attempts.LOGS
    wanted = {f"{event['log']}.log" for event in events if isinstance(event.get("log"), str)}
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    for name in sorted(wanted - there):
        yield Finding(tree.named(folder / name), MISSING, "the log of a failed attempt")
    for name in sorted(there):
        if name not in wanted:
            yield Finding(tree.named(folder / name), TAMPERED, "the log of no attempt that is listed")
        elif evidence.sha256_of(folder / name) != name.removesuffix(".log"):
            yield Finding(tree.named(folder / name), TAMPERED, "is not what its name, a hash, says")


# The run's own account.


def accounts(tree: Tree, settings: Settings) -> Iterator[Finding]:
    """The account that the run gave at its end, of each experiment and of all, against the cells."""
    for experiment in ("", *settings["experiments"]):
        path = tree.evidence / experiment / "complete.json"
        cells = settings.cells(*([experiment] if experiment else []))
        reads = [tree.cell(cell.path) for cell in cells if cell.path in tree.cells]
        if not path.is_file() or any(read.provenance is None for read in reads):
            continue
        again = gather.account(read.record for read in reads) | {"planned": len(cells)}
        text = path.read_text(encoding="utf-8", errors="replace")
        try:
            told = json.loads(text)
        except ValueError:
            told = None
        if told is None or text != json.dumps(told) + "\n":
            yield Finding(tree.named(path), TAMPERED, "not an account as the run writes it")
        elif told != again:
            words = ", ".join(f"{count} {what}" for what, count in again.items())
            yield Finding(tree.named(path), STALE, f"tells another account than the cells do ({words})")


# Sealed caches.


def sealed_caches(tree: Tree, paths: Iterable[str], scratch: Path) -> tuple[int, list[Finding]]:
    """Hold every sealed cache against the manifest of its cell; nothing of it is loaded."""
    count, findings = 0, []
    for path in paths:
        read = tree.cell(path)
        tar = read.folder / evidence.SEALED_CACHE
        if not tar.exists() or evidence.CACHE_MANIFEST not in read.texts:
            continue
        count += 1
        folder, again = scratch / f"cache-{count}", scratch / f"cache-{count}.tar"
        try:
            cache.unpack(tar, json.loads(read.texts[evidence.CACHE_MANIFEST]), folder)
            cache.seal(folder, again)
            told = "" if evidence.sha256_of(again) == evidence.sha256_of(tar) else "is not as it was sealed"
        except (Unverified, ValueError) as problem:
            told = str(problem).removeprefix(f"{tar}: ").partition(";")[0]
        findings += [Finding(tree.named(tar), TAMPERED, told)] if told else []
        shutil.rmtree(folder, ignore_errors=True)
        again.unlink(missing_ok=True)
    return count, findings


def settings_or_finding(tree: Tree) -> tuple[Settings | None, list[Finding]]:
    """The run's settings, or the finding that today's configuration does not know them."""
    try:
        return settings_of(tree), []
    except UsageProblem as problem:
        return None, [Finding("config.yaml", STALE, f"config: {problem}")]
