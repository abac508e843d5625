"""The right lock for the machine, installed once, and never a CUDA build by accident."""

import ast
import ctypes
import importlib.util
import json
import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
ENVS = ROOT / "envs"

CPU_BUILD = {"version": "2.13.0+cpu", "requires_dist": ["filelock", "sympy>=1.13.3"]}
CUDA_BUILD = {
    "version": "2.13.0",
    "requires_dist": ["filelock", 'nvidia-nccl-cu13==2.29.7; platform_system == "Linux"'],
}


def empty(environment):
    shutil.rmtree(environment, ignore_errors=True)
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").touch()


@pytest.fixture
def install(tmp_path, monkeypatch):
    """envs/install.py for a project in a temporary folder, with a pip that only notes what it is asked."""
    specification = importlib.util.spec_from_file_location("install", ENVS / "install.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)

    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "cpu.txt").write_text("torch==2.13.0\npip==26.3\n")
    (tmp_path / "envs" / "cuda.txt").write_text(
        "torch==2.13.0\ntriton==3.7.1\ncuda-toolkit==13.0.3.0\npip==26.3\n"
    )
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "clear_environment", lambda: empty(tmp_path / ".venv"))
    monkeypatch.delenv("LOCK", raising=False)
    monkeypatch.delenv("ALLOW_CUDA_BUILD", raising=False)
    return module


def offer(install, monkeypatch, here, at_the_cpu_index=None):
    """What the person's package index, and then PyTorch's own, has as torch; the list of pip's calls."""
    calls = []

    def pip(*arguments):
        calls.append(arguments)
        if "--dry-run" not in arguments:
            return ""
        build = at_the_cpu_index if install.CPU_INDEX in arguments else here
        return json.dumps({"install": [{"metadata": build}]})

    monkeypatch.setattr(install, "pip", pip)
    return calls


def test_an_environment_is_made_once(install, monkeypatch, tmp_path):
    calls = offer(install, monkeypatch, CPU_BUILD)
    lock = tmp_path / "envs" / "cpu.txt"
    assert install.update(lock, "test")
    assert ("install", "--no-deps", "--requirement", str(lock)) in calls
    assert calls[-1] == ("check",)

    calls.clear()
    assert not install.update(lock, "test")
    assert calls == []


@pytest.mark.parametrize("change", ["the lock's text", "another lock", "a gone python"])
def test_what_makes_an_environment_anew(install, monkeypatch, tmp_path, change):
    calls = offer(install, monkeypatch, CPU_BUILD)
    lock = tmp_path / "envs" / "cpu.txt"
    install.update(lock, "test")
    (install.VENV / "leftover").touch()
    calls.clear()
    if change == "the lock's text":
        lock.write_text(lock.read_text() + "jinja2==3.1.6\n")
    elif change == "another lock":
        lock = tmp_path / "envs" / "cuda.txt"
    else:
        (install.VENV / "bin" / "python").unlink()
    assert install.update(lock, "test")
    assert ("install", "--no-deps", "--requirement", str(lock)) in calls
    assert not (install.VENV / "leftover").exists()


def test_a_changed_project_is_installed_into_the_same_environment(install, monkeypatch, tmp_path):
    calls = offer(install, monkeypatch, CPU_BUILD)
    install.update(tmp_path / "envs" / "cpu.txt", "test")
    calls.clear()
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert install.update(tmp_path / "envs" / "cpu.txt", "test")
    assert [call[-1] for call in calls] == [str(tmp_path), "check"]


@pytest.mark.parametrize("last_good_call", range(4))
def test_an_interrupted_installation_is_made_anew(install, monkeypatch, tmp_path, last_good_call):
    calls = offer(install, monkeypatch, CPU_BUILD)
    good = install.pip

    def interrupted(*arguments):
        if len(calls) > last_good_call:
            raise KeyboardInterrupt
        return good(*arguments)

    monkeypatch.setattr(install, "pip", interrupted)
    lock = tmp_path / "envs" / "cpu.txt"
    with pytest.raises(KeyboardInterrupt):
        install.update(lock, "test")

    monkeypatch.setattr(install, "pip", good)
    calls.clear()
    assert install.update(lock, "test")
    assert ("install", "--no-deps", "--requirement", str(lock)) in calls


