"""How does one cell become evidence? Isolate, measure, judge the cache, and place the files.

The parent process of every measurement: by hand (`python scripts/e3_graph_breaks.py --policy default`)
and from the rules alike. It never imports torch; the measured child does.
"""

import argparse
import ast
import contextlib
import json
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path

from complab import config, evidence, facts, once, preflight, seals, structured
from complab.config import Cell
from complab.errors import (
    EXIT_FAILED,
    EnvironmentProblem,
    Problem,
    Unverified,
    UsageProblem,
    counted,
    one_line,
    reader_left,
)
from complab.job import Job, Outcome
from complab.measure import cache, headers, isolation, ledger, observers
from complab.publish import note_start, publish, record_failure, require_target
from complab.staleness import Plan


def main(script: str) -> None:
    """Measure the cell the command line names with the experiment of ``script``; exits the process.

    Exit status: 0 measured (or failed and recorded, with ``--record-failure``), 1 the measurement
    failed, 2 bad input, 3 the machine lacks something, 4 evidence does not verify.
    """
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    try:
        status = _run(Path(script).resolve())
        sys.stdout.flush()
        sys.exit(status)
    except Problem as problem:
        print(f"complab: {one_line(problem)}", file=sys.stderr)
        sys.exit(problem.code)
    except BrokenPipeError:
        reader_left()
    except KeyboardInterrupt:
        print("complab: interrupted, nothing was published; the same command starts again", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


def _run(script: Path) -> int:
    arguments = parser(script).parse_args()
    plan = Plan(_settings(arguments))
    cell = _cell(plan, script.stem, arguments)
    if arguments.expect and arguments.expect != plan.about(cell)["all"]:
        raise UsageProblem(f"{cell}: code, config or environment changed since the run began; start it again")
    if arguments.record_failure and arguments.out is None:
        raise UsageProblem("--record-failure: needs --out, the folder to record the failure in")
    if arguments.out is not None:
        require_target(arguments.out)
    job = Job(plan, cell, arguments.attempt, cold=arguments.cold)
    job.start()
    job.say(_announcement(plan, cell) if arguments.expect else f"== {cell}")
    try:
        if arguments.out is not None:
            note_start(job, arguments.out)
        _require_supported(plan)
        if cell.cache == "warm" and job.cold is not None:
            _verified_cold(job)
        with isolation.host_lock(job.say), contextlib.ExitStack() as stack:
            job.start()
            if cell.cache == "warm" and job.cold is None:
                job.cold = _own_cold_cell(job, stack)
            outcome = measure(job, stack, keep_cache=arguments.out is not None)
            if arguments.out is not None:
                publish(job, outcome, arguments.out, stack)
    except (UsageProblem, BrokenPipeError, KeyboardInterrupt):
        raise
    except Exception as error:
        return _fail(job, error, arguments)
    _show(job, outcome)
    return 0


def parser(script: Path) -> argparse.ArgumentParser:
    """Flags of an experiment's script."""
    question = _question(script)
    flags = argparse.ArgumentParser(
        prog=f"python scripts/{script.name}",
        description=f"{question} Measures one cell in an isolated process and says which level fails first.",
    )
    flags.add_argument(
        "--policy", required=True, help="policy to measure; config.yaml lists the experiment's"
    )
    flags.add_argument(
        "--cache",
        help="cache state: cold, warm (makes its cold cell first) or none; default: the policy's first",
    )
    flags.add_argument(
        "--replicate", type=int, default=1, help="number of the fresh process, from 1 (default 1)"
    )
    flags.add_argument(
        "--scale", help="named scale of config.yaml: quick or full (default: as config.yaml says)"
    )
    flags.add_argument("--run", help="name of the evidence set (default: current, or current-SCALE)")
    flags.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), help="where to measure (default: as config.yaml says)"
    )
    flags.add_argument(
        "--python", help="interpreter to measure under; it needs torch only (default: this one)"
    )
    flags.add_argument(
        "--config", type=Path, default=config.CONFIG_FILE, help="configuration file (default: config.yaml)"
    )
    flags.add_argument("--overrides", default="{}", help="JSON object laid over the configuration")
    flags.add_argument(
        "--out", type=Path, help="write the cell's files into this folder (default: print only)"
    )
    flags.add_argument("--cold", type=Path, help="folder of the cold cell a warm one starts from")
    flags.add_argument(
        "--attempt", type=int, default=1, help="number of this attempt, for the record (default 1)"
    )
    flags.add_argument(
        "--expect", help="digest the cell must have; a rule's guard against edits during a run"
    )
    flags.add_argument(
        "--record-failure", action="store_true", help="with --out: record a failure there and exit 0"
    )
    return flags


