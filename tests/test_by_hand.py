"""What a person gets who runs an experiment's script by hand: help, or one line saying what is wrong."""

import json
import os
import subprocess
import sys

import pytest

from complab.config import PROJECT
from complab.measure import isolation

SCRIPTS = sorted((PROJECT / "scripts").glob("e[0-9]*_*.py"))


def run(*words: object, script: str = "e1_opening_failure.py") -> subprocess.CompletedProcess:
    """Run an experiment's script from the project's folder."""
    argv = [sys.executable, f"scripts/{script}", *map(str, words)]
    return subprocess.run(argv, cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False)


def refused(answer: subprocess.CompletedProcess, code: int) -> str:
    """The one line of a refusal, after checking that it is one and nothing was measured."""
    lines = answer.stderr.strip().splitlines()
    assert answer.returncode == code
    assert len(lines) == 1
    assert lines[0].startswith("complab: ")
    return lines[0]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_help_explains_every_flag_and_needs_no_torch(script):
    answer = run("--help", script=script.name)
    assert answer.returncode == 0
    for flag in (
        "--policy",
        "--cache",
        "--replicate",
        "--scale",
        "--device",
        "--run",
        "--out",
        "--python",
        "--cold",
    ):
        assert flag in answer.stdout
    assert "Traceback" not in answer.stderr


def test_an_unknown_policy_is_named_with_the_known_ones():
    line = refused(run("--policy", "dinamic"), 2)
    assert "unknown policy 'dinamic'" in line
    assert "eager, static, default" in line


@pytest.mark.parametrize(("policy", "cache"), [("eager", "cold"), ("static", "none"), ("static", "tepid")])
def test_an_impossible_cache_state_is_named(policy, cache):
    line = refused(run("--policy", policy, "--cache", cache), 2)
    assert f"policy '{policy}' has no cache state '{cache}'" in line


def test_a_length_beyond_the_position_table_is_named_with_its_place():
    overrides = json.dumps({"streams": {"service": [60, 4000]}})
    line = refused(run("--policy", "static", "--overrides", overrides), 2)
    assert "streams.service[1]: length 4000 is beyond the position table" in line
    assert "raise max_length" in line


@pytest.mark.fault("T9", "a GPU asked for where there is none, by hand")
def test_cuda_without_cuda_is_refused_with_the_remedy():
    line = refused(run("--policy", "static", "--device", "cuda"), 3)
    assert "cuda was asked for" in line
    assert "use device cpu or auto" in line


@pytest.mark.fault("T10", "results under a file")
def test_results_that_cannot_be_written_are_refused_before_measuring(tmp_path):
    (tmp_path / "file").write_text("")
    line = refused(run("--policy", "eager", "--scale", "quick", "--out", tmp_path / "file" / "cell"), 3)
    assert "results cannot be written here" in line
    assert "make it writable or choose another folder" in line


@pytest.mark.fault("T14", "a scratch folder with a space")
def test_a_cache_path_with_a_space_is_refused(tmp_path):
    scratch = tmp_path / "with space"
    scratch.mkdir()
    line = refused(run("--policy", "eager", "--overrides", json.dumps({"scratch": str(scratch)})), 2)
    assert "has a space" in line
    assert "choose a path without spaces" in line


@pytest.mark.fault("T14", "a scratch folder that resolves to a space")
def test_a_scratch_folder_that_only_resolves_to_a_space_is_refused_too(tmp_path):
    (tmp_path / "with space").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "with space")
    out = tmp_path / "out"
    answer = run(
        "--policy",
        "eager",
        "--scale",
        "quick",
        "--out",
        out,
        "--overrides",
        json.dumps({"scratch": str(tmp_path / "link")}),
    )
    assert answer.returncode == 3
    assert "has a space" in answer.stderr
    assert not out.exists()


