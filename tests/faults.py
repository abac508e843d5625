"""Which faults are tried, by which tests, and what came of it the last time: the README's table.

A test says with `@pytest.mark.fault("T4", "disk full: results")` which fault it tries and what exactly goes
wrong. `pytest -m fault --reliability` runs them all, keeps what came of them in `reliability.json` and writes
the table; `pytest -m "" --fault T4` runs those of one fault.
"""

import ast
import datetime
import importlib.metadata
import json
import platform
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
RECORD = TESTS / "reliability.json"
README = TESTS.parent / "README.md"
BEGIN, END = "<!-- reliability: begin, written by `make reliability` -->", "<!-- reliability: end -->"

# What goes wrong, and what happens then. The marks say which test shows it.
FAULTS = {
    "T1": (
        "A job, Snakemake or both are killed in the middle of a cell",
        "Its processes end and nothing is published; the same command measures the cell once; "
        "`attempts.jsonl` lists both attempts",
    ),
    "T2": (
        "A kill between `evidence.csv` and its record; Snakemake's memory deleted",
        "Files without a record are no evidence: drawing is refused, the cell is measured again",
    ),
    "T3": (
        "A cell is measured again after a kill, or in a used cache folder",
        "It starts in an empty folder of its own; a folder that held files makes it indeterminate",
    ),
    "T4": (
        "The disk is full: results, private folders, cache, Snakemake's memory",
        "The cell fails and says why, no table is cut short; with room again the same command measures it",
    ),
    "T5": (
        "A sealed cache or a precompiled header is truncated, altered, deleted, or another machine's",
        "Refused by the name of the file before anything is loaded, with an exit status of its own (4)",
    ),
    "T6": (
        "A process claims a cache state that it was not in",
        "Indeterminate, with the reason; or failed, where the process was not the one that was asked for",
    ),
    "T7": (
        "Someone alters a table, a log, a record, an exhibit, the list of attempts",
        "Named by its file, and no exhibit is drawn; measuring the cell again restores it",
    ),
    "T8": (
        "No compiler, no openssl, an empty `PATH`, a compiler cache, a compiler that fails",
        "The cell is failed, with the tool's name; never a time, slow or fast",
    ),
    "T9": (
        "No GPU, another GPU, a driver that fails, a CUDA build without driver",
        "`auto` measures on the CPU and says so; `cuda` is refused; what needs a GPU is *not measured*",
    ),
    "T10": (
        "Scratch, home, results, exhibits cannot be written; `TMPDIR` is not honoured",
        "Refused in one line that names the folder and the remedy, before anything is measured",
    ),
    "T11": (
        "Two runs at once, with the same targets or others",
        "The second ends at once and names the first's process; looking (`-n`) is allowed; one cell is timed "
        "at a time on a machine",
    ),
    "T12": (
        "The clock is set during a cell; a file is dated in the future",
        "Durations do not move and the step is recorded; a change is measured all the same",
    ),
    "T13": (
        "Locales C and POSIX, no UTF-8, a decimal comma, another time zone",
        "The same rows are the same bytes",
    ),
    "T14": (
        "The project's path has spaces or other alphabets, is very long, a link; it moves after the run",
        "It measures, compiles in a short private folder, and verifies where it was moved to",
    ),
    "T15": (
        "The checkout is read-only, dirty, shallow, or no repository",
        "Read-only: evidence can be read, and a clone measures. Dirty: flagged, with a hash. No commit: "
        "measured, but not bundled",
    ),
    "T16": (
        "Code, settings, torch, compiler, driver or GPU change; files are only touched",
        "Exactly the cells concerned are stale, with the reason; touching changes nothing",
    ),
    "T17": (
        "One cell fails among others; flags that would hide it",
        "The others are measured, the failed one is shown as failed, each log is kept; the flags are refused",
    ),
    "T18": (
        "The same program twice, a planted slowdown, a wrong or infinite output, nothing proven",
        "*No resolved difference*; found; no time; *not measurable*",
    ),
}


def marked() -> dict[str, dict[str, list[str]]]:
    """For each fault the tests that try it, `file::name`, with what exactly goes wrong in each."""
    found: dict[str, dict[str, list[str]]] = {number: {} for number in FAULTS}
    for path in sorted(TESTS.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for mark in getattr(node, "decorator_list", []):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fault":
                    number, what = (ast.literal_eval(argument) for argument in mark.args)
                    found[number].setdefault(f"{path.name}::{node.name}", []).append(what)
    return found


def table(record: dict) -> str:
    """The README's table of the tests there are, with what came of them in the recorded run."""
    lines = ["| | What goes wrong | What happens | Tests | Passed |", "|---|---|---|---|---|"]
    for number, tests in marked().items():
        files = sorted({name.partition("::")[0] for name in tests})
        links = ", ".join(
            f"[{name.removeprefix('test_').removesuffix('.py')}](tests/{name})" for name in files
        )
        counts = [record["tests"].get(name, {}) for name in tests]
        passed = sum(each.get("passed", 0) for each in counts)
        failed = sum(each.get("failed", 0) for each in counts)
        told = f"{passed} of {passed + failed}" if all(counts) else "not all run yet"
        lines.append(f"| {number} | {FAULTS[number][0]} | {FAULTS[number][1]} | {links} | {told} |")
    when = f"Last run: {record['date']}, torch {record['torch']}, Python {record['python']}."
    return "\n".join([*lines, "", when])


def recorded() -> dict:
    """What came of each test the last time that all were run."""
    return json.loads(RECORD.read_text(encoding="utf-8"))


def in_readme() -> str:
    """The table that the README shows."""
    return README.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip("\n")


def write(tests: dict[str, dict[str, int]]) -> None:
    """Keep what came of the tests, and put the table of it between the README's markers."""
    record = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "tests": dict(sorted(tests.items())),
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    text = README.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    README.write_text(f"{before}{BEGIN}\n\n{table(record)}\n\n{END}{after}", encoding="utf-8")


# Hooks of pytest, which conftest.py takes over.


class Outcomes:
    """Counts passed and failed cases of each marked test."""

    def __init__(self):
        self.names: dict[str, str] = {}
        self.tests: dict[str, dict[str, int]] = {}

    def pytest_collection_finish(self, session):
        for item in session.items:
            if item.get_closest_marker("fault"):
                self.names[item.nodeid] = f"{item.path.name}::{item.originalname}"

    def pytest_runtest_logreport(self, report):
        name = self.names.get(report.nodeid)
        if name and (report.when == "call" or not report.passed):
            counts = self.tests.setdefault(name, {"passed": 0, "failed": 0})
            counts["passed" if report.passed else "failed"] += 1

    def pytest_sessionfinish(self, session, exitstatus):
        # A run that was interrupted, or found no tests, tells nothing of those that it left out.
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            write(self.tests)


def pytest_addoption(parser):
    parser.addoption("--fault", metavar="NUMBER", help="only the tests of one fault, T1 to T18")
    parser.addoption(
        "--reliability", action="store_true", help="keep the outcomes and write the README's table of them"
    )


def pytest_configure(config):
    if config.getoption("--reliability"):
        config.pluginmanager.register(Outcomes())


def pytest_collection_modifyitems(config, items):
    wanted = config.getoption("--fault")
    if not wanted:
        return
    kept = [item for item in items if wanted in [mark.args[0] for mark in item.iter_markers("fault")]]
    if not kept:
        raise pytest.UsageError(f"--fault: no test tries '{wanted}'; known are {', '.join(FAULTS)}")
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
