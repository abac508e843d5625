"""A project in which nothing is measured, so that what goes wrong around a measurement can be tried at once.

Its interpreter hands everything to the real one but the measured process, which `stub_child.py` stands for.
All else is the project's own code: rules, parent process, isolation, verdict, publishing.
"""

import json
import os
import shlex
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from complab.config import Cell
from project_copy import copy_project, edit_config

NAME = "e98_stub"
RUN = "stub"
COLD, WARM = Cell(NAME, "default", "cold", 1), Cell(NAME, "default", "warm", 1)
PLAIN, OTHER = Cell(NAME, "plain", "none", 1), Cell(NAME, "other", "none", 1)

SCRIPT = '''"""Does a fault end in a wrong number?"""

if __name__ == "__main__":
    from complab.cell import main

    main(__file__)


def timed(bench):
    """Never called: the process that would is a stub."""
'''

ENTRY = {
    "title": "Stub",
    "policies": {"plain": ["none"], "other": ["none"], "default": ["cold", "warm"]},
    "exhibit": {
        "tables": {
            "main": {
                "caption": "What a sum takes",
                "rows": "policy",
                "case": "sum",
                "columns": {
                    "steady_eager_ms": {"formula": "median", "of": "steady_eager", "cache": "cold-or-none"}
                },
            }
        }
    },
}

# A torch whose import never ends: the process stays in the middle of its cell, after its real first lines.
BLOCKING = """
import os, pathlib, subprocess, time
place = pathlib.Path({control!r})
compiler = subprocess.Popen(["sleep", "600"])
(place / "blocked").write_text(f"{{os.getpid()}} {{compiler.pid}}")
time.sleep(600)
"""

# NVIDIA's bindings for a driver whose GPUs stand in a file; without that file no driver answers.
NVML = """
import json, pathlib

GPUS = pathlib.Path({control!r}) / "gpus.json"
NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0


class NVMLError(Exception):
    pass


def nvmlInit():
    if not GPUS.exists():
        raise NVMLError("no driver")


def nvmlShutdown():
    pass


def nvmlDeviceGetCount():
    return len(json.loads(GPUS.read_text()))


def nvmlDeviceGetHandleByIndex(index):
    return json.loads(GPUS.read_text())[index]


def nvmlDeviceGetName(gpu):
    return gpu["name"]


def nvmlDeviceGetUUID(gpu):
    return gpu["uuid"]


def nvmlDeviceGetComputeRunningProcesses(gpu):
    return range(gpu["processes"])


def __getattr__(name):
    def refused(*_):
        raise NVMLError("not supported")

    return refused
"""

INTERPRETER = """\
#!/bin/sh
case "$*" in
*complab.measure.child*)
    if [ -e {control}/block ] && ! grep -q header_user "$3"; then
        export PYTHONPATH={control}/blocking:"$PYTHONPATH"
        exec {python} "$@"
    fi
    exec {python} {child} {control} "$3" ;;
*fingerprint.py)
    # A CUDA build of torch, where a driver is told of.
    if [ -e {control}/gpus.json ]; then
        {python} "$@" | sed 's/"torch_cuda": null/"torch_cuda": "13.0"/'
        exit
    fi ;;
*"import torch"*) exit 0 ;;
esac
exec {python} "$@"
"""


# Every Snakemake that was started, so that none outlives a test that fails.
STARTED: list[subprocess.Popen] = []


