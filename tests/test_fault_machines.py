"""A machine that lacks something, or tells the time or writes numbers in its own way, changes no fact."""

import ast
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import stub
from complab import evidence, job
from complab.config import PROJECT
from complab.errors import EXIT_ENVIRONMENT, EXIT_UNVERIFIED
from stub import COLD, PLAIN, RUN
from trouble import path_without


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A stub project: a policy that compiles nothing, one that has a cold cell."""
    policies = {"plain": ["none"], "default": ["cold"]}
    return stub.make(tmp_path_factory.mktemp("machines"), policies)


# Tools.


def fake(folder: Path, name: str, text: str) -> str:
    """A program with this name, as its path."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return str(folder / name)


def without_tool(name: str):
    return lambda folder: {"PATH": path_without(folder / "bin", name), "CXX": ""}


MISSING = {
    "no g++": (without_tool("g++"), "C++ compiler: g++ not found on PATH"),
    "no openssl": (without_tool("openssl"), "openssl: not found on PATH"),
    "an empty PATH": (lambda folder: {"PATH": "", "CXX": ""}, "C++ compiler: g++ not found on PATH"),
    "ccache as CXX": (
        lambda folder: {"CXX": fake(folder / "bin", "ccache", 'exec g++ "$@"')},
        "ccache is ccache, which would make cold compiles look warm",
    ),
    "ccache behind the name of g++": (
        lambda folder: {"CXX": linked(fake(folder / "bin", "ccache", 'exec g++ "$@"'))},
        "is ccache, which would make cold compiles look warm",
    ),
}


def linked(program: str) -> str:
    path = Path(program).with_name("g++")
    path.symlink_to(program)
    return str(path)


@pytest.mark.fault("T8", "no g++, no openssl, an empty PATH, ccache as compiler")
@pytest.mark.parametrize("what", MISSING)
def test_a_cell_without_its_tools_is_failed_with_the_tools_name_and_has_no_time(plain, tmp_path, what):
    variables, told = MISSING[what]
    words = ("--policy", "default", "--cache", "cold", "--out", tmp_path / "cell", "--record-failure")
    status, said, _ = plain.script(*words, variables=variables(tmp_path))
    assert status == 0
    record = evidence.verify(tmp_path / "cell", RUN, COLD)
    assert record.failed
    assert record.provenance["exit_status"] == EXIT_ENVIRONMENT
    assert told in record.provenance["failure"]["message"]
    assert "stub of" not in said
    assert not (tmp_path / "cell" / evidence.EVIDENCE).exists()


# Clocks.


class Clock:
    """A wall clock that somebody sets while a cell is measured, and a monotonic one that nobody can set."""

    def __init__(self, step: float):
        self.now, self.wall_step, self.step = 1000.0, 0.0, step

    def perf_counter(self) -> float:
        return self.now

    def time(self) -> float:
        return 1.7e9 + self.now + self.wall_step

    def measure(self, seconds: float) -> None:
        self.now += seconds
        self.wall_step += self.step


@pytest.mark.fault("T12", "the wall clock set back or forward during a cell")
@pytest.mark.parametrize("step", [-3600.0, 7200.0, 0.0])
def test_a_clock_that_is_set_during_a_cell_moves_no_duration_and_is_told(monkeypatch, step):
    clock = Clock(step)
    monkeypatch.setattr(job, "time", clock)
    measured = job.Job(plan=None, cell=PLAIN, attempt=1)
    measured.start()
    clock.measure(2.5)
    assert measured.durations() == {"duration_s": 2.5, "clock_step_s": step}


@pytest.mark.fault("T12", "a step of the clock in the record")
def test_the_record_tells_by_how_much_the_clock_was_set(plain, tmp_path):
    status, _, complaints = plain.script("--policy", "plain", "--out", tmp_path / "cell")
    assert status == 0, complaints
    record = evidence.read_provenance(tmp_path / "cell")
    assert abs(record["clock_step_s"]) < 60
    assert record["duration_s"] > 0


