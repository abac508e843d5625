"""What machine is this? The facts beside every measurement, gathered by the parent process.

Small functions, one fact each; a fact that cannot be told is absent, never the word "unknown".
"""

import functools
import hashlib
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import psutil

from complab import fingerprint
from complab.config import PROJECT
from complab.errors import EnvironmentProblem, one_line

try:
    import pynvml
except ImportError:
    pynvml = None

NO_DEVICE = "no device"
CODE_PATHS = ("Snakefile", "config.yaml", "scripts", "workflow", "envs")


def collect_gpus() -> list[dict] | str:
    """One dict per GPU through NVML, or "no device" where no driver answers.

    Units are in the names: bytes, MHz, W, degrees C. A quantity the driver refuses is absent.
    """
    if pynvml is None:
        return NO_DEVICE
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return NO_DEVICE
    try:
        gpus = [_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        gpus = []
    finally:
        pynvml.nvmlShutdown()
    return gpus or NO_DEVICE


def visible(gpus: list[dict] | str) -> list[dict] | str:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves to a process, in its order; all without that variable."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if gpus == NO_DEVICE or chosen is None:
        return gpus
    left = []
    for name in (word.strip() for word in chosen.split(",")):
        found = [
            gpu
            for gpu in gpus
            if name == str(gpu["index"]) or (name and gpu.get("uuid", "").startswith(name))
        ]
        if not found:  # CUDA ignores everything from the first name on that it does not know.
            break
        left += found[:1]
    return left or NO_DEVICE


def _gpu(index: int) -> dict:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    readings = {
        "name": lambda: _text(pynvml.nvmlDeviceGetName(handle)),
        "uuid": lambda: _text(pynvml.nvmlDeviceGetUUID(handle)),
        "compute_capability": lambda: "{}.{}".format(*pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        "memory_bytes": lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        "memory_used_bytes": lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used),
        "driver": lambda: _text(pynvml.nvmlSystemGetDriverVersion()),
        "cuda_driver": lambda: _cuda_version(pynvml.nvmlSystemGetCudaDriverVersion()),
        "sm_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
        "power_limit_w": lambda: pynvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000,
        "persistence": lambda: bool(pynvml.nvmlDeviceGetPersistenceMode(handle)),
        "temperature_c": lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        "throttle_reasons": lambda: hex(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        "compute_processes": lambda: len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle)),
    }
    gpu = {"index": index}
    for name, read in readings.items():
        try:
            gpu[name] = read()
        except pynvml.NVMLError:
            continue
    return gpu


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def collect_fingerprint(python: str = sys.executable) -> dict:
    """Facts whose change makes evidence stale, of the given interpreter; torch is not imported."""
    gpus = visible(collect_gpus())
    found = _interpreter_facts(os.path.abspath(python))
    return {
        **found,
        "gpus": gpus if gpus == NO_DEVICE else [f"{gpu.get('name')} {gpu.get('uuid')}" for gpu in gpus],
    }


@functools.cache
def _interpreter_facts(python: str) -> dict:
    if python == os.path.abspath(sys.executable):
        return fingerprint.facts()
    if shutil.which(python) is None:
        raise EnvironmentProblem(f"python: '{python}' is not an executable; give the path of an interpreter")
    try:
        answer = subprocess.run(
            [python, fingerprint.__file__], capture_output=True, text=True, check=True, timeout=60
        )
        return json.loads(answer.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        detail = getattr(error, "stderr", "") or str(error)
        raise EnvironmentProblem(
            f"python: '{python}' cannot tell its environment: {one_line(detail)}"
        ) from error


def resolve_device(wanted: str, environment: dict) -> str:
    """cpu or cuda for a wanted auto, cpu or cuda; EnvironmentProblem if cuda is wanted and absent.

    ``environment`` is a fingerprint.
    """
    has_build = environment["torch_cuda"] is not None
    has_gpu = environment["gpus"] != NO_DEVICE
    if wanted == "cuda" and not (has_build and has_gpu):
        lacking = "this torch build has no CUDA" if not has_build else "no NVIDIA GPU is visible"
        raise EnvironmentProblem(f"device: cuda was asked for, but {lacking}; use device cpu or auto")
    if wanted == "auto":
        return "cuda" if has_build and has_gpu else "cpu"
    return wanted


def require_torch(environment: dict, python: str) -> None:
    """EnvironmentProblem if the interpreter of this fingerprint has no torch."""
    if environment["torch"] is None:
        raise EnvironmentProblem(
            f"python: '{python}' has no torch; install the lock or give another interpreter"
        )


def collect_load() -> dict:
    """Load averages, and CPU frequency where the kernel tells it."""
    one, five, fifteen = os.getloadavg()
    load = {"load_1min": one, "load_5min": five, "load_15min": fifteen}
    frequency = psutil.cpu_freq()
    if frequency:
        load["cpu_mhz"] = round(frequency.current, 1)
    return load


def collect_machine(record_identity: bool = False) -> dict:
    """Processor, memory, kernel, locale; host and user only if asked for."""
    machine = {
        "cpu": fingerprint.cpu(),
        "cpus": psutil.cpu_count(),
        "cpus_usable": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "system": platform.system(),
        "libc": " ".join(platform.libc_ver()),
        "complab_python": platform.python_version(),
        "compiler_path": fingerprint.compiler()["path"],
    }
    for name in ("LC_ALL", "LANG", "TZ"):
        if name in os.environ:
            machine[f"parent_{name}"] = os.environ[name]
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor.exists():
        machine["governor"] = governor.read_text().strip()
    if record_identity:
        machine |= {"host": socket.gethostname(), "user": os.environ.get("USER", str(os.getuid()))}
    return machine


def collect_packages() -> dict:
    """Versions of the packages complab itself runs on, by name."""
    packages = {}
    for item in metadata.distributions():
        # The two lines alone: parsing each file as the mail message that it is takes ten times as long.
        told = (item.read_text("METADATA") or item.read_text("PKG-INFO") or "").partition("\n\n")[0]
        lines = dict(re.findall(r"^(Name|Version): *(.+?)\s*$", told, re.MULTILINE))
        if len(lines) == 2:
            packages.setdefault(lines["Name"], lines["Version"])
    return packages


def collect_code_state() -> dict:
    """Commit, whether a code path differs from it, and if so the hash of how; None where git cannot tell."""
    commit = _git("rev-parse", "HEAD")
    status = _git("status", "--porcelain", "--", *CODE_PATHS)
    changes = f"{status}\n{_git('diff', 'HEAD', '--', *CODE_PATHS)}"
    return {
        "commit": commit,
        "dirty": None if status is None else bool(status),
        "changes": hashlib.sha256(changes.encode()).hexdigest() if status else None,
    }


def _git(*words: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "-C", str(PROJECT), *words], capture_output=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # A difference has the bytes of the files, whatever the locale; what is no UTF-8 must not stop a cell.
    return answer.stdout.decode("utf-8", "backslashreplace").strip()