@dataclass(frozen=True)
class Stub:
    """A stub project: where it lies, and the folder whose files say what goes wrong."""

    project: Path
    control: Path

    @property
    def python(self) -> Path:
        return self.control / "python"

    @property
    def results(self) -> Path:
        return self.project / "results" / RUN

    def folder(self, cell: Cell) -> Path:
        return self.results / cell.path

    def record(self, cell: Cell) -> dict:
        return json.loads((self.folder(cell) / "provenance.json").read_text(encoding="utf-8"))

    def plant(self, fault: str, text: str = "") -> None:
        """Have something go wrong from now on; see `stub_child`."""
        (self.control / fault).write_text(text, encoding="utf-8")

    def heal(self, *faults: str) -> None:
        for fault in faults:
            (self.control / fault).unlink(missing_ok=True)

    def environment(self, **variables: str) -> dict[str, str]:
        """Variables of a process of this project: the stub's programs and bindings come first."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "PYTHONPATH": str(self.control / "modules"), **variables}

    def start(self, *words: str, **options) -> subprocess.Popen:
        """Start Snakemake in the project, all its output in one pipe."""
        variables = options.pop("variables", {})
        config = ["--config", "scale=quick", f"python={self.python}", f"run={RUN}"]
        process = subprocess.Popen(
            ["snakemake", "--cores", "1", *words, *config],
            cwd=options.pop("folder", self.project),
            env=self.environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            **options,
        )
        STARTED.append(process)
        return process

    def snakemake(self, *words: str, **options) -> tuple[int, str]:
        """Run Snakemake in the project; returns its exit status and what it told."""
        process = self.start(*words, **options)
        told, _ = process.communicate(timeout=120)
        return process.returncode, told

    def script(self, *words: object, variables: dict | None = None, **options) -> tuple[int, str, str]:
        """Run the experiment's script by hand; returns exit status, output and complaints."""
        overrides = {"run": RUN, "scale": "quick"} | options.pop("overrides", {})
        argv = [sys.executable, f"scripts/{NAME}.py", "--python", str(self.python), *map(str, words)]
        argv += ["--overrides", json.dumps(overrides)]
        answer = subprocess.run(
            argv,
            cwd=options.pop("folder", self.project),
            env=self.environment(**(variables or {})),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=120,
            check=False,
            **options,
        )
        return answer.returncode, answer.stdout, answer.stderr

    def blocked(self) -> tuple[int, int]:
        """Wait until a process hangs in the middle of its cell; its id and that of what it started."""
        path = self.control / "blocked"
        wait_for(lambda: path.exists() and len(path.read_text().split()) == 2, "a process in a cell")
        measured, compiler = path.read_text().split()
        path.unlink()
        return int(measured), int(compiler)


def make(folder: Path, policies: dict | None = None, project: str = "project") -> Stub:
    """A stub project below an empty folder."""
    control = folder / "control"
    control.mkdir(parents=True)
    copy = copy_project(folder / project)
    (copy / "scripts" / f"{NAME}.py").write_text(SCRIPT, encoding="utf-8")

    def only_stub(values: dict) -> None:
        values["experiments"] = {NAME: ENTRY | ({"policies": policies} if policies else {})}

    edit_config(copy, only_stub)
    # Nothing is timed here, so no measurement on this machine has to be waited for.
    isolation = copy / "scripts" / "complab" / "measure" / "isolation.py"
    text = isolation.read_text(encoding="utf-8")
    lock = f"LOCK = Path({str(control / 'measuring.lock')!r})"
    changed = text.replace('LOCK = Path("/tmp/complab-measuring.lock")', lock)
    assert changed != text
    isolation.write_text(changed, encoding="utf-8")
    words = {
        "control": shlex.quote(str(control)),
        "python": shlex.quote(sys.executable),
        "child": shlex.quote(str(Path(__file__).with_name("stub_child.py"))),
    }
    (control / "python").write_text(INTERPRETER.format(**words), encoding="utf-8")
    (control / "python").chmod(0o755)
    (control / "modules").mkdir()
    nvml = textwrap.dedent(NVML).format(control=str(control))
    (control / "modules" / "pynvml.py").write_text(nvml, encoding="utf-8")
    (control / "blocking").mkdir()
    blocking = textwrap.dedent(BLOCKING).format(control=str(control))
    (control / "blocking" / "torch.py").write_text(blocking, encoding="utf-8")
    return Stub(copy, control)


def end_what_runs() -> None:
    """Kill each Snakemake that a test started and did not see end."""
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            process.kill()
        process.stdout.close()
        process.wait()


def wait_for(reached: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Wait until something holds; fails with its name if it never does."""
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.05)


def gone(process: int) -> bool:
    """Whether a process has ended, one that nobody has asked for its status included."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
