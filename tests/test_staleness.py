"""Evidence is stale when code, configuration or environment changed, and only then; the reason is told."""

import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from complab import config, evidence, facts, staleness
from complab.config import Cell
from complab.measure import isolation
from complab.staleness import Plan, digest_of
from project_copy import copy_project

EXPERIMENTS = ("e1_opening_failure", "e3_graph_breaks", "e6_dynamic_shapes")
COLD = Cell("e1_opening_failure", "static", "cold", 1)
WARM = Cell("e1_opening_failure", "static", "warm", 1)
SETTINGS = config.load(overrides={"scale": "quick"})
TIMES = itertools.count(1_000_000_000)


# Digests.


@pytest.mark.fault("T16", "the order of parameters")
def test_a_digest_does_not_depend_on_the_order_of_keys():
    draw = random.Random(17)
    for _ in range(50):
        items = [
            (f"key{number}", draw.choice([None, 1, 0.5, "text", [1, 2], {"a": 1, "b": 2}]))
            for number in range(6)
        ]
        shuffled = draw.sample(items, len(items))
        assert digest_of(dict(items)) == digest_of(dict(shuffled))


@pytest.mark.fault("T16", "values that differ only in kind or place")
@pytest.mark.parametrize(
    ("one", "other"),
    [({"a": 1}, {"a": 2}), ({"a": 1}, {"b": 1}), ([1, 2], [2, 1]), (1, "1"), ({"a": None}, {}), (True, 1)],
)
def test_different_values_have_different_digests(one, other):
    assert digest_of(one) != digest_of(other)


@pytest.fixture(scope="module")
def scripts_copy(tmp_path_factory):
    copy = tmp_path_factory.mktemp("digests") / "scripts"
    return shutil.copytree(staleness.SCRIPTS, copy, ignore=shutil.ignore_patterns("__pycache__")).resolve()


@pytest.fixture
def scripts(scripts_copy, monkeypatch):
    """A copy of scripts/ whose digests are taken; what a test edits or adds there is undone."""
    before = {path: (path.read_bytes(), path.stat()) for path in scripts_copy.rglob("*.py")}
    monkeypatch.setattr(staleness, "SCRIPTS", scripts_copy)
    yield scripts_copy
    for path in set(scripts_copy.rglob("*.py")) - before.keys():
        path.unlink()
    for path, (content, stat) in before.items():
        if path.stat().st_mtime_ns != stat.st_mtime_ns:
            path.write_bytes(content)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def digest_of_text(scripts: Path, text: str) -> str:
    path = scripts / "e99_text.py"
    path.unlink(missing_ok=True)
    path.write_text(text)
    os.utime(path, ns=(0, next(TIMES)))
    return staleness.code_digests(path)["e99_text.py"]


ORIGINAL = '''"""Module."""

import math


class Empty:
    """A class of words only."""


class Counter:
    """Counts."""

    limit = None

    def count(self, x, *, start=None):
        """One more."""
        return {"a": 0x10, **x}  # sixteen


async def later():
    """Only a docstring."""


def words():
    """Also only a docstring."""
'''


