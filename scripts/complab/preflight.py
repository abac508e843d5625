"""Can this machine compile at all, before anything is measured?"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile

# Inductor's own command line asks for C++20 and OpenMP. Loading the result shows what compiling alone does
# not: a missing OpenMP runtime, a temporary folder where nothing may be executed.
PROBE = """\
#include <omp.h>
#if __cplusplus < 201709L
#error "no C++20"
#endif
extern "C" int threads() { return omp_get_max_threads(); }
"""

# Behind these a cold compile is answered from their own cache, or by another machine.
COMPILER_CACHES = ("ccache", "sccache", "distcc", "icecc")

GET_CXX = "install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; conda-forge: gxx)"


def missing_tools(device: str = "cpu") -> list[str]:
    """What stops this machine from compiling, one line each: the tool, why it is needed, how to get it."""
    if sys.platform != "linux":
        return [f"operating system: complab runs on Linux only, not on {sys.platform}; use a Linux container"]
    checks = [cxx_compiler, openssl, python_headers]
    if device == "cuda":
        checks.append(c_compiler)
    return [problem for problem in (check() for check in checks) if problem]


def warnings() -> list[str]:
    """What a run can do without, and what it then loses."""
    if shutil.which("git") is None:
        return ["git: not found on PATH, provenance will record no commit (Debian, Ubuntu: apt install git)"]
    return []


def cxx_compiler() -> str | None:
    """Inductor turns every CPU graph into C++, so without a compiler not even a warm run works."""
    name = os.environ.get("CXX") or "g++"
    where = f"C++ compiler: CXX={name}" if os.environ.get("CXX") else f"C++ compiler: {name}"
    path = shutil.which(name)
    if path is None and " " in name:
        return f"{where} is not one program, so Inductor cannot run it; set CXX to the compiler alone"
    if path is None:
        return f"{where} not found on PATH, needed to compile every CPU graph; {GET_CXX} or set CXX to one"
    real = os.path.basename(os.path.realpath(path))
    if real in COMPILER_CACHES:
        return f"{where} is {real}, which would make cold compiles look warm; set CXX to the real compiler"

    if problem := run(path, "--version"):
        return f"{where} does not run ({path} --version: {problem}); {GET_CXX} or set CXX to another"
    with tempfile.TemporaryDirectory(prefix="complab-preflight-") as folder:
        source, library = os.path.join(folder, "probe.cpp"), os.path.join(folder, "probe.so")
        with open(source, "w", encoding="utf-8") as file:
            file.write(PROBE)
        if problem := run(path, "-std=c++20", "-fopenmp", "-shared", "-fPIC", "-o", library, source):
            need = "cannot build C++20 with OpenMP, which Inductor's kernels use"
            problem = problem.replace(folder + os.sep, "")
            return f"{where} {need} ({problem}); {GET_CXX}, release 10 or later, or set CXX to another"
        try:
            ctypes.CDLL(library).threads()
        except (OSError, AttributeError) as error:
            reason = str(error).replace(folder + os.sep, "")
            return f"{where}: what it builds cannot be loaded ({reason}); set TMPDIR if it is mounted noexec"
    return None


def openssl() -> str | None:
    """Inductor 2.8 and later names a precompiled header by the `openssl sha512` of its text."""
    problem = run("openssl", "version")
    if problem:
        get = "install it (Debian, Ubuntu: apt install openssl; Fedora: dnf install openssl)"
        return f"openssl: {problem}, needed by Inductor to name its precompiled headers; {get}"
    return None


def python_headers() -> str | None:
    """Each compiled CPU kernel, and Triton's launcher on a GPU, is a Python extension."""
    folder = sysconfig.get_path("include")
    if not os.path.exists(os.path.join(folder, "Python.h")):
        get = "install them (Debian, Ubuntu: apt install python3-dev; Fedora: dnf install python3-devel)"
        return f"Python headers: no Python.h in {folder}, needed to build each compiled kernel; {get}"
    return None


def c_compiler() -> str | None:
    """Triton builds its launchers with CC, else gcc, else clang."""
    names = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    if not any(shutil.which(name) for name in names):
        get = "install one (Debian, Ubuntu: apt install gcc; Fedora: dnf install gcc) or set CC to one"
        return f"C compiler: {' or '.join(names)} not found on PATH, needed by Triton on a GPU; {get}"
    return None


def run(*command: str) -> str | None:
    """None where the command succeeds, else its complaint in one line."""
    try:
        # LC_ALL: the line is quoted in an English sentence.
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=120,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        return "not found on PATH"
    except (OSError, subprocess.TimeoutExpired) as error:
        return getattr(error, "strerror", None) or "no answer in 120 s"
    if done.returncode == 0:
        return None
    lines = (done.stderr + done.stdout).splitlines()
    # The first line of a compiler's output is often only the place; the error says what is wrong.
    telling = [line for line in lines if "error" in line or "cannot" in line] or lines
    return telling[0].strip() if telling else f"exit status {done.returncode}"


def nvidia_answers() -> bool:
    """Whether a driver answers, asked of the driver itself: an nvidia-smi on PATH proves nothing."""
    try:
        return ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2() == 0
    except OSError:
        return False


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m complab.preflight", description=__doc__)
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="what will be measured; auto: cuda where an NVIDIA driver answers (default: %(default)s)",
    )
    device = parser.parse_args(argv).device
    if device == "auto":
        device = "cuda" if nvidia_answers() else "cpu"

    for warning in warnings():
        print(f"preflight: warning: {warning}", file=sys.stderr)
    problems = missing_tools(device)
    for problem in problems:
        print(f"preflight: {problem}", file=sys.stderr)
    if problems:
        return 3
    print(f"preflight: OK, this machine can compile for {device}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
