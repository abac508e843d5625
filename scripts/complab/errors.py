"""How does complab say that something is wrong? In one line: what, where, what to do."""

import os
import signal
import sys
from typing import NoReturn

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_ENVIRONMENT = 3
EXIT_UNVERIFIED = 4


class Problem(Exception):
    """A failure a person can act on; the message is one line.

    ``code`` is the process exit status: 1 a measurement failed, 2 bad input,
    3 the machine lacks something, 4 evidence does not verify.
    """

    code = EXIT_FAILED


class UsageProblem(Problem):
    """Bad input: a flag, a config key, a path."""

    code = EXIT_USAGE


class EnvironmentProblem(Problem):
    """The machine lacks something the measurement needs."""

    code = EXIT_ENVIRONMENT


class Unverified(Problem):
    """Evidence on disk is missing, altered, or does not belong where it lies."""

    code = EXIT_UNVERIFIED


def counted(number: float, noun: str) -> str:
    """`1 variant`, `2 variants`, `3 binaries`, `4 misses`."""
    if number != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{int(number)} {noun}"


def one_line(text: object, limit: int = 400) -> str:
    """The text without line breaks, cut at ``limit`` characters."""
    flat = " ".join(str(text).split())
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."


def reader_left() -> NoReturn:
    """Exit as one whom the reader of its output has left, as `head` does, with nothing more to say."""
    # What is left must not meet the closed pipe again at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(128 + signal.SIGPIPE)
