"""A machine that cannot compile is told so before anything is measured, tool by tool."""

import os
import shutil
import sysconfig

import pytest

from complab import preflight

# The README asks for a compiler: where there is none the test says so by failing.
REAL_CXX = shutil.which(os.environ.get("CXX") or "g++") or "g++"


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A PATH that holds nothing but what a test puts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)

    def put(name, script="exit 0"):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return put


def test_a_compiler_that_works_is_no_problem(monkeypatch):
    monkeypatch.setenv("CXX", REAL_CXX)
    assert preflight.cxx_compiler() is None


@pytest.mark.fault("T8", "no compiler")
def test_a_missing_compiler_is_named_with_how_to_get_it(tools):
    problem = preflight.cxx_compiler()
    assert problem.startswith("C++ compiler: g++ not found on PATH")
    assert "apt install g++" in problem


def test_a_missing_compiler_named_by_cxx(tools, monkeypatch):
    tools("g++")
    monkeypatch.setenv("CXX", "clang++-99")
    assert preflight.cxx_compiler().startswith("C++ compiler: CXX=clang++-99 not found on PATH")


def test_cxx_must_be_one_program(tools, monkeypatch):
    tools("g++")
    tools("ccache")
    monkeypatch.setenv("CXX", "ccache g++")
    assert "not one program" in preflight.cxx_compiler()


@pytest.mark.fault("T8", "ccache, sccache, distcc, icecc as compiler")
@pytest.mark.parametrize("cache", preflight.COMPILER_CACHES)
def test_a_compiler_cache_under_the_compilers_name_is_refused(tools, cache):
    target = tools(cache)
    target.with_name("g++").symlink_to(target)
    problem = preflight.cxx_compiler()
    assert f"g++ is {cache}," in problem
    assert "set CXX to the real compiler" in problem


@pytest.mark.fault("T8", "a compiler that does not run")
def test_a_compiler_that_does_not_run(tools):
    tools("g++", "echo 'g++: cannot execute cc1plus' >&2; exit 1")
    assert "--version: g++: cannot execute cc1plus)" in preflight.cxx_compiler()


@pytest.mark.fault("T8", "a compiler without OpenMP")
def test_a_compiler_without_openmp(tools):
    tools("g++", '[ "$1" = --version ] || { echo "fatal error: omp.h: No such file" >&2; exit 1; }')
    problem = preflight.cxx_compiler()
    assert "cannot build C++20 with OpenMP" in problem
    assert "(fatal error: omp.h: No such file)" in problem


@pytest.mark.fault("T8", "binaries that do not load")
def test_what_the_compiler_builds_must_load(tools):
    tools("g++", 'while [ $# -gt 1 ]; do [ "$1" = -o ] && echo text > "$2"; shift; done; exit 0')
    problem = preflight.cxx_compiler()
    assert "cannot be loaded" in problem
    assert "TMPDIR" in problem


@pytest.mark.fault("T8", "openssl missing or broken")
def test_openssl_missing_or_broken(tools):
    assert preflight.openssl().startswith("openssl: not found on PATH, needed by Inductor")
    tools("openssl", "exit 1")
    assert preflight.openssl().startswith("openssl: exit status 1, needed by Inductor")
    tools("openssl")
    assert preflight.openssl() is None


def test_python_headers(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert f"no Python.h in {tmp_path}" in preflight.python_headers()
    (tmp_path / "Python.h").touch()
    assert preflight.python_headers() is None


def test_only_a_gpu_needs_a_c_compiler(tools, monkeypatch):
    assert not any(problem.startswith("C compiler") for problem in preflight.missing_tools("cpu"))
    assert any("gcc or clang not found" in problem for problem in preflight.missing_tools("cuda"))
    tools("clang")
    assert not any(problem.startswith("C compiler") for problem in preflight.missing_tools("cuda"))


@pytest.mark.fault("T8", "an empty PATH")
def test_every_problem_is_named_in_one_run(tools, capsys):
    assert preflight.main(["--device", "cuda"]) == 3
    told = capsys.readouterr()
    assert told.out == ""
    lines = told.err.splitlines()
    assert all(line.startswith("preflight: ") for line in lines)
    for tool in ("C++ compiler", "openssl", "C compiler"):
        assert sum(f"preflight: {tool}: " in line for line in lines) == 1


def test_no_git_is_a_warning(tools, monkeypatch, capsys):
    monkeypatch.setattr(preflight, "missing_tools", lambda device: [])
    assert preflight.main(["--device", "cpu"]) == 0
    told = capsys.readouterr()
    assert told.out == "preflight: OK, this machine can compile for cpu\n"
    assert told.err.startswith("preflight: warning: git: not found on PATH")


def test_another_system_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(preflight.sys, "platform", "darwin")
    assert preflight.missing_tools() == [
        "operating system: complab runs on Linux only, not on darwin; use a Linux container"
    ]


def test_auto_asks_the_driver(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(preflight, "missing_tools", lambda device: asked.append(device) or [])
    for answer in (True, False):
        monkeypatch.setattr(preflight, "nvidia_answers", lambda answer=answer: answer)
        preflight.main([])
    assert asked == ["cuda", "cpu"]
