"""What can a person ask of evidence that is already there? The `complab` command."""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from complab import bundle, config, evidence
from complab.errors import EXIT_FAILED, Problem, Unverified, UsageProblem, one_line
from complab.report import gather, manuscript

RESULTS = config.PROJECT / "results"
FIGURES = config.PROJECT / "figures"


def main(argv: list[str] | None = None) -> None:
    """Entry point; exits 0, or with the status of the problem it tells in one line."""
    arguments = _parser().parse_args(argv)
    exit_with(lambda: arguments.command(arguments))


def exit_with(command: Callable[[], int]) -> NoReturn:
    """Exit with the status a command returns, or with that of its problem, told in one line."""
    try:
        sys.exit(command())
    except Problem as problem:
        print(f"complab: {one_line(problem)}", file=sys.stderr)
        sys.exit(problem.code)
    except OSError as problem:
        print(f"complab: {one_line(problem)}; make room or make it writable", file=sys.stderr)
        sys.exit(EXIT_FAILED)


def _parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(prog="complab", description="Verify and bundle the evidence of a run.")
    commands = flags.add_subparsers(required=True, metavar="COMMAND")
    told = "verify every file of a run, or of a bundle; exit 1 if a cell failed, 4 if a file does not verify"
    check = commands.add_parser("check", help=told, description=told)
    check.add_argument("bundle", nargs="?", type=Path, help="a bundle to verify instead of results/")
    check.add_argument("--run", help="name of the evidence set (default: current)")
    check.set_defaults(command=_check)
    told = "zip the evidence of a run, sealed caches left out, into figures/RUN/bundle.zip"
    pack = commands.add_parser("bundle", help=told, description=told)
    pack.add_argument("--run", help="name of the evidence set (default: current)")
    pack.add_argument("--out", type=Path, help="the zip to write (default: figures/RUN/bundle.zip)")
    pack.set_defaults(command=_bundle)
    told = "hold every number of a text, Markdown or LaTeX, against what a run says now"
    audit = commands.add_parser(
        "audit",
        help=told,
        description=f"{told}; {manuscript.STATUS}",
        epilog=manuscript.HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    audit.add_argument("--manuscript", type=Path, required=True, metavar="FILE", help="the text")
    audit.add_argument("--run", help="name of the evidence set (default: current)")
    audit.add_argument("--json", action="store_true", help="tell everything as JSON")
    audit.add_argument("--verbose", action="store_true", help="list right and vouched for numbers too")
    audit.set_defaults(command=_audit)
    return flags


def _audit(arguments: argparse.Namespace) -> int:
    run = arguments.run or "current"
    return manuscript.audit(arguments.manuscript, run, FIGURES / run, arguments.json, arguments.verbose)


def _check(arguments: argparse.Namespace) -> int:
    if arguments.bundle is None:
        run = arguments.run or "current"
        return _report(RESULTS, run) or _check_exhibits(FIGURES / run)
    with tempfile.TemporaryDirectory(prefix="complab-bundle-") as folder:
        run = bundle.unpack(arguments.bundle, Path(folder))
        return _report(Path(folder), run)


def _report(results: Path, run: str) -> int:
    """Verify every cell of a run and say what they are; 1 if one failed."""
    folders = sorted(path.parent for path in (results / run).glob(f"*/*/*/*/{evidence.PROVENANCE}"))
    if not folders:
        raise UsageProblem(f"run '{run}' has no evidence; measure it, or name another with --run")
    records = [evidence.verify(folder, run, evidence.cell_of(folder)) for folder in folders]
    gather.refuse_strange_pairs(records)
    verdicts: dict[str, int] = {}
    for record in records:
        verdict = "failed" if record.failed else record.verdict
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
        if not record.determinate:
            told = record.provenance["cache"]["reasons"]
            reasons = record.provenance["failure"]["message"] if record.failed else "; ".join(told)
            print(f"{record.cell}: {verdict}: {reasons}")
    counted = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    rows = sum(len(record.rows) for record in records)
    print(f"run {run}: {len(records)} cells verified ({counted}), {rows} rows")
    return EXIT_FAILED if "failed" in verdicts else 0


def _check_exhibits(folder: Path) -> int:
    """Hold the exhibits against their manifest; a run without exhibits has nothing to hold."""
    path = folder / "manifest.json"
    if not path.exists():
        print("no exhibits drawn yet")
        return 0
    listed = json.loads(path.read_text(encoding="utf-8"))["files"]
    for name, entry in listed.items():
        if not (folder / name).is_file():
            raise Unverified(
                f"{folder / name}: missing, though the manifest lists it; draw the exhibits again"
            )
        if evidence.sha256_of(folder / name) != entry["sha256"]:
            raise Unverified(f"{folder / name}: altered since it was drawn; draw the exhibits again")
    print(f"{len(listed)} exhibit files as drawn")
    return 0


def _bundle(arguments: argparse.Namespace) -> int:
    run = arguments.run or "current"
    target = arguments.out or FIGURES / run / "bundle.zip"
    count = bundle.write(RESULTS, run, target)
    print(f"{target}: {count} cells, {target.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    main()