@pytest.mark.fault("T16", "comments and docstrings")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Module."""\n', ""),
        ('"""Module."""', '"""Another\n\nmodule."""'),
        ('"""A class of words only."""', '"""Other words."""'),
        ('"""One more."""', "'''One\nmore.'''"),
        ('        """One more."""\n', ""),
        ('"""Only a docstring."""', '"""Other words."""'),
        ('"""Also only a docstring."""', '"""Other words."""'),
        ("  # sixteen", ""),
        ("  # sixteen", "  # 16: the size of the table"),
        ("\n\n\nclass", "\n\n# A heading.\n\n\n\nclass"),
        ("0x10", "16"),
        ('"a"', "'a'"),
        ('return {"a": 0x10, **x}', 'return {\n            "a": 0x10,\n            **x,\n        }'),
        ("return {", "return (  {"),
    ],
)
def test_what_does_not_run_does_not_count(scripts, old, new):
    changed = ORIGINAL.replace(old, new)
    if new == "return (  {":
        changed = changed.replace("**x}", "**x})")
    assert changed != ORIGINAL
    assert digest_of_text(scripts, changed) == digest_of_text(scripts, ORIGINAL)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import math", "import json"),
        ("limit = None", "limit = 0"),
        ("limit = None", "limit = False"),
        ("limit = None", "limit: int = None"),
        ("limit = None", "limit: int"),
        ("start=None", "start=0"),
        ("start=None", "start"),
        ("*, start=None", "start=None"),
        ("0x10", "17"),
        ("0x10", "16.0"),
        ("0x10", "-16"),
        ('"a"', "None"),
        ('"a"', 'b"a"'),
        ("**x", "None: x"),
        ("**x", '"x": x'),
        ("async def", "def"),
        ("class Empty", "class Empty(Exception)"),
        ("def words():", "@staticmethod\ndef words():"),
        ("def words():", "def words(x):"),
        ("def words():", "def words(x, /):"),
        ('    """Also only a docstring."""', "    return words()"),
    ],
)
def test_what_runs_counts(scripts, old, new):
    changed = ORIGINAL.replace(old, new)
    assert changed != ORIGINAL
    assert digest_of_text(scripts, changed) != digest_of_text(scripts, ORIGINAL)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("f(None)", "f()"),
        ("lambda *, a: a", "lambda *, a=None: a"),
        ("match x:\n    case None: pass", "match x:\n    case True: pass"),
        ("x[1:]", "x[:1]"),
        ("x and y", "x or y"),
        ("x = 'a' 'b'", "x = 'a'"),
        ("True", "1"),
        ("0.0", "-0.0"),
        ("from a import b", "from .a import b"),
        ("def f(*a): pass", "def f(**a): pass"),
        ("f'{x}'", "f'{x!r}'"),
        ("f'{x}'", "f'{x:3}'"),
    ],
)
def test_code_that_differs_only_in_where_nothing_stands_differs(scripts, one, other):
    assert digest_of_text(scripts, one) != digest_of_text(scripts, other)


# Which experiments an edit reaches.


def digests() -> dict[str, dict[str, str]]:
    """The digests of everything that each experiment's cells use, as a plan takes them."""
    plan = Plan(SETTINGS)
    return {name: plan.code(name) for name in EXPERIMENTS}


def reached_by(edit) -> set[str]:
    """The experiments whose digests change under an edit."""
    before = digests()
    edit()
    after = digests()
    return {name for name in EXPERIMENTS if after[name] != before[name]}


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def test_every_experiment_uses_the_instruments_and_what_isolates_and_judges():
    names = (
        "bench",
        "calls",
        "capture",
        "compare",
        "dynamo",
        "memory",
        "timing",
        "cache",
        "isolation",
        "ledger",
        "child",
    )
    for used in digests().values():
        assert {f"complab/measure/{name}.py" for name in names} <= used.keys()
        assert "complab/cell.py" in used


def test_comments_docstrings_and_blank_lines_in_an_instrument_reach_nothing(scripts):
    path = scripts / "complab" / "measure" / "bench.py"
    text = path.read_text()
    docstring = text.split('"""')[1]

    def edit():
        changed = text.replace(docstring, "Other words.", 1).replace("\n\n\n", "\n\n\n\n# A heading.\n\n\n")
        path.write_text(changed + "\n# The end.\n")

    assert reached_by(edit) == set()
    assert path.read_text() != text


@pytest.mark.fault("T16", "touched files")
def test_touching_files_reaches_nothing(scripts):
    def edit():
        for path in scripts.rglob("*.py"):
            os.utime(path, (1, 1))

    assert reached_by(edit) == set()


