"""What does the pipeline do besides measuring? Headers before, exhibits and the final account after.

`python scripts/pipeline.py STEP ...` is what the rules call; each step has `--help`.
"""

import argparse
import json
import sys
from pathlib import Path

from complab import config, evidence, facts, preflight
from complab.cli import exit_with
from complab.errors import EnvironmentProblem, Problem, UsageProblem, counted
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


def draw_subject(settings: config.Settings, arguments: argparse.Namespace) -> int:
    """Draw what a diagnosis found about a subject."""
    from complab.report import subjects

    subjects.draw(settings, arguments.name, config.PROJECT / "results", config.PROJECT / "figures")
    return 0


def draw_ledgers(settings: config.Settings, _arguments: argparse.Namespace) -> int:
    """Draw what is about all experiments: every ledger, and the noise of the run."""
    from complab.report import ledgers

    ledgers.draw(settings, config.PROJECT / "results", config.PROJECT / "figures")
    return 0


def draw_claims(settings: config.Settings, _arguments: argparse.Namespace) -> int:
    """Judge every claim of the register from the run's evidence, and write what came of it."""
    from complab.report import claims_table

    claims_table.draw(settings, config.PROJECT / "results", config.PROJECT / "figures")
    return 0


def name_numbers(settings: config.Settings, _arguments: argparse.Namespace) -> int:
    """Give every number of the run's exhibits its name, for prose to take it by."""
    from complab.report import numbers

    numbers.write(settings, config.PROJECT / "figures")
    return 0


def draw_page(settings: config.Settings, _arguments: argparse.Namespace) -> int:
    """Draw the evidence page: exhibits, claims and ledgers in one file, each number with its chain."""
    from complab.report import page

    page.draw(settings, config.PROJECT / "results", config.PROJECT / "figures")
    return 0


def write_manifest(settings: config.Settings, arguments: argparse.Namespace) -> int:
    """Hash every exhibit file of the run into its manifest."""
    from complab.report import exhibits

    folder, results = config.PROJECT / "figures" / settings.run, config.PROJECT / "results"
    exhibits.write_manifest(settings, folder, results, json.loads(arguments.overrides))
    return 0


def redraw(settings: config.Settings, arguments: argparse.Namespace) -> int:
    """Draw every exhibit again from the evidence that is there, and hash them into the manifest."""
    for name in settings["experiments"]:
        arguments.experiment = name
        draw(settings, arguments)
    for name in settings["subjects"]:
        arguments.name = name
        draw_subject(settings, arguments)
    draw_ledgers(settings, arguments)
    draw_claims(settings, arguments)
    name_numbers(settings, arguments)
    draw_page(settings, arguments)
    return write_manifest(settings, arguments)


def complete(settings: config.Settings, arguments: argparse.Namespace) -> int:
    """Account for every planned cell, of one experiment or of all; fails, naming them, if any cell failed."""
    from complab.report import gather

    results = config.PROJECT / "results"
    names = [arguments.experiment] if arguments.experiment else list(settings["experiments"])
    found = [gather.gather(settings, name, results) for name in names]
    undiagnosed = [] if arguments.experiment else _undiagnosed(settings)
    failed = [record for gathered in found for record in gathered.failed]
    doubtful = [record for gathered in found for record in gathered.indeterminate]
    account = gather.account(record for gathered in found for record in gathered.records)
    for record in doubtful:
        print(f"indeterminate: {record.cell}: {'; '.join(record.provenance['cache']['reasons'])}")
    for record in failed:
        print(f"failed: {record.cell}: {record.provenance['failure']['message']}", file=sys.stderr)
    if failed:
        raise Problem(
            f"{counted(len(failed), 'cell')} of {account['planned']} failed; "
            "run.log in its folder says why, and the next run tries again"
        )
    if undiagnosed:
        raise Problem(f"{undiagnosed[0]}; mend the subject, and the next run tries again")
    folder = results / settings.run / (arguments.experiment or "")
    evidence.write_atomically(folder / "complete.json", json.dumps(account) + "\n")
    print(", ".join(f"{count} {what}" for what, count in account.items()))
    return 0


def _undiagnosed(settings: config.Settings) -> list[str]:
    if not settings["subjects"]:
        return []
    from complab.report import subjects

    return subjects.problems(settings, config.PROJECT / "results")


STEPS = {
    "headers": build_headers,
    "draw": draw,
    "subject": draw_subject,
    "ledgers": draw_ledgers,
    "claims": draw_claims,
    "numbers": name_numbers,
    "page": draw_page,
    "manifest": write_manifest,
    "redraw": redraw,
    "complete": complete,
}


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
            required = name == "draw"
            sub.add_argument(
                "--experiment", required=required, help="name of the experiment (complete: or all)"
            )
        if name == "subject":
            sub.add_argument("--name", required=True, help="name of the subject in the configuration")
    arguments = flags.parse_args()
    try:
        overrides = json.loads(arguments.overrides)
    except ValueError as error:
        raise UsageProblem(f"--overrides: not JSON ({error})") from error
    return STEPS[arguments.step](config.load(arguments.config, overrides), arguments)


if __name__ == "__main__":
    exit_with(main)