def _own_cold_cell(warm: Job, stack: contextlib.ExitStack) -> Path:
    """Measure the cold cell of a warm one into a folder that lives as long as ``stack``."""
    scratch = warm.plan.settings["scratch"]
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="complab-cold-", dir=scratch)))
    cold = Cell(warm.cell.experiment, warm.cell.policy, "cold", warm.cell.replicate)
    warm.say(f"-- first its cold cell, {cold}")
    job = Job(warm.plan, cold, attempt=1)
    job.start()
    with contextlib.ExitStack() as own:
        publish(job, measure(job, own, keep_cache=True), folder / "cell", own)
    warm.say(f"-- now {warm.cell}")
    return folder / "cell"


def _question(script: Path) -> str:
    """The first paragraph of a script's docstring."""
    docstring = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def _settings(arguments: argparse.Namespace) -> config.Settings:
    try:
        overrides = json.loads(arguments.overrides)
    except ValueError as error:
        raise UsageProblem(f"--overrides: not JSON ({error})") from error
    if not isinstance(overrides, dict):
        raise UsageProblem("--overrides: not a JSON object")
    for key in ("scale", "run", "device", "python"):
        if getattr(arguments, key) is not None:
            overrides[key] = getattr(arguments, key)
    if overrides.get("python") and not overrides.get("run") and arguments.out is None:
        # Printed only: no evidence set is touched, so it needs no name of its own.
        overrides["run"] = "by-hand"
    return config.load(arguments.config, overrides)


def _cell(plan: Plan, experiment: str, arguments: argparse.Namespace) -> Cell:
    policies = plan.settings.experiment(experiment)["policies"]
    state = arguments.cache or policies.get(arguments.policy, ["cold"])[0]
    cell = Cell(experiment, arguments.policy, state, arguments.replicate)
    plan.settings.check_cell(cell)
    if cell.replicate < 1:
        raise UsageProblem(f"--replicate: {cell.replicate} is not a number from 1")
    return cell


def _require_supported(plan: Plan) -> None:
    facts.require_torch(plan.fingerprint, plan.settings.python)
    problems = preflight.missing_tools(plan.device)
    if problems:
        raise EnvironmentProblem(problems[0])
    isolation.require_scratch(plan.settings["scratch"])


def _announcement(plan: Plan, cell: Cell) -> str:
    """What runs now, how many cells remain after it and about how long those took before."""
    remaining = plan.remaining(besides=cell)
    known = {}
    for other in plan.settings.cells():
        record = evidence.peek(plan.folder(other)) or {}
        if record.get("outcome") == "measured":
            known.setdefault((other.experiment, other.policy, other.cache), []).append(record["duration_s"])
    if not remaining:
        return f"== {cell} (the last cell)"
    average = [sum(times) / len(times) for times in known.values()]
    if not average:
        return f"== {cell} ({_remain(remaining)} after it)"
    fallback = sum(average) / len(average)
    seconds = sum(
        sum(times) / len(times) if (times := known.get((c.experiment, c.policy, c.cache))) else fallback
        for c in remaining
    )
    return f"== {cell} ({_remain(remaining)} after it, about {max(1, round(seconds / 60))} min)"


