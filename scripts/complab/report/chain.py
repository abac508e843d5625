"""What lies between a printed number and the machine it was measured on?

One chain per number, as JSON values: the formula and what it was asked, the rows of evidence by file and
line, the cells they come from with their commands and verdicts, the machine, and the lines of torch's log
that tell of the same calls. `complab audit` prints it, the evidence page shows it.
"""

import json
import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from complab import evidence, torchlog
from complab.errors import Unverified, counted, one_line
from complab.report import lineage
from complab.report.number import Number
from complab.report.reading import MALFORMED, Read
from complab.report.tree import Printed, Tree

SAME, NOTHING = "the same", "nothing to recompute: no number was measured"
# Lines of a message of the log, and messages of a cell, that a chain holds; it tells how many more there are.
MESSAGE_LINES, MESSAGES = 12, 8
# Messages of a cell, and lines of each below its first, that are printed.
SHOWN = 3
# What a lineage entry and its recomputation must have alike.
COMPARED = ("value", "text", "low", "high", "per_process", "estimator", "flags", "rows", "ledgers")
# Rows whose call is a round of the steady state, or a frame, and none of the stream.
_NO_CALLS = ("steady_eager", "steady_compiled", "steady_control", "compiled_frame")
# Facts of the machine that belong to a number, by the name they are printed under.
_MACHINE = ("python", "torch", "torch_git", "triton", "compiler", "cpu", "machine", "driver", "torch_cuda")
_WIDTH = 12


@dataclass(frozen=True)
class Chain:
    """Everything behind one number, in JSON values.

    ``recomputed`` is "the same", or what the rows say instead. ``rows`` has one entry per file: its lines,
    how many, the first and the last as they stand there. ``cells`` has one entry per measured process.
    """

    run: str
    exhibit: str
    table: str
    row: str
    column: str
    place: str
    text: str
    value: float | int | str | None
    unit: str
    low: float | None
    high: float | None
    samples: list[float]
    flags: list[str]
    because: list[str]
    formula: str
    asked: str
    ask: dict
    recomputed: str
    rows: list[dict]
    cells: list[dict]
    environment: dict
    gpu: object

    def as_dict(self) -> dict:
        """The chain as JSON values."""
        return dict(vars(self))


def chain(tree: Tree, number: Printed) -> Chain:
    """The chain of a number, as far as its evidence can be read."""
    told = number.told
    reads = [tree.cell(file.rpartition("/")[0]) for file in told["rows"]]
    first = next((read.provenance for read in reads if read.provenance is not None), {})
    ask = {
        key: told[key]
        for key in ("formula", "of", "to", "unit", "rounding", "against", "cache")
        if told.get(key)
    }
    return Chain(
        tree.run,
        number.exhibit,
        number.table,
        number.row,
        number.column,
        number.place,
        told["text"],
        told["value"],
        told["unit"],
        told.get("low"),
        told.get("high"),
        told.get("per_process", []),
        told.get("flags", []),
        told.get("because", []),
        told["formula"],
        in_words(told),
        ask,
        compare(tree, number),
        [_rows(tree, file, lines) for file, lines in told["rows"].items()],
        [_cell(tree, read, number) for read in reads],
        {key: value for key in _MACHINE if (value := first.get("fingerprint", {}).get(key)) is not None},
        first.get("gpu", "no device"),
    )


def in_words(told: dict) -> str:
    """What was asked: the formula, the metrics it reads, and how the answer is printed."""
    words = [told["formula"]]
    words += [f"of {', '.join(told['of'])}"] if told["of"] else []
    words += [f"to {told['to']}"] if told["to"] else []
    words += [f"against policy {told['against']}"] if told.get("against") else []
    words += [f"of {told['cache']} processes"] if told.get("cache") else []
    words += [f"in {told['unit']}"] if told["unit"] else []
    return f"{' '.join(words)}, {told['rounding']}"


def recompute(tree: Tree, number: Printed) -> Number:
    """The number again, from the rows its lineage names; Unverified if they are not there."""
    try:
        return lineage.recomputed(
            number.told, number.noise, tree.facts, lambda file: tree.cell(file.rpartition("/")[0]).ledgers
        )
    except MALFORMED as error:
        raise Unverified(
            f"{number.exhibit}: cannot be computed ({type(error).__name__}: {one_line(error, 120)})"
        ) from error


def compare(tree: Tree, number: Printed) -> str:
    """ "the same" if the rows give the number again, to the last digit; else how they do not."""
    if not number.told["rows"]:
        return NOTHING
    try:
        again = lineage.entry(recompute(tree, number))
    except Unverified as problem:
        return str(problem)
    return difference(number.told, again) or SAME


def difference(told: dict, again: dict) -> str:
    """The first thing in which a lineage entry and its recomputation differ, empty if there is none."""
    for key in COMPARED:
        if not _alike(told.get(key), again.get(key)):
            if key == "rows":
                return "other rows give it"
            return f"{key} is {_short(told.get(key))}, but its rows give {_short(again.get(key))}"
    return ""


