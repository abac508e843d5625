"""Is the environment in .venv the one that the lock for this machine names? If not, it is made so.

Environment variables, which make passes on (`make test LOCK=envs/cuda.txt`):
  LOCK              the lock; unset: envs/cuda.txt where an NVIDIA driver answers, else envs/cpu.txt
  ALLOW_CUDA_BUILD  1: take a CUDA build of PyTorch for a CPU lock, with gigabytes of libraries
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
VENV = (ROOT / ".venv").resolve()  # where home is small it may be a link to another disk
CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # PyTorch's own; PyPI has no CPU build for Linux


class Refusal(Exception):
    """One line: what is wrong and what to do about it."""


def main() -> int:
    started = time.monotonic()
    try:
        check_python()
        lock, reason = choose_lock(os.environ.get("LOCK"), *nvidia_driver())
        with open(__file__) as handle:
            # Two commands started at once would fill one folder. Some network file systems have no locks.
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            if update(lock, reason):
                say(f"ready after {time.monotonic() - started:.0f} s")
    except Refusal as refusal:
        print(f"install: {refusal}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("install: interrupted; the same command starts it anew", file=sys.stderr)
        return 130
    return 0


def say(text: str) -> None:
    print(f"install: {text}", flush=True)


def check_python() -> None:
    another = ", or name another Python: make PYTHON=python3.12 ..."
    if sys.platform != "linux":
        raise Refusal(f"complab runs on Linux only, this is {platform.system()}; use a Linux container")
    if sys.version_info < (3, 11):  # noqa: UP036 - run by hand, by whatever Python there is
        raise Refusal(
            f"{sys.executable} is {platform.python_version()}, too old; install 3.11 or later{another}"
        )
    if not all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")):
        raise Refusal(f"{sys.executable} lacks venv and ensurepip; apt install python3-venv{another}")


def nvidia_driver() -> tuple[int, str]:
    """The CUDA release that an answering driver supports (13000: 13.0), 0 if none answers; and that in words.

    NVML is asked, not nvidia-smi or /proc: both exist on machines and in containers that have no GPU to use.
    """
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return 0, "no NVIDIA driver"
    if status := nvml.nvmlInit_v2():
        return 0, f"the NVIDIA driver does not answer, NVML error {status}"
    gpus, release = ctypes.c_uint(), ctypes.c_int()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(gpus))
    nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(release))
    nvml.nvmlShutdown()
    if not gpus.value:
        return 0, "an NVIDIA driver, but no GPU"
    return release.value, f"an NVIDIA driver for CUDA {release.value // 1000}.{release.value % 1000 // 10}"


def choose_lock(asked: str | None, release: int, driver: str) -> tuple[Path, str]:
    """The lock for this machine, and why."""
    cpu, cuda = ROOT / "envs" / "cpu.txt", ROOT / "envs" / "cuda.txt"
    if asked:
        lock = (ROOT / asked).resolve()
        if not lock.is_file():
            known = ", ".join(f"envs/{path.name}" for path in sorted(cpu.parent.glob("*.txt")))
            raise Refusal(f"LOCK={asked} is no file; the locks here are {known}")
        return lock, "LOCK asks for it"
    if not release:
        return cpu, driver
    needed = int(re.search(r"^cuda-toolkit==(\d+)", cuda.read_text(), re.M)[1])
    if release // 1000 < needed:
        return cpu, f"{driver}, envs/cuda.txt needs {needed}.0: update the driver to measure the GPU"
    return cuda, driver


def update(lock: Path, reason: str) -> bool:
    """Make .venv hold the lock and this project; False where it does."""
    environment = {
        "lock": str(lock),
        "lock_sha256": hashlib.sha256(lock.read_bytes()).hexdigest(),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        # Scripts and links in an environment name both folders: moved, it is broken.
        "folders": [str(ROOT), str(VENV)],
    }
    project = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    wanted = {"environment": environment, "pyproject_sha256": project}
    stamp = VENV / "complab.json"
    found = read_stamp(stamp)
    if found == wanted:
        return False

    if found.get("environment") != environment:
        shown = os.path.relpath(lock, ROOT)
        say(f"making .venv from {shown} ({reason}), Python {platform.python_version()}")
        clear_environment()
        install_lock(lock)
    # --no-deps, here and for the lock, takes the lock at its word; `pip check` holds it to it.
    pip("install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    pip("check")
    # Last and in one step: an interrupted installation leaves no stamp and is made anew.
    partial = stamp.with_suffix(".part")
    partial.write_text(json.dumps(wanted, indent=1))
    partial.replace(stamp)
    return True


def read_stamp(stamp: Path) -> dict:
    """What the last complete installation was; nothing if there is none or its Python has gone."""
    try:
        return json.loads(stamp.read_text()) if (VENV / "bin" / "python").exists() else {}
    except (OSError, ValueError):
        return {}


def clear_environment() -> None:
    """An empty .venv. Anew, not patched: what an older lock left would be measured too."""
    # By the base interpreter, since the running one may be .venv's own.
    base = getattr(sys, "_base_executable", None) or sys.executable
    made = subprocess.run([base, "-m", "venv", "--clear", VENV], capture_output=True, text=True)
    if made.returncode:
        raise Refusal(f"{base} -m venv {VENV} failed: {complaint(made.stdout + made.stderr)}")


def install_lock(lock: Path) -> None:
    pins = dict(re.findall(r"^([\w.-]+)==([^\s,]+)", lock.read_text(), re.M))
    pip("install", "--no-deps", f"pip=={pins['pip']}")
    if "torch" in pins and "triton" not in pins:
        torch, options = cpu_build(f"torch=={pins['torch']}")
        say(f"installing {torch}")
        pip("install", "--constraint", str(lock), *options, torch)
    say(f"installing {len(pins)} packages, for a minute or more (log: .venv/install.log)")
    pip("install", "--no-deps", "--requirement", str(lock))


def cpu_build(torch: str) -> tuple[str, list[str]]:
    """The CPU build of a torch pin, and pip's options to get it; asks for metadata, downloads no wheel."""
    ask = ["--dry-run", "--no-deps", "--ignore-installed", "--retries", "1", "--quiet", "--report", "-"]
    for options in ([], ["--extra-index-url", CPU_INDEX]):
        metadata = json.loads(pip("install", *ask, *options, torch))["install"][0]["metadata"]
        if not any(re.match("nvidia|cuda|triton", name) for name in metadata.get("requires_dist", [])):
            return f"torch=={metadata['version']}", ["--no-deps", *options]
        if os.environ.get("ALLOW_CUDA_BUILD") == "1":
            return torch, []
        if not options:
            say(f"your package index has torch {metadata['version']} as a CUDA build; asking {CPU_INDEX}")
    raise Refusal(
        f"no CPU build of {torch} on your package index or at {CPU_INDEX}; set PIP_EXTRA_INDEX_URL or "
        "PIP_FIND_LINKS to a place that has one for this Python, or ALLOW_CUDA_BUILD=1 to install gigabytes"
    )


def pip(*arguments: str) -> str:
    """Run .venv's pip under the person's own pip settings; what it prints goes to the log and is returned."""
    # -I, since PYTHONPATH would lend foreign packages; PIP_USER=0, since an environment refuses PIP_USER=1.
    command = [str(VENV / "bin" / "python"), "-I", "-m", "pip", *arguments]
    env = {**os.environ, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    with open(VENV / "install.log", "a+", errors="replace") as log:
        print("$ pip", *arguments, file=log, flush=True)
        begin = log.tell()
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, env=env, text=True)
        log.write(done.stdout)
        log.seek(begin)
        if done.returncode:
            raise Refusal(f"pip {arguments[0]} failed: {complaint(log.read())} (log: {log.name})")
    return done.stdout


def complaint(text: str) -> str:
    """The line that says what went wrong: pip's last ERROR, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ([line for line in lines if line.startswith("ERROR:")] or lines or ["it printed nothing"])[-1]


if __name__ == "__main__":
    sys.exit(main())
