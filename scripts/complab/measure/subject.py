"""What is the program under diagnosis, made afresh for each pass?

A subject is a Python file, or a module by its dotted name, that exposes `make()` and `calls()`, and
optionally `TOLERANCE`, `between(i, model)`, `REAL_CALLS` and `loss(out)`. Each pass executes it anew, so
that no global value and no code object of one pass is there in the next. Standard library and torch only.
"""

import importlib
import importlib.util
import linecache
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from complab.measure import remains

# A stream is a sample of the program's calls: one that goes on for longer is taken for endless.
MAX_CALLS = 1000
DEFAULT_TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
NAME = "complab_subject"


class SubjectProblem(Exception):
    """The file is no subject that can be diagnosed; the message is one line that says why."""


@dataclass
class Subject:
    """One fresh execution of a subject's file: what it exposes, checked."""

    module: ModuleType

    @property
    def loss(self) -> Callable | None:
        return getattr(self.module, "loss", None)

    @property
    def real_calls(self) -> int | None:
        return getattr(self.module, "REAL_CALLS", None)

    @property
    def tolerance(self) -> dict:
        return DEFAULT_TOLERANCE | getattr(self.module, "TOLERANCE", {})

    def make(self) -> tuple[Callable, dict]:
        """The callable and the keyword arguments of `torch.compile`; SubjectProblem if it is none of that."""
        made = self.module.make()
        if not (isinstance(made, tuple) and len(made) == 2):
            raise SubjectProblem(
                f"make() returned {_kind(made)}; it must return a pair: "
                "the callable or module, and a dict of torch.compile keyword arguments"
            )
        model, options = made
        if not callable(model):
            raise SubjectProblem(f"make() returned {_kind(model)} as the model, which cannot be called")
        if not (isinstance(options, dict) and all(isinstance(key, str) for key in options)):
            raise SubjectProblem(
                f"make() returned {_kind(options)} as options; they are a dict of torch.compile arguments"
            )
        return model, options

    def stream(self, model: Callable, before: Callable[[int], None]) -> Iterator[tuple[int, tuple, dict]]:
        """Each call's number and arguments; `between` runs before the arguments of its call are made.

        ``before`` is called first of all with the number of a call that may follow.
        """
        items = iter(self.module.calls())
        between = getattr(self.module, "between", None)
        for index in range(MAX_CALLS + 1):
            before(index)
            if between is not None:
                between(index, model)
            try:
                item = next(items)
            except StopIteration:
                if index == 0:
                    raise SubjectProblem("calls() is empty; it must yield at least one call") from None
                return
            if index == MAX_CALLS:
                raise SubjectProblem(
                    f"calls() yields more than {MAX_CALLS} calls; it must end: a sample is enough"
                )
            yield index, *_arguments(item, index)


def load(spec: str) -> Subject:
    """Execute a subject's file, or its module, anew; SubjectProblem if it exposes no `make` and `calls`."""
    module = _execute_file(Path(spec)) if spec.endswith(".py") else _import_anew(spec)
    for name in ("make", "calls"):
        if not callable(getattr(module, name, None)):
            raise SubjectProblem(f"it has no {name}(); a subject exposes make() and calls()")
    for name in ("between", "loss"):
        if not callable(getattr(module, name, len)):
            raise SubjectProblem(f"{name} is {_kind(getattr(module, name))}; it must be a function")
    remains.PROGRAMS.add(module.__name__.partition(".")[0])
    subject = Subject(module)
    _check_tolerance(getattr(module, "TOLERANCE", {}))
    calls = subject.real_calls
    if calls is not None and not (isinstance(calls, int) and calls > 0):
        raise SubjectProblem(f"REAL_CALLS is {calls!r}; it must be a positive number of calls")
    return subject


def _check_tolerance(told: object) -> None:
    fits = isinstance(told, dict) and set(told) <= set(DEFAULT_TOLERANCE)
    if not fits or not all(isinstance(value, int | float) and value >= 0 for value in told.values()):
        raise SubjectProblem(f"TOLERANCE is {told!r}; it must be dict(rtol=..., atol=...), neither negative")


def _execute_file(path: Path) -> ModuleType:
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(NAME, path)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses, pickling and Dynamo's guards look a module up by its name.
    sys.modules[NAME] = module
    linecache.checkcache()
    spec.loader.exec_module(module)
    return module


def _import_anew(name: str) -> ModuleType:
    if name in sys.modules:
        return importlib.reload(sys.modules[name])
    return importlib.import_module(name)


def _arguments(item: object, index: int) -> tuple[tuple, dict]:
    if (
        isinstance(item, tuple)
        and len(item) == 2
        and isinstance(item[0], tuple)
        and isinstance(item[1], dict)
    ):
        return item
    raise SubjectProblem(
        f"calls() yielded {_kind(item)} at call {index}; each item is a pair: "
        "a tuple of arguments and a dict of keyword arguments"
    )


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"a {name} of {len(value)}" if isinstance(value, tuple | list) else f"a {name}"