def _alike(one: object, other: object) -> bool:
    """Equal to the last bit; 2 and 2.0 are the same number in JSON's eyes."""
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _short(value: object) -> str:
    return one_line(json.dumps(value, ensure_ascii=False), 80)


def _rows(tree: Tree, file: str, lines: list[str]) -> dict:
    """A file's rows: which, how many, and the first and last as they stand there."""
    read = tree.cell(file.rpartition("/")[0])
    numbers = [int(part) for text in (lines[0], lines[-1]) for part in text.split("-") if part.isdecimal()]
    shown = []
    for line in dict.fromkeys((min(numbers, default=0), max(numbers, default=0))):
        if 2 <= line <= len(read.lines):
            shown.append({"line": line, "text": read.lines[line - 1]})
    return {
        "file": file,
        "lines": lines,
        "count": sum(_count(text) for text in lines),
        "first": shown[0] if shown else None,
        "last": shown[-1] if shown else None,
    }


def _count(text: str) -> int:
    first, _, last = text.partition("-")
    known = first.isdecimal() and (last or first).isdecimal()
    return int(last or first) - int(first) + 1 if known else 0


def _cell(tree: Tree, read: Read, number: Printed) -> dict:
    """One measured process: how it was run, what its cache proved, from which code, and what it logged."""
    told = {"cell": read.cell.path, "findings": [str(finding) for finding in read.findings]}
    record = read.provenance
    if record is None:
        return told
    return told | {
        "outcome": record["outcome"],
        "command": shlex.join(record["argv"]),
        "by_hand": by_hand(record),
        "by_snakemake": by_snakemake(tree, record),
        "verdict": record["cache"]["verdict"],
        "reasons": record["cache"]["reasons"],
        "attempt": record["attempt"],
        "started": record["started"],
        "duration_s": record["duration_s"],
        "commit": record["code"]["commit"],
        "dirty": record["code"]["dirty"],
        "code": record["code"]["digest"],
        "provenance": f"{read.cell.path}/{evidence.PROVENANCE}",
        "provenance_sha256": read.digest,
        "log": _log(read, number),
    }


def by_hand(record: dict) -> str:
    """The command that measures the same cell again and prints it, writing nothing."""
    cell, changed = record["cell"], evidence.overrides_of(record)
    changed.pop("run", None)
    words = [
        "python",
        f"scripts/{cell['experiment']}.py",
        "--policy",
        cell["policy"],
        "--cache",
        cell["cache"],
    ]
    words += ["--replicate", str(cell["replicate"])]
    words += ["--scale", changed.pop("scale")] if isinstance(changed.get("scale"), str) else []
    words += ["--overrides", json.dumps(changed, sort_keys=True)] if changed else []
    return shlex.join(words)


def by_snakemake(tree: Tree, record: dict) -> str:
    """The command that measures the same cell again in its run, and draws what depends on it."""
    cell, changed = record["cell"], evidence.overrides_of(record)
    place = f"{cell['experiment']}/{cell['policy']}/{cell['cache']}/{cell['replicate']}"
    words = ["snakemake", "--cores", "1"]
    if changed:
        words += ["--config", *(f"{key}={_plain(value)}" for key, value in sorted(changed.items()))]
    words += [
        "-R",
        f"results/{tree.run}/{place}/{evidence.PROVENANCE}",
        "--",
        cell["experiment"].split("_")[0],
    ]
    return shlex.join(words)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# The log behind rows.


def _log(read: Read, number: Printed) -> dict | None:
    """What torch logged in the calls that the rows tell of: where that stands, and each message in it.

    Old logs have no sections; then it is everything that the timed process logged.
    """
    text = read.texts.get(evidence.TORCH_LOG)
    if text is None:
        return None
    file = f"{read.cell.path}/{evidence.TORCH_LOG}"
    lines = text.split("\n")
    facts = [read.rows[line - 2] for line in _lines(read, number)]
    wanted = {(row.case, row.call) for row in facts if row.metric not in _NO_CALLS}
    cases, metrics = {row.case for row in facts}, {row.metric for row in facts}
    sections = [section for section in read.log if section.case in cases]
    calls = [
        section for section in sections if (section.case, section.call) in wanted and section.call is not None
    ]
    sections = calls or [section for section in sections if section.call is None]
    sections = sections if read.log else read.whole_log
    told = [
        {"line": event.line, "text": "\n".join(_message(lines, event.line))}
        for section in sections
        for event in sorted(_events(section.log, metrics), key=lambda event: event.line)
    ]
    return {
        "file": file,
        "sections": [{"line": section.line, "text": lines[section.line - 1]} for section in sections],
        "messages": told[:MESSAGES],
        "further": max(0, len(told) - MESSAGES),
    }


def _lines(read: Read, number: Printed) -> list[int]:
    named = number.told["rows"].get(f"{read.cell.path}/{evidence.EVIDENCE}", [])
    return [line for line in lineage.lines_of(named) if 2 <= line < len(read.rows) + 2]