def test_a_cpu_build_on_the_own_index_needs_no_other(install, monkeypatch):
    offer(install, monkeypatch, CPU_BUILD)
    assert install.cpu_build("torch==2.13.0") == ("torch==2.13.0+cpu", ["--no-deps"])


def test_a_cpu_build_without_a_label_is_told_by_what_it_requires(install, monkeypatch):
    offer(install, monkeypatch, {"version": "2.13.0", "requires_dist": ["filelock"]})
    assert install.cpu_build("torch==2.13.0") == ("torch==2.13.0", ["--no-deps"])


def test_only_torch_comes_from_pytorchs_index(install, monkeypatch, tmp_path):
    calls = offer(install, monkeypatch, CUDA_BUILD, CPU_BUILD)
    install.update(tmp_path / "envs" / "cpu.txt", "test")
    elsewhere = [call for call in calls if install.CPU_INDEX in call and "--dry-run" not in call]
    assert [call[-1] for call in elsewhere] == ["torch==2.13.0+cpu"]


def test_no_cpu_build_anywhere_is_refused_before_a_download(install, monkeypatch, tmp_path):
    calls = offer(install, monkeypatch, CUDA_BUILD, CUDA_BUILD)
    with pytest.raises(install.Refusal, match=r"no CPU build of torch==2\.13\.0 .*ALLOW_CUDA_BUILD=1"):
        install.update(tmp_path / "envs" / "cpu.txt", "test")
    assert [call for call in calls if "--dry-run" not in call] == [("install", "--no-deps", "pip==26.3")]


def test_a_cuda_build_can_be_asked_for(install, monkeypatch, tmp_path):
    monkeypatch.setenv("ALLOW_CUDA_BUILD", "1")
    calls = offer(install, monkeypatch, CUDA_BUILD)
    lock = tmp_path / "envs" / "cpu.txt"
    install.update(lock, "test")
    assert ("install", "--constraint", str(lock), "torch==2.13.0") in calls  # with its libraries


@pytest.mark.parametrize(
    ("release", "driver", "name", "reason"),
    [
        (0, "no NVIDIA driver", "cpu.txt", "no NVIDIA driver"),
        (13000, "an NVIDIA driver for CUDA 13.0", "cuda.txt", "an NVIDIA driver"),
        (13020, "an NVIDIA driver for CUDA 13.2", "cuda.txt", "an NVIDIA driver"),
        (12040, "an NVIDIA driver for CUDA 12.4", "cpu.txt", "needs 13.0: update the driver"),
    ],
)
def test_the_driver_decides_which_lock(install, release, driver, name, reason):
    lock, why = install.choose_lock(None, release, driver)
    assert lock.name == name
    assert reason in why


def test_lock_decides_against_the_driver(install, tmp_path):
    assert install.choose_lock("envs/cpu.txt", 13000, "")[0] == tmp_path / "envs" / "cpu.txt"
    with pytest.raises(install.Refusal, match=r"LOCK=envs/no.txt is no file; .* envs/cpu.txt, envs/cuda.txt"):
        install.choose_lock("envs/no.txt", 0, "")


class FakeNvml:
    def __init__(self, status=0, gpus=1, release=13000):
        self.status, self.gpus, self.release = status, gpus, release

    def nvmlInit_v2(self):
        return self.status

    def nvmlDeviceGetCount_v2(self, pointer):
        pointer._obj.value = self.gpus

    def nvmlSystemGetCudaDriverVersion_v2(self, pointer):
        pointer._obj.value = self.release

    def nvmlShutdown(self):
        return 0


