"""Facts about the machine are told, or are absent; nothing else of it reaches a process or a record."""

import json
import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from complab import cell as measuring
from complab import config, evidence, facts, fingerprint
from complab.config import Cell
from complab.errors import EXIT_ENVIRONMENT, EnvironmentProblem
from complab.measure import isolation
from complab.staleness import Plan

CELL = Cell("e3_graph_breaks", "default", "cold", 1)
SECRET = "hunter2-do-not-record"


class Nvml:
    """An NVIDIA driver with one GPU; a query named in ``refused`` raises what the driver would."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    class NVMLErrorNotSupported(NVMLError):
        pass

    def __init__(self, *refused: str, text=lambda text: text, count: int = 1):
        self.refused, self.is_open, self.text, self.count = refused, False, text, count

    def __getattribute__(self, name):
        get = super().__getattribute__
        return get("_refuse") if name.startswith("nvml") and name in get("refused") else get(name)

    def _refuse(self, *_):
        raise Nvml.NVMLErrorNotSupported("Not Supported")

    def nvmlInit(self):
        self.is_open = True

    def nvmlShutdown(self):
        self.is_open = False

    def nvmlDeviceGetCount(self):
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index):
        return f"handle {index}"

    def nvmlDeviceGetName(self, _):
        return self.text("NVIDIA H100 80GB HBM3")

    def nvmlDeviceGetUUID(self, _):
        return self.text("GPU-5a1f")

    def nvmlDeviceGetCudaComputeCapability(self, _):
        return (9, 0)

    def nvmlDeviceGetMemoryInfo(self, _):
        return SimpleNamespace(total=85_899_345_920, used=1_048_576)

    def nvmlSystemGetDriverVersion(self):
        return self.text("550.54.15")

    def nvmlSystemGetCudaDriverVersion(self):
        return 12040

    def nvmlDeviceGetClockInfo(self, _, which):
        return {self.NVML_CLOCK_SM: 1980, self.NVML_CLOCK_MEM: 2619}[which]

    def nvmlDeviceGetPowerManagementLimit(self, _):
        return 700_000

    def nvmlDeviceGetPersistenceMode(self, _):
        return 1

    def nvmlDeviceGetTemperature(self, _, __):
        return 41

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _):
        return 4

    def nvmlDeviceGetComputeRunningProcesses(self, _):
        return []


GPU = {
    "index": 0,
    "name": "NVIDIA H100 80GB HBM3",
    "uuid": "GPU-5a1f",
    "compute_capability": "9.0",
    "memory_bytes": 85_899_345_920,
    "memory_used_bytes": 1_048_576,
    "driver": "550.54.15",
    "cuda_driver": "12.4",
    "sm_clock_mhz": 1980,
    "memory_clock_mhz": 2619,
    "power_limit_w": 700.0,
    "persistence": True,
    "temperature_c": 41,
    "throttle_reasons": "0x4",
    "compute_processes": 0,
}


# GPUs.


@pytest.mark.fault("T9", "a GPU that others use")
@pytest.mark.parametrize("text", [str, str.encode], ids=["text", "bytes of older bindings"])
def test_a_gpu_is_told_with_every_fact_in_named_units(monkeypatch, text):
    nvml = Nvml(text=text)
    monkeypatch.setattr(facts, "pynvml", nvml)
    assert facts.collect_gpus() == [GPU]
    assert not nvml.is_open
    json.dumps(facts.collect_gpus(), allow_nan=False)


@pytest.mark.parametrize(
    ("query", "absent"),
    [
        ("nvmlDeviceGetName", {"name"}),
        ("nvmlDeviceGetUUID", {"uuid"}),
        ("nvmlDeviceGetMemoryInfo", {"memory_bytes", "memory_used_bytes"}),
        ("nvmlDeviceGetClockInfo", {"sm_clock_mhz", "memory_clock_mhz"}),
        ("nvmlDeviceGetPowerManagementLimit", {"power_limit_w"}),
        ("nvmlDeviceGetPersistenceMode", {"persistence"}),
        ("nvmlDeviceGetTemperature", {"temperature_c"}),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", {"throttle_reasons"}),
        ("nvmlDeviceGetComputeRunningProcesses", {"compute_processes"}),
    ],
)
def test_a_fact_the_driver_refuses_is_absent_and_the_others_stay(monkeypatch, query, absent):
    nvml = Nvml(query)
    monkeypatch.setattr(facts, "pynvml", nvml)
    assert facts.collect_gpus() == [{name: value for name, value in GPU.items() if name not in absent}]
    assert not nvml.is_open


@pytest.mark.fault("T9", "no GPU, a driver that does not answer")
@pytest.mark.parametrize(
    "nvml", [None, Nvml("nvmlInit"), Nvml(count=0)], ids=["no bindings", "no driver", "no GPU"]
)
def test_without_a_gpu_that_answers_there_is_no_device(monkeypatch, nvml):
    monkeypatch.setattr(facts, "pynvml", nvml)
    assert facts.collect_gpus() == "no device"
    assert facts.collect_fingerprint()["gpus"] == "no device"


@pytest.mark.fault("T9", "a GPU that stops answering")
@pytest.mark.parametrize("query", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetCount"])
def test_a_gpu_that_fell_off_the_bus_does_not_stop_a_measurement_on_the_cpu(monkeypatch, query):
    nvml = Nvml(query)
    monkeypatch.setattr(facts, "pynvml", nvml)
    assert facts.collect_gpus() in ("no device", [{"index": 0}])
    assert not nvml.is_open


def test_every_query_made_here_exists_in_nvidias_bindings():
    queries = [
        name for name in vars(Nvml) if name.startswith(("nvml", "NVML")) and name != "NVMLErrorNotSupported"
    ]
    assert len(queries) > 15
    assert all(hasattr(facts.pynvml, name) for name in queries)


@pytest.mark.fault("T9", "another GPU")
def test_a_fingerprint_knows_a_gpu_by_name_and_identity(monkeypatch):
    monkeypatch.setattr(facts, "pynvml", Nvml())
    assert facts.collect_fingerprint()["gpus"] == ["NVIDIA H100 80GB HBM3 GPU-5a1f"]


def test_a_fingerprint_does_not_change_with_what_a_gpu_is_doing(monkeypatch):
    monkeypatch.setattr(facts, "pynvml", Nvml())
    before = facts.collect_fingerprint()
    monkeypatch.setattr(Nvml, "nvmlDeviceGetTemperature", lambda *_: 80)
    monkeypatch.setattr(Nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", lambda *_: 8)
    assert facts.collect_fingerprint() == before


# Which device.

WITH, WITHOUT, GPUS, NONE = "12.4", None, ["NVIDIA H100 GPU-5a1f"], "no device"


@pytest.mark.fault("T9", "a CUDA build without driver, a driver without CUDA build")
@pytest.mark.parametrize(
    ("wanted", "build", "gpus", "device"),
    [
        ("auto", WITH, GPUS, "cuda"),
        ("auto", WITH, NONE, "cpu"),
        ("auto", WITHOUT, GPUS, "cpu"),
        ("auto", WITHOUT, NONE, "cpu"),
        ("cpu", WITH, GPUS, "cpu"),
        ("cpu", WITHOUT, NONE, "cpu"),
        ("cuda", WITH, GPUS, "cuda"),
    ],
)
def test_a_device_is_cuda_where_driver_and_build_both_have_it(wanted, build, gpus, device):
    assert facts.resolve_device(wanted, {"torch_cuda": build, "gpus": gpus}) == device


@pytest.mark.fault("T9", "a GPU asked for where there is none")
@pytest.mark.parametrize(
    ("build", "gpus", "lacking"),
    [
        (WITHOUT, GPUS, "this torch build has no CUDA"),
        (WITH, NONE, "no NVIDIA GPU is visible"),
        (WITHOUT, NONE, "this torch build has no CUDA"),
    ],
)
def test_cuda_without_cuda_is_refused_in_one_line_with_the_remedy(build, gpus, lacking):
    with pytest.raises(EnvironmentProblem) as caught:
        facts.resolve_device("cuda", {"torch_cuda": build, "gpus": gpus})
    message = f"device: cuda was asked for, but {lacking}; use device cpu or auto"
    assert (str(caught.value), caught.value.code) == (message, EXIT_ENVIRONMENT)


# The fingerprint.


def test_a_fingerprint_is_told_without_importing_torch():
    program = (
        "import sys, json\nfrom complab import facts\nfound = facts.collect_fingerprint()\n"
        "print(json.dumps([found['torch'], 'torch' in sys.modules]))"
    )
    told, imported = json.loads(python("-c", program))
    assert told
    assert not imported


def python(*words: str, **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(config.PROJECT / "scripts"), **variables}
    done = subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_another_interpreter_tells_the_same_kind_of_facts_as_this_one():
    assert json.loads(python(fingerprint.__file__)).keys() == fingerprint.facts().keys()


def test_a_fingerprint_names_interpreter_torch_and_compiler():
    found = facts.collect_fingerprint()
    assert found["python"] == f"CPython {platform.python_version()}"
    assert found["torch"] == fingerprint.version_of("torch")
    assert found["compiler"] == fingerprint.compiler()["version"]


def test_an_interpreter_that_is_none_is_refused_by_its_path(tmp_path):
    with pytest.raises(EnvironmentProblem, match="is not an executable; give the path of an interpreter"):
        facts.collect_fingerprint(str(tmp_path / "python"))


def test_an_interpreter_that_fails_is_refused_in_one_line(tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'first\nsecond' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(EnvironmentProblem) as caught:
        facts.collect_fingerprint(str(broken))
    assert str(caught.value) == f"python: '{broken}' cannot tell its environment: first second"


def test_an_interpreter_without_torch_is_refused_with_the_remedy():
    with pytest.raises(EnvironmentProblem, match="has no torch; install the lock"):
        facts.require_torch({"torch": None}, "/opt/python")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6\nGCC version: 12\n",
            "535.54.03",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n", "550.54.15"),
    ],
)
def test_the_driver_is_read_from_the_kernel(monkeypatch, tmp_path, text, version):
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(fingerprint, "Path", lambda _: tmp_path / "version")
    assert fingerprint.nvidia_driver() == version


def test_a_driver_that_says_something_else_is_not_called_unknown(monkeypatch, tmp_path):
    (tmp_path / "version").write_text("something else\n")
    monkeypatch.setattr(fingerprint, "Path", lambda _: tmp_path / "version")
    assert fingerprint.nvidia_driver() != "unknown"


# What a measured process gets.


@pytest.fixture
def place(tmp_path):
    return isolation.Workplace(tmp_path)


def environment_with(
    monkeypatch, place, variables: dict[str, str], threads: int = 1, device: str = "cpu"
) -> dict[str, str]:
    with monkeypatch.context() as patch:
        patch.setattr(isolation.os, "environ", variables)
        return isolation.child_environment(place, threads, device)


@pytest.mark.fault("T6", "variables that change the cache's state")
def test_a_measured_process_gets_no_variable_that_is_not_listed(monkeypatch, place):
    noise = {
        "SECRET_TOKEN": SECRET,
        "TORCH_COMPILE_JOB_ID": "job",
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        "TORCHINDUCTOR_REDIS_HOST": "example.org",
        "TORCH_LOGS": "+all",
        "TORCH_COMPILE_DEBUG": "1",
        "TRITON_ALWAYS_COMPILE": "1",
        "PYTHONSTARTUP": "/tmp/x.py",
        "LD_PRELOAD": "/tmp/x.so",
        "http_proxy": "http://user:password@example.org",
    }
    alone = environment_with(monkeypatch, place, {})
    listed = dict.fromkeys(isolation.INHERITED, "told")
    assert environment_with(monkeypatch, place, noise) == alone
    assert environment_with(monkeypatch, place, noise | listed) == alone | listed


def test_what_complab_sets_wins_over_what_it_found(monkeypatch, place):
    alone = environment_with(monkeypatch, place, {})
    assert environment_with(monkeypatch, place, dict.fromkeys(alone, "inherited")) == {
        **alone,
        **{name: "inherited" for name in alone if name in isolation.INHERITED},
    }


@pytest.mark.parametrize("threads", [1, 3])
def test_the_thread_count_comes_from_the_configuration(monkeypatch, place, threads):
    inherited = {"OMP_NUM_THREADS": "64", "MKL_NUM_THREADS": "64"}
    told = environment_with(monkeypatch, place, inherited, threads)
    assert (told["OMP_NUM_THREADS"], told["MKL_NUM_THREADS"]) == (str(threads), str(threads))


@pytest.mark.fault("T6", "folders and remote caches of the caller")
def test_every_folder_that_torch_writes_to_is_private_and_no_remote_cache_is_on(monkeypatch, place):
    told = environment_with(monkeypatch, place, {})
    folders = [
        "HOME",
        "TMPDIR",
        "XDG_CACHE_HOME",
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
        "CUDA_CACHE_PATH",
        "TORCH_EXTENSIONS_DIR",
        "PYTORCH_KERNEL_CACHE_PATH",
    ]
    assert all(told[name].startswith(f"{place.root}/") for name in folders)
    switches = {name: value for name, value in told.items() if "REMOTE" in name or "PGO" in name}
    assert len(switches) >= 5
    assert set(switches.values()) == {"0"}
    assert told["PYTHONUTF8"] == "1"


def test_no_kernel_is_compiled_where_the_audit_hook_of_the_process_does_not_see_it(monkeypatch, place):
    # With more than one thread, Inductor hands Triton kernels to worker processes.
    told = environment_with(monkeypatch, place, {}, device="cuda")
    assert (told["TORCHINDUCTOR_COMPILE_THREADS"], told["TORCH_WARM_POOL"]) == ("1", "0")


def test_a_started_process_has_exactly_that_environment(monkeypatch, place, tmp_path):
    monkeypatch.setenv("SECRET_TOKEN", SECRET)
    environment = isolation.child_environment(place, 2, "cpu")
    program = "import os, json; print(json.dumps(dict(os.environ)))"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert SECRET not in done.stdout
    assert set(json.loads(done.stdout)) - set(environment) <= {"LC_CTYPE", "__CF_USER_TEXT_ENCODING"}


# What a record tells of the machine.


@pytest.fixture
def plan():
    return Plan(config.load(overrides={"scale": "quick"}))


@pytest.fixture
def identity(monkeypatch):
    """A host and a user whose names would be recognised."""
    monkeypatch.setattr(facts.socket, "gethostname", lambda: "a-host-with-a-name")
    monkeypatch.setenv("USER", "a-person-with-a-name")
    monkeypatch.setenv("SECRET_TOKEN", SECRET)


def files_text(folder) -> str:
    return "\n".join(path.read_text() for path in folder.iterdir())


def test_a_published_cell_tells_neither_secrets_nor_host_nor_user(identity, plan, tmp_path, publish_cell):
    record = publish_cell(plan, CELL, tmp_path / "cell" / "1")
    told = files_text(tmp_path / "cell" / "1")
    for name in ("SECRET_TOKEN", SECRET, "a-host-with-a-name", "a-person-with-a-name"):
        assert name not in told
    assert record["variables"]["OMP_NUM_THREADS"] == "1"


def test_a_failure_record_tells_neither_secrets_nor_host_nor_user(identity, plan, tmp_path):
    measuring.record_failure(measuring.Job(plan, CELL, 1), "process 'timed' failed", tmp_path / "1", 1)
    told = files_text(tmp_path / "1")
    for name in ("SECRET_TOKEN", SECRET, "a-host-with-a-name", "a-person-with-a-name"):
        assert name not in told
    record = evidence.read_provenance(tmp_path / "1")
    assert record["failure"] == {"stage": "preparing", "message": "process 'timed' failed"}


def test_host_and_user_are_told_only_where_they_are_asked_for(identity):
    assert not {"host", "user"} & facts.collect_machine().keys()
    told = facts.collect_machine(record_identity=True)
    assert (told["host"], told["user"]) == ("a-host-with-a-name", "a-person-with-a-name")


def test_no_fact_about_the_machine_is_called_unknown():
    told = {**facts.collect_machine(), **facts.collect_load()}
    assert "unknown" not in json.dumps(told).lower()
    assert told["memory_bytes"] > 0
    assert told["cpus_usable"] <= told["cpus"]


def test_the_packages_are_told_with_their_versions():
    assert facts.collect_packages()["torch"] == fingerprint.version_of("torch")


@pytest.mark.fault("T15", "no repository: the facts")
def test_outside_a_repository_commit_and_changes_are_not_told(monkeypatch, tmp_path):
    monkeypatch.setattr(facts, "PROJECT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert facts.collect_code_state() == {"commit": None, "dirty": None, "changes": None}


@pytest.mark.fault("T15", "a dirty checkout: the facts")
def test_a_changed_checkout_is_told_with_the_hash_of_what_was_changed(monkeypatch, tmp_path):
    def git(*words):
        identity = ["-c", "user.name=n", "-c", "user.email=e"]
        subprocess.run(["git", "-C", tmp_path, *identity, *words], check=True, capture_output=True)

    monkeypatch.setattr(facts, "PROJECT", tmp_path)
    code = tmp_path / "scripts" / "code.py"
    code.parent.mkdir()
    code.write_text("one = 1\n")
    git("init")
    git("add", "scripts")
    git("commit", "-m", "start")
    clean = facts.collect_code_state()
    assert (clean["dirty"], clean["changes"]) == (False, None)
    told = []
    for text in ("one = 2\n", "one = 3\n", "one = 2\n"):
        code.write_text(text)
        told.append(facts.collect_code_state())
    assert [state["dirty"] for state in told] == [True, True, True]
    assert told[0] == told[2] != told[1]


def told_by(program: str) -> str:
    """What a Python process prints that imports complab and torch as a measured one does."""
    # An unbuffered Python leaves nothing to flush, and a test of flushing nothing to see.
    environment = os.environ | {"PYTHONPATH": str(config.PROJECT / "scripts"), "PYTHONUNBUFFERED": ""}
    words = [sys.executable, "-c", program]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_a_vector_instruction_set_that_cannot_be_built_is_not_taken_on_the_processors_word():
    told = told_by(
        "from complab.measure import dynamo\n"
        "from torch._inductor import cpu_vec_isa\n"
        "cpu_vec_isa.VecISA.check_build = lambda isa, code: False\n"
        "probed, unprobed = dynamo.vector_isa()\n"
        "print(probed != unprobed)"
    )
    assert told == "True"


def test_where_the_instruction_sets_are_known_no_process_is_started_to_find_them_out():
    told = told_by(
        "from complab.measure import child, dynamo\n"
        "from torch._inductor import cpu_vec_isa\n"
        "dynamo.skip_vector_isa_probes()\n"
        "print(bool(cpu_vec_isa.pick_vec_isa()), child.SPAWNED)"
    )
    assert told == "True []"


def test_a_finished_process_leaves_with_all_that_was_printed_and_runs_what_others_registered():
    told = told_by(
        "from complab.measure import child\n"
        "import atexit, ctypes, sys\n"
        "atexit.register(print, 'registered later', end=' ')\n"
        "class Slow:\n"
        "    def __del__(self): print('taken down')\n"
        "sys.modules['slow'] = Slow()\n"
        "ctypes.CDLL(None).printf(b'and C')\n"
        "child._finished.append(True)"
    )
    assert told == "registered later and C"


def test_a_process_that_failed_leaves_with_its_own_status():
    program = "from complab.measure import child\nraise SystemExit(7)"
    with pytest.raises(subprocess.CalledProcessError) as failed:
        told_by(program)
    assert failed.value.returncode == 7