@pytest.mark.fault("T16", "an edited helper module")
def test_an_edit_in_a_shared_instrument_reaches_every_experiment(scripts):
    path = scripts / "complab" / "measure" / "timing.py"
    text = path.read_text()
    assert reached_by(
        lambda: path.write_text(text.replace("WARM_UP_ROUNDS = 3", "WARM_UP_ROUNDS = 4"))
    ) == set(EXPERIMENTS)
    assert path.read_text() != text


@pytest.mark.fault("T16", "an edited script")
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_edit_in_a_script_reaches_its_experiment_alone(scripts, name):
    assert reached_by(lambda: append(scripts / f"{name}.py", "\nLIMIT = 1\n")) == {name}


@pytest.mark.fault("T16", "each edited instrument")
def test_an_edit_in_an_instrument_reaches_exactly_the_experiments_that_import_it(scripts):
    probe = scripts / "complab" / "measure" / "probe.py"
    probe.write_text("from complab.measure import probe_part\n")
    part = scripts / "complab" / "measure" / "probe_part.py"
    part.write_text("VALUE = 1\n")
    append(scripts / "e6_dynamic_shapes.py", "\ndef later():\n    from complab.measure import probe\n")
    append(scripts / "e1_opening_failure.py", "\nimport complab.measure.probe as probe\n")
    assert reached_by(lambda: part.write_text("VALUE = 2\n")) == {"e1_opening_failure", "e6_dynamic_shapes"}


@pytest.mark.parametrize("name", ["exhibits", "tables", "figures", "statistics", "gather"])
def test_an_edit_in_what_draws_makes_no_measurement_stale(scripts, name):
    path = scripts / "complab" / "report" / f"{name}.py"
    assert path.is_file()
    assert reached_by(lambda: append(path, "\nLIMIT = 1\n")) == set()


