"""How is one process kept from knowing anything of another? Folders, environment, process group, lock."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from complab.config import PROJECT
from complab.errors import EnvironmentProblem, Problem, one_line

# Taken over from the parent where set: without them a working machine may not find its tools.
INHERITED = (
    *("PATH", "CC", "CXX", "CPATH", "LIBRARY_PATH", "LD_LIBRARY_PATH"),
    *("CUDA_HOME", "CUDA_VISIBLE_DEVICES", "TZ"),
)
USER = "complab"
HEADERS = Path(f"torchinductor_{USER}") / "precompiled_headers"
# How many kernels Inductor compiles at once, the same on every machine. Its threads start the C++ compilers,
# so the audit hook of the measured process sees each; Triton has worker processes, which it would not see.
COMPILE_THREADS = {"cpu": 2, "cuda": 1}


@dataclass(frozen=True)
class Workplace:
    """The private folders of one cell, below one short path without spaces."""

    root: Path

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    @property
    def headers(self) -> Path:
        return self.tmp / HEADERS

    @property
    def out(self) -> Path:
        return self.root / "out"


def require_scratch(scratch: str) -> None:
    """EnvironmentProblem if private folders cannot lie below ``scratch``: unwritable, or a space in it."""
    real = os.path.realpath(scratch)
    if " " in real:
        raise EnvironmentProblem(
            f"scratch: '{real}' has a space, which C++ compilers called by Inductor do not survive; "
            "set scratch in config.yaml to a path without spaces"
        )
    try:
        os.rmdir(tempfile.mkdtemp(prefix="complab-", dir=scratch))
    except OSError as error:
        raise EnvironmentProblem(
            f"scratch: '{scratch}' cannot be written ({error.strerror}); "
            "set scratch in config.yaml to a writable folder"
        ) from error


def _reap(scratch: Path) -> None:
    """End what is left of measurements that were killed, and remove their private folders."""
    for left in scratch.glob("complab-[0-9]*-*"):
        if not alive(left.name.split("-")[1]):
            _kill_orphans(Workplace(left))
            shutil.rmtree(left, ignore_errors=True)


def alive(process: str) -> bool:
    """Whether a process still runs; one that was killed may wait long for someone to ask for its status."""
    try:
        told = Path("/proc", process, "stat").read_bytes()
        return told.rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def _kill_orphans(place: Workplace) -> None:
    """Kill what a process of a killed measurement had started: only that has its TMPDIR."""
    mark = f"TMPDIR={place.tmp}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


@contextlib.contextmanager
def workplace(scratch: str):
    """A fresh private workplace below ``scratch``, removed afterwards; see `require_scratch`."""
    require_scratch(scratch)
    _reap(Path(scratch))
    root = Path(tempfile.mkdtemp(prefix=f"complab-{os.getpid()}-", dir=scratch))
    place = Workplace(root)
    try:
        for folder in (place.cache, place.tmp, place.out, root / "home"):
            folder.mkdir()
        yield place
    finally:
        shutil.rmtree(root, ignore_errors=True)


def child_environment(
    place: Workplace, threads: int, device: str, cache: Path | None = None
) -> dict[str, str]:
    """The whole environment of a measured process: nothing is there that is not named here."""
    cache = cache or place.cache
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
    home = place.root / "home"
    environment |= {
        "HOME": str(home),
        "USER": USER,
        "LOGNAME": USER,
        "TMPDIR": str(place.tmp),
        "LC_ALL": "C.UTF-8",
        "PYTHONUTF8": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(PROJECT / "scripts"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
        "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "0",
        "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE": "0",
        "TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE": "0",
        "TORCHINDUCTOR_BUNDLE_TRITON_INTO_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": str(COMPILE_THREADS[device]),
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "1",
        "TORCH_WARM_POOL": "0",
        "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_LOCAL_PGO": "0",
        "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_REMOTE_PGO": "0",
        "TORCH_CACHING_PRECOMPILE": "0",
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "CUDA_CACHE_PATH": str(cache / "cuda"),
        "CUDA_MODULE_LOADING": "LAZY",
        "TORCH_EXTENSIONS_DIR": str(cache / "extensions"),
        "PYTORCH_KERNEL_CACHE_PATH": str(cache / "kernels"),
        "CCACHE_DISABLE": "1",
        # Torch's profiler announces each start and stop otherwise.
        "KINETO_LOG_LEVEL": "99",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
    }
    return environment


def run_process(
    name: str, request: dict, place: Workplace, python: str, environment: dict, timeout: int, say
) -> dict:
    """Run one named process of a cell and return what it found: rows, torch log, facts.

    ``say`` is called with each line the process prints. The process leads its own group, which is
    killed when it ends or fails, so that nothing it started outlives it. Raises Problem with the
    process's last words if it fails, and EnvironmentProblem if its TMPDIR was not honoured.
    """
    folder = place.out / name
    folder.mkdir()
    request_file = folder / "request.json"
    request_file.write_text(json.dumps({**request, "process": name}), encoding="utf-8")
    argv = [python, "-m", "complab.measure.child", str(request_file)]
    start = time.perf_counter()
    status, last = _stream(argv, environment, folder, timeout, say)
    seconds = time.perf_counter() - start
    if status == "timeout":
        raise Problem(f"process '{name}' was stopped after {timeout} s; raise cell_timeout in config.yaml")
    log = _read(folder / "torch.log")
    if status != 0:
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        raise ProcessFailed(f"process '{name}' {how}: {one_line(last, 300) or 'no output'}", log)
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    if os.path.realpath(facts["temporary_folder"]) != os.path.realpath(place.tmp):
        raise EnvironmentProblem(
            f"process '{name}' used {facts['temporary_folder']} instead of its private TMPDIR"
        )
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "name": name,
        "argv": argv,
        "seconds": seconds,
        "rows": rows,
        "facts": facts,
        "log": log,
        "exit_status": 0,
    }


class ProcessFailed(Problem):
    """A measured process failed; keeps what torch had logged until then."""

    def __init__(self, message: str, log: str):
        super().__init__(message)
        self.log = log


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _stream(argv: list[str], environment: dict, folder: Path, timeout: int, say) -> tuple[int | str, str]:
    """Run to the end, handing over each line; returns exit status (or "timeout") and the last line."""
    try:
        process = subprocess.Popen(
            argv,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise EnvironmentProblem(f"python: '{argv[0]}' cannot be started ({error.strerror})") from error
    timed_out = []

    def stop(_number, _frame):
        timed_out.append(True)
        _kill_group(process.pid)

    def end_group():
        process.wait()
        _kill_group(process.pid)

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(timeout)
    last = raised = ""
    # A compiler that outlives a killed process holds the pipe open, and its lines would be waited for.
    _start_deaf(end_group)
    try:
        for line in process.stdout:
            say(line.rstrip("\n"))
            last = line.strip() or last
            raised = line.strip() if RAISED.match(line) else raised
        status = process.wait()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
        _kill_group(process.pid)
        process.wait()
    # Torch ends a traceback with advice; what was raised says more.
    return ("timeout" if timed_out else status), (status > 0 and raised) or last


def _start_deaf(function) -> None:
    """Run a function in a thread that takes no signal: taken there, it would not end the waiting here."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        threading.Thread(target=function, daemon=True).start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# The line of a traceback that names the exception.
RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Unsupported\w*): ")


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


LOCK = Path("/tmp/complab-measuring.lock")


def _open_lock() -> int:
    """The lock file of this machine, the same for every user and checkout, whatever TMPDIR says."""
    for flags in (os.O_RDWR, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDONLY):
        try:
            descriptor = os.open(LOCK, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except OSError as error:
            reason = error.strerror
            continue
        if flags & os.O_CREAT:
            os.fchmod(descriptor, 0o666)
        return descriptor
    raise EnvironmentProblem(f"{LOCK}: the measuring lock cannot be opened ({reason}); remove the file")


@contextlib.contextmanager
def host_lock(say):
    """Hold this machine's measuring lock: one timed cell at a time, whatever starts it.

    Waits for another holder and says so. The lock goes with the process that holds it.
    """
    descriptor = _open_lock()
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "another process"
            say(f"waiting: process {holder} is measuring on this machine")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with contextlib.suppress(OSError):  # Another user's lock file: it locks, but cannot be signed.
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def prime(python: str) -> None:
    """Import torch once, untimed, in a throw-away process, so that its bytecode and pages are there."""
    subprocess.run([python, "-c", "import torch"], capture_output=True, check=False, timeout=600)


def replace_paths(text: str, place: Workplace | None, python: str) -> str:
    """The text with this machine's folders replaced by $TMP, $PROJECT, $PYTHON and $HOME."""
    interpreter = str(Path(python).absolute().parent.parent)
    names = [(str(place.root), "$TMP"), (os.path.realpath(place.root), "$TMP")] if place else []
    names += [
        (str(PROJECT), "$PROJECT"),
        (interpreter, "$PYTHON"),
        (sys.prefix, "$PYTHON"),
        (str(Path.home()), "$HOME"),
    ]
    for path, name in sorted(names, key=lambda item: -len(item[0])):
        # A system Python's folder is that of the compiler and of half the machine: it tells nothing.
        if path not in ("/", "/usr", "/usr/local", ""):
            text = text.replace(path, name)
    # Torch prints some paths without the part they share with its own, cut in the middle of a name.
    for path, below, name in (
        (str(PROJECT), "/scripts/", "$PROJECT"),
        (interpreter, "/lib/python", "$PYTHON"),
    ):
        ends = "|".join(re.escape(path[start:] + below) for start in range(1, len(path)))
        text = re.sub(rf"(?<![\w$/.~-])(?:{ends})", name + below, text)
    return text
