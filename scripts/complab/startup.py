"""May this run of the rules start? In the right place, alone, and not told to trust what is incomplete.

Asked by the rules before the first job; nothing that is measured depends on it.
"""

import contextlib
import fcntl
import os
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from complab.errors import EnvironmentProblem, Problem, UsageProblem, one_line

LOCK = Path("results") / ".lock"
SNAKEMAKES_LOCKS = Path(".snakemake") / "locks"
# The descriptor of the lock that this process holds, once it does.
_held: list[int] = []


@contextlib.contextmanager
def problems_in_one_line() -> Iterator[None]:
    """End this process with a problem's line and status; Snakemake would add where in the rules it arose."""
    try:
        yield
    except Problem as problem:
        print(f"complab: {one_line(problem)}", file=sys.stderr)
        sys.exit(problem.code)


def require_place(project: Path) -> None:
    """Problem unless Snakemake works in the project's own folder, and may write there."""
    if not os.path.samefile(os.getcwd(), project):
        raise UsageProblem(
            f"{os.getcwd()}: evidence and exhibits lie beside the rules, so start Snakemake without -d in "
            f"{project}; to measure elsewhere, clone the project there"
        )
    if not os.access(project, os.W_OK):
        raise EnvironmentProblem(
            f"{project}: cannot be written; `git clone` it into a folder of your own and start there "
            "(`complab` reads evidence here all the same)"
        )


def begin(workflow, project: Path) -> None:
    """Before the first job of a run that executes: Problem if it may not; planning and showing always may.

    Asked where Snakemake chooses the jobs, since only there it knows whether it will execute them.
    """
    if _held or workflow.execution_settings is None or workflow.dryrun or not workflow.is_main_process:
        return
    refuse_flags(workflow)
    rest_while_measuring(workflow)
    _held.append(only_run(project))
    # What a killed run left locked is nobody's: its hold on our own lock ended with it.
    for left in (project / SNAKEMAKES_LOCKS).glob("*.lock"):
        left.unlink(missing_ok=True)


def rest_while_measuring(workflow) -> None:
    """Have Snakemake sleep until a job ends.

    With a limit on how many jobs may start in a second it chooses again a second after each choice, and every
    job that ends begins one more such chain: after two hundred jobs that takes a core, beside what is timed.
    """
    workflow.scheduling_settings.max_jobs_per_timespan = None


# A process is sent SIGTERM when its parent dies: Snakemake itself, since the shell gives it its own place.
TOLD_TO_END = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execvp(sys.argv[1], sys.argv[1:])"


def shell_prefix(interpreter: str) -> str:
    """What stands before each job's command, with the braces doubled that Snakemake would fill in.

    `python` is the interpreter that runs Snakemake, whether or not its environment is active, and ends with
    Snakemake however that ends: no orphan goes on measuring.
    """
    path = shlex.quote(str(Path(interpreter).parent))
    ends = f'python() {{{{ exec {path}/python -SE -c "{TOLD_TO_END}" python "$@"; }}}}'
    return f'set -euo pipefail; PATH={path}:"$PATH"; {ends}; '


def refuse_flags(workflow) -> None:
    """UsageProblem if a flag would have Snakemake take a failed, unfinished or stale file for a good one."""
    execution, triggers = workflow.execution_settings, workflow.dag_settings.rerun_triggers
    given = {
        "--keep-incomplete": execution.keep_incomplete,
        "--ignore-incomplete": execution.ignore_incomplete,
        "--touch": workflow.touch,
        "--consider-ancient": bool(workflow.workflow_settings.consider_ancient),
        "--rerun-triggers": not {"params", "code", "input", "mtime"} <= {str(each) for each in triggers},
    }
    for flag in (flag for flag, is_given in given.items() if is_given):
        raise UsageProblem(f"{flag}: would let a stale or unfinished file pass for evidence; leave it out")


def only_run(project: Path) -> int:
    """Take the project's lock, which goes with this process; Problem names another holder by its id."""
    path = project / LOCK
    try:
        path.parent.mkdir(exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise EnvironmentProblem(f"{path}: cannot be written ({error.strerror}); make it writable") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise Problem(
            f"another run, process {holder}, is at work in {project}; let it end, or stop it"
        ) from None
    with contextlib.suppress(OSError):  # A full disk: the lock holds, though nobody can read whose it is.
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def not_of_the_future(path: Path) -> None:
    """Date a file now that bears a later time; where it cannot be dated nothing can be measured either."""
    with contextlib.suppress(OSError):
        if path.stat().st_mtime > time.time():
            os.utime(path)
