"""Which environment would a cell be measured in? Told without importing torch.

Standard library only, and runnable as a file by another interpreter: `python fingerprint.py` prints
the facts as JSON. A change in any of them makes every cell stale.
"""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path


def version_of(package: str) -> str | None:
    """Installed version of a package, None where there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_build() -> dict:
    """git revision and CUDA version of the installed torch, from its version file; None where unknown."""
    try:
        path = importlib.metadata.distribution("torch").locate_file("torch/version.py")
        text = Path(path).read_text(encoding="utf-8")
    except (importlib.metadata.PackageNotFoundError, OSError):
        return {"git": None, "cuda": None}
    found = {}
    for key, name in (("git", "git_version"), ("cuda", "cuda")):
        match = re.search(rf"^{name}\b[^=\n]*= *'([^']*)'", text, re.MULTILINE)
        found[key] = match[1] if match else None
    return found


def compiler() -> dict:
    """Path and version line of the C++ compiler Inductor will call; None where there is none."""
    path = shutil.which(os.environ.get("CXX", "g++"))
    if path is None:
        return {"path": None, "version": None}
    answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return {"path": os.path.realpath(path), "version": (answer.stdout.splitlines() or [""])[0]}


def cpu() -> str:
    """Model name of the processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def nvidia_driver() -> str | None:
    """Version of the loaded NVIDIA kernel driver, None where there is none."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"Module(?: for \S+)?\s+([0-9][0-9.]+)", text)
    return match[1] if match else text.splitlines()[0]


def facts() -> dict:
    """The fingerprint of this interpreter and machine, GPUs excepted; plain JSON values, none a path."""
    build = torch_build()
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "torch": version_of("torch"),
        "torch_git": build["git"],
        "torch_cuda": build["cuda"],
        "triton": version_of("triton"),
        "compiler": compiler()["version"],
        "driver": nvidia_driver(),
        "cpu": cpu(),
        "machine": platform.machine(),
    }


if __name__ == "__main__":
    print(json.dumps(facts()))