def _remain(cells: list[Cell]) -> str:
    return f"{counted(len(cells), 'cell')} remain{'' if len(cells) > 1 else 's'}"


def measure(job: Job, stack: contextlib.ExitStack, keep_cache: bool) -> Outcome:
    """Measure a cell in its own workplace, which lives as long as ``stack``."""
    load = {"before": facts.collect_load()}
    compiles = job.cell.cache != "none"
    sealed_headers = headers.require(job.plan, job.say) if compiles else headers.NOTHING
    place = job.place = stack.enter_context(isolation.workplace(job.plan.settings["scratch"]))
    headers.link_into(place, sealed_headers)
    job.vector_isa_known = sealed_headers["vector_isa_known"]
    sealed = _warm_up_cache(job, place) if job.cell.cache == "warm" else None
    job.stage = "timed"
    before = cache.manifest(place.cache)
    timed = _process(job, "timed", place, place.cache)
    load["after"] = facts.collect_load()
    seen = _observe(place, sealed_headers, before, timed)
    verdict, reasons = cache.judge(job.cell.cache, seen, sealed, compiles=job.cell.policy != "eager")
    if doubts := _doubts_about_cold(job, timed["facts"]["outputs"]):
        verdict, reasons = cache.INDETERMINATE, [*reasons, *doubts]
    if keep_cache and job.cell.cache == "cold":
        cache.seal(place.cache, place.root / evidence.SEALED_CACHE)
        (place.root / evidence.CACHE_MANIFEST).write_text(evidence.json_text(seen.after), encoding="utf-8")
    observed = _observers(job, place, seen.after)
    processes = [timed, *_probes(job, place), *_trace(job, place), *observed]
    job.stage = "judging"
    told = [row for process in processes for row in process["rows"]]
    told += observers.differences([row for process in observed for row in process["rows"]])
    rows = [_row(job.cell, row) for row in told]
    job.log = "".join(_log_section(process) for process in processes)
    filled = ledger.fill(rows, job.settings["tolerance"], job.settings["recompile_limit"])
    record = {
        "verdict": verdict,
        "reasons": reasons,
        "before": cache.summary(before),
        "after": cache.summary(seen.after),
        "counters": seen.counters,
        "graphs": seen.graphs,
        "outputs": timed["facts"]["outputs"],
        "compiler_processes": len(seen.built()) + seen.built_elsewhere(),
        "headers": cache.summary(sealed_headers["files"])
        | {key: sealed_headers[key] for key in ("build_s", "vector_isa") if key in sealed_headers},
    }
    if job.cell.cache == "cold":
        record["seal"] = seals.mark(cache.root_hash(seen.after))
    return Outcome(rows, filled, processes, record, facts.visible(facts.collect_gpus()), load)


def _verified_cold(job: Job) -> evidence.Record:
    """The cold cell a warm one starts from; Unverified or Problem if it cannot serve."""
    cold = Cell(job.cell.experiment, job.cell.policy, "cold", job.cell.replicate)
    record = evidence.verify(job.cold, job.plan.settings.run, cold)
    if record.failed:
        raise Problem(f"its cold cell failed, measure that first: {record.provenance['failure']['message']}")
    if record.provenance["fingerprint"] != job.plan.fingerprint:
        raise Unverified(f"{job.cold}: the cold cell was measured in another environment; measure it again")
    _sealed_manifest(record)
    return record


def _sealed_manifest(cold: evidence.Record) -> dict:
    """The manifest of a cold cell's sealed cache; Unverified unless this user sealed it on this machine."""
    path = cold.folder / evidence.CACHE_MANIFEST
    if not path.exists():
        raise Unverified(f"{path}: missing, so its cache cannot be trusted; measure the cold cell again")
    sealed = json.loads(path.read_text(encoding="utf-8"))
    if not seals.ours(cache.root_hash(sealed), cold.provenance["cache"].get("seal")):
        raise Unverified(
            f"{path}: was not sealed by this user on this machine, and a cache is code; "
            "measure the cold cell again"
        )
    return sealed