# Attempts and reasons.


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Results of plans go to a folder of their own."""
    monkeypatch.setattr(staleness, "PROJECT", tmp_path)
    return tmp_path / "results"


def make_plan(**choices) -> Plan:
    """A plan at the quick scale under other choices."""
    return Plan(config.load(overrides={"scale": "quick", **choices}) if choices else SETTINGS)


@pytest.fixture
def plan(results):
    return make_plan()


@pytest.fixture(scope="module")
def published(tmp_path_factory, publish_cell):
    """Two static cells of e1 as a measurement publishes them, the cold one with its sealed cache."""
    folder = tmp_path_factory.mktemp("published")
    for cell in (COLD, WARM):
        publish_cell(Plan(SETTINGS), cell, folder / cell.path)
    (folder / COLD.path / evidence.SEALED_CACHE).write_bytes(b"tar")
    return folder


@pytest.fixture
def measured(plan, published):
    """A plan whose two static cells of e1 are measured."""
    for cell in (COLD, WARM):
        shutil.copytree(published / cell.path, plan.folder(cell))
    return plan


def edit_record(folder: Path, edit) -> None:
    path = folder / evidence.PROVENANCE
    record = json.loads(path.read_text())
    edit(record)
    path.write_text(json.dumps(record))


def test_a_cell_that_was_never_measured_says_so(plan):
    assert plan.why_stale(COLD) == "not measured yet"
    assert plan.attempt(COLD) == 1


def test_whole_evidence_of_this_code_configuration_and_environment_stands(measured):
    for cell in (COLD, WARM):
        assert measured.why_stale(cell) == ""
        assert measured.attempt(cell) == 1
    assert set(measured.settings.cells()) - set(measured.remaining()) == {COLD, WARM}


def test_the_number_of_the_attempt_does_not_decide_what_a_cell_is_about(measured):
    before = measured.about(COLD)
    edit_record(measured.folder(COLD), lambda record: record.update(attempt=5))
    assert measured.about(COLD) == {**before, "attempt": 5}


def test_a_failed_record_is_tried_again_and_its_message_is_the_reason(plan, place_cell):
    failure = {"stage": "timed", "message": "process 'timed' was killed by SIGKILL: no output"}
    about = {"run": plan.settings.run, "outcome": "failed", "attempt": 3, "failure": failure}
    place_cell(plan.folder(COLD), COLD, **about)
    assert plan.attempt(COLD) == 4
    assert plan.why_stale(COLD) == f"the last attempt failed: {failure['message']}"


@pytest.mark.parametrize(
    "name", [evidence.EVIDENCE, evidence.LEDGER, evidence.RUN_LOG, evidence.SEALED_CACHE]
)
def test_a_missing_file_is_the_reason_for_another_attempt(measured, name):
    (measured.folder(COLD) / name).unlink()
    assert measured.why_stale(COLD) == f"{name} is missing"
    assert measured.attempt(COLD) == 2


def test_a_file_of_another_size_is_the_reason_for_another_attempt(measured):
    path = measured.folder(COLD) / evidence.EVIDENCE
    path.write_bytes(path.read_bytes()[:-1])
    assert measured.why_stale(COLD) == "evidence.csv has another size"
    assert measured.attempt(COLD) == 2


def test_a_touched_file_is_no_reason(measured):
    for path in measured.folder(COLD).iterdir():
        os.utime(path, (1, 1))
    assert measured.why_stale(COLD) == ""
    assert measured.attempt(COLD) == 1


def test_a_sealed_cache_that_is_not_kept_is_needed_only_until_its_warm_cell_is_measured(measured):
    (measured.folder(COLD) / evidence.SEALED_CACHE).unlink()
    assert make_plan(keep_caches=False).why_stale(COLD) == ""
    assert make_plan(keep_caches=True).why_stale(COLD) == "cache.tar is missing"
    shutil.rmtree(measured.folder(WARM))
    assert make_plan(keep_caches=False).why_stale(COLD) == "cache.tar is missing"


@pytest.mark.fault("T16", "another torch")
def test_another_torch_is_the_reason_with_both_versions(measured):
    edit_record(measured.folder(COLD), lambda record: record["fingerprint"].update(torch="2.6.0"))
    told = measured.why_stale(COLD)
    assert told == f'environment: torch was "2.6.0", is "{measured.fingerprint["torch"]}"'
    assert measured.attempt(COLD) == 1


@pytest.mark.fault("T16", "another driver, GPU, compiler, processor, Python, triton, CUDA build")
@pytest.mark.parametrize("fact", sorted(facts.collect_fingerprint()))
def test_every_fact_of_the_environment_is_a_reason(measured, fact):
    edit_record(measured.folder(COLD), lambda record: record["fingerprint"].update({fact: "another"}))
    assert measured.why_stale(COLD).startswith(f'environment: {fact} was "another", is ')


@pytest.mark.fault("T16", "another setting")
def test_another_setting_is_the_reason_with_both_values(measured):
    assert make_plan(threads=2).why_stale(COLD) == "config: threads was 1, is 2"
    told = make_plan(workload={"vocabulary": 300}).why_stale(COLD)
    assert told.startswith("config: workload was {")
    assert "\n" not in told


def test_changed_code_is_the_reason_by_the_names_of_its_modules(measured):
    edit_record(
        measured.folder(COLD),
        lambda record: record["code"]["modules"].update({"complab/measure/timing.py": "0"}),
    )
    assert measured.why_stale(COLD) == "code changed: complab/measure/timing.py"


def test_all_reasons_are_told_in_one_line(measured):
    def edit(record):
        record["fingerprint"].update(torch="2.6.0", python="CPython 3.9.0")
        record["config"].update(seed=1)
        record["code"]["modules"].clear()

    edit_record(measured.folder(COLD), edit)
    (measured.folder(COLD) / evidence.LEDGER).unlink()
    told = measured.why_stale(COLD)
    for part in (
        "environment: python was",
        "environment: torch was",
        "config: seed was 1",
        "code changed: ",
        "missing",
    ):
        assert part in told
    assert "\n" not in told


def test_the_fingerprint_names_no_folder_of_this_machine(plan):
    """Published records have such names replaced, and are compared with the fingerprint as it is."""
    told = json.dumps(plan.fingerprint)
    for folder in (Path.home(), Path(sys.prefix), config.PROJECT):
        assert str(folder) not in told
    assert isolation.replace_paths(told, None, sys.executable) == told


@pytest.mark.parametrize(
    "edit",
    [
        lambda record: record.update(files=[]),
        lambda record: record.update(files={"evidence.csv": {}}),
        lambda record: record.update(files={"evidence.csv": None}),
        lambda record: record.update(code=None),
        lambda record: record.update(code=[]),
        lambda record: record.update(fingerprint=None),
        lambda record: record.update(config="text"),
        lambda record: record.update(attempt=None),
        lambda record: record.update(attempt="two"),
        lambda record: record.update(outcome="failed", failure=None),
        lambda record: record.update(outcome="failed", failure="text"),
        lambda record: record.clear(),
    ],
    ids=[
        "files a list",
        "file without a size",
        "file null",
        "code null",
        "code a list",
        "fingerprint null",
        "config a text",
        "attempt null",
        "attempt a text",
        "failure null",
        "failure a text",
        "empty",
    ],
)
def test_a_record_that_lies_about_its_shape_makes_its_cell_stale_and_stops_no_planning(measured, edit):
    edit_record(measured.folder(COLD), edit)
    assert isinstance(measured.attempt(COLD), int)
    assert measured.about(COLD)["attempt"] >= 1
    assert measured.why_stale(COLD) or measured.attempt(COLD) > 1


def test_a_record_of_another_cell_makes_the_cell_stale(measured):
    """Else nothing would measure the cell, and everything that reads it would refuse it."""
    other = Cell("e1_opening_failure", "static", "cold", 2)
    shutil.copytree(measured.folder(COLD), measured.folder(other))
    assert measured.why_stale(other)


def test_reasons_are_summed_up_by_the_number_of_their_cells():
    cells = [Cell("e1_opening_failure", "static", "cold", number) for number in (1, 2, 3)]
    lines = staleness.summarise({cells[0]: "b", cells[1]: "a", cells[2]: "a"})
    assert lines == [f"2 cells to measure ({cells[1]}, ...): a", f"1 cell to measure ({cells[0]}): b"]


# Through Snakemake, in a copy of the project.

MEASURE_EVERYTHING = """
import sys
sys.path[:0] = [{tests!r}]
import conftest
from complab import config
from complab.measure import headers
from complab.staleness import Plan

