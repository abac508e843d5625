"""What do the compiled regions of an unmodified program do while it runs?

`complab watch script.py ARGS...`, the same as `python -m complab.watch script.py ARGS...`, runs a program
as it is and tells at its end, also after an exception or Ctrl-C, a ledger of each region that went through
`torch.compile`, whichever form was used. RUNS, CAPTURED, STABLE and cost can be judged from outside; CORRECT
and WORTH IT cannot. Needs the standard library and torch only.
"""

import argparse
import atexit
import contextlib
import functools
import importlib.util
import io
import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType, TracebackType

from complab.errors import EXIT_ENVIRONMENT, EXIT_USAGE, Problem, UsageProblem, one_line

DESCRIPTION = """\
Runs a program unchanged and tells on stderr, at its end, a ledger of each torch.compile region. The exit
status is the program's own. What its child processes compile is not seen."""
# The package from its own folder, and nothing else of that folder: it may hold another Python's libraries.
_START = """\
import sys
sys.version_info >= (3, 11) or sys.exit("complab: watch needs Python 3.11 or later, this is %s" % sys.version)
from importlib import util
found = util.spec_from_file_location("complab", sys.argv[1], submodule_search_locations=[sys.argv[2]])
sys.modules["complab"] = util.module_from_spec(found)
found.loader.exec_module(sys.modules["complab"])
from complab import watch
watch.main(sys.argv[3:])
"""


def add_to(commands: argparse._SubParsersAction) -> None:
    """The subcommand with its flags."""
    told = "run a program unchanged, and tell at its end what its torch.compile regions did"
    flags = commands.add_parser("watch", help=told, description=DESCRIPTION)
    flags.add_argument("--python", help="the interpreter the program runs under; it needs torch only")
    _add_flags(flags)
    flags.set_defaults(command=_replace)


def _add_flags(flags: argparse.ArgumentParser) -> None:
    flags.add_argument("--json", type=Path, metavar="FILE", help="write the ledgers there as well")
    flags.add_argument("-m", action="store_true", dest="module", help="the program is a module's name")
    flags.add_argument("program", help="a Python file")
    flags.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program")


def _replace(arguments: argparse.Namespace) -> int:
    """Become the process of the program, which so gets every signal and leaves its own exit status.

    UsageProblem if there is no such interpreter.
    """
    python = shutil.which(arguments.python or sys.executable)
    if python is None:
        raise UsageProblem(f"--python {arguments.python} is no program; name an interpreter that has torch")
    package = Path(__file__).resolve().parent
    flags = ["--json", str(arguments.json)] if arguments.json else []
    flags += ["-m"] if arguments.module else []
    words = [*flags, "--", arguments.program, *arguments.arguments]
    sys.stdout.flush()
    os.execv(python, [python, "-c", _START, str(package / "__init__.py"), str(package), *words])


def main(argv: list[str] | None = None) -> None:
    """Run the program and have its regions told on stderr when it ends; exits as the program does."""
    flags = argparse.ArgumentParser(prog="complab watch", description=DESCRIPTION)
    _add_flags(flags)
    arguments = flags.parse_args(argv)
    try:
        module, run = _prepared(arguments)
        if arguments.json:
            # What cannot be written is better known now than after hours.
            arguments.json = arguments.json.absolute()
            arguments.json.touch()
    except (OSError, ImportError, Problem) as problem:
        _end(problem, EXIT_USAGE)
    try:
        import torch  # noqa: F401
    except ImportError:
        _end("this Python has no torch; name one that has with --python", EXIT_ENVIRONMENT)
    from complab.measure import watching

    watcher = watching.Watcher()
    try:
        watcher.__enter__()
    except Problem as problem:
        _end(problem, problem.code)
    # Registered before anything of the program is, so it comes last: after its threads and its own endings.
    atexit.register(_tell, watcher, watching.text, arguments.json, sys.stderr, os.getcwd(), os.getpid())
    sys.modules["__main__"] = module
    try:
        run()
    except SystemExit:
        raise
    except BaseException:
        sys.excepthook = functools.partial(_hook, sys.excepthook)
        raise


def _end(problem: object, status: int) -> None:
    print(f"complab: {one_line(problem)}", file=sys.stderr)
    sys.exit(status)


def _prepared(arguments: argparse.Namespace):
    """The program's main module, and what runs it; the process looks as if Python had started it.

    OSError or UsageProblem if there is no such program, ImportError if a package above it fails.
    """
    program = arguments.program
    sys.argv = [program, *arguments.arguments]
    folder = os.getcwd() if arguments.module else os.path.dirname(os.path.realpath(program))
    if not sys.flags.safe_path:
        sys.path[0] = folder
    if not arguments.module:
        file = os.path.abspath(program)
        with io.open_code(file) as stream:
            source = stream.read()
        module = ModuleType("__main__")
        module.__file__ = file
        return module, lambda: exec(compile(source, file, "exec", dont_inherit=True), vars(module))
    found = importlib.util.find_spec(program)
    if found is not None and found.submodule_search_locations is not None:
        found = importlib.util.find_spec(f"{program}.__main__")
    if found is None or not hasattr(found.loader, "get_code"):
        raise UsageProblem(
            f"-m {program} is no module that can be run; name one, or a Python file without -m"
        )
    module = importlib.util.module_from_spec(found)
    module.__name__ = "__main__"
    sys.argv[0] = found.origin
    return module, lambda: exec(found.loader.get_code(found.name), vars(module))


def _tell(watcher, text, json_file: Path | None, stream, folder: str, process: int) -> None:
    if os.getpid() != process:
        # A forked child ends as well.
        return
    told = watcher.report()
    with contextlib.suppress(OSError, ValueError):
        print(text(told, folder), file=stream, flush=True)
    if json_file:
        try:
            json_file.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as problem:
            print(f"complab: {one_line(problem)}; the ledgers are not written", file=stream)


def _hook(hook, kind: type, error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback without the frames that watch."""
    seen = set()
    each = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        each.__traceback__ = _without_ours(each.__traceback__)
        each = each.__cause__ or each.__context__
    hook(kind, error, error.__traceback__)


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    files = [each.tb_frame.f_code.co_filename for each in frames]
    # What is above our own last frame started us.
    begin = max((number + 1 for number, file in enumerate(files) if file == __file__), default=0)
    ours = os.path.join(os.path.dirname(__file__), "measure", "watching.py")
    kept = [each for each, file in zip(frames[begin:], files[begin:], strict=True) if file != ours]
    for each, following in zip(kept, [*kept[1:], None], strict=True):
        each.tb_next = following
    return kept[0] if kept else None


if __name__ == "__main__":
    main()