def _warm_up_cache(job: Job, place: isolation.Workplace) -> dict:
    """Put the cold cell's sealed cache in place; returns its manifest. Unverified if it is not whole."""
    sealed = _sealed_manifest(_verified_cold(job))
    cache.unpack(job.cold / evidence.SEALED_CACHE, sealed, place.cache)
    return sealed


def _doubts_about_cold(job: Job, outputs: str) -> list[str]:
    """What keeps a warm cell from proving its state through its cold one."""
    if job.cell.cache != "warm":
        return []
    cold = evidence.read_provenance(job.cold)["cache"]
    doubts = [] if cold["verdict"] == cache.COLD else [f"its cold cell is {cold['verdict']}"]
    if cold.get("outputs") != outputs:
        doubts.append("its outputs are not those of its cold cell")
    return doubts


def _process(
    job: Job, name: str, place: isolation.Workplace, folder: Path, instrument: dict[str, str] | None = None
) -> dict:
    """Run one process of the cell on a cache folder, with an instrument's variables in its environment."""
    instrument = instrument or {}
    environment = isolation.child_environment(place, job.settings["threads"], job.plan.device, folder)
    environment |= instrument
    request = {"cell": vars(job.cell), "config": job.settings, "vector_isa_known": job.vector_isa_known}
    try:
        done = isolation.run_process(name, request, place, job.python, environment, job.timeout, job.say)
    except isolation.ProcessFailed as failure:
        job.log += failure.log
        raise
    told = job.plan.fingerprint["torch"]
    if done["facts"]["torch"].split("+")[0] != str(told).split("+")[0]:
        raise Unverified(
            f"the measured process ran torch {done['facts']['torch']}, but the environment tells of {told}; "
            "reinstall the lock"
        )
    threads = done["facts"]["threads"]
    if threads != job.settings["threads"]:
        raise EnvironmentProblem(
            f"the measured process ran {threads} threads instead of {job.settings['threads']}; "
            "set threads in config.yaml to what this machine has"
        )
    if unknown := set(done["facts"]["modules"]) - set(job.plan.code(job.cell.experiment)):
        raise Unverified(
            f"the measured process imported {min(unknown)}, which the code digest does not cover; "
            "import it by name"
        )
    done |= {"variables": environment, "instrument": instrument}
    return done


def _probes(job: Job, place: isolation.Workplace) -> list[dict]:
    """A further process that asks what can be captured; its cache folder is its own, never the timed one.

    Capture depends neither on what lies on disk nor on the replicate, so a warm cell leaves the question
    to its cold one, and every further replicate to the first.
    """
    if not _asks_about_capture(job) or not {"explain", "fullgraph"} & set(job.settings["probes"]):
        return []
    job.stage = "probes"
    return [_process(job, "probes", place, place.root / "probe-cache")]


def _asks_about_capture(job: Job) -> bool:
    first = job.cell.replicate == once.REPLICATE
    return first and job.cell.policy != "eager" and job.cell.cache != "warm"


def _trace(job: Job, place: isolation.Workplace) -> list[dict]:
    """A further process whose structured trace becomes a file of the cell, on an empty cache of its own."""
    if not _asks_about_capture(job) or "trace" not in job.settings["probes"]:
        return []
    job.stage = "trace"
    folder = place.root / "trace"
    done = _process(job, "trace", place, place.root / "trace-cache", {"TORCH_TRACE": str(folder)})
    text = "".join(path.read_bytes().decode("utf-8") for path in sorted(folder.glob("*.log")))
    kept = structured.rewritten(text, job.clean)
    (place.root / evidence.TRACE_LOG).write_text(kept, encoding="utf-8", newline="\n")
    return [done]


