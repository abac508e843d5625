"""How do a cell's files get into place, so that nothing half-written is ever taken for evidence?"""

import contextlib
import json
import os
import shutil
import sys
from pathlib import Path

from complab import attempts, evidence, facts
from complab.config import PROJECT
from complab.errors import EnvironmentProblem, UsageProblem
from complab.job import Job, Outcome, now
from complab.measure import isolation
from complab.staleness import digest_of

# What the measured process tells that belongs to the environment.
CHILD_FACTS = (
    "torch",
    "torch_git",
    "cuda_runtime",
    "cuda_device",
    "python",
    "threads",
    "interop_threads",
    "capabilities",
    "recompile_limit_name",
    "resolved_config",
)


def require_target(out: Path) -> None:
    """Refuse a folder that cannot be written, or that holds something other than a cell.

    Publishing withdraws the files of the cell that lies there; a person's own folder is left alone.
    """
    strangers = (
        [path.name for path in out.iterdir() if path.name not in evidence.FILES] if out.is_dir() else []
    )
    if strangers or out.is_file():
        told = f"holds {min(strangers)}" if strangers else "is a file"
        raise UsageProblem(f"--out: {out} {told}, so it is no cell's folder; give an empty or a new one")
    probe = out.parent / f".complab-probe-{os.getpid()}"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        raise EnvironmentProblem(
            f"{out.parent}: results cannot be written here ({error.strerror}); "
            "make it writable or choose another folder"
        ) from error


def publish(job: Job, outcome: Outcome, out: Path, stack: contextlib.ExitStack) -> None:
    """Write the cell's files into a private folder and move them into place, provenance last."""
    job.stage = "publishing"
    private = _private_folder(out, stack)
    texts = {
        evidence.EVIDENCE: evidence.rows_to_csv(outcome.rows),
        evidence.LEDGER: evidence.json_text(outcome.ledger),
        evidence.TORCH_LOG: job.log,
        evidence.RUN_LOG: "\n".join(job.lines) + "\n",
    }
    for name, text in texts.items():
        (private / name).write_text(job.clean(text), encoding="utf-8", newline="\n")
    for name in (evidence.SEALED_CACHE, evidence.CACHE_MANIFEST, evidence.TRACE_LOG):
        if (job.place.root / name).exists():
            shutil.move(job.place.root / name, private / name)
    evidence.place(private, out, _provenance(job, outcome))
    _note(job, out, attempts.MEASURED)
    if job.cell.cache == "warm" and not job.plan.settings["keep_caches"] and job.cold:
        (job.cold / evidence.SEALED_CACHE).unlink(missing_ok=True)


def note_start(job: Job, out: Path) -> None:
    """Add the attempt to the run's list before anything else of it is there."""
    _note(job, out, attempts.STARTED)


def _note(job: Job, out: Path, event: str, **more: str) -> None:
    """Add an event to the run's list, unless the cell is measured into another folder than the run's."""
    if out.absolute() != job.plan.folder(job.cell):
        return
    told = {"event": event, "cell": str(job.cell), "attempt": job.attempt, "time": now()} | more
    if event != attempts.STARTED:
        told["provenance"] = evidence.sha256_of(out / evidence.PROVENANCE)
    attempts.append(_run_folder(job), told)


def _run_folder(job: Job) -> Path:
    return job.plan.folder(job.cell).parents[3]


def _private_folder(out: Path, stack: contextlib.ExitStack) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    for left in out.parent.glob(f".complab-cell-{out.name}-*"):
        if not isolation.alive(left.name.rpartition("-")[2]):
            shutil.rmtree(left, ignore_errors=True)
    private = out.parent / f".complab-cell-{out.name}-{os.getpid()}"
    private.mkdir()
    stack.callback(shutil.rmtree, private, ignore_errors=True)
    return private


def _provenance(job: Job, outcome: Outcome | None) -> dict:
    modules = job.plan.code(job.cell.experiment)
    timed = outcome.processes[0]["facts"] if outcome else {}
    record = {
        "schema_version": evidence.SCHEMA_VERSION,
        "run": job.plan.settings.run,
        "cell": vars(job.cell),
        "outcome": "measured",
        "argv": ["python", os.path.relpath(sys.argv[0], PROJECT), *sys.argv[1:]],
        "exit_status": 0,
        "started": job.started,
        "ended": now(),
        **job.durations(),
        "attempt": job.attempt,
        "code": facts.collect_code_state() | {"digest": digest_of(modules), "modules": modules},
        "config": job.settings,
        "fingerprint": job.plan.fingerprint,
        "environment": {
            "machine": facts.collect_machine(job.plan.settings["record_identity"]),
            "packages": facts.collect_packages(),
            "load": outcome.load if outcome else {},
            **{key: timed[key] for key in CHILD_FACTS if key in timed},
        },
        "gpu": outcome.gpus if outcome else facts.visible(facts.collect_gpus()),
        "variables": outcome.processes[0]["variables"] if outcome else {},
        "processes": [
            {key: process[key] for key in ("name", "argv", "seconds", "exit_status", "instrument")}
            for process in (outcome.processes if outcome else [])
        ],
        "cache": outcome.cache if outcome else {"verdict": "not-judged", "reasons": []},
        "files": {},
    }
    return json.loads(job.clean(evidence.json_text(record)))


def record_failure(job: Job, message: str, out: Path, status: int) -> None:
    """Put a failure record and the logs where the evidence would have been."""
    with contextlib.ExitStack() as stack:
        private = _private_folder(out, stack)
        texts = {evidence.RUN_LOG: "\n".join(job.lines) + "\n"}
        if job.log:
            texts[evidence.TORCH_LOG] = job.log
        for name, text in texts.items():
            (private / name).write_text(job.clean(text), encoding="utf-8", newline="\n")
        failure = {"stage": job.stage, "message": job.clean(message)}
        provenance = _provenance(job, None) | {"outcome": "failed", "exit_status": status, "failure": failure}
        evidence.place(private, out, provenance)
        _note(job, out, attempts.FAILED, message=job.clean(message), log=_keep_log(job, out))


def _keep_log(job: Job, out: Path) -> str:
    """Copy the failed attempt's log beside the run's list under the hash of its content; returns that."""
    digest = evidence.sha256_of(out / evidence.RUN_LOG)
    kept = _run_folder(job) / attempts.LOGS / f"{digest}.log"
    if out.absolute() == job.plan.folder(job.cell):
        evidence.write_atomically(kept, (out / evidence.RUN_LOG).read_text(encoding="utf-8"))
    return digest
