"""What do the compiled regions of an unmodified program do while it runs?

`complab watch script.py ARGS...`, the same as `python -m complab.watch script.py ARGS...`, runs a program
as it is and tells at its end, also after an exception or Ctrl-C, a ledger of each region that went through
`torch.compile`, whichever form was used. RUNS, CAPTURED, STABLE and cost can be judged from outside; CORRECT
and WORTH IT cannot. Needs the standard library and torch only.
"""

import argparse
import contextlib
import json
import runpy
import sys
from pathlib import Path


def main(argv: list[str] | None = None) -> None:
    """Run the program and tell its regions on stderr; exits as the program does."""
    arguments = parser().parse_args(argv)
    try:
        import torch  # noqa: F401
    except ImportError:
        sys.exit("complab: this Python has no torch; name one that has with --python")
    from complab.measure import watching

    watcher = watching.Watcher()
    status, raised = 0, None
    with watcher:
        try:
            _run(arguments.program, arguments.arguments)
        except SystemExit as ending:
            raised = ending
        except BaseException as error:
            status, raised = 1, error
    told = watcher.report()
    told["raised"] = "" if not status else f"{type(raised).__name__}: {raised}"
    if arguments.json:
        arguments.json.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    with contextlib.suppress(BrokenPipeError):
        print(watching.text(told), file=sys.stderr, flush=True)
    if raised is not None:
        # As without us: its exit status, and its traceback without the frames that started it.
        raise raised.with_traceback(_own_frames(raised, arguments.program))


def _own_frames(raised: BaseException, program: str):
    """The traceback from the program's own first frame on; all of it where there is none."""
    frame = raised.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != program:
        frame = frame.tb_next
    return frame or raised.__traceback__


def parser() -> argparse.ArgumentParser:
    """Flags of the command; what follows the program's name belongs to the program."""
    flags = argparse.ArgumentParser(
        prog="complab watch",
        description="Run a program unchanged and tell, at its end, a ledger of each torch.compile region.",
    )
    flags.add_argument("--json", type=Path, metavar="FILE", help="write the ledgers there as well")
    flags.add_argument("program", help="a Python file")
    flags.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program")
    return flags


def _run(program: str, arguments: list[str]) -> None:
    sys.argv = [program, *arguments]
    # As Python itself does for a script, in place of the folder that this module was started from.
    sys.path[0] = str(Path(program).resolve().parent)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
