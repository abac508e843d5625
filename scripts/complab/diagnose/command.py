"""`complab diagnose`: which level of a subject fails first, why, and does the smallest test agree?"""

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path

from complab import config, evidence, facts, preflight
from complab.diagnose import cost, lab, ledger
from complab.diagnose.case import Case
from complab.errors import EnvironmentProblem, Problem, UsageProblem
from complab.staleness import Plan

DESCRIPTION = """\
Runs a subject (a Python file or package.module with make() and calls()) eagerly and compiled, each probe
in a process of its own with an empty cache, judges RUNS, CORRECT, CAPTURED, STABLE and WORTH IT in this
order, and tests the cause of the first that fails. Exit status: 0 every level passes, 11 to 15 the first
that fails, 10 a level has no evidence, 2 the subject cannot be used, 3 the machine lacks something, 1
anything else; with --expect, 20 something got worse."""


def add_to(commands: argparse._SubParsersAction) -> None:
    """The subcommand with its flags."""
    told = "say which level of a torch.compile call fails first, and why"
    flags = commands.add_parser(
        "diagnose", help=told, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("subject", help="a Python file, or package.module, with make() and calls()")
    flags.add_argument(
        "--out", type=Path, help="write ledger.json, ledger.md and the picture into this folder"
    )
    flags.add_argument("--json", action="store_true", help="print the ledger as JSON, nothing else")
    flags.add_argument(
        "--prompt", action="store_true", help="print the evidence under six headings, to be pasted"
    )
    flags.add_argument(
        "--quick", action="store_true", help="one process for the cost, and no test of the cause"
    )
    flags.add_argument("--python", help="the interpreter the subject runs under; it needs torch only")
    flags.add_argument("--threads", type=int, help="threads of torch (default: as many as cores may be used)")
    flags.add_argument("--timeout", type=int, default=600, help="seconds one process may take (default 600)")
    flags.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="hand a variable on to the subject; nothing else of the environment reaches it",
    )
    flags.add_argument(
        "--expect", type=Path, metavar="FILE", help="a ledger.json; fail if a fact got worse than there"
    )
    flags.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Diagnose, print, write; returns the exit status."""
    started = time.perf_counter()
    spec = _spec(arguments.subject)
    expected = _expected(arguments.expect)
    quiet = arguments.json or arguments.prompt
    say = _teller(quiet)
    plan = _plan(arguments)
    settings = {
        "threads": plan.settings["threads"],
        "timeout": arguments.timeout,
        "variables": _variables(arguments.env),
    }
    with lab.opened(plan, spec, settings, say) as opened:
        told = _diagnosed(opened, arguments.quick, say)
        told = json.loads(opened.clean(json.dumps(ledger.finite(told), ensure_ascii=False)))
    told["subject"] |= {"name": arguments.subject, "sha256": _digest(spec)}
    told["duration_s"] = round(time.perf_counter() - started, 3)
    told["environment"] |= {"device": plan.device, "threads": settings["threads"]}
    if arguments.out:
        _write(arguments.out, told)
    if arguments.json:
        print(json.dumps(told, indent=1, ensure_ascii=False))
    else:
        print(ledger.prompt(told) if arguments.prompt else f"\n{ledger.text(told)}", end="")
    if expected is not None:
        from complab.diagnose import expectation

        return expectation.hold(expected, told, say)
    return ledger.exit_code(told)


def _teller(quiet: bool):
    def say(line: str) -> None:
        print(line, file=sys.stderr if quiet else sys.stdout, flush=True)

    return say


def _spec(subject: str) -> str:
    if not subject.endswith(".py"):
        return subject
    path = Path(subject)
    if not path.is_file():
        raise UsageProblem(f"{subject}: no such file; name a Python file or package.module")
    return str(path.resolve())


def _digest(spec: str) -> str | None:
    return hashlib.sha256(Path(spec).read_bytes()).hexdigest() if spec.endswith(".py") else None


def _expected(path: Path | None) -> dict | None:
    if path is None:
        return None
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageProblem(f"--expect: {path} cannot be read ({error})") from error
    if not isinstance(told, dict):
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
        raise UsageProblem(f"subject: {first.unusable}")
    case = Case(opened, first, quick)
    if first.died and not case.eager.calls and not case.subject:
        raise Problem(f"subject: the process died before its first call: {first.died}")
    told = ledger.fill(case, say)
    told["subject"] = {
        key: case.subject[key] for key in ("model", "is_module", "options", "trains", "real_calls")
    }
    told["environment"] = opened.plan.fingerprint
    told["processes"] = [
        {"runs": list(each.runs), "seconds": round(each.seconds, 3), "died": each.died}
        for each in opened.processes
    ]
    return told


def _write(folder: Path, told: dict) -> None:
    from complab.diagnose import picture

    folder.mkdir(parents=True, exist_ok=True)
    evidence.write_atomically(folder / "ledger.json", evidence.json_text(told))
    evidence.write_atomically(folder / "ledger.md", ledger.markdown(told))
    for name, content in picture.draw(told).items():
        (folder / name).write_bytes(content)
