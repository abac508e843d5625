"""What does the measured process itself do? Import, prepare, measure, and tell what it used.

`python -m complab.measure.child REQUEST` runs one named process of a cell. It needs the standard
library and torch only. Results go into the request's folder: rows.jsonl, torch.log, facts.json.
"""

import atexit
import ctypes
import os
import sys
import time

_finished: list[bool] = []


def _leave() -> None:
    """End without taking torch's modules down, a second that tells nothing, if all is written."""
    if not _finished:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    # What a kernel or a library printed waits in the buffers of C.
    ctypes.CDLL(None).fflush(None)
    os._exit(0)


# Registered first, called last: what torch registers still runs, as when it removes a folder of its own.
atexit.register(_leave)

SPAWNED: list[list[str]] = []


def _note_spawned(event: str, arguments: tuple) -> None:
    """Audit hook: the processes this one starts through subprocess, as torch and Triton start compilers."""
    if event == "subprocess.Popen":
        SPAWNED.append([os.fsdecode(word) for word in arguments[1]])


# Before torch is imported, so that no compiler process can escape the count.
sys.addaudithook(_note_spawned)

import contextlib  # noqa: E402
import importlib  # noqa: E402
import io  # noqa: E402
import json  # noqa: E402
import signal  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402

from complab.measure import observers  # noqa: E402

TRACE = "trace"
LOG_CATEGORIES = {"graph_breaks": True, "recompiles": True}


def main(request_file: str) -> None:
    """Run the process a request describes and write what it found beside the request."""
    _die_with_parent()
    folder = Path(request_file).parent
    request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    import_seconds, torch = _import_torch()
    from complab.measure import capture, dynamo
    from complab.measure.bench import Bench

    # A hook that runs inside a compiled call is a frame like any other, and would be captured and counted.
    dynamo.never_capture(_note_spawned)
    settings = request["config"]
    preamble_seconds = _prepare(torch, settings)
    limit_name = dynamo.set_recompile_limit(settings["recompile_limit"])
    if request["vector_isa_known"]:
        dynamo.skip_vector_isa_probes()
    script = importlib.import_module(request["cell"]["experiment"])
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(_log(request["process"], capture))
        bench = Bench(request, log)
        try:
            _run(request["process"], script, bench, torch)
        finally:
            (folder / "torch.log").write_text(log.getvalue(), encoding="utf-8")
    if request["process"] == "timed":
        bench.record("import_time", import_seconds, "s", case="process")
        bench.record("preamble_time", preamble_seconds, "s", case="process")
        _record_compilations(bench, dynamo)
    (folder / "rows.jsonl").write_text(bench.rows_text(), encoding="utf-8")
    (folder / "facts.json").write_text(json.dumps(_facts(torch, dynamo, limit_name, bench)), encoding="utf-8")


def _log(process: str, capture):
    """What is collected of torch's log: an observer's process has the log of its environment or none."""
    if not observers.observer_of(process):
        return capture.capture_logs(**LOG_CATEGORIES)
    return capture.redirected_logs() if "TORCH_LOGS" in os.environ else contextlib.nullcontext(io.StringIO())


def _die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies: no orphan may go on measuring."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _import_torch():
    start = time.perf_counter()
    import torch

    return time.perf_counter() - start, torch


def _prepare(torch, settings: dict) -> float:
    """The same preamble for every process: threads, seed, and on CUDA a context and one product."""
    start = time.perf_counter()
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(settings["seed"])
    if settings["device"] == "cuda":
        torch.cuda.init()
        square = torch.ones(256, 256, device="cuda")
        (square @ square).sum().item()
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _run(process: str, script, bench, torch) -> None:
    from complab.measure import observe, tracing
    from complab.measure.policies import SHAPE_POLICIES

    if process == "timed":
        script.timed(bench)
        return
    with torch.no_grad():
        if process == TRACE:
            for case, (function, calls) in script.traced(bench).items():
                tracing.record(bench, case, function, calls)
            return
        subjects = script.subjects(bench)
        if observer := observers.observer_of(process):
            observe.observe(bench, observer, *next(iter(subjects.values())))
            return
        for case, (function, arguments) in subjects.items():
            # Each resets Dynamo before it looks, so neither sees what the other has compiled.
            if "explain" in bench.settings["probes"]:
                bench.explain(case, function, arguments)
            if "fullgraph" in bench.settings["probes"]:
                bench.fullgraph(case, function, arguments, SHAPE_POLICIES.get(bench.policy, {}))


def _record_compilations(bench, dynamo) -> None:
    """Dynamo's own seconds per compiled frame, where this release reports them."""
    for index, metric in enumerate(dynamo.compilation_metrics() or []):
        for field, name in (
            ("entire_frame_compile_time_s", "frame_compile_time"),
            ("backend_compile_time_s", "backend_compile_time"),
        ):
            if isinstance(metric.get(field), int | float):
                told = f"{metric.get('co_name', '')} [{metric.get('compile_id', '')}]"
                bench.record(name, metric[field], "s", case="process", call=index, detail=told)
        for reason in metric.get("restart_reasons") or []:
            bench.record("restarts", 1, "restarts", case="process", call=index, detail=str(reason))


def _facts(torch, dynamo, limit_name: str, bench) -> dict:
    scripts = Path(__file__).resolve().parents[2]
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    ours = {Path(name).resolve() for name in files if name and Path(name).resolve().is_relative_to(scripts)}
    return {
        "torch": str(torch.__version__),
        "torch_git": torch.version.git_version,
        "cuda_runtime": torch.version.cuda,
        "python": sys.version.split()[0],
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "capabilities": dynamo.capabilities(),
        "recompile_limit_name": limit_name,
        "resolved_config": dynamo.resolved_config(),
        "counters": dynamo.counters(),
        "graphs_captured": dynamo.graphs_captured(),
        "cacheless": dynamo.cacheless_counts(),
        "outputs": bench.outputs.hexdigest(),
        "spawned": SPAWNED,
        "modules": sorted(path.relative_to(scripts).as_posix() for path in ours),
        "temporary_folder": tempfile.gettempdir(),
        "cuda_device": torch.cuda.get_device_name(0) if bench.device == "cuda" else None,
    }


if __name__ == "__main__":
    main(sys.argv[1])
    _finished.append(True)