@pytest.mark.fault("T12", "durations from a clock that can be set")
def test_nothing_that_is_measured_reads_a_clock_that_can_be_set():
    """The wall clock is read in one place, beside the monotonic one that it is held against."""
    readers = []
    for path in [*PROJECT.glob("scripts/e*_*.py"), *PROJECT.glob("scripts/complab/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("time.time", "time.time_ns"):
                readers.append(path.relative_to(PROJECT).as_posix())
    assert set(readers) <= {"scripts/complab/job.py", "scripts/complab/startup.py"}
    assert readers.count("scripts/complab/job.py") == 2


@pytest.mark.fault("T12", "a record dated in the future, memory of Snakemake deleted, another setting")
def test_a_record_from_the_future_hides_no_change(tmp_path):
    project = stub.make(tmp_path, {"plain": ["none"]})
    status, told = project.snakemake("evidence")
    assert status == 0, told
    record = project.folder(PLAIN) / evidence.PROVENANCE
    later = record.stat().st_mtime + 10 * 365 * 86400
    for path in (record, project.results / stub.NAME / "complete.json"):
        os.utime(path, (later, later))
    shutil.rmtree(project.project / ".snakemake")
    config = project.project / "config.yaml"
    config.write_text(config.read_text().replace("seed: 1234", "seed: 4321"))
    status, told = project.snakemake("evidence")
    assert status == 0, told
    assert "config: seed was 1234, is 4321" in told
    assert project.record(PLAIN)["config"]["seed"] == 4321
    status, told = project.snakemake("-n", "evidence")
    assert "to measure" not in told


# Locales.


@pytest.fixture(scope="module")
def german(tmp_path_factory):
    """Variables of a locale with a decimal comma, made here, or just its name where none can be made."""
    folder = tmp_path_factory.mktemp("locales")
    variables = {"LANG": "de_DE.UTF-8", "LC_ALL": "de_DE.UTF-8", "LC_NUMERIC": "de_DE.UTF-8"}
    if shutil.which("localedef"):
        argv = ["localedef", "-i", "de_DE", "-f", "UTF-8", str(folder / "de_DE.UTF-8")]
        subprocess.run(argv, capture_output=True, check=False)
        variables["LOCPATH"] = str(folder)
    return variables


LOCALES = {
    "C": {"LC_ALL": "C", "LANG": "C"},
    "POSIX without UTF-8": {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "another time zone": {"TZ": "Asia/Kathmandu", "LC_ALL": "C.UTF-8"},
    "a time zone that is none": {"TZ": "Nowhere/Nothing"},
    "a locale that is none": {"LC_ALL": "xx_XX.UTF-8", "LANG": "xx_XX.UTF-8"},
    "decimal comma": None,
}


@pytest.mark.fault("T13", "locales C and POSIX, without UTF-8, with a decimal comma, other time zones")
@pytest.mark.parametrize("name", LOCALES)
def test_the_same_rows_are_the_same_bytes_in_every_locale(plain, german, tmp_path, name):
    variables = german if LOCALES[name] is None else LOCALES[name]
    status, _, complaints = plain.script("--policy", "plain", "--out", tmp_path / "cell", variables=variables)
    assert status == 0, complaints
    record = evidence.verify(tmp_path / "cell", RUN, PLAIN)
    text = (tmp_path / "cell" / evidence.EVIDENCE).read_bytes().decode("utf-8")
    assert text == evidence.rows_to_csv(list(record.rows))
    assert [row.value for row in record.rows if row.metric == "steady_eager"] == [1 / 3, 2 / 3, 1.0, 4 / 3]
    assert "größe, „3,5“; naïve" in text
    told = record.provenance
    assert (told["variables"]["LC_ALL"], told["variables"]["PYTHONUTF8"]) == ("C.UTF-8", "1")
    assert re.fullmatch(r"\d{4}(-\d\d){2}T\d\d(:\d\d){2}\+00:00", told["started"])


@pytest.mark.fault("T13", "the rules and the exhibits in a locale without UTF-8")
def test_exhibits_are_the_same_bytes_without_utf8(tmp_path, german):
    project = stub.make(tmp_path, {"plain": ["none"]})
    status, told = project.snakemake("evidence", variables=LOCALES["POSIX without UTF-8"])
    assert status == 0, told
    drawn = []
    for variables in (LOCALES["POSIX without UTF-8"], german):
        status, told = project.snakemake("exhibits", variables=variables)
        assert status == 0, told
        folder = project.project / "figures" / RUN
        drawn.append({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})
        shutil.rmtree(folder)
    assert drawn[0] == drawn[1]
    assert drawn[0]


# Devices.


@pytest.mark.fault("T9", "a GPU asked for where there is none, through the rules")
def test_a_gpu_that_is_not_there_ends_the_run_before_it_measures(tmp_path):
    project = stub.make(tmp_path, {"plain": ["none"]})
    config = project.project / "config.yaml"
    config.write_text(config.read_text().replace("device: auto", "device: cuda"))
    status, told = project.snakemake("evidence")
    assert status == EXIT_ENVIRONMENT
    assert told.splitlines()[-1].startswith("complab: device: cuda was asked for, but")
    assert "use device cpu or auto" in told
    assert not project.results.exists()


@pytest.mark.fault(
    "T9", "a busy GPU, another GPU for the warm cell, a GPU that is gone, a CUDA build without it"
)
def test_evidence_of_a_gpu_is_of_that_one_and_without_it_the_cpu_is_measured(tmp_path):
    project = stub.make(tmp_path, {"default": ["cold", "warm"]})

    def measure(cache: str, *words: object, device: str = "auto") -> tuple[int, str]:
        words = ("--policy", "default", "--cache", cache, *words)
        status, _, complaints = project.script(*words, overrides={"device": device})
        return status, complaints

    project.plant("gpus.json", json.dumps([{"name": "NVIDIA A", "uuid": "GPU-1", "processes": 3}]))
    status, complaints = measure("cold", "--out", project.folder(COLD))
    assert status == 0, complaints
    record = project.record(COLD)
    assert (record["config"]["device"], record["fingerprint"]["gpus"]) == ("cuda", ["NVIDIA A GPU-1"])
    assert record["gpu"][0]["compute_processes"] == 3

    project.plant("gpus.json", json.dumps([{"name": "NVIDIA B", "uuid": "GPU-2", "processes": 0}]))
    status, complaints = measure("warm", "--cold", project.folder(COLD))
    assert status == EXIT_UNVERIFIED
    assert "the cold cell was measured in another environment" in complaints

    project.heal("gpus.json")
    status, complaints = measure("cold", device="cuda")
    assert status == EXIT_ENVIRONMENT
    assert "device: cuda was asked for, but" in complaints
    status, told = project.snakemake("-n", "evidence")
    assert status == 0, told
    assert 'gpus was ["NVIDIA A GPU-1"], is "no device"' in told
    status, complaints = measure("cold", "--out", project.folder(COLD))
    assert status == 0, complaints
    assert (project.record(COLD)["config"]["device"], project.record(COLD)["gpu"]) == ("cpu", "no device")