@pytest.mark.parametrize(
    ("nvml", "release", "words"),
    [
        (FakeNvml(release=13020), 13020, "for CUDA 13.2"),
        (FakeNvml(status=9), 0, "does not answer, NVML error 9"),
        (FakeNvml(gpus=0), 0, "no GPU"),
        (None, 0, "no NVIDIA driver"),
    ],
)
def test_the_driver_itself_is_asked(install, monkeypatch, nvml, release, words):
    def load(name):
        if nvml is None:
            raise OSError(f"{name}: cannot open shared object file")
        return nvml

    monkeypatch.setattr(ctypes, "CDLL", load)
    found, driver = install.nvidia_driver()
    assert found == release
    assert words in driver


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("version_info", (3, 10, 4), "3.11 or later"),
        ("platform", "darwin", "Linux only"),
    ],
)
def test_an_unfit_python_is_refused_in_one_line(install, monkeypatch, capsys, attribute, value, words):
    monkeypatch.setattr(sys, attribute, value)
    assert install.main() == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert words in told


def test_a_python_without_venv_is_refused(install, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(install.Refusal, match="apt install python3-venv"):
        install.check_python()


def test_pips_failure_is_told_in_one_line(install):
    (install.VENV / "bin").mkdir(parents=True)
    python = install.VENV / "bin" / "python"
    python.write_text(
        "#!/bin/sh\necho 'ERROR: No matching distribution found for x' >&2\necho hint >&2\nexit 1\n"
    )
    python.chmod(0o755)
    with pytest.raises(install.Refusal) as refusal:
        install.pip("install", "x")
    log = install.VENV / "install.log"
    assert (
        str(refusal.value) == f"pip install failed: ERROR: No matching distribution found for x (log: {log})"
    )
    assert "$ pip install x" in log.read_text()


def pins(text):
    return dict(re.findall(r"^([\w.-]+)==([^\s,]+)", text, re.M))


CPU, CUDA = pins((ENVS / "cpu.txt").read_text()), pins((ENVS / "cuda.txt").read_text())


def test_both_locks_hold_the_same_versions():
    assert {name: version for name, version in CUDA.items() if name in CPU} == CPU
    assert {"torch", "triton"} <= set(CUDA)


def test_the_cpu_lock_asks_for_no_gpu_library():
    assert [name for name in CPU if name.startswith(("nvidia", "cuda", "triton"))] == ["nvidia-ml-py"]


def test_a_lock_pins_a_release_and_the_cuda_lock_no_cpu_build():
    lines = {name: (ENVS / f"{name}.txt").read_text().splitlines() for name in ("cpu", "cuda")}
    torch = {
        name: Requirement(next(line.split("#")[0] for line in text if line.startswith("torch==")))
        for name, text in lines.items()
    }
    assert torch["cpu"].specifier.contains("2.13.0") and torch["cpu"].specifier.contains("2.13.0+cpu")
    assert torch["cuda"].specifier.contains("2.13.0") and not torch["cuda"].specifier.contains("2.13.0+cpu")


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_a_lock_answers_its_requirements_and_nothing_local(name):
    text = (ENVS / f"{name}.txt").read_text()
    assert not re.search(r"://|^-|@ |file:", text, re.M)
    for line in (ENVS / f"{name}.in").read_text().splitlines():
        wanted = line.split("#")[0].strip()
        if wanted and not wanted.startswith("-"):
            requirement = Requirement(wanted)
            assert requirement.specifier.contains(pins(text)[requirement.name]), wanted


def test_the_conda_file_holds_the_cpu_lock():
    parts = yaml.safe_load((ENVS / "conda.yaml").read_text())["dependencies"]
    listed = next(part["pip"] for part in parts if isinstance(part, dict))
    lock = {name: version for name, version in CPU.items() if name != "pip"}
    assert pins("\n".join(listed)) == lock


def test_the_project_asks_for_nothing_that_the_locks_lack():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in project["dependencies"]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(CPU[requirement.name]), line


@pytest.mark.parametrize("file", ["envs/install.py", "scripts/complab/preflight.py"])
def test_set_up_needs_the_standard_library_only(file):
    names = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names
