"""What does torch give, in private, to whoever looks at a program that is not one of the experiments?

Used by `complab diagnose` and `complab watch`. Together with `complab.measure.dynamo` the one place that
touches private parts of torch; apart from it, since no evidence of an experiment is about what stands here.
"""

import contextlib
import functools
import logging
from collections import deque
from collections.abc import Callable

import torch
import torch._dynamo as _dynamo
import torch._dynamo.eval_frame as _eval_frame
import torch._logging._internal as _logging_internal
from torch._dynamo import utils as _utils

LISTENED = ("graph_breaks", "recompiles")


# What a run may change about a subject.


def limit_setting() -> str:
    """The name that this release gives the recompile limit."""
    return "recompile_limit" if hasattr(_dynamo.config, "recompile_limit") else "cache_size_limit"


def has_setting(name: str) -> bool:
    """Whether this release has a setting of Dynamo or, as `inductor.name`, of Inductor."""
    return hasattr(*_setting(name))


def set_setting(name: str, value: object) -> object:
    """Change a setting of Dynamo or, as `inductor.name`, of Inductor; returns what it was."""
    config, key = _setting(name)
    before = getattr(config, key)
    setattr(config, key, value)
    return before


def _setting(name: str) -> tuple:
    if name.startswith("inductor."):
        import torch._inductor.config as config

        return config, name.removeprefix("inductor.")
    return _dynamo.config, name


def inductor(mode: str | None, options: dict | None, dynamic: bool | None) -> Callable:
    """Inductor as `torch.compile` calls it; RuntimeError for a mode or an option that the release lacks."""
    return torch._TorchCompileInductorWrapper(mode, options, dynamic)


def backend_of(backend: str | Callable) -> Callable:
    """The compiler behind a backend's name; a callable is its own."""
    return _dynamo.lookup_backend(backend)


def keep_wrapper(wrapper: Callable) -> None:
    """Have Dynamo call a wrapper, not what it wraps: 2.6 follows a mark that `functools.wraps` copies."""
    vars(wrapper).pop("_torchdynamo_orig_callable", None)


def mark_moving(tensor, dimension: int) -> None:
    """Tell Dynamo that this dimension varies, in the form that the program's own specialization overrules."""
    _dynamo.maybe_mark_dynamic(tensor, dimension)


@contextlib.contextmanager
def weak_marks():
    """Have the program's own `mark_dynamic` mark as `mark_moving` does."""
    strong = _dynamo.mark_dynamic

    def weak(tensor, index, **bounds):
        _dynamo.maybe_mark_dynamic(tensor, index)

    _dynamo.mark_dynamic = weak
    try:
        yield
    finally:
        _dynamo.mark_dynamic = strong


def leave_out(function: Callable) -> None:
    """Have graphs leave out the calls of a logging function, or make them later, where the release can."""
    for name in ("ignore_logging_functions", "reorderable_logging_functions"):
        if hasattr(_dynamo.config, name):
            getattr(_dynamo.config, name).add(function)
            return


def dispatch_modes() -> list[str]:
    """Names of the active dispatch modes, outermost first: under one, Dynamo skips every frame."""
    depth = torch._C._len_torch_dispatch_stack()
    return [type(torch._C._get_dispatch_stack_at(place)).__name__ for place in range(depth)]


def outside_of_modes():
    """A context without any dispatch mode."""
    from torch.utils import _python_dispatch

    return _python_dispatch._disable_current_modes()


# What watching a program needs.


def skip_frames(code) -> None:
    """Have Dynamo leave frames of this code object alone; the frames that they call are still looked at."""
    _eval_frame.skip_code(code)


def watch_compiling(watch: Callable[[Callable, object], object]) -> Callable[[], None]:
    """Have each callable compiled by ``watch(compile, callable)``; returns what ends it.

    Below `torch.compile`, which stays as it is: also a decorator that was imported before, `Module.compile`
    and a copy of a compiled module come by here. A module or a class comes by once more with its function.
    """
    context = _eval_frame.OptimizeContext
    own, compile = vars(context).get("__call__"), context.__call__

    def __call__(self, given):
        # Export goes this way too, and runs nothing later.
        return compile(self, given) if self.export else watch(functools.partial(compile, self), given)

    context.__call__ = __call__

    def stop() -> None:
        if own is None:
            del context.__call__
        else:
            context.__call__ = own

    return stop


def keep_compiled(shell: Callable, compiled: Callable) -> None:
    """Have Dynamo take a shell with the compiled function's attributes for that function itself."""
    # By this newer releases know it: compiled again, it stays one region.
    if hasattr(compiled, "_torchdynamo_wrapper_id"):
        shell._torchdynamo_wrapper_id = id(shell)


def tells_compilations() -> bool:
    """Whether this release keeps the record that `note_compilations` listens to."""
    return isinstance(getattr(_utils, "_compilation_metrics", None), deque)


def note_compilations(note: Callable[[object], None]) -> Callable[[], None]:
    """Hand on each compilation that Dynamo tells of, in the thread that compiled; returns what ends it.

    Dynamo itself keeps the last 64 only, those of all threads together; that record stays as it is.
    """
    heard = _Compilations(_utils._compilation_metrics, _utils._compilation_metrics.maxlen)
    heard.note = note
    _utils._compilation_metrics = heard

    def stop() -> None:
        heard.note = None

    return stop


class _Compilations(deque):
    note = None

    def append(self, compilation) -> None:
        super().append(compilation)
        if self.note is not None:
            self.note(compilation)


class Ear(logging.Filter):
    """Hears what Dynamo logs of breaks, recompiles and limits, and lets pass on what the program asked for.

    Each message is handed on as the function that makes its text. It is a filter, since what reaches the
    handlers is shown, by those of pytest for one.
    """

    def __init__(self, note: Callable[[Callable[[], str]], None]):
        super().__init__()
        self._note, self._formatter = note, _logging_internal.TorchLogsFormatter()
        self._mark = f"complab {id(self)}"
        self._asked: set[str] = set()
        self._levels: dict[logging.Logger, int] = {}

    @property
    def deaf(self) -> bool:
        """Whether `set_logs` or the like has since forgotten that these messages are wanted."""
        return self._mark not in _logging_internal.log_state.artifact_names

    def listen(self) -> None:
        """Have Dynamo make these messages, from now on until `stop`, or until it is deaf."""
        names = _logging_internal.log_state.artifact_names
        self._asked = set(names)
        # Asked by Dynamo before it makes a message; a level alone is not enough.
        names.update(LISTENED, (self._mark,))
        # The limit is told by a plain warning.
        for each in [*_artifact_loggers(), logging.getLogger("torch._dynamo.convert_frame")]:
            self._levels.setdefault(each, each.level)
            if getattr(each, "artifact_name", None):
                each.setLevel(logging.DEBUG)
            if self not in each.filters:
                # In front of one that lets nothing pass.
                each.filters.insert(0, self)

    def filter(self, record: logging.LogRecord) -> bool:
        self._note(lambda: self._formatter.format(record) + "\n")
        artifact = getattr(logging.getLogger(record.name), "artifact_name", None)
        return artifact is None or artifact in self._asked

    def stop(self) -> None:
        """What the program's own settings print stays as it was."""
        for each, level in self._levels.items():
            each.removeFilter(self)
            each.setLevel(level)
        _logging_internal.log_state.artifact_names.difference_update({self._mark, *LISTENED} - self._asked)


def _artifact_loggers() -> list[logging.Logger]:
    every = list(logging.root.manager.loggerDict.values())
    return [each for each in every if getattr(each, "artifact_name", None) in LISTENED]
