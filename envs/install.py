"""Is the environment in .venv the one that the lock names, and if not, make it so.

Environment variables, which make passes on (`make test LOCK=envs/cuda.txt`):
  LOCK              the lock to install; unset: envs/cuda.txt where an NVIDIA driver answers, else envs/cpu.txt
  ALLOW_CUDA_BUILD  1: take a CUDA build of PyTorch for a CPU lock, with its gigabytes of libraries
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "install.log"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # PyTorch's own; PyPI has no CPU builds for Linux


class Refusal(Exception):
    """One line: what is wrong and what to do about it."""


def main() -> int:
    started = time.monotonic()
    try:
        check_python()
        lock, reason = choose_lock(os.environ.get("LOCK"), *nvidia_driver())
        with open(__file__) as handle:
            # Two commands started at once would build the same folder; not every network file system has locks.
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            if not install(lock, reason):
                return 0
    except Refusal as refusal:
        print(f"install: {refusal}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("install: interrupted; the same command starts the installation again", file=sys.stderr)
        return 130
    say(f"ready after {time.monotonic() - started:.0f} s")
    return 0


def say(text: str) -> None:
    print(f"install: {text}", flush=True)


def check_python() -> None:
    if sys.platform != "linux":
        raise Refusal(f"complab runs on Linux only, this is {platform.system()}; use a Linux container")
    if sys.version_info < (3, 11):
        found = f"{sys.executable} is Python {platform.python_version()}"
        raise Refusal(f"{found}, 3.11 or later is needed; name another: make PYTHON=python3.12 ...")
    if not all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")):
        get = "install them (Debian, Ubuntu: apt install python3-venv) or name another Python: make PYTHON=python3.12 ..."
        raise Refusal(f"{sys.executable} lacks the modules venv and ensurepip; {get}")


def nvidia_driver() -> tuple[int, str]:
    """The CUDA release that an answering driver supports (13.0 is 13000), else 0, and that in words.

    NVML is asked, not nvidia-smi or /proc: both exist on machines and in containers where no GPU can be used.
    """
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return 0, "no NVIDIA driver"
    if status := nvml.nvmlInit_v2():
        return 0, f"the NVIDIA driver does not answer (NVML error {status})"
    gpus, release = ctypes.c_uint(), ctypes.c_int()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(gpus))
    nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(release))
    nvml.nvmlShutdown()
    if not gpus.value:
        return 0, "an NVIDIA driver, but no GPU"
    return release.value, f"an NVIDIA driver for CUDA {release.value // 1000}.{release.value % 1000 // 10}"


def choose_lock(asked: str | None, release: int, driver: str) -> tuple[Path, str]:
    """The lock for this machine, and why."""
    envs = ROOT / "envs"
    if asked:
        lock = (ROOT / asked).resolve()
        if not lock.is_file():
            known = ", ".join(f"envs/{path.name}" for path in sorted(envs.glob("*.txt")))
            raise Refusal(f"LOCK={asked} is no file; the locks here are {known}")
        return lock, "asked for by LOCK"
    if not release:
        return envs / "cpu.txt", driver
    needed = re.search(r"^cuda-toolkit==(\d+)", (envs / "cuda.txt").read_text(), re.M)
    if needed and release // 1000 < int(needed[1]):
        return envs / "cpu.txt", f"{driver}, envs/cuda.txt needs {needed[1]}.0: update the driver to measure the GPU"
    return envs / "cuda.txt", driver


def install(lock: Path, reason: str) -> bool:
    """Make .venv hold exactly the lock and this project; False where it does already."""
    environment = {
        "lock": str(lock),
        "lock_sha256": digest(lock),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "folder": str(VENV),  # scripts in an environment name its folder, so a moved one is of no use
    }
    project = {"pyproject_sha256": digest(ROOT / "pyproject.toml")}
    wanted = {"environment": environment, "project": project}
    stamp = VENV / "complab.json"
    found = read_stamp(stamp)
    if found == wanted:
        return False

    if found.get("environment") != environment:
        say(f"making .venv anew from {os.path.relpath(lock, ROOT)} ({reason}), Python {platform.python_version()}")
        make_environment(lock)
    pip("install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    # --no-deps above and below takes the lock at its word; this holds it to it.
    pip("check")
    partial = stamp.with_suffix(".part")
    partial.write_text(json.dumps(wanted, indent=1))
    partial.replace(stamp)
    return True


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_stamp(stamp: Path) -> dict:
    """What the last complete installation wrote last; nothing where it was interrupted or its Python has gone."""
    try:
        return json.loads(stamp.read_text()) if PYTHON.exists() else {}
    except (OSError, ValueError):
        return {}


def make_environment(lock: Path) -> None:
    # Anew, never patched: what an older lock left behind would be measured too. --clear keeps a .venv that is a link.
    # The base interpreter, since the running one may be .venv's own.
    base = getattr(sys, "_base_executable", None) or sys.executable
    done = subprocess.run([base, "-m", "venv", "--clear", "--prompt", "complab", VENV], capture_output=True, text=True)
    if done.returncode:
        raise Refusal(f"{base} -m venv {VENV} failed: {last_line(done.stdout + done.stderr)}")

    text = lock.read_text()
    packages = re.findall(r"^[\w.-]+==\S+", text, re.M)
    torch = next((pin for pin in packages if pin.startswith("torch==")), None)
    for pin in packages:
        if pin.startswith("pip=="):
            pip("install", "--no-deps", pin)
    if torch and "\ntriton==" not in text:
        build, options = cpu_build(torch)
        say(f"installing {build}")
        pip("install", "--constraint", str(lock), *options, build)
    say(f"installing {len(packages)} packages, a minute or more (log: {os.path.relpath(LOG, ROOT)})")
    pip("install", "--no-deps", "--requirement", str(lock))


def cpu_build(torch: str) -> tuple[str, list[str]]:
    """The CPU build of a torch pin, and pip's options to install it; asks the index, downloads no wheel."""
    for options in ([], ["--extra-index-url", CPU_INDEX]):
        ask = ["--dry-run", "--no-deps", "--ignore-installed", "--retries", "1", "--quiet", "--report", "-"]
        report = pip("install", *ask, *options, torch)
        metadata = json.loads(report)["install"][0]["metadata"]
        gpu = [name for name in metadata.get("requires_dist", []) if re.match("nvidia|cuda|triton", name)]
        if not gpu:
            return f"torch=={metadata['version']}", ["--no-deps", *options]
        if os.environ.get("ALLOW_CUDA_BUILD") == "1":
            return torch, []
        say(f"the package index offers torch {metadata['version']} as a CUDA build; looking for a CPU build")
    raise Refusal(
        f"no CPU build of {torch} on the package index or on {CPU_INDEX} (unreachable, or none for this Python); set "
        "PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS to a place that has one, or ALLOW_CUDA_BUILD=1 to install gigabytes of CUDA"
    )


def pip(*arguments: str) -> str:
    """Run .venv's pip with the reader's own pip settings; its output, which is also kept in the log."""
    # PIP_USER set for a whole machine would be refused in an environment. -I: PYTHONPATH would lend it foreign packages.
    env = {**os.environ, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    with LOG.open("a+", encoding="utf-8", errors="replace") as log:
        log.write(f"$ pip {' '.join(arguments)}\n")
        log.flush()
        begin = log.tell()
        command = [PYTHON, "-I", "-m", "pip", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, env=env, text=True)
        log.write(done.stdout)
        if done.returncode:
            log.seek(begin)
            raise Refusal(f"pip {arguments[0]} failed: {last_line(log.read())} (log: {LOG})")
    return done.stdout


def last_line(text: str) -> str:
    """The line that says what went wrong: pip's last ERROR, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["no output"])[-1]


if __name__ == "__main__":
    sys.exit(main())
