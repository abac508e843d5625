"""Faults that only a compilation meets: a lie about the cache, a full disk below it, a failing compiler."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from complab import evidence
from complab.config import Cell
from complab.measure import cache
from project_copy import copy_project, edit_config
from trouble import NO_ROOM, small_disk

pytestmark = pytest.mark.slow

NAME, RUN = "e97_liar", "current-quick"
COLD, WARM = Cell(NAME, "default", "cold", 1), Cell(NAME, "default", "warm", 1)

# An experiment that, where told to, brings its own process into another state than its cell claims.
SCRIPT = '''"""Does a process in a state that its cell does not claim pass for it?"""

if __name__ == "__main__":
    from complab.cell import main

    main(__file__)

import contextlib
import os
from pathlib import Path

import torch
import torch._dynamo.config
import torch._inductor.config

from complab.measure import policies

CONTROL = Path({control!r})


def program(x):
    return torch.sin(x) * 2 + torch.cos(x)


@contextlib.contextmanager
def lying(lie):
    # The variables that a measured process gets win over what is assigned, here and below.
    cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    if lie == "cache off":
        torch._inductor.config._config["fx_graph_cache"].env_value_force = False
    elif lie == "kernel deleted":
        for path in cache.rglob("*.main.so"):
            path.unlink()
    elif lie == "artifacts loaded":
        torch.compiler.load_cache_artifacts((CONTROL / "artifacts").read_bytes())
    elif lie == "job id":
        torch.compiler.config.job_id = "j1"
        torch._dynamo.config._config["automatic_dynamic_local_pgo"].env_value_force = True
    elif lie == "no headers":
        for path in Path(os.environ["TMPDIR"]).glob("torchinductor_*/precompiled_headers/*"):
            if path.is_file():
                path.unlink()
    elif lie == "other threads":
        threads = torch.get_num_threads()
        torch.set_num_threads(threads + 1)
        yield
        torch.set_num_threads(threads)
        return
    elif lie:
        raise ValueError(lie)
    yield


@torch.no_grad()
def timed(bench):
    """Compile a small program and call it."""
    lie = CONTROL / "lie"
    x = torch.ones(64, 64, device=bench.device)
    expected = program(x)
    with lying(lie.read_text() if lie.exists() else ""):
        compiled = policies.compile_with(bench.policy, program)
        with bench.capturing("program"):
            seconds, actual = bench.clock.time(compiled, x)
    if bench.agree("program", expected, actual, call=0):
        bench.record("first_call", seconds, "s", case="program")
    if (CONTROL / "keep artifacts").exists():
        (CONTROL / "artifacts").write_bytes(torch.compiler.save_cache_artifacts()[0])
'''


class Project:
    """A copy of the project with that experiment, and what it is told."""

    def __init__(self, folder: Path):
        self.control = folder / "control"
        self.control.mkdir()
        self.folder = copy_project(folder / "project")
        (self.folder / "scripts" / f"{NAME}.py").write_text(SCRIPT.format(control=str(self.control)))
        entry = {"title": "Liar", "policies": {"default": ["cold", "warm"]}}
        edit_config(self.folder, lambda values: values.update(experiments={NAME: entry}))

    def measure(self, cell: Cell, out: Path, lie: str = "", cold: Path | None = None, **options):
        """Measure a cell while its process lies; returns its record, which must be there."""
        (self.control / "lie").write_text(lie)
        words = ["--policy", cell.policy, "--cache", cell.cache, "--out", str(out), "--record-failure"]
        words += ["--cold", str(cold)] if cold else []
        overrides = {"scale": "quick"} | options.pop("overrides", {})
        argv = [sys.executable, f"scripts/{NAME}.py", *words, "--overrides", json.dumps(overrides)]
        environment = {**os.environ, **options.pop("variables", {})}
        answer = subprocess.run(
            argv, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, **options
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return evidence.verify(out, RUN, cell)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return Project(tmp_path_factory.mktemp("compiled"))


@pytest.fixture(scope="module")
def honest(project, tmp_path_factory):
    """The folder of a cold cell that told the truth."""
    folder = tmp_path_factory.mktemp("honest") / "cold"
    (project.control / "keep artifacts").touch()
    record = project.measure(COLD, folder)
    (project.control / "keep artifacts").unlink()
    assert record.verdict == cache.COLD, record.provenance["cache"]["reasons"]
    return folder


LIES = {
    "cache off": (WARM, "the FX graph cache is off, so counters cannot tell its state"),
    "kernel deleted": (WARM, "1 compiler process built binaries"),
    "artifacts loaded": (COLD, "the FX graph cache counts no miss"),
    "job id": (COLD, "a saved profile (PGO) was used: dynamo/code_state_j1"),
    "other threads": (WARM, "the FX graph cache counts 1 miss"),
    "no headers": (WARM, "precompiled headers changed: "),
}


@pytest.mark.fault(
    "T6", "FX cache off, a kernel deleted, artifacts loaded, a profile, other threads, headers built anew"
)
@pytest.mark.parametrize("lie", LIES)
def test_a_process_in_another_state_than_its_cell_claims_proves_nothing(project, honest, tmp_path, lie):
    cell, reason = LIES[lie]
    record = project.measure(cell, tmp_path / "cell", lie, cold=honest if cell == WARM else None)
    assert not record.failed, record.provenance["failure"]
    assert record.verdict == cache.INDETERMINATE
    assert any(told.startswith(reason) for told in record.provenance["cache"]["reasons"]), record.provenance
    assert not record.determinate


@pytest.mark.fault("T6", "the honest process beside them")
def test_the_honest_warm_process_is_warm(project, honest, tmp_path):
    assert project.measure(WARM, tmp_path / "cell", cold=honest).verdict == cache.WARM


@pytest.mark.fault("T4", "disk full: the cache, from nothing fits to all but one file fits")
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 1.0])
def test_a_cold_cell_whose_cache_does_not_fit_is_not_proven_and_the_next_one_is(
    project, honest, tmp_path, part
):
    entries = json.loads((honest / evidence.CACHE_MANIFEST).read_text())
    size = int(part * sum(entry["bytes"] for entry in entries.values()))
    with small_disk(tmp_path / "scratch", size) as options:
        if options:
            largest = max(entry["bytes"] for entry in entries.values())
            tight = int(part * largest) - 1
            options = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (tight, tight))}
        settings = {"scratch": str(tmp_path / "scratch")}
        record = project.measure(COLD, tmp_path / "cell", overrides=settings, **options)
        assert not record.determinate
        told = "; ".join(record.provenance["cache"]["reasons"])
        if record.failed:
            told = record.provenance["failure"]["message"] + (tmp_path / "cell/run.log").read_text()
            assert options or any(words in told for words in NO_ROOM), told
            assert not (tmp_path / "cell" / evidence.EVIDENCE).exists()
        else:
            assert told
        assert list((tmp_path / "scratch").iterdir()) == []
    if part == 1.0:
        assert project.measure(COLD, tmp_path / "cell").verdict == cache.COLD


@pytest.mark.fault("T8", "a compiler that fails at the kernel, after it passed every check")
def test_a_kernel_that_does_not_compile_is_a_failure_and_never_an_eager_time(project, honest, tmp_path):
    (tmp_path / "bin").mkdir()
    shim = tmp_path / "bin" / "g++"
    real = subprocess.run(["which", "g++"], capture_output=True, text=True, check=True).stdout.strip()
    shim.write_text(
        '#!/bin/sh\ncase "$*" in *.main.cpp*) echo "fatal error: planted" >&2; exit 1 ;; esac\n'
        f'exec {real} "$@"\n'
    )
    shim.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    record = project.measure(COLD, tmp_path / "cell", variables={"PATH": path})
    assert record.failed
    log = (tmp_path / "cell" / evidence.RUN_LOG).read_text()
    assert "CppCompileError" in log
    assert "fatal error: planted" in log
    assert not (tmp_path / "cell" / evidence.EVIDENCE).exists()