def _observers(job: Job, place: isolation.Workplace, left: dict[str, dict]) -> list[dict]:
    """One process per observer, each on its own verified copy of the cache that the timed one left.

    The first replicate answers for all.
    """
    done = []
    if job.cell.replicate != once.REPLICATE:
        return done
    for observer in observers.wanted(job.cell.policy, job.cell.cache, job.settings):
        job.stage = observers.process_of(observer)
        sealed, folder = place.root / evidence.SEALED_CACHE, place.root / job.stage
        if not sealed.exists():
            cache.seal(place.cache, sealed)
        cache.unpack(sealed, left, folder / "cache")
        done.append(_process(job, job.stage, place, folder / "cache", observers.variables(observer, folder)))
        # Its copy and what it wrote are looked at by nobody, and there are many.
        shutil.rmtree(folder)
    return done


def _observe(place: isolation.Workplace, sealed_headers: dict, before: dict, timed: dict) -> cache.Observed:
    told = timed["facts"]
    # Triton and Inductor use TMPDIR for files they move or delete; only what stays is a finding.
    left = [
        path.relative_to(place.root).as_posix()
        for folder in (place.root / "home", place.tmp)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_relative_to(place.headers)
    ]
    return cache.Observed(
        before=before,
        after=cache.manifest(place.cache),
        headers_changed=headers.change_since(place, sealed_headers),
        counters=told["counters"],
        graphs=told["graphs_captured"],
        spawned=told["spawned"],
        capabilities=told["capabilities"],
        cache_folder=str(place.cache),
        foreign=left,
        cacheless=told["cacheless"],
    )


def _row(cell: Cell, row: dict) -> evidence.Row:
    return evidence.Row(**vars(cell), **row)


def _log_section(process: dict) -> str:
    """A process's torch log under a heading, so that a line of torch.log tells which process wrote it."""
    log = process["log"]
    return f"# process {process['name']}\n{log}{'' if log.endswith(chr(10)) or not log else chr(10)}"


def _fail(job: Job, error: Exception, arguments: argparse.Namespace) -> int:
    """Say what failed, record it where asked to, and return the exit status."""
    expected = isinstance(error, Problem)
    message = one_line(error if expected else f"{type(error).__name__}: {error}")
    status = error.code if expected else EXIT_FAILED
    if not expected:
        job.lines.extend(traceback.format_exception(error))
    print(f"complab: {job.cell} failed while {job.stage}: {message}", file=sys.stderr)
    if not arguments.record_failure:
        return status
    job.lines.append(f"failed while {job.stage}: {message}")
    try:
        record_failure(job, message, arguments.out, status)
    except OSError as problem:
        print(f"complab: {job.cell}: the failure could not be recorded ({problem})", file=sys.stderr)
        return status
    return 0


def _show(job: Job, outcome: Outcome) -> None:
    """The table of counts and times and, last, the line that says which level failed."""
    for case, region in outcome.ledger["regions"].items():
        print(f"\n{region['region']}")
        for part in ("capture", "stability", "cost", "correctness"):
            told = "  ".join(
                f"{key}={_short(value)}" for key, value in region[part].items() if _told(key, value)
            )
            print(f"  {part:12s} {told}")
        for level in region["levels"]:
            print(f"  {level['level']:9s} {level['verdict']:12s} {level['evidence']}")
        print(f"{case}: {region['sentence']}")
    reasons = "; ".join(outcome.cache["reasons"])
    print(f"cache {outcome.cache['verdict']}{': ' + reasons if reasons else ''}")
    print(f"{job.cell}: {_closing(outcome.ledger['regions'])}")


def _closing(regions: dict[str, dict]) -> str:
    """Which level failed where; without a failure, the first level that each region lacks evidence of."""
    failing = {case: region for case, region in regions.items() if region["first_failing_level"]}
    told = [f"{case}: {region['sentence']}" for case, region in (failing or regions).items()]
    return "; ".join(told) or "no compiled region, so no level is judged"


def _told(key: str, value: object) -> bool:
    return key != "reason" and value != "" and not str(value).startswith(ledger.NOT_MEASURED)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