def test_an_interpreter_without_torch_is_named(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = tmp_path / "bare" / "bin" / "python"
    line = refused(run("--policy", "eager", "--python", python), 3)
    assert "has no torch" in line


def test_an_interpreter_that_does_not_exist_is_named():
    line = refused(run("--policy", "eager", "--python", "/nowhere/python"), 3)
    assert "'/nowhere/python' is not an executable" in line


def test_a_code_change_during_a_run_stops_the_cell():
    line = refused(run("--policy", "eager", "--expect", "0" * 64), 2)
    assert "changed since the run began" in line


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_overrides_that_are_no_json_object_are_named(text):
    assert "--overrides" in refused(run("--policy", "eager", "--overrides", text), 2)


def test_a_reader_who_has_seen_enough_ends_a_measurement_without_a_complaint(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "scripts/e1_opening_failure.py", "--policy", "eager", "--out", tmp_path / "cell"]
    answer = subprocess.run(
        words, cwd=PROJECT, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120, check=False
    )
    os.close(writing)
    assert (answer.returncode, answer.stderr) == (141, "")
    assert not (tmp_path / "cell" / "provenance.json").exists()


@pytest.mark.fault("T8", "a CXX that is not there")
def test_a_missing_compiler_is_named_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    line = refused(run("--policy", "static", "--scale", "quick", "--out", tmp_path / "cell"), 3)
    assert "compiler" in line
    assert not (tmp_path / "cell").exists()


def test_a_warm_cell_refuses_a_cold_one_whose_record_lies(tmp_path):
    cold = tmp_path / "cold"
    cold.mkdir()
    (cold / "provenance.json").write_text("{}")
    out = tmp_path / "warm"
    answer = run("--policy", "static", "--cache", "warm", "--scale", "quick", "--cold", cold, "--out", out)
    assert answer.returncode == 4
    assert "provenance.json: not a provenance record" in answer.stderr
    assert not out.exists()


def test_nothing_half_written_is_left_behind(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    overrides = json.dumps({"scratch": str(scratch)})
    words = ("--policy", "static", "--cache", "warm", "--scale", "quick", "--overrides", overrides)
    assert run(*words, "--cold", tmp_path / "no-cell", "--out", tmp_path / "warm").returncode == 4
    assert list(tmp_path.iterdir()) == [scratch]
    assert list(scratch.iterdir()) == []


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path):
    out = tmp_path / "mine"
    out.mkdir()
    (out / "notes.txt").write_text("kept")
    line = refused(run("--policy", "eager", "--scale", "quick", "--out", out), 2)
    assert "holds notes.txt, so it is no cell's folder" in line
    assert (out / "notes.txt").read_text() == "kept"


def test_a_process_that_takes_too_long_is_stopped_and_recorded(tmp_path):
    overrides = json.dumps({"cell_timeout": 1, "scratch": str(tmp_path)})
    words = ("--policy", "eager", "--scale", "quick", "--overrides", overrides)
    answer = run(*words, "--out", tmp_path / "cell", "--record-failure")
    assert answer.returncode == 0
    record = json.loads((tmp_path / "cell" / "provenance.json").read_text())
    assert record["outcome"] == "failed"
    assert record["failure"]["stage"] == "timed"
    assert "was stopped after 1 s; raise cell_timeout" in record["failure"]["message"]
    assert sorted(path.name for path in (tmp_path / "cell").iterdir()) == ["provenance.json", "run.log"]
    assert [path.name for path in tmp_path.iterdir()] == ["cell"]


@pytest.mark.fault("T1", "kill -9 of the measured process")
def test_a_killed_process_is_a_failure_with_its_signal(tmp_path):
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\ncase "$*" in *child*) kill -9 $$;; esac\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    answer = run("--policy", "eager", "--scale", "quick", "--python", script)
    assert answer.returncode == 1
    assert "was killed by SIGKILL" in answer.stderr


@pytest.mark.fault("T11", "two measurements on one machine")
def test_one_measurement_waits_for_the_other():
    with isolation.host_lock(print):
        waiting = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from complab.measure import isolation\nwith isolation.host_lock(print): pass",
            ],
            env={**os.environ, "PYTHONPATH": str(PROJECT / "scripts"), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert waiting.stdout.readline() == f"waiting: process {os.getpid()} is measuring on this machine\n"
        assert waiting.poll() is None
    assert waiting.wait(timeout=60) == 0
    waiting.stdout.close()
