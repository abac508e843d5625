"""What measures and what draws share files, not libraries; the measured process needs torch alone."""

import ast
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from complab import config, report, staleness

SCRIPTS = config.PROJECT / "scripts"
EXPERIMENTS = sorted(path.stem for path in SCRIPTS.glob("e[0-9]*_*.py"))
MODULES = sorted(SCRIPTS.rglob("*.py"))
HEAVY = ("torch", "snakemake", "pandas", "matplotlib", "numpy", "scipy", "tabulate", "rocrate", "requests")


def names_in(package) -> list[str]:
    return [f"{package.__name__}.{item.name}" for item in pkgutil.iter_modules(package.__path__)]


def loaded_by(*modules: str) -> set[str]:
    """Which heavy libraries importing the modules loads, in a process of its own."""
    program = (
        f"import importlib, sys\nfor name in {modules!r}:\n    importlib.import_module(name)\n"
        f"print(*(sys.modules.keys() & set({HEAVY!r})))"
    )
    return set(python(program).split())


def python(program: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def trees(*modules: Path) -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in modules}


# Which libraries are loaded.


def test_verifying_and_planning_load_no_heavy_library():
    names = ("evidence", "config", "staleness", "facts", "fingerprint", "preflight", "torchlog", "errors")
    assert loaded_by(*(f"complab.{name}" for name in names)) == set()


def test_what_draws_loads_neither_torch_nor_snakemake():
    names = names_in(report)
    assert "complab.report.gather" in names
    assert not {"torch", "snakemake"} & loaded_by(*names)


def test_what_starts_and_judges_a_measurement_loads_no_heavy_library():
    parents = ("cache", "isolation", "headers", "ledger")
    assert loaded_by("complab.cell", *(f"complab.measure.{name}" for name in parents)) == set()


def test_the_command_that_reads_evidence_starts_without_torch_and_what_only_writes_bundles():
    assert not {"torch", "rocrate", "requests"} & loaded_by("complab.cli")


def test_what_reads_a_bundle_loads_no_heavy_library():
    assert loaded_by("complab.bundle", "complab.crate") == set()


# The measured process.


def imports_of(tree: ast.Module, *, when_run_as_script: bool = False) -> set[str]:
    """The modules a file imports, those under `if __name__ == "__main__"` only if asked for."""
    found = set()
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) and not when_run_as_script:
            waiting.extend(node.orelse)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
        else:
            waiting.extend(ast.iter_child_nodes(node))
    return found


def file_of(module: str) -> Path | None:
    """The file of one of our own modules."""
    base = SCRIPTS.joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def closure_of_the_measured_process(*experiments: str) -> set[Path]:
    """The files that the measured process runs, from its own imports and those of the experiments."""
    found, waiting = set(), [SCRIPTS / "complab" / "measure" / "child.py"]
    waiting += [SCRIPTS / f"{name}.py" for name in experiments or EXPERIMENTS]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            names = imports_of(ast.parse(path.read_text(encoding="utf-8")))
            waiting += [ours for name in names if (ours := file_of(name)) is not None]
    return found


def test_the_measured_process_runs_the_instruments():
    names = {path.relative_to(SCRIPTS).as_posix() for path in closure_of_the_measured_process()}
    instruments = (
        "bench",
        "calls",
        "capture",
        "compare",
        "dynamo",
        "memory",
        "policies",
        "timing",
        "workload",
    )
    assert {f"complab/measure/{name}.py" for name in instruments} <= names
    assert "complab/torchlog.py" in names


def test_the_measured_process_imports_the_standard_library_torch_and_complab_only():
    for path, tree in trees(*closure_of_the_measured_process()).items():
        tops = {name.split(".")[0] for name in imports_of(tree)}
        assert tops <= {*sys.stdlib_module_names, "torch", "complab"}, path


def test_the_measured_process_runs_nothing_of_the_parent():
    names = {path.relative_to(SCRIPTS).as_posix() for path in closure_of_the_measured_process()}
    parent = {
        f"complab/{name}.py" for name in ("cell", "config", "evidence", "facts", "staleness", "preflight")
    }
    assert not parent & names
    assert not any(name.startswith("complab/report/") for name in names)


def test_what_the_measured_process_runs_is_covered_by_the_digest_of_every_experiment():
    child = SCRIPTS / "complab" / "measure" / "child.py"
    for name in EXPERIMENTS:
        covered = staleness.code_digests(SCRIPTS / f"{name}.py", child)
        files = closure_of_the_measured_process(name)
        assert {path.relative_to(SCRIPTS).as_posix() for path in files} <= covered.keys()


def test_an_interpreter_with_torch_alone_can_import_every_experiment():
    """What complab itself needs beside torch, to draw above all, is refused as if it were not installed."""
    project = tomllib.loads((config.PROJECT / "pyproject.toml").read_text())["project"]
    packages = {re.match(r"[\w-]+", line)[0].lower() for line in project["dependencies"]}
    # jinja2 belongs to torch as well.
    refused = packages - {"torch", "jinja2"} | {"yaml", "pynvml", "cpuinfo"}
    program = f"""
import importlib, sys

sys.modules |= dict.fromkeys({sorted(refused)!r})
import complab.measure.child, complab.measure.bench, complab.measure.header_user
for name in {EXPERIMENTS!r}:
    assert importlib.import_module(name).timed
print("imported")
"""
    assert {"jsonschema", "psutil", "yaml", "pandas"} <= refused
    assert python(program) == "imported\n"


# What a digest can follow.


def test_every_import_is_absolute_so_that_a_digest_follows_it():
    for path, tree in trees(*MODULES).items():
        relative = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
        assert not relative, path


def test_only_the_measured_process_imports_by_a_name_that_is_computed():
    dynamic = {
        path.relative_to(SCRIPTS).as_posix()
        for path, tree in trees(*MODULES).items()
        if any(isinstance(node, ast.Attribute) and node.attr == "import_module" for node in ast.walk(tree))
    }
    assert dynamic <= {"complab/measure/child.py", "complab/measure/subject.py"}


def test_private_parts_of_torch_are_touched_in_one_module():
    private = re.compile(r"torch\.(_[a-z]\w*)")
    told = {
        path.name: sorted(set(private.findall(" ".join(imports_of(tree, when_run_as_script=True)))))
        for path, tree in trees(*(SCRIPTS / "complab").rglob("*.py")).items()
        if path.name != "dynamo.py"
    }
    assert {name: parts for name, parts in told.items() if parts} == {}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_asks_a_question_and_has_one_measuring_function(name):
    tree = ast.parse((SCRIPTS / f"{name}.py").read_text(encoding="utf-8"))
    assert ast.get_docstring(tree).split("\n\n")[0].rstrip().endswith("?")
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert functions.count("timed") == 1
