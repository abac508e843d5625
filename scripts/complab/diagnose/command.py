"""`complab diagnose`: which level of a subject fails first, why, and does the smallest test agree?"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from complab import config, evidence, facts, preflight
from complab.diagnose import cost, lab, ledger, outcomes
from complab.diagnose.case import Case
from complab.errors import EnvironmentProblem, Problem, UsageProblem, one_line
from complab.staleness import Plan, diagnosing_code, file_digest


def run(arguments: argparse.Namespace) -> int:
    """Diagnose, print, write; returns the exit status."""
    if arguments.record and arguments.out is None:
        raise UsageProblem("--record: needs --out, the folder to record in")
    expected = _expected(arguments.expect)
    say = _teller(arguments.json or arguments.prompt)
    try:
        told = _told(arguments, say)
    except Problem as problem:
        if not arguments.record:
            raise
        told = ledger.undiagnosed(_named(arguments.subject), one_line(problem))
    told["code"] = diagnosing_code()
    if arguments.out:
        _write(arguments.out, told)
    if arguments.json:
        print(json.dumps(told, indent=1, ensure_ascii=False))
    else:
        print(ledger.prompt(told) if arguments.prompt else f"\n{ledger.text(told)}", end="")
    if expected is not None:
        from complab.diagnose import expectation

        return expectation.hold(expected, told, say)
    return 0 if arguments.record else ledger.exit_code(told)


def _told(arguments: argparse.Namespace, say) -> dict:
    """The ledger of the subject that the command line names."""
    started = time.perf_counter()
    spec = _spec(arguments.subject)
    plan = _plan(arguments)
    settings = {
        "threads": plan.settings["threads"],
        "timeout": arguments.timeout,
        "variables": _variables(arguments.env),
    }
    with lab.opened(plan, spec, settings, say) as opened:
        told = _diagnosed(opened, arguments.quick, say)
        told = json.loads(opened.clean(json.dumps(ledger.finite(told), ensure_ascii=False)))
    told["subject"] |= _named(arguments.subject)
    told["duration_s"] = round(time.perf_counter() - started, 3)
    return told


def _teller(quiet: bool):
    def say(line: str) -> None:
        print(line, file=sys.stderr if quiet else sys.stdout, flush=True)

    return say


def _named(subject: str) -> dict:
    return {"name": subject, "sha256": file_digest(subject)}


def _spec(subject: str) -> str:
    if not subject.endswith(".py"):
        return subject
    path = Path(subject)
    if not path.is_file():
        raise UsageProblem(f"{subject}: no such file; name a Python file or package.module")
    return str(path.resolve())


def _expected(path: Path | None) -> dict | None:
    if path is None:
        return None
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageProblem(f"--expect: {path} cannot be read ({error})") from error
    if not isinstance(told, dict) or not {"first_failing_level", "levels", "stability"} <= told.keys():
        raise UsageProblem(f"--expect: {path} is no ledger")
    return told


def _plan(arguments: argparse.Namespace) -> Plan:
    threads = arguments.threads or len(os.sched_getaffinity(0))
    if threads < 1:
        raise UsageProblem(f"--threads: {threads} is not a number from 1")
    overrides = {"run": "by-hand", "threads": threads}
    if arguments.python:
        overrides["python"] = arguments.python
    plan = Plan(config.load(config.CONFIG_FILE, overrides))
    facts.require_torch(plan.fingerprint, plan.settings.python)
    if problems := preflight.missing_tools(plan.device):
        raise EnvironmentProblem(problems[0])
    return plan


def _variables(wanted: list[str]) -> dict[str, str]:
    found = {}
    for each in wanted:
        name, given, value = each.partition("=")
        if not given and name not in os.environ:
            raise UsageProblem(f"--env: {name} is not set here; give it as {name}=VALUE")
        found[name] = value if given else os.environ[name]
    return found


def _diagnosed(opened: lab.Lab, quick: bool, say) -> dict:
    runs = [
        {"kind": "eager", "label": "eager"},
        {"kind": "compiled", "label": "compiled", "steady": cost.STEADY_SECONDS[quick]},
    ]
    first = opened.process(runs, "cache")
    if first.unusable:
        outcomes.require_device(first.unusable)
        raise UsageProblem(f"subject: {first.unusable}")
    if first.fault:
        raise Problem(f"the probe itself failed on this subject: {first.fault}")
    case = Case(opened, first, quick)
    opened.restless = case.restless
    if first.died and not case.subject:
        raise Problem(f"subject: before its first call the process {first.died}")
    told = ledger.fill(case, say)
    told["subject"] = {
        key: case.subject[key] for key in ("model", "is_module", "options", "trains", "real_calls")
    }
    told["environment"] = opened.plan.conditions
    told["cache"] = _cache_hits(opened.processes)
    told["processes"] = [
        {"runs": list(each.runs), "seconds": round(each.seconds, 3), "died": each.died}
        for each in opened.processes
    ]
    return told


def _cache_hits(processes: list[lab.Process]) -> dict | None:
    """Graphs that the first process on a filled cache found there; None where there was no such process."""
    warm = next((each for each in processes if cost.is_warm(each) and each.facts), None)
    if warm is None:
        return None
    counters = warm.facts["counters"]
    return {
        "graphs found in Inductor's cache": counters.get("inductor", {}).get("fxgraph_cache_hit", 0),
        "graphs found in AOTAutograd's cache": counters.get("aot_autograd", {}).get("autograd_cache_hit", 0),
    }


def _write(folder: Path, told: dict) -> None:
    from complab.diagnose import picture

    folder.mkdir(parents=True, exist_ok=True)
    evidence.write_atomically(folder / "ledger.json", evidence.json_text(told))
    evidence.write_atomically(folder / "ledger.md", ledger.markdown(told))
    for kind, content in picture.draw(told).items():
        (folder / f"calls.{kind}").write_bytes(content)