def _events(log: torchlog.Log, metrics: set[str]) -> Iterator:
    """The messages of the kind that the metrics count; of every kind if they count none of them."""
    told = {
        ("log_breaks", "log_break_messages"): log.breaks,
        ("log_recompiles", "recompiles"): log.recompiles,
        ("limit_hits", "limit_hit"): log.limits,
    }
    counted_here = [events for names, events in told.items() if metrics & set(names)]
    for events in counted_here or told.values():
        yield from events


def _message(lines: list[str], start: int) -> list[str]:
    """The lines of the message that begins on a line, as they stand in the log."""
    head = lines[start - 1]
    stamp = head.partition("]")[0]
    found = [head]
    for line in lines[start : start + MESSAGE_LINES]:
        if line.startswith("# ") or line.partition("]")[0] != stamp:
            break
        found.append(line)
    return found


# The chain as text.


def text_of(told: Chain) -> str:
    """The chain for a person to read."""
    lines = [f"{told.text}", f"  {told.place}, run {told.run}", ""]
    lines += _told("value", f"{value_of(told)}; recomputed from its rows: {told.recomputed}")
    if told.low is not None:
        lines += _told("interval", interval_of(told))
    if told.samples:
        lines += _told("processes", processes_of(told))
    for flag in told.flags:
        lines += _told("flag", flag)
    for reason in told.because:
        lines += _told("because", reason)
    lines += _told("formula", told.asked)
    for rows in told.rows:
        lines += _told("rows", f"{rows['file']}: {listed(rows)}")
        shown = [row for row in (rows["first"], rows["last"]) if row]
        lines += [
            f"  {'':{_WIDTH}}  {row['line']:>5}  {row['text']}"
            for row in shown[: 1 if rows["count"] == 1 else 2]
        ]
    for cell in told.cells:
        lines += _cell_text(cell)
    facts = [f"{key} {value}" for key, value in told.environment.items()]
    lines += _told("environment", "; ".join(facts) or "not told")
    lines += _told("GPU", told.gpu if isinstance(told.gpu, str) else json.dumps(told.gpu, ensure_ascii=False))
    again = next((cell for cell in told.cells if "by_hand" in cell), None)
    if again is not None:
        lines += _told("rerun", again["by_hand"])
        lines += _told("", again["by_snakemake"])
    return "\n".join(lines) + "\n"


def value_of(told: Chain) -> str:
    """The unrounded value with its unit."""
    if told.value is None:
        return "no number"
    return told.text if told.value == told.text else f"{told.value!r}{_unit(told)}"


def interval_of(told: Chain) -> str:
    """The unrounded ends of its interval, empty if it has none."""
    return "" if told.low is None else f"{told.low!r} to {told.high!r}{_unit(told)}"


def processes_of(told: Chain) -> str:
    """The value of each process."""
    return ", ".join(f"{sample:.6g}" for sample in told.samples)


def _unit(told: Chain) -> str:
    return f" {told.unit}" if told.unit else ""


def _told(label: str, text: str) -> list[str]:
    return [f"  {label:{_WIDTH}}{text}"]


def listed(rows: dict) -> str:
    """Which lines of a file, and how many."""
    shown = ", ".join(rows["lines"][:6]) + (", ..." if len(rows["lines"]) > 6 else "")
    return f"line{'' if rows['count'] == 1 else 's'} {shown} ({counted(rows['count'], 'row')})"


def _cell_text(cell: dict) -> list[str]:
    if "verdict" not in cell:
        return _told("cell", f"{cell['cell']}: {'; '.join(cell['findings'])}")
    attempt = f"attempt {cell['attempt']}, {cell['started']}, {cell['duration_s']:g} s"
    lines = _told("cell", f"{cell['cell']}: {cell['verdict']}; {attempt}; {code_of(cell)}")
    lines += [f"  {'':{_WIDTH}}{reason}" for reason in cell["reasons"]]
    lines += [f"  {'':{_WIDTH}}{finding}" for finding in cell["findings"]]
    lines += _told("  command", cell["command"])
    return lines + _log_text(cell["log"])


def code_of(cell: dict) -> str:
    """Which code measured a cell: the commit, and whether it was changed since."""
    tree = {True: "code changed since", False: "code as committed", None: "no git"}[cell["dirty"]]
    return f"{(cell['commit'] or 'no commit')[:12]}, {tree}"


def _log_text(log: dict | None) -> list[str]:
    if log is None or not (log["sections"] or log["messages"]):
        return []
    first = log["sections"][0] if log["sections"] else None
    where = f"line {first['line']}: {first['text']}" if first else ""
    lines = _told("  log", f"{log['file']}, {where}{'' if log['messages'] else ' (no messages)'}")
    for message in log["messages"][:SHOWN]:
        head, *rest = message["text"].split("\n")
        stamp = f"{head.partition(']')[0]}] "
        lines.append(f"  {'':{_WIDTH}}{message['line']:>5}  {head}")
        lines += [f"  {'':{_WIDTH}}{'':5}  {line.removeprefix(stamp)}" for line in rest[:SHOWN]]
    further = log["further"] + len(log["messages"][SHOWN:])
    if further:
        lines.append(f"  {'':{_WIDTH}}and {counted(further, 'message')} more")
    return lines
