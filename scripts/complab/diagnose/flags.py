"""Which flags does `complab diagnose` take? Apart from what it does, which other commands need not load."""

import argparse
from pathlib import Path

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
    flags.add_argument(
        "--record",
        action="store_true",
        help="with --out: record what cannot be diagnosed too, and exit 0",
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
    flags.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    from complab.diagnose import command

    return command.run(arguments)
