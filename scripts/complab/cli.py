"""What can a person ask of evidence that is already there? The `complab` command."""

import argparse
import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from complab import bundle, config, watch
from complab.diagnose import flags as diagnose
from complab.errors import EXIT_FAILED, Problem, one_line, reader_left
from complab.report import classes, manuscript

RESULTS = config.PROJECT / "results"
FIGURES = config.PROJECT / "figures"


def main(argv: list[str] | None = None) -> None:
    """Entry point; exits 0, or with the status of the problem it tells in one line."""
    arguments = _parser().parse_args(argv)
    exit_with(lambda: arguments.command(arguments))


def exit_with(command: Callable[[], int]) -> NoReturn:
    """Exit with the status a command returns, or with that of its problem, told in one line."""
    try:
        status = command()
        sys.stdout.flush()
    except Problem as problem:
        print(f"complab: {one_line(problem)}", file=sys.stderr)
        sys.exit(problem.code)
    except BrokenPipeError:
        reader_left()
    except OSError as problem:
        print(f"complab: {one_line(problem)}; make room or make it writable", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    sys.exit(status)


def _parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(
        prog="complab",
        description="Diagnose a torch.compile call, watch a program's; audit, bundle and unpack a run.",
    )
    commands = flags.add_subparsers(required=True, metavar="COMMAND")
    told = "verify everything, or trace a number back to rows, log, code and machine"
    exits = ", ".join(f"{code} {kind}" for kind, code in classes.EXIT.items())
    check = commands.add_parser(
        "audit",
        help=told,
        description=f"{told}. Exit status: {exits}; the worst decides. A manuscript: {manuscript.STATUS}",
        epilog=manuscript.HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument(
        "target",
        nargs="?",
        default="",
        help="a number as printed, an exhibit's file, a figure from anywhere, a run, a bundle; default: all",
    )
    check.add_argument("--table", default="", help="table of the exhibit (default: that of the file)")
    check.add_argument("--row", default="", help="row of the table, or mark of the figure")
    check.add_argument("--column", default="", help="column of the table")
    check.add_argument("--run", default="", help="name of the evidence set (default: every one there is)")
    check.add_argument("--json", action="store_true", help="tell it as JSON")
    check.add_argument("--deep", action="store_true", help="open sealed caches, draw every figure again")
    check.add_argument(
        "--manuscript",
        type=Path,
        metavar="FILE",
        help="a text, Markdown or LaTeX, whose numbers are held against a run (default: current)",
    )
    check.add_argument("--verbose", action="store_true", help="list a manuscript's right numbers too")
    check.set_defaults(command=_audit)
    told = "zip the evidence of a run, sealed caches left out, into figures/RUN/bundle.zip"
    pack = commands.add_parser("bundle", help=told, description=told)
    pack.add_argument("--run", help="name of the evidence set (default: current)")
    pack.add_argument("--out", type=Path, help="the zip to write (default: figures/RUN/bundle.zip)")
    pack.set_defaults(command=_bundle)
    told = "put the evidence of a bundle into results/RUN, to draw its exhibits again"
    take = commands.add_parser("unpack", help=told, description=told)
    take.add_argument("bundle", type=Path, help="the zip that `complab bundle` wrote")
    take.set_defaults(command=_unpack)
    diagnose.add_to(commands)
    watch.add_to(commands)
    return flags


def _audit(arguments: argparse.Namespace) -> int:
    if arguments.manuscript is not None:
        run = arguments.run or "current"
        return manuscript.audit(arguments.manuscript, run, FIGURES / run, arguments.json, arguments.verbose)
    # Nothing that an audit makes is garbage before it ends, and looking for some takes a fifth of its time.
    gc.disable()
    from complab.report import audit, chain, targets

    wanted = targets.Wanted(arguments.table, arguments.row, arguments.column)
    found = targets.answers(arguments.target, wanted, RESULTS, FIGURES, arguments.run, arguments.deep)
    reports, chains = [], []
    with targets.closing(found):
        for answer in found:
            reports.append(answer.report)
            several = len(answer.numbers) > targets.CHAINS
            told = [] if several else [chain.chain(answer.tree, number) for number in answer.numbers]
            chains += told
            if not arguments.json:
                _print_numbers(answer.numbers if several else [], answer.tree.run)
                text = "\n".join([*map(chain.text_of, told), audit.text_of(answer.report)])
                # Texts in a bundle are a stranger's: they may not steer a terminal.
                print("".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text), end="")
    verdict = audit.worst(report.verdict for report in reports)
    if arguments.json:
        told = {"class": verdict, "exit": classes.EXIT[verdict], "runs": [each.as_dict() for each in reports]}
        print(
            json.dumps(told | {"chains": [each.as_dict() for each in chains]}, indent=1, ensure_ascii=False)
        )
    return classes.EXIT[verdict]


def _print_numbers(numbers: list, run: str) -> None:
    for number in numbers:
        print(f"{number.told['text']:24} {number.place}, run {run}")
    if numbers:
        print(f"{len(numbers)} numbers; name one by its file with --row and --column to see its chain\n")


def _bundle(arguments: argparse.Namespace) -> int:
    run = arguments.run or "current"
    target = arguments.out or FIGURES / run / "bundle.zip"
    bundle.require_commits(RESULTS, run)
    count = bundle.write(RESULTS, run, target)
    print(f"{target}: {count} cells, {target.stat().st_size / 1e6:.1f} MB")
    return 0


def _unpack(arguments: argparse.Namespace) -> int:
    run = bundle.install(arguments.bundle, RESULTS)
    print(f"results/{run}: unpacked; `snakemake --cores 1 exhibits --config run={run}` draws it again")
    return 0


if __name__ == "__main__":
    main()
