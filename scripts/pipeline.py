"""What does the pipeline do besides measuring? Headers before, exhibits and the final account after.

`python scripts/pipeline.py STEP ...` is what the rules call; each step has `--help`.
"""

import argparse
import json
import sys
from pathlib import Path

from complab import config, evidence, facts, preflight
from complab.errors import EnvironmentProblem, Problem, UsageProblem, one_line
from complab.measure import headers, isolation
from complab.staleness import Plan


def build_headers(settings: config.Settings, _arguments: argparse.Namespace) -> int:
    """Build and seal the precompiled headers of this environment, if it has none yet."""
    plan = Plan(settings)
    facts.require_torch(plan.fingerprint, settings.python)
    problems = preflight.missing_tools(plan.device)
    if problems:
        raise EnvironmentProblem(problems[0])
    with isolation.host_lock(print):
        headers.require(plan, print)
    return 0


def draw(settings: config.Settings, arguments: argparse.Namespace) -> int:
    """Verify an experiment's evidence and draw its exhibit from it."""
    from complab.report import exhibits

    exhibits.draw(settings, arguments.experiment, config.PROJECT / "results", config.PROJECT / "figures")
    return 0


def write_manifest(settings: config.Settings, _arguments: argparse.Namespace) -> int:
    """Hash every exhibit file of the run into its manifest."""
    from complab.report import exhibits

    exhibits.write_manifest(config.PROJECT / "figures" / settings.run)
    return 0


def complete(settings: config.Settings, arguments: argparse.Namespace) -> int:
    """Account for every planned cell of an experiment; fails, naming them, if any cell failed."""
    results = config.PROJECT / "results" / settings.run
    account = {"planned": 0, "measured": 0, "indeterminate": 0, "failed": 0}
    failed, doubtful = [], []
    for cell in settings.cells(arguments.experiment):
        record = evidence.verify(results / cell.path, settings.run, cell)
        account["planned"] += 1
        if record.failed:
            failed.append(f"{cell}: {record.provenance['failure']['message']}")
        elif not record.determinate:
            doubtful.append(f"{cell}: {'; '.join(record.provenance['cache']['reasons'])}")
        else:
            account["measured"] += 1
    account |= {"failed": len(failed), "indeterminate": len(doubtful)}
    for line in doubtful:
        print(f"indeterminate, in no headline number: {line}")
    if failed:
        for line in failed:
            print(f"failed: {line}", file=sys.stderr)
        raise Problem(
            f"{arguments.experiment}: {len(failed)} of {account['planned']} cells failed; "
            "their run.log says why, and the next run tries them again"
        )
    evidence.write_atomically(results / arguments.experiment / "complete.json", json.dumps(account) + "\n")
    return 0


STEPS = {"headers": build_headers, "draw": draw, "manifest": write_manifest, "complete": complete}


def main() -> int:
    """Run one step; the exit status is 0, or that of the problem, told in one line."""
    flags = argparse.ArgumentParser(prog="python scripts/pipeline.py", description=__doc__.split("\n")[0])
    flags.add_argument(
        "--config", type=Path, default=config.CONFIG_FILE, help="configuration file (default: config.yaml)"
    )
    flags.add_argument("--overrides", default="{}", help="JSON object laid over the configuration")
    steps = flags.add_subparsers(dest="step", required=True, metavar="STEP")
    for name, step in STEPS.items():
        sub = steps.add_parser(name, help=step.__doc__.splitlines()[0], description=step.__doc__)
        if name in ("draw", "complete"):
            sub.add_argument("--experiment", required=True, help="name of the experiment")
    arguments = flags.parse_args()
    try:
        overrides = json.loads(arguments.overrides)
    except ValueError as error:
        raise UsageProblem(f"--overrides: not JSON ({error})") from error
    return STEPS[arguments.step](config.load(arguments.config, overrides), arguments)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Problem as problem:
        print(f"complab: {one_line(problem)}", file=sys.stderr)
        sys.exit(problem.code)