plan = Plan(config.load(overrides={{"scale": "quick"}}))
for cell in plan.settings.cells():
    files = {{"cache.tar": b"tar"}} if cell.cache == "cold" else {{}}
    about = {{
        "run": plan.settings.run,
        "fingerprint": plan.fingerprint,
        "config": plan.config(cell.experiment),
        "code": {{"commit": None, "dirty": None, "digest": "0" * 64, "modules": plan.code(cell.experiment)}},
    }}
    conftest._place(plan.folder(cell), cell, files, **about)
for name in plan.settings["experiments"]:
    (plan.folder(plan.settings.cells(name)[0]).parents[2] / "complete.json").write_text("{{}}")
folder = headers.folder_of(plan)
folder.mkdir(parents=True)
(folder / "manifest.json").write_text("{{}}")
print(len(plan.settings.cells()))
"""


def run(project: Path, *words: str, **variables: str) -> str:
    """What a command prints in the copy."""
    path = [variables.pop("PYTHONPATH", ""), str(project / "scripts")]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": ":".join(filter(None, path)),
        **variables,
    }
    done = subprocess.run(words, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def dry_run(project: Path, **variables: str) -> str:
    return run(project, "snakemake", "-n", "--cores", "1", "evidence", "--config", "scale=quick", **variables)


@pytest.fixture(scope="module")
def whole_project(tmp_path_factory):
    """A copy of the project whose quick cells are all measured, as Snakemake sees it, and their number."""
    project = copy_project(tmp_path_factory.mktemp("staleness") / "project")
    program = MEASURE_EVERYTHING.format(tests=str(Path(__file__).parent))
    number = int(run(project, sys.executable, "-c", program))
    # Snakemake's memory of a run that never was is made with a flag that is refused otherwise.
    refusing = project / "scripts" / "complab" / "startup.py"
    text = refusing.read_text()
    refusing.write_text(text.replace('"--touch": workflow.touch', '"--touch": False'))
    run(project, "snakemake", "--touch", "--cores", "1", "evidence", "--config", "scale=quick")
    refusing.write_text(text)
    return project, number


@pytest.mark.fault("T16", "everything touched, through the rules")
def test_after_touching_and_commenting_everything_there_is_nothing_to_do(whole_project):
    project, _ = whole_project
    for path in (project / "scripts").rglob("*.py"):
        path.write_text(path.read_text() + "\n# A comment.\n")
    told = dry_run(project)
    assert "Nothing to be done" in told
    assert "to measure" not in told


def test_jobs_have_the_order_of_the_plan_and_no_exhibit_comes_before_them(whole_project):
    project, _ = whole_project
    told = run(
        *(project, "snakemake", "-n", "--cores", "1", "evidence"),
        *("--config", "scale=quick", "run=unmeasured"),
    )
    jobs = re.findall(r"^(?:local)?rule (\w+):\n((?:    .*\n)+)", told, re.MULTILINE)
    priorities = {}
    for name, text in jobs:
        found = re.search(r"output: results/unmeasured/(\w+/\S+/[0-9]+)/provenance\.json", text)
        priority = re.search(r"priority: (-?[0-9]+)", text)
        priorities[found[1] if found else name] = int(priority[1]) if priority else 0
    cells = [str(cell) for cell in SETTINGS.cells()]
    assert sorted(priorities, key=priorities.get, reverse=True)[: len(cells)] == cells
    others = sum(value for name, value in priorities.items() if name not in cells and value > 0)
    assert others < min(priorities[cell] for cell in cells)


@pytest.mark.fault("T16", "another torch, through the rules")
def test_a_changed_torch_makes_every_cell_stale_and_the_reason_is_printed(whole_project, tmp_path):
    project, number = whole_project
    metadata = tmp_path / "torch-9.9.9.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9.9\n")
    told = dry_run(project, PYTHONPATH=str(tmp_path))
    # The copy's subjects were never diagnosed; only its cells have evidence that a change can make stale.
    reasons = [line for line in told.splitlines() if re.match(r"complab: [0-9]+ cells? ", line)]
    assert len(reasons) == 1
    assert reasons[0].startswith(f"complab: {number} cells to measure")
    assert 'environment: torch was "' in reasons[0]
    assert 'is "9.9.9"' in reasons[0]
    for name in EXPERIMENTS:
        assert f"rule {name}:" in told


@pytest.mark.fault("T16", "an edited script, through the rules")
def test_an_edited_script_makes_its_own_cells_stale_and_names_the_module(whole_project):
    project, _ = whole_project
    script = project / "scripts" / "e3_graph_breaks.py"
    text = script.read_text()
    try:
        script.write_text(text + "\nLIMIT = 1\n")
        told = dry_run(project)
    finally:
        script.write_text(text)
    number = len(SETTINGS.cells("e3_graph_breaks"))
    assert (
        f"complab: {number} cells to measure (e3_graph_breaks/default/cold/1, ...): code changed: e3_graph"
        in told
    )
    assert "rule e3_graph_breaks:" in told
    assert "rule e1_opening_failure:" not in told
    assert "rule e6_dynamic_shapes:" not in told
